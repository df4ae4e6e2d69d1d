"""Networks, trained by gradient descent with and without privacy."""
