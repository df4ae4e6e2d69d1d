"""γ: the success that no attack can exceed. Pure NumPy and SciPy; needs no model and no data.

>>> from remanence import bounds
>>> round(bounds.dpsgd(1 / 100, noise_multiplier=1.1, sample_rate=0.01, steps=1000).success, 4)
0.0254
"""

from remanence.bounds.bound import Bound
from remanence.bounds.definitions import approximate_dp, profile, pure_dp, renyi
from remanence.bounds.engine.dpsgd import delta_lower, delta_upper, epsilon_upper
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.of_mechanism import any_of_class, of, of_classes
from remanence.bounds.person import Person
from remanence.bounds.recipes import recompute
from remanence.bounds.releases import correlated_noise, final_weights
from remanence.bounds.settings import dpsgd, gaussian, in_or_out, laplace, true_positives

__all__ = [
    "Bound",
    "Person",
    "Segment",
    "any_of_class",
    "approximate_dp",
    "correlated_noise",
    "delta_lower",
    "delta_upper",
    "dpsgd",
    "epsilon_upper",
    "final_weights",
    "gaussian",
    "in_or_out",
    "laplace",
    "of",
    "of_classes",
    "profile",
    "pure_dp",
    "recompute",
    "renyi",
    "true_positives",
]
