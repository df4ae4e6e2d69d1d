"""Networks that read pictures in patches."""
