"""The vocabulary of the game: records, releases, priors, errors, rates, attacks, mechanisms. Imports no door."""
