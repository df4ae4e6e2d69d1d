"""A page on which anyone can drag the noise and watch the risk."""
