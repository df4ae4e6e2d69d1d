"""Audits of every kind, each a small function: what they find is frozen, so that moving code changes no result."""

from __future__ import annotations

import copy
import itertools
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets, discriminant_analysis, ensemble, naive_bayes, neighbors, svm, tree
from sklearn import linear_model as linear
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.mixture import GaussianMixture
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    gelu,
    mse_loss,
    one_hot,
    scaled_dot_product_attention,
)

from conftest import dpsgd_game, heads_game, network_game, noisy_sum, pictures, synthetic
from remanence import (
    GLM,
    SGD,
    AuditResult,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    Gaussian,
    GradientBased,
    HeadAudit,
    LeaveOneOut,
    LinearReader,
    Logistic,
    Loop,
    Membership,
    NearVerbatim,
    Numbers,
    Perceptron,
    Policy,
    Queried,
    Reconstructor,
    Records,
    RetrainAndCompare,
    StratifiedPrior,
    TransferHead,
    Tweedie,
    Uninformed,
    Weights,
    audit,
    audit_head,
    audit_run,
    audit_text,
    bounds,
    calibrate,
    looped,
    mean_squared_error,
    mismatch,
    noise_for_epsilon,
    text_game,
)

# The only names that are not public: modules may move, and then this section and `audit_update` follow them.
from remanence.bounds.frontier import frontier
from remanence.private.canaries import Canaries, crafted, mislabelled
from remanence.private.opacus import record
from remanence.tables.sklearn import (
    leave_one_out,
    shortlist_game,
    table_game,
    with_known,
)
from remanence.targets import TARGETS
from remanence.texts.canaries import Claim, natural
from remanence.texts.tiny import as_language_model, made_up_records, tiny_pair, train
from remanence.updates.declared import Declared, LocalTraining, Noise
from remanence.updates.inspection import audit_files
from remanence_papers import companions

Tensors = dict[str, Tensor]


CASES: dict[str, Callable[[], Any]] = {}  # by a name that begins with the kind of audit
# Left to `make test-all`: what takes longer than a second or two, or is much like another case.
SLOW = (
    "target/digits-dpsgd-pictures",
    "target/digits-heads",
    "target/digits-mlp",
    "game/membership-network",
    "update/batch-size",
    "update/dense-1",
    "update/dense-20",
    "update/dense-adam",
    "update/dense-after-",
    "update/dense-bfloat16",
    "update/dense-clipped",
    "update/dense-difference",
    "update/dense-double",
    "update/dense-eight",
    "update/dense-exceeding",
    "update/dense-few",
    "update/dense-four",
    "update/dense-gelu",
    "update/dense-large",
    "update/dense-leaky",
    "update/dense-scaled",
    "update/dense-silu",
    "update/digits-32",
    "update/one-logit-1",
    "update/other-loss",
    "update/own-batch",
    "update/two-updates",
    "update/wrapped-names",
    "patches/mixer",
    "patches/vit-4",
    "patches/vit-after",
    "patches/vit-own",
    "patches/vit-scaled",
    "patches/vit-turned",
    "table/bagging",
    "table/boosting",
    "table/components",
    "table/discriminant",
    "table/forest",
    "table/known-columns",
    "table/logistic",
    "table/one-versus-rest",
    "table/ridge-classifier",
    "head/",
    "text/",
    "run/correct-poisson",
    "run/half-noise",
    "run/shuffled",
)


def case(name: str, compute: Callable[[], Any]) -> None:
    """Add a case."""
    assert name not in CASES, name
    CASES[name] = compute


# ---------------------------------------------------------------------------------------- built-in targets

_TRIALS = {"digits-heads": 20, "digits-mlp": 20, "digits-gradient": 25}
_QUICK = Reconstructor(shadows=400, steps=150, batch=64, width=48)
_ATTACKS = {"digits-heads": [LinearReader()], "digits-mlp": [_QUICK]}


def built_in(name: str) -> AuditResult:
    return audit(TARGETS[name](), _ATTACKS.get(name), trials=_TRIALS.get(name, 40), seed=1, target=name)


for _name in TARGETS:
    case(f"target/{_name}", partial(built_in, _name))


# ---------------------------------------------------------------------------------- games of other mechanisms


