"""γ: the success that no attack can exceed. Pure NumPy and SciPy; needs no model and no data.

>>> from remanence import bounds
>>> round(bounds.dpsgd(1 / 100, noise_multiplier=1.1, sample_rate=0.01, steps=1000).success, 4)
0.0254
"""

from remanence.bounds.bound import Bound
from remanence.bounds.definitions import (
    approximate_dp,
    delta_from_pair,
    epsilon_from_pair,
    pair_success,
    profile,
    pure_dp,
    renyi,
)
from remanence.bounds.engine.dpsgd import delta_lower, delta_upper, epsilon_upper
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.information import fano, mutual_information
from remanence.bounds.of_mechanism import any_of_class, of, of_classes
from remanence.bounds.people import attribute, crowd
from remanence.bounds.person import Person, RecordCounts
from remanence.bounds.recipes import recompute
from remanence.bounds.releases import (
    correlated_noise,
    final_weights,
    individual,
    participation_matrix,
    truncated_poisson,
)
from remanence.bounds.settings import dpsgd, dpsgd_renyi, gaussian, in_or_out, laplace, true_positives

__all__ = [
    "Bound",
    "Person",
    "RecordCounts",
    "Segment",
    "any_of_class",
    "approximate_dp",
    "attribute",
    "correlated_noise",
    "crowd",
    "delta_from_pair",
    "delta_lower",
    "delta_upper",
    "dpsgd",
    "dpsgd_renyi",
    "epsilon_from_pair",
    "epsilon_upper",
    "fano",
    "final_weights",
    "gaussian",
    "in_or_out",
    "individual",
    "laplace",
    "mutual_information",
    "of",
    "of_classes",
    "pair_success",
    "participation_matrix",
    "profile",
    "pure_dp",
    "recompute",
    "renyi",
    "true_positives",
    "truncated_poisson",
]
