"""Transfer-learned heads: before they are published, and the very head that is."""
