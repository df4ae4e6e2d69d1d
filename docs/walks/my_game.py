"""A game of your own: ten candidates, and a sum with noise."""

import torch

from remanence import Criterion, FinitePrior, Game, NoisySum, Records, bounds


def factory():
    corners = Records(torch.eye(10, dtype=torch.float64), torch.zeros(10))
    ceiling = bounds.gaussian(1 / 10, noise_multiplier=0.5)
    return Game(
        NoisySum(noise_multiplier=0.5),
        FinitePrior(corners),
        corners[:3],
        Criterion(threshold=1e-6),
        bounds=(ceiling,),
    )
