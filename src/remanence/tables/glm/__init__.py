"""Generalised linear models at their optimum, and the record that is missing from it (Balle et al. 2022, Theorem 1)."""
