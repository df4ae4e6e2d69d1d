"""Small networks and any training function, informed adversaries, black boxes and membership (Balle et al. 2022)."""
