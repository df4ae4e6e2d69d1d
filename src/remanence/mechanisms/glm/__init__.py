"""Generalised linear models, trained to their optimum."""