def amounts(count: int = 40) -> Records:
    data = synthetic(count)
    noise = torch.rand(count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return Records(data.features, (0.1 * data.features.sum(1)).exp() * (0.5 + noise))


def own_function() -> Game:
    """Three candidates and a training function of one's own."""
    corners = torch.eye(3, dtype=torch.float64) * 1.5
    known = Records(torch.ones(3, 3, dtype=torch.float64), torch.zeros(3))
    prior = FinitePrior(Records(corners, torch.zeros(3)))
    return Game(looped(noisy_sum, releases=Weights), prior, known, Criterion(mean_squared_error, 1e-9))


def private_network(**settings: Any) -> Game:
    game = dpsgd_game(**settings)
    return replace(game, bounds=(bounds.of(game.mechanism, 1 / 5),))


def no_shortlist() -> Game:
    listed = private_network(noise_multiplier=0.05, steps=8, max_grad_norm=0.5)
    close = Criterion(mean_squared_error, 1e-2, label_scale=1.0)
    return replace(
        listed,
        prior=Uninformed(),
        criterion=close,
        targets=EmpiricalPrior(listed.prior.candidates),
        bounds=(),
    )


def queried(**settings: Any) -> Game:
    data = synthetic(30, classes=3)
    data = Records(data.features.float(), data.labels)
    mechanism = SGD(Perceptron((4, 6, 3)), epochs=20, learning_rate=0.3, initial_seed=0)
    game = Game(mechanism, FinitePrior(data[:6]), data[6:25], Criterion(mismatch, 0.5))
    return replace(game, mechanism=Queried(mechanism, data[25:], **settings))


def played(game: Any, attacks: Any = None, *, trials: int) -> AuditResult:
    """At a limit that a guess does not break."""
    return audit(game, attacks, policy=Policy(0.8), trials=trials, seed=3)


def leave_out(family: Any, data: Records) -> AuditResult:
    return audit(LeaveOneOut(GLM(family, penalty=1.0), data, Criterion(label_scale=1.0)), seed=2)


case("game/logistic", lambda: leave_out(Logistic(), synthetic()))
case("game/gaussian", lambda: leave_out(Gaussian(), amounts()))
case("game/poisson", lambda: leave_out(Tweedie(1.0), amounts()))
case("game/own-function", lambda: played(own_function(), trials=60))
case("game/dpsgd", lambda: played(private_network(), trials=60))
case("game/dpsgd-poisson", lambda: played(private_network(sample_rate=0.5), trials=60))
case("game/gradient-based", lambda: played(no_shortlist(), [GradientBased()], trials=15))
case("game/membership-shortlist", lambda: played(Membership(own_function()), trials=60))
case("game/membership-network", lambda: played(Membership(network_game()), [_QUICK], trials=60))
case("game/network", lambda: played(network_game(), [_QUICK], trials=40))
for _answers, _settings in (("logits", {}), ("probabilities", {"decimals": 2}), ("label", {})):
    case(
        f"game/queried-{_answers}",
        lambda answers=_answers, settings=_settings: played(
            queried(answers=answers, **settings), [RetrainAndCompare()], trials=40
        ),
    )
case("game/heads-weak", lambda: played(heads_game(2), [LinearReader()], trials=40))


# ------------------------------------------------------------------------------------------------- updates


def dense(
    *sizes: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> nn.Sequential:
    """Linear layers with an activation between them, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1]).eval()


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return make().eval()


def batch(count: int, shape: Sequence[int], classes: int, seed: int = 0, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(classes, (count,), generator=generator)


def usual_loss(said: Tensor, labels: Tensor) -> Tensor:
    if said.shape[-1] == 1:
        return binary_cross_entropy_with_logits(said.flatten(), labels.to(said))
    return cross_entropy(said, labels)


def gradient_of(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Callable = usual_loss) -> Tensors:
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    parts = torch.autograd.grad(loss(model(inputs), labels), list(named.values()))
    return {name: part.clone() for name, part in zip(named, parts, strict=True)}


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, make: Callable) -> Tensors:
    """The weights after some steps of an optimiser on one batch."""
    model = copy.deepcopy(model)
    optimiser = make(model.parameters())
    for _ in range(steps):
        optimiser.zero_grad()
        usual_loss(model(inputs), labels).backward()
        optimiser.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def audit_update(
    model: nn.Module,
    *updates: Tensors,
    after: Sequence[Tensors] = (),
    own_batch: tuple[Tensor, Tensor] | None = None,
    longest: int = 16,
    shape: tuple[int, ...] | None = None,
    noise: float | None = None,
    batch_size: int | None = None,
    **training: Any,
) -> AuditResult:
    """What the command does with the files of updates, of weights after a round, or of an own batch."""
    from safetensors.torch import save_file

    policy = Policy(set_by="default")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = [place / f"update{k}.safetensors" for k in range(len(updates))]
        new = [place / f"after{k}.safetensors" for k in range(len(after))]
        for path, tensors in zip([*files, *new], [*updates, *after], strict=True):
            save_file({name: value.contiguous() for name, value in tensors.items()}, path)
        own = None
        if own_batch is not None:
            own = place / "batch.npz"
            np.savez(own, inputs=own_batch[0].numpy(), labels=own_batch[1].numpy())
        declared = Declared(
            LocalTraining(**training),
            batch_size,
            None,
            shape,
            None if noise is None else Noise(noise, 1.0),
        )
        return audit_files(
            model,
            declared,
            updates=files,
            after=new,
            batch=own,
            policy=policy,
            target="update",
            longest=longest,
        )


def plain(count: int, *sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0, **network: Any):
    """One gradient of a batch behind dense layers."""
    model = dense(*sizes, dtype=dtype, seed=seed, **network)
    classes = max(2, sizes[-1])
    return model, gradient_of(model, *batch(count, sizes[:1], classes, seed, dtype))


def changed(change: Callable[[Tensor], Tensor], count: int = 4, *sizes: int, **options: Any) -> AuditResult:
    """The same with every tensor changed before it leaves."""
    model, gradient = plain(count, *(sizes or (36, 200, 7)))
    return audit_update(model, {name: change(value) for name, value in gradient.items()}, **options)


def clipped(norm: float) -> AuditResult:
    model, gradient = plain(5, 36, 200, 7)
    size = torch.cat([value.flatten() for value in gradient.values()]).norm()
    return audit_update(model, {name: norm / size * value for name, value in gradient.items()})


def decayed(decay: float, count: int = 4) -> AuditResult:
    model, gradient = plain(count, 36, 200, 7)
    held = dict(model.named_parameters())
    return audit_update(model, {n: value + decay * held[n].detach() for n, value in gradient.items()})


def whole_weights(count: int, *, declare: bool, as_update: bool = False) -> AuditResult:
    model = dense(36, 200, 7)
    new = trained(model, *batch(count, (36,), 7), 1, partial(torch.optim.SGD, lr=0.05))
    rate = {"learning_rate": 0.05} if declare else {}
    return audit_update(model, new) if as_update else audit_update(model, after=[new], **rate)


def difference(count: int, *, declare: bool) -> AuditResult:
    """New weights minus old ones, with their rounding."""
    model = dense(36, 200, 7)
    new = trained(model, *batch(count, (36,), 7), 1, partial(torch.optim.SGD, lr=0.05))
    old = model.state_dict()
    rate = {"learning_rate": 0.05} if declare else {}
    return audit_update(model, {name: new[name] - old[name] for name in new}, **rate)


def several_steps(
    count: int, steps: int, optimizer: str = "sgd", rate: float = 0.05, **declared: Any
) -> AuditResult:
    model = dense(36, 200, 7)
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    if optimizer == "adamw":
        declared = {"weight_decay": 0.01, **declared}
    new = trained(model, *batch(count, (36,), 7), steps, partial(make, lr=rate, **declared))
    return audit_update(model, after=[new], steps=steps, learning_rate=rate, optimizer=optimizer, **declared)


def convolutional(count: int) -> AuditResult:
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 7)
        )
    )
    return audit_update(model, gradient_of(model, *batch(count, (1, 6, 6), 7)), shape=(1, 6, 6))


def digits_batch(count: int) -> AuditResult:
    pixels, labels = datasets.load_digits(return_X_y=True)
    model = dense(64, 256, 10)
    inputs = torch.from_numpy(pixels[:count]).float() / 8 - 1
    return audit_update(model, gradient_of(model, inputs, torch.from_numpy(labels[:count])))


def noised(multiplier: float) -> AuditResult:
    """Clipped records with noise that is declared."""
    count, model = 20, dense(36, 200, 7)
    inputs, labels = batch(count, (36,), 7)
    total: Tensors = {}
    for k in range(count):
        one = gradient_of(model, inputs[k : k + 1], labels[k : k + 1])
        size = float(torch.cat([value.flatten() for value in one.values()]).norm())
        for name, value in one.items():
            total[name] = total.get(name, torch.zeros_like(value)) + value * min(1.0, 1 / size)
    generator = torch.Generator().manual_seed(5)
    sent = {n: (v + multiplier * torch.randn(v.shape, generator=generator)) / count for n, v in total.items()}
    return audit_update(model, sent, noise=multiplier, batch_size=count)


def top_share(share: float) -> Callable[[Tensor], Tensor]:
    def kept(value: Tensor) -> Tensor:
        least = value.abs().flatten().kthvalue(max(1, int((1 - share) * value.numel()))).values
        return value.where(value.abs() >= least, 0.0)

    return kept


def eight_bits(value: Tensor) -> Tensor:
    scale = value.abs().max() / 127
    return (value / scale).round() * scale


def other_loss(count: int) -> AuditResult:
    model = dense(36, 200, 7)
    loss = lambda said, labels: mse_loss(said, one_hot(labels, 7).float())  # noqa: E731
    return audit_update(model, gradient_of(model, *batch(count, (36,), 7), loss))


def stale() -> AuditResult:
    """An update of weights that are not these."""
    model, gradient = plain(6, 36, 200, 7)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            value *= 1 + 0.05 * torch.randn(value.shape, generator=generator)
    return audit_update(model, gradient)


def foreign() -> AuditResult:
    model, gradient = plain(6, 36, 200, 7)
    generator = torch.Generator().manual_seed(1)
    return audit_update(model, {n: torch.randn(v.shape, generator=generator) for n, v in gradient.items()})


def renamed(prefix: str) -> AuditResult:
    model, gradient = plain(4, 36, 200, 7)
    return audit_update(model, {prefix + name: value for name, value in gradient.items()})


def two_updates() -> AuditResult:
    model = dense(36, 200, 7)
    return audit_update(model, *(gradient_of(model, *batch(n, (36,), 7, n)) for n in (3, 5)))


case("update/dense-1", lambda: audit_update(*plain(1, 36, 200, 7)))
case("update/dense-6", lambda: audit_update(*plain(6, 36, 200, 7)))
case("update/dense-20", lambda: audit_update(*plain(20, 36, 200, 7)))
case("update/digits-8", lambda: digits_batch(8))
case("update/digits-32", lambda: digits_batch(32))
case("update/dense-deep", lambda: audit_update(*plain(5, 36, 200, 100, 7)))
case("update/dense-four-layers", lambda: audit_update(*plain(3, 20, 120, 80, 60, 5)))
case("update/dense-no-bias", lambda: audit_update(*plain(4, 36, 200, 7, bias=False)))
case("update/dense-double", lambda: audit_update(*plain(6, 36, 200, 7, dtype=torch.float64)))
case("update/dense-more-records-than-inputs", lambda: audit_update(*plain(30, 20, 400, 5)))
case("update/dense-exceeding-inputs", lambda: audit_update(*plain(10, 6, 800, 5)))
case("update/dense-narrow", lambda: audit_update(*plain(30, 36, 16, 7)))
case("update/dense-few-neurons", lambda: audit_update(*plain(6, 36, 24, 7)))
for _name, _module in (("tanh", nn.Tanh), ("gelu", nn.GELU), ("leaky", nn.LeakyReLU), ("silu", nn.SiLU)):
    case(f"update/dense-{_name}", lambda m=_module: audit_update(*plain(3, 36, 200, 7, activation=m)))
case("update/dense-half", lambda: changed(lambda value: value.half()))
case("update/dense-bfloat16", lambda: changed(lambda value: value.bfloat16()))
case("update/dense-scaled", lambda: changed(lambda value: 37 * value))
case("update/dense-turned", lambda: changed(lambda value: -0.05 * value))
case("update/dense-clipped", lambda: clipped(0.1))
case("update/dense-decay", lambda: decayed(1e-3))
case("update/dense-large-decay", lambda: decayed(0.1, 6))
case("update/dense-after", lambda: whole_weights(6, declare=False))
case("update/dense-after-rate", lambda: whole_weights(6, declare=True))
case("update/dense-after-as-update", lambda: whole_weights(6, declare=False, as_update=True))
case("update/dense-difference", lambda: difference(6, declare=False))
case("update/dense-difference-rate", lambda: difference(6, declare=True))
case("update/dense-five-steps-1", lambda: several_steps(1, 5))
case("update/dense-three-steps-momentum", lambda: several_steps(2, 3, momentum=0.9))
case("update/dense-steps-decay", lambda: several_steps(1, 4, weight_decay=1e-2))
case("update/dense-adam", lambda: several_steps(1, 2, "adam", 1e-3))
case("update/dense-adamw", lambda: several_steps(1, 2, "adamw", 1e-3))
case("update/one-logit-1", lambda: audit_update(*plain(1, 36, 200, 1)))
case("update/one-logit-4", lambda: audit_update(*plain(4, 36, 200, 1)))
case("update/single-layer-1", lambda: audit_update(*plain(1, 36, 7)))
case("update/single-layer-3", lambda: audit_update(*plain(3, 36, 7)))
case("update/single-layer-12", lambda: audit_update(*plain(12, 36, 7)))
case("update/convolution-features", lambda: convolutional(4))
case("update/wrapped-names", lambda: renamed("module."))
case("update/batch-size-right", lambda: audit_update(*plain(6, 36, 200, 7), batch_size=6))
case("update/batch-size-wrong", lambda: audit_update(*plain(6, 36, 200, 7), batch_size=9))
case("update/noise-declared", lambda: noised(2.0))
case("update/noise-not-there", lambda: audit_update(*plain(6, 36, 200, 7), noise=2.0, batch_size=6))
case("update/two-updates", two_updates)
case("update/own-batch", lambda: audit_update(dense(36, 200, 7), own_batch=batch(6, (36,), 7)))
case("update/other-loss", lambda: other_loss(4))
case("update/refused-stale", stale)
case("update/refused-top-tenth", lambda: changed(top_share(0.1)))
case("update/refused-eight-bits", lambda: changed(eight_bits))
case("update/refused-foreign", foreign)
case("update/refused-not-finite", lambda: changed(lambda value: value * torch.nan))
case("update/refused-zero", lambda: changed(torch.zeros_like))
case("update/refused-names", lambda: renamed("other."))


# ------------------------------------------------------------------------------- updates: pictures in patches


class ViT(nn.Module):
    """A vision transformer of one layer, as people write them."""

    def __init__(self, positions: int = 2, numbers: int = 48, outputs: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, numbers, 8, 8)
        self.classes = nn.Parameter(0.02 * torch.randn(1, 1, numbers))
        self.places = nn.Parameter(0.02 * torch.randn(1, positions + 1, numbers))
        self.block = nn.TransformerEncoderLayer(
            numbers, 2, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(numbers, outputs)

    def forward(self, seen: Tensor) -> Tensor:
        tokens = self.embed(seen).flatten(2).mT
        tokens = torch.cat([self.classes.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.block(tokens)[:, 0])


class Mixer(nn.Module):
    """No embedding of positions: what mixes them tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 8, 8)
        self.mix = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2))
        self.head = nn.Linear(24, 5)

    def forward(self, seen: Tensor) -> Tensor:
        tokens = self.stem(seen).flatten(2)
        return self.head(nn.functional.gelu(tokens + self.mix(tokens)).mean(2))


