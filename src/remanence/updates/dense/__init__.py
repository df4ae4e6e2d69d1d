"""Networks that end in dense layers: what enters these is read."""
