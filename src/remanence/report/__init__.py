"""Views of an audit: pure functions of its result."""
