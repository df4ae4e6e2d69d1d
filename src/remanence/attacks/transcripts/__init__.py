"""Records from the privatised gradients of a whole DP-SGD run."""
