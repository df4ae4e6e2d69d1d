"""Gradients and updates that exist."""
