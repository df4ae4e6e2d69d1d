"""A DP training run as it really ran: its canaries, and whether it is what it claims."""
