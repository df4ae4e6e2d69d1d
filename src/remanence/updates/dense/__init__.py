"""Networks that end in dense layers: the inputs of these layers are read."""
