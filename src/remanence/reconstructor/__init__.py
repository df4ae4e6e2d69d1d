"""Balle's RecoNN and shadow farms, shared by networks and heads."""
