"""DP-SGD, prior-aware attacks, recorded training runs (Hayes et al. 2023)."""
