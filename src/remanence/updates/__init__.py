"""Gradients and federated updates, read exactly (Pan et al. 2022)."""
