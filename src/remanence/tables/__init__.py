"""Fitted models of tables: Balle's Theorem 1, GLMs and scikit-learn."""
