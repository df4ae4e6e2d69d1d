"""The missing record of a generalised linear model, in closed form."""
