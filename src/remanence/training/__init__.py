"""Small networks, thousands trained as one batch of tensors: shared by networks, private and heads."""