WIDE = (1, 8, 16)


def patches(
    count: int,
    make: Callable[[], nn.Module] = ViT,
    *,
    classes: int = 5,
    shape: tuple[int, ...] = WIDE,
    change: Callable[[Tensor], Tensor] = torch.clone,
    decay: float = 0.0,
) -> AuditResult:
    model = seeded(make)
    gradient = gradient_of(model, *batch(count, shape, classes))
    held = dict(model.named_parameters())
    sent = {name: change(value + decay * held[name].detach()) for name, value in gradient.items()}
    return audit_update(model, sent, shape=shape, weight_decay=decay)


def patches_after(count: int, steps: int, rate: float, **declared: float) -> AuditResult:
    model = seeded(ViT)
    make = partial(torch.optim.SGD, lr=rate, **declared)
    new = trained(model, *batch(count, WIDE, 5), steps, make)
    return audit_update(model, after=[new], shape=WIDE, steps=steps, learning_rate=rate, **declared)


def patches_of_two() -> AuditResult:
    model = seeded(ViT)
    sent = (gradient_of(model, *batch(count, WIDE, 5, count)) for count in (1, 2))
    return audit_update(model, *sent, shape=WIDE)


def patches_foreign() -> AuditResult:
    model, generator = seeded(ViT), torch.Generator().manual_seed(3)
    sent = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
    return audit_update(model, sent, shape=WIDE)


