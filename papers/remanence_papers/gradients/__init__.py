"""Pan et al. 2022 as printed, and what only its figures need."""
