"""Remanence tells you how much of your training data can be read back out of what you release.

From both sides of one inequality: what the best attack recovers (measured, a lower limit) and what
no attack can exceed (proven, an upper limit). Start with `remanence.game`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remanence.adversary import Knowledge
    from remanence.attacks.attack import Attack, Reconstruction
    from remanence.attacks.closed_form import ClosedForm
    from remanence.attacks.exclusive_neurons import ExclusiveNeurons
    from remanence.attacks.gradient_based import GradientBased
    from remanence.attacks.gradient_matching import DLG, IDLG, GradientMatching, InvertingGradients
    from remanence.attacks.low_rank import LowRank
    from remanence.attacks.oblivious import Oblivious
    from remanence.attacks.prior_aware import PriorAware
    from remanence.attacks.reconstructor import Reconstructor
    from remanence.attacks.retrain import RetrainAndCompare
    from remanence.attacks.scaler_mean import ScalerMean
    from remanence.attributes import Attribute, infer_attributes
    from remanence.auditing import AuditResult, audit
    from remanence.bounds.bound import Bound
    from remanence.calibration import calibrate, noise_for_epsilon
    from remanence.errors import (
        Criterion,
        Error,
        Reduction,
        classifier_divergence,
        mean_squared_error,
        mismatch,
        nearest_neighbour_errors,
        on_columns,
        pixels_off,
        public_errors,
        relative_error,
        squared_and_absolute_error,
    )
    from remanence.evidence import Evidence
    from remanence.exceptions import IncompatibleGameError, InputError, RemanenceError
    from remanence.game import Game, play
    from remanence.gradients.exposure import Exposure, gradient_exposure
    from remanence.gradients.guard import ExclusivityGuard
    from remanence.head_audit import audit_head, head_game
    from remanence.journal import Journal
    from remanence.leave_one_out import LeaveOneOut
    from remanence.mechanisms.disclosed import Disclosed
    from remanence.mechanisms.dpsgd import DPSGD
    from remanence.mechanisms.families import Gaussian, Logistic, Multinomial, Tweedie
    from remanence.mechanisms.glm import GLM
    from remanence.mechanisms.heads import TransferHead, augment, embed
    from remanence.mechanisms.looped import looped
    from remanence.mechanisms.mechanism import Mechanism
    from remanence.mechanisms.modules import AnyModule
    from remanence.mechanisms.networks import Perceptron
    from remanence.mechanisms.noisy_sum import NoisySum
    from remanence.mechanisms.queried import Queried
    from remanence.mechanisms.sgd import SGD
    from remanence.mechanisms.shared_gradient import SharedGradient
    from remanence.membership import Membership
    from remanence.priors import EmpiricalPrior, FinitePrior, Prior, StratifiedPrior, Uninformed
    from remanence.private_heads import private_recipe
    from remanence.processes import Processes
    from remanence.records import Records
    from remanence.released_head import PictureExposure, exposed_pictures
    from remanence.releases import Gradient, Logits, Release, Transcript, Weights
    from remanence.roc import Roc
    from remanence.statistics import SuccessRate
    from remanence.sweeping import sweep
    from remanence.tables import Table
    from remanence.verdict import Policy, Verdict
    from remanence.work import InProcess, Run

# Loaded on first use, so that `import remanence` and the command line start without torch.
_HOMES = {
    "adversary": ["Knowledge"],
    "attacks.attack": ["Attack", "Reconstruction"],
    "attacks.closed_form": ["ClosedForm"],
    "attacks.exclusive_neurons": ["ExclusiveNeurons"],
    "attacks.gradient_matching": ["DLG", "IDLG", "GradientMatching", "InvertingGradients"],
    "attacks.low_rank": ["LowRank"],
    "attacks.gradient_based": ["GradientBased"],
    "attacks.oblivious": ["Oblivious"],
    "attacks.prior_aware": ["PriorAware"],
    "attacks.reconstructor": ["Reconstructor"],
    "attacks.retrain": ["RetrainAndCompare"],
    "attacks.scaler_mean": ["ScalerMean"],
    "attributes": ["Attribute", "infer_attributes"],
    "auditing": ["AuditResult", "audit"],
    "bounds.bound": ["Bound"],
    "calibration": ["calibrate", "noise_for_epsilon"],
    "errors": [
        "Criterion",
        "Error",
        "Reduction",
        "classifier_divergence",
        "mean_squared_error",
        "mismatch",
        "nearest_neighbour_errors",
        "on_columns",
        "pixels_off",
        "public_errors",
        "relative_error",
        "squared_and_absolute_error",
    ],
    "evidence": ["Evidence"],
    "exceptions": ["IncompatibleGameError", "InputError", "RemanenceError"],
    "game": ["Game", "play"],
    "gradients.exposure": ["Exposure", "gradient_exposure"],
    "gradients.guard": ["ExclusivityGuard"],
    "head_audit": ["audit_head", "head_game"],
    "journal": ["Journal"],
    "leave_one_out": ["LeaveOneOut"],
    "mechanisms.disclosed": ["Disclosed"],
    "mechanisms.dpsgd": ["DPSGD"],
    "mechanisms.families": ["Gaussian", "Logistic", "Multinomial", "Tweedie"],
    "mechanisms.glm": ["GLM"],
    "mechanisms.heads": ["TransferHead", "augment", "embed"],
    "mechanisms.looped": ["looped"],
    "mechanisms.mechanism": ["Mechanism"],
    "mechanisms.modules": ["AnyModule"],
    "mechanisms.networks": ["Perceptron"],
    "mechanisms.noisy_sum": ["NoisySum"],
    "mechanisms.queried": ["Queried"],
    "mechanisms.sgd": ["SGD"],
    "mechanisms.shared_gradient": ["SharedGradient"],
    "membership": ["Membership"],
    "priors": ["EmpiricalPrior", "FinitePrior", "Prior", "StratifiedPrior", "Uninformed"],
    "private_heads": ["private_recipe"],
    "processes": ["Processes"],
    "records": ["Records"],
    "released_head": ["PictureExposure", "exposed_pictures"],
    "releases": ["Gradient", "Logits", "Release", "Transcript", "Weights"],
    "roc": ["Roc"],
    "statistics": ["SuccessRate"],
    "tables": ["Table"],
    "sweeping": ["sweep"],
    "verdict": ["Policy", "Verdict"],
    "work": ["InProcess", "Run"],
}
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