case("patches/vit-1", lambda: patches(1))
case("patches/vit-4", lambda: patches(4))
case("patches/vit-larger-picture", lambda: patches(1, lambda: ViT(9, 24), shape=(1, 24, 24)))
case("patches/vit-scaled", lambda: patches(2, change=lambda value: 0.01 * value))
case("patches/vit-turned", lambda: patches(2, change=lambda value: -0.1 * value))
case("patches/vit-decay", lambda: patches(2, decay=1e-2))
case("patches/vit-one-output", lambda: patches(1, lambda: ViT(outputs=1), classes=2))
case("patches/vit-crowded", lambda: patches(30))
case("patches/vit-after", lambda: patches_after(2, 1, 0.05))
case("patches/vit-five-steps", lambda: patches_after(1, 5, 0.1))
case("patches/vit-steps-momentum-decay", lambda: patches_after(1, 5, 0.1, momentum=0.9, weight_decay=1e-2))
case("patches/mixer-3", lambda: patches(3, Mixer))
case("patches/vit-half", lambda: patches(2, change=torch.Tensor.half))
case("patches/vit-two-updates", patches_of_two)
case("patches/vit-foreign", patches_foreign)
case(
    "patches/vit-own-batch",
    lambda: audit_update(seeded(ViT), own_batch=batch(2, WIDE, 5), shape=WIDE),
)


# ------------------------------------------------------------------------------------ updates: texts in tokens

VOCABULARY = 300


