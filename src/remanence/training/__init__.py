"""Small networks, thousands trained as one batch of tensors: what networks, private and heads share."""
