"""R: from a release to a reconstruction."""