class Block(nn.Module):
    def __init__(self, size: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.before, self.after = nn.LayerNorm(size), nn.LayerNorm(size)
        self.queries, self.keys, self.values, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        parts = [f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.queries, self.keys, self.values)]
        seen = scaled_dot_product_attention(*parts, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.down(gelu(self.up(self.after(x))))


class Tokens(nn.Module):
    """A language model, with its embedding as output layer or not, or a classifier that reads in both directions."""

    def __init__(
        self, size: int = 64, *, tied: bool = False, classes: int | None = None, positions: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.positions = nn.Embedding(32, size) if positions else None
        self.blocks = nn.ModuleList(Block(size, causal=classes is None) for _ in range(2))
        self.norm = nn.LayerNorm(size)
        self.head = None if tied else nn.Linear(size, classes or VOCABULARY, bias=False)
        self.classes = classes

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        x = x.mean(1) if self.classes else x
        return x @ self.embedding.weight.T if self.head is None else self.head(x)


def words(count: int, seed: int = 0, length: int = 10) -> Tensor:
    return torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def next_token(said: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(said[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def tokens(
    count: int,
    *,
    seed: int = 0,
    length: int = 10,
    change: Callable[[Tensor], Tensor] = torch.clone,
    decay: float = 0.0,
    **network: Any,
) -> AuditResult:
    model, ids = seeded(lambda: Tokens(**network)), words(count, seed, length)
    if network.get("classes"):
        gradient = gradient_of(model, ids, torch.arange(count) % network["classes"])
    else:
        gradient = gradient_of(model, ids, ids, next_token)
    held = dict(model.named_parameters())
    sent = {name: change(value + decay * held[name].detach()) for name, value in gradient.items()}
    return audit_update(model, sent, weight_decay=decay)


def tokens_after(count: int, rate: float) -> AuditResult:
    model, ids = seeded(Tokens), words(count)
    client = copy.deepcopy(model)
    next_token(client(ids), ids).backward()
    torch.optim.SGD(client.parameters(), lr=rate).step()
    new = {name: value.detach() for name, value in client.state_dict().items()}
    return audit_update(model, after=[new], learning_rate=rate)


def tokens_of_prompts() -> AuditResult:
    """Texts whose first half has no loss, and of which one counts twice as much."""
    model, ids = seeded(Tokens), words(3, seed=3)
    parts = torch.tensor([1.0, 1.0, 2.0])[:, None] * (torch.arange(9) >= 4)

    def loss(said: Tensor, ids: Tensor) -> Tensor:
        each = cross_entropy(said[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        return (each * parts).sum() / parts.sum()

    return audit_update(model, gradient_of(model, ids, ids, loss))


class Adapted(nn.Module):
    """A frozen layer with an adapter of two matrices, the second of which begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.A, self.B = nn.Linear(layer.in_features, rank, False), nn.Linear(rank, layer.out_features, False)
        nn.init.zeros_(self.B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.B(self.A(x))


def tokens_of_an_adapter(rank: int) -> AuditResult:
    def adapted() -> nn.Module:
        model = Tokens().requires_grad_(False)
        for block in model.blocks:
            block.queries, block.values = Adapted(block.queries, rank), Adapted(block.values, rank)
        return model

    model, ids = seeded(adapted), words(2, seed=5, length=8)
    own = {name: value for name, value in model.named_parameters() if value.requires_grad}
    parts = torch.autograd.grad(next_token(model(ids), ids), list(own.values()))
    return audit_update(model, dict(zip(own, parts, strict=True)))


def tokens_of_two() -> AuditResult:
    model = seeded(Tokens)
    sent = (gradient_of(model, *[words(count, count)] * 2, next_token) for count in (1, 3))
    return audit_update(model, *sent)


def tokens_stale() -> AuditResult:
    model, ids = seeded(Tokens), words(3)
    gradient = gradient_of(model, ids, ids, next_token)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            value *= 1 + 0.01 * torch.randn(value.shape, generator=generator)
    return audit_update(model, gradient)


case("tokens/untied-4", lambda: tokens(4))
case("tokens/tied-3", lambda: tokens(3, tied=True))
case("tokens/no-positions", lambda: tokens(3, seed=2, length=7, positions=False))
case("tokens/encoder-1", lambda: tokens(1, seed=4, classes=5))
case("tokens/encoder-2", lambda: tokens(2, seed=1, length=7, classes=5))
case("tokens/scaled", lambda: tokens(2, change=lambda value: 0.03 * value))
case("tokens/turned", lambda: tokens(2, change=lambda value: -0.1 * value))
case("tokens/decay", lambda: tokens(2, seed=1, decay=1e-3))
case("tokens/half", lambda: tokens(2, seed=9, size=128, change=lambda value: (512 * value).half()))
case("tokens/crowded", lambda: tokens(8, size=32))
case("tokens/after", lambda: tokens_after(3, 0.5))
case("tokens/stale", tokens_stale)
case("tokens/prompts", tokens_of_prompts)
case("tokens/adapter", lambda: tokens_of_an_adapter(32))
case("tokens/adapter-of-a-small-rank", lambda: tokens_of_an_adapter(8))
case("tokens/two-updates", tokens_of_two)
case(
    "tokens/own-batch",
    lambda: audit_update(seeded(Tokens), own_batch=(words(2), torch.zeros(2, dtype=torch.int64))),
)


# -------------------------------------------------------------------------------------------------- tables


@cache
def patients(count: int = 120, seed: int = 0) -> tuple[Any, np.ndarray]:
    """People who do not exist: numbers, words, gaps, and an outcome that depends on them."""
    import pandas as pd

    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 90, count),
            "income": draw.lognormal(10, 0.5, count).round(2),
            "sex": draw.choice(["female", "male"], count),
            "region": draw.choice(["north", "south", "east"], count),
            "bmi": np.where(draw.random(count) < 0.1, np.nan, draw.normal(25, 4, count).round(1)),
        }
    )
    score = frame["age"] / 90 + 0.3 * (frame["sex"] == "male") + draw.normal(0, 0.3, count)
    return frame, np.where(score > 0.7, "ill", "well")


def prepared(model: Any) -> Any:
    """The usual pipeline in front of a model."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = [("numbers", numbers, ["age", "income", "bmi"]), ("words", OneHotEncoder(), ["sex", "region"])]
    return make_pipeline(ColumnTransformer(columns), model)


def fitted(estimator: Any, table: Any, labels: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some solvers do not reach their tolerance
        return estimator.fit(table, labels) if labels is not None else estimator.fit(table)


def own_table(estimator: Any, table: Any, labels: Any, trials: int = 60) -> AuditResult:
    """All attacks that look into the fitted object."""
    return audit(table_game(fitted(estimator, table, labels), table, labels), trials=trials, seed=4)


def on_patients(estimator: Any) -> AuditResult:
    return own_table(prepared(estimator), *patients())


def numbers_of(count: int = 80) -> tuple[Any, np.ndarray, np.ndarray]:
    frame, labels = patients(count)
    amount = frame["age"] * 0.7 + np.random.default_rng(1).normal(0, 5, count)
    return frame[["age", "income"]], labels, amount.to_numpy()


def on_amounts(estimator: Any) -> AuditResult:
    table, _, amount = numbers_of()
    return own_table(estimator, table, amount)


def on_numbers(estimator: Any) -> AuditResult:
    table, labels, _ = numbers_of()
    return own_table(estimator, table, labels)


def without_labels(estimator: Any) -> AuditResult:
    return own_table(estimator, numbers_of()[0], None)


def closed_form(estimator: Any, name: str) -> AuditResult:
    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    return audit(leave_one_out(fitted(estimator, features, labels), features, labels), trials=60, seed=4)


def known_columns() -> AuditResult:
    frame, labels = patients()
    game = table_game(fitted(prepared(TIGHT), frame, labels), frame, labels)
    return audit(with_known(game, columns=["income", "sex"]), trials=60, seed=4)


def no_other_row() -> AuditResult:
    frame, labels = patients()
    game = table_game(fitted(prepared(neighbors.KNeighborsClassifier()), frame, labels), frame, labels)
    return audit(with_known(game, others=False), trials=60, seed=4)


def other_table(estimator: Any, *, halves: bool = False) -> AuditResult:
    """A model and a table that it was not fitted on."""
    frame, labels = patients()
    model = fitted(estimator, frame, labels)
    if halves:
        return audit(table_game(model, frame[:60], labels[:60]))
    other, others = patients(120, seed=1)
    return audit(table_game(model, other, others))


def shortlist() -> AuditResult:
    table, labels, _ = numbers_of()
    model = fitted(make_pipeline(StandardScaler(), linear.LogisticRegression()), table, labels)
    return played(shortlist_game(model, table, labels, seed=1), [RetrainAndCompare()], trials=30)


TIGHT = linear.LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000)
_CLASSIFIERS = {
    "logistic": TIGHT,
    "ridge-classifier": linear.RidgeClassifier(),
    "knn": neighbors.KNeighborsClassifier(),
    "svc": svm.SVC(),
    "naive-bayes": naive_bayes.GaussianNB(),
    "discriminant": discriminant_analysis.LinearDiscriminantAnalysis(),
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "forest": ensemble.RandomForestClassifier(8, random_state=0),
    "boosting": ensemble.GradientBoostingClassifier(n_estimators=3, random_state=0),
    "histogram-boosting": ensemble.HistGradientBoostingClassifier(max_iter=3, random_state=0),
}
for _name, _model in _CLASSIFIERS.items():
    case(f"table/{_name}", partial(on_patients, _model))
_REGRESSORS = {
    "linear": linear.LinearRegression(),
    "ridge": make_pipeline(StandardScaler(), linear.Ridge()),
    "elastic-net": linear.ElasticNet(0.01, tol=1e-12, max_iter=100_000),
    "gaussian-process": GaussianProcessRegressor(normalize_y=True),
    "kernel-ridge": KernelRidge(),
    "target-transformed": TransformedTargetRegressor(
        linear.Ridge(), func=np.log1p, inverse_func=np.expm1, check_inverse=False
    ),
    "svr": svm.SVR(),
}
for _name, _model in _REGRESSORS.items():
    case(f"table/{_name}", partial(on_amounts, _model))
_WRAPPED = {
    "min-max": make_pipeline(MinMaxScaler(), naive_bayes.GaussianNB()),
    "components": make_pipeline(StandardScaler(), PCA(2), TIGHT),
    "calibrated": CalibratedClassifierCV(naive_bayes.GaussianNB(), ensemble=False),
    "one-versus-rest": OneVsRestClassifier(make_pipeline(StandardScaler(), TIGHT)),
    "bagging": ensemble.BaggingClassifier(
        make_pipeline(StandardScaler(), linear.RidgeClassifier()), 4, random_state=0
    ),
}
for _name, _model in _WRAPPED.items():
    case(f"table/{_name}", partial(on_numbers, _model))
case("table/scaler-alone", lambda: without_labels(StandardScaler()))
case("table/mixture", lambda: without_labels(GaussianMixture(2, random_state=0)))
case("table/closed-form-logistic", lambda: closed_form(TIGHT, "breast_cancer"))
case("table/closed-form-lasso", lambda: closed_form(linear.Lasso(0.5, tol=1e-12), "diabetes"))
case("table/known-columns", known_columns)
case("table/no-other-row", no_other_row)
case("table/shortlist", shortlist)
case("table/refused-other-logistic", lambda: other_table(prepared(TIGHT)))
case("table/refused-other-forest", lambda: other_table(prepared(_CLASSIFIERS["forest"])))
case("table/refused-half", lambda: other_table(prepared(_CLASSIFIERS["knn"]), halves=True))
case("table/refused-not-fitted", lambda: audit(table_game(StandardScaler(), numbers_of()[0])))


# --------------------------------------------------------------------------------------------------- heads

RECIPE = TransferHead(10, 30, 0.05)


@cache
def digits_features() -> Records:
    """Digits, and what a random layer makes of them."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    seen = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1
    backbone = dense(64, 96, 10, seed=5)[:2]
    return Records(seen, torch.tensor(labels), embedding=backbone(seen.flatten(1)).detach())


def head_of(recipe: TransferHead, own: Records, seed: int = 8) -> Tensors:
    """A head as PyTorch would hold it, trained on these pictures."""
    generator = torch.Generator().manual_seed(seed)
    sizes = tuple(torch.unique(own.labels, return_counts=True)[1].tolist())
    release = recipe.release(None, StratifiedPrior(own, sizes).sample(1, generator), generator)
    return {name: tensor[0] for name, tensor in release.tensors.items()}


def heads(
    recipe: TransferHead = RECIPE,
    *,
    made_by: TransferHead | None = None,
    made_on: slice = slice(0, 10),
    own: slice = slice(0, 10),
    **settings: Any,
) -> AuditResult:
    """Heads on ten pictures or more; with `made_by`, one that is about to be released too."""
    data = digits_features()
    mine, public = data[own], data[100:1000]
    released = None if made_by is None else head_of(made_by, data[made_on])
    asked = HeadAudit(**{"attacks": [LinearReader()], "trials": 30, "seed": 6, **settings})
    return audit_head(
        mine.embedding, mine.features, mine.labels, recipe, prior=public, released=released, settings=asked
    )


def small_heads(**settings: Any) -> AuditResult:
    """Three classes of small pictures, and a network that learns to draw them."""
    own, public, recipe = pictures(3, seed=5), pictures(240), TransferHead(3, 15, 0.05)
    asked = HeadAudit(
        attacks=[Reconstructor(steps=250, batch=64, width=48)], trials=25, threshold=0.3, **settings
    )
    return audit_head(
        own.embedding, own.features, own.labels, recipe,
        prior=public, released=head_of(recipe, own), settings=asked,
    )  # fmt: skip


case("head/made-like-it", heads)
case("head/released", lambda: heads(made_by=RECIPE))
case("head/released-two-per-class", lambda: heads(made_by=RECIPE, own=slice(0, 20), made_on=slice(0, 20)))
_RECIPES = {
    "adam": replace(RECIPE, optimizer="adam", learning_rate=0.01),
    "adamw": replace(RECIPE, optimizer="adamw", learning_rate=0.01, weight_decay=0.01),
    "batches": replace(RECIPE, batch_size=5),
    "loop": replace(
        RECIPE, loop=Loop(label_smoothing=0.1, schedule=tuple(0.95**k for k in range(30)), dropout=0.1)
    ),
    "class-weights": replace(RECIPE, class_weights=(1.0, 2.0) * 5),
    "decay": replace(RECIPE, weight_decay=1e-2),
    "momentum": replace(RECIPE, momentum=0.9),
}
for _name, _recipe in _RECIPES.items():
    case(f"head/released-{_name}", lambda recipe=_recipe: heads(recipe, made_by=recipe))
case("head/private", lambda: heads(replace(RECIPE, noise_multiplier=2.0, max_grad_norm=1.0)))
case("head/reconstructor", small_heads)
case("head/refused-epochs", lambda: heads(made_by=replace(RECIPE, epochs=150)))
case("head/refused-optimizer", lambda: heads(made_by=_RECIPES["adam"]))
case("head/refused-pictures", lambda: heads(made_by=RECIPE, made_on=slice(1000, 1010)))


# --------------------------------------------------------------------------------------------------- texts


@cache
def tiny() -> tuple[Any, ...]:
    return tiny_pair()


def secrets(*, base: bool = True, unseen: bool = True, tries: int = 100) -> AuditResult:
    before, model, mine, others = tiny()
    return audit_text(
        model, mine, base=before if base else None, unseen=others if unseen else None, tries=tries
    )


def near_verbatim() -> AuditResult:
    before, model, mine, others = tiny()
    game = text_game(model, mine[:12], base=before, unseen=others[:12])
    return audit(game, [NearVerbatim()], target="near")


def untouched() -> AuditResult:
    """A model that never saw the texts."""
    before, _, mine, others = tiny()
    return audit_text(before, mine, unseen=others)


def numbers_in_texts() -> AuditResult:
    before, model, mine, others = tiny()
    texts, unseen = ([{"text": r["prefix"] + r["secret"]} for r in rows] for rows in (mine, others))
    return audit_text(model, texts, base=before, unseen=unseen, find=Numbers())


def planted(epsilon: float | None) -> AuditResult:
    before, *_ = tiny()
    made = natural(made_up_records(160, seed=7), seed=0)
    tuned = copy.deepcopy(before.logits).requires_grad_(True)
    train(tuned, [r["prefix"] + r["secret"] for r in made.inserted], steps=100, seed=2)
    claim = None if epsilon is None else Claim(epsilon)
    return audit_text(as_language_model(tuned, "tuned"), made, base=before, claim=claim)


def seen_and_unseen() -> Any:
    before, model, mine, _ = tiny()
    return audit(text_game(model, mine, base=before, unseen=mine[:5]))


case("text/secrets", secrets)
case("text/secrets-one-try", lambda: secrets(tries=1))
case("text/near-verbatim", near_verbatim)
case("text/secrets-no-base", lambda: secrets(base=False))
case("text/secrets-no-unseen", lambda: secrets(unseen=False))
case("text/numbers", numbers_in_texts)
case("text/untouched", untouched)
case("text/canaries", lambda: planted(None))
case("text/claim-refuted", lambda: planted(0.7))
case("text/claim-not-refuted", lambda: planted(20.0))
case("text/refused-unseen-in-training", seen_and_unseen)


# --------------------------------------------------------------------------------------------- recorded runs

FEATURES, CLASSES, KNOWN = 120, 5, 150


def half_noise(optimizer: Any) -> None:
    add_noise = optimizer.add_noise

    def add() -> None:
        told, optimizer.noise_multiplier = optimizer.noise_multiplier, optimizer.noise_multiplier / 2
        add_noise()
        optimizer.noise_multiplier = told

    optimizer.add_noise = add


def batch_clipping(optimizer: Any) -> None:
    def clip() -> None:
        sums = [sample.sum(0) for sample in optimizer.grad_samples]
        norm = torch.cat([part.flatten() for part in sums]).norm()
        for parameter, part in zip(optimizer.params, sums, strict=True):
            parameter.summed_grad = part * (optimizer.max_grad_norm / norm).clamp(max=1)

    optimizer.clip_and_accumulate = clip


def recorded(
    canaries: Canaries,
    *,
    noise: float = 3.0,
    size: int | None = None,
    epochs: int = 9,
    bug: Callable | None = None,
    poisson: bool = True,
    seeded: bool = False,
) -> AuditResult:
    """An ordinary Opacus loop, recorded and audited; `seeded` with generators of its own."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    with (
        torch.random.fork_rng(devices=()),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        features, labels = torch.randn(KNOWN, FEATURES), torch.randint(CLASSES, (KNOWN,))
        inserted = canaries.inserted
        data = TensorDataset(torch.cat([features, inserted.features]), torch.cat([labels, inserted.labels]))
        model, engine = nn.Linear(FEATURES, CLASSES), PrivacyEngine()
        generators = [torch.Generator().manual_seed(n) if seeded else None for n in (5, 6)]
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, size or len(data), shuffle=not poisson, generator=generators[0]),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
            noise_generator=generators[1],
        )
        if bug is not None:
            bug(optimizer)
        out = Path(folder) / "run"
        seed = "secret" if seeded else None
        with record(engine, optimizer, private, loader, out=out, canaries=canaries, seed=seed):
            for _ in range(epochs):
                for inputs, wanted in loader:
                    cross_entropy(private(inputs), wanted).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return audit_run(out, policy=Policy(0.9), target="run")


def few(candidates: int = 1, count: int = 40) -> Canaries:
    return crafted(count, (FEATURES,), CLASSES, candidates=candidates, seed=0)


def of_people() -> Canaries:
    generator = torch.Generator().manual_seed(4)
    people = Records(
        torch.randn(60, FEATURES, generator=generator),
        torch.randint(CLASSES, (60,), generator=generator),
    )
    return mislabelled(people, CLASSES, seed=1)


case("run/correct", lambda: recorded(few()))
case("run/correct-poisson", lambda: recorded(few(), size=50, epochs=4))
case("run/hardly-any-noise", lambda: recorded(of_people(), noise=1e-3, epochs=3))
case("run/shortlists", lambda: recorded(few(candidates=5, count=12), epochs=3))
case("run/made-again", lambda: recorded(few(candidates=5, count=12), epochs=3, seeded=True))
case("run/half-noise", lambda: recorded(few(count=240), bug=half_noise))
case("run/batch-clipping", lambda: recorded(few(), bug=batch_clipping))
case("run/shuffled", lambda: recorded(few(), poisson=False, size=40))


# -------------------------------------------------------------------------------------------------- bounds

_DPSGD = {
    "one-step": {"noise_multiplier": 1.0},
    "full-batch": {"noise_multiplier": 10.0, "steps": 100},
    "usual": {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 1000},
    "long": {"noise_multiplier": 0.8, "sample_rate": 0.004, "steps": 20_000},
    "little-noise": {"noise_multiplier": 0.3, "sample_rate": 0.01, "steps": 100},
    "much-noise": {"noise_multiplier": 30.0, "sample_rate": 0.5, "steps": 500},
    "large-rate": {"noise_multiplier": 5.0, "sample_rate": 0.9, "steps": 200},
    "schedule": {"schedule": [bounds.Segment(1.0, 0.02, 300), bounds.Segment(2.0, 0.05, 200)]},
    "five-records": {
        "noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 1000, "person": bounds.Person(records=5),
    },
    "replaced": {
        "noise_multiplier": 2.0, "sample_rate": 0.05, "steps": 100, "person": bounds.Person(replaced=True),
    },
}  # fmt: skip
for _way in ("people", "shuffled", "fixed", "balls-in-bins"):
    _DPSGD[_way] = {
        "noise_multiplier": 2.0, "sample_rate": 0.01, "steps": 300,
        "person": bounds.Person(records=3 if _way == "people" else 1, batches=_way),
    }  # fmt: skip
    if _way != "people":
        _DPSGD[f"{_way}-two-records"] = {
            **_DPSGD[_way], "person": bounds.Person(records=2, batches=_way),
        }  # fmt: skip
for _name, _settings in _DPSGD.items():
    case(
        f"bound/dpsgd-{_name}",
        lambda settings=_settings: [bounds.dpsgd(guess, **settings) for guess in (1e-6, 0.01, 0.1, 0.5)],
    )
_USUAL = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 1000}
case("bound/dpsgd-renyi", lambda: [companions.dpsgd_renyi(guess, **_USUAL) for guess in (1e-6, 0.1)])
case("bound/dpsgd-log-baseline", lambda: bounds.dpsgd(log_baseline=-1000.0, **_USUAL))
case("bound/true-positives", lambda: [bounds.true_positives(rate, **_USUAL) for rate in (1e-3, 0.1)])
case("bound/gaussian", lambda: bounds.gaussian(0.1, noise_multiplier=1.0, steps=3))
case("bound/laplace", lambda: [bounds.laplace(guess, scale=1.0) for guess in (0.1, 0.4, 0.7)])
case(
    "bound/definitions",
    lambda: [
        bounds.pure_dp(1e-6, epsilon=8.0),
        bounds.approximate_dp(0.1, epsilon=1.0, delta=1e-5),
        bounds.renyi(0.1, order=[2, 4, 8], epsilon=[0.1, 0.2, 0.4]),
        bounds.profile(1e-6, delta_at=lambda epsilon: 1.0 if epsilon < 8.0 else 0.0),
    ],
)
case(
    "bound/individual",
    lambda: [
        companions.individual(0.1, norms=[0.5] * 100, noise_multiplier=10.0),
        companions.individual(0.1, norms=[0.2, 0.9] * 50, noise_multiplier=1.0, sample_rate=0.05),
    ],
)
case(
    "bound/information",
    lambda: [
        companions.mutual_information(bounds.Segment(1.0, 0.1, 10), candidates=10),
        companions.fano(10, mutual_information=0.5).advantage,
    ],
)
case(
    "bound/releases",
    lambda: [
        bounds.correlated_noise(0.1, factor=np.eye(50), noise_multiplier=10.0, separation=1),
        bounds.final_weights(
            0.1, steps=1000, learning_rate=0.5, strong_convexity=0.1, smoothness=1.0, noise_multiplier=10.0
        ),
    ],
)
case(
    "bound/epsilon-delta",
    lambda: [
        bounds.delta_upper(bounds.Segment(1.1, 0.01, 1000), 1.0),
        bounds.delta_lower(bounds.Segment(1.1, 0.01, 1000), 1.0),
        bounds.epsilon_upper(bounds.Segment(1.1, 0.01, 1000), 1e-5),
    ],
)
case(
    "bound/calibrate",
    lambda: [
        calibrate(0.3, 0.1, sample_rate=0.02, steps=1000).noise_multiplier,
        calibrate(0.3, 0.1, noise_multiplier=1.0, sample_rate=0.02).steps,
        calibrate(0.3, 0.1, noise_multiplier=1.0, steps=1000).sample_rate,
        calibrate(0.3, 0.1, sample_rate=0.02, steps=1000, person=bounds.Person(records=3)).noise_multiplier,
    ],
)
case(
    "bound/noise-for-epsilon",
    lambda: [
        noise_for_epsilon(4.0, delta=1e-5, sample_rate=0.02, steps=1000),
        noise_for_epsilon(1.0, delta=1e-6, steps=50),
        noise_for_epsilon(4.0, delta=1e-5, sample_rate=0.02, steps=1000, enough=False),
    ],
)
case(
    "bound/frontier",
    lambda: [
        number
        for point in frontier("sample_rate", [0.01, 0.1, 0.99])
        for number in (point.noise_multiplier, point.success_lower, point.success_upper)
    ],
)
case(
    "bound/frontier-epsilon",
    lambda: [point.success_upper for point in frontier("epsilon", [1.0, 4.0, 8.0], sample_rate=0.1)],
)
