"""Balle's RecoNN and shadow farms: what networks and heads share."""
