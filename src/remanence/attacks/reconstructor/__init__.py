"""A network that learns to invert training from shadow models."""
