"""Search a batch whose gradient is the one that was seen: one engine for DLG, iDLG and Inverting Gradients.

Every trial, restart and sample is a dimension of one tensor, and each problem has its own optimiser state, so that
a hundred restarts cost one pass each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import Reference
from remanence.core.releases import Gradient
from remanence.scale.progress import track
from remanence.updates.shared_gradient import Parameters, SharedGradient

GEIPING_2020 = Reference(
    "Geiping et al. 2020",
    "J. Geiping, H. Bauermeister, H. Dröge, M. Moeller. Inverting Gradients: How easy is it to break privacy in "
    "federated learning? NeurIPS, 2020.",
)
ZHU_2019 = Reference("Zhu et al. 2019", "L. Zhu, Z. Liu, S. Han. Deep Leakage from Gradients. NeurIPS, 2019.")
ZHAO_2020 = Reference(
    "Zhao et al. 2020",
    "B. Zhao, K. R. Mopuri, H. Bilen. iDLG: Improved Deep Leakage from Gradients. arXiv 2001.02610.",
)

Unknowns = dict[str, Tensor]  # one problem per row; "x" is the input
Objective = Callable[[Unknowns], Tensor]


@dataclass(frozen=True)
class Matching:
    """How to search.

    `labels`: "optimise" them as probabilities along with the inputs, or "infer" them from the last layer's bias.
    `value_range` keeps inputs inside (L-BFGS: at the end only); `tolerance` ends the search once every gradient
    is met, relatively.
    """

    distance: Literal["euclidean", "cosine"] = "cosine"
    optimiser: Literal["l-bfgs", "signed-adam"] = "signed-adam"
    labels: Literal["optimise", "infer"] = "infer"
    steps: int = 4800
    restarts: int = 1
    learning_rate: float = 0.1
    total_variation: float = 0.0
    value_range: tuple[float, float] | None = None
    tolerance: float = 1e-6


_NUMBERS_AT_ONCE = 2**27  # of gradients held at once


@dataclass(frozen=True)
class GradientMatching(Attack[Gradient]):
    """Search a batch of known size whose update, local steps included, is the one that was seen."""

    batch_size: int = 8
    restarts: int = 1
    steps: int = 300
    value_range: tuple[float, float] | None = None  # of the inputs, if the adversary knows it

    manner: ClassVar[Matching]

    @property
    def search(self) -> Matching:
        """How this attack searches."""
        return replace(self.manner, steps=self.steps, restarts=self.restarts, value_range=self.value_range)

    def check(self, knowledge: Knowledge) -> SharedGradient:
        """A shared gradient, of whatever network."""
        mechanism = knowledge.mechanism
        if isinstance(mechanism, SharedGradient):
            return mechanism
        raise self.refusal(
            got=f"{mechanism.name} releasing {mechanism.releases.sees}",
            hint="a game whose mechanism is SharedGradient",
        )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The points to start from are drawn beforehand, the same for every release."""
        mechanism = self.check(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            found = match_gradients(
                mechanism, release.tensors, batch_size=self.batch_size, settings=self.search, seed=seed
            )
            records = Records(found.inputs, found.labels.double())
            return Reconstruction(records, diagnostics={"unexplained": found.unexplained})

        return attack


@final
@dataclass(frozen=True)
class DLG(GradientMatching):
    """Squared distance of the gradients, inputs and soft labels together, by L-BFGS (Zhu et al. 2019)."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "dlg",
        "Searches inputs and soft labels whose gradient is the one that was seen, by L-BFGS.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        ZHU_2019,
        on_request=True,
    )
    manner: ClassVar[Matching] = Matching("euclidean", "l-bfgs", "optimise", learning_rate=1.0)


@final
@dataclass(frozen=True)
class IDLG(GradientMatching):
    """The same with labels read off the last bias (Zhao et al. 2020, for one sample; by counts for more)."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "idlg",
        "The same, with labels read off the last bias first.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        ZHAO_2020,
        on_request=True,
    )
    manner: ClassVar[Matching] = Matching("euclidean", "l-bfgs", "infer", learning_rate=1.0)


@final
@dataclass(frozen=True)
class InvertingGradients(GradientMatching):
    """The angle between the gradients and the pictures' total variation, by signed Adam (Geiping et al. 2020)."""

    steps: int = 4800
    total_variation: float = 0.01
    info: ClassVar[AttackInfo] = AttackInfo(
        "inverting-gradients",
        "Searches smooth pictures whose gradient has the direction of the one that was seen, by signed Adam.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        GEIPING_2020,
        on_request=True,
    )
    manner: ClassVar[Matching] = Matching("cosine", "signed-adam", "infer")

    @property
    def search(self) -> Matching:
        """The same, with smooth pictures preferred."""
        return replace(super().search, total_variation=self.total_variation)


@dataclass(frozen=True)
class Matched:
    """The best restart of each trial, and how much of its gradient is left."""

    inputs: Tensor  # (trials, samples, *example)
    labels: Tensor  # (trials, samples)
    unexplained: Tensor  # (trials,), relative, over all tensors


def match_gradients(
    mechanism: SharedGradient,
    gradients: Mapping[str, Tensor],
    *,
    batch_size: int,
    settings: Matching,
    seed: int,
) -> Matched:
    """Search for batches of known size. Every trial starts from the same points, whatever the others are."""
    trials = len(next(iter(gradients.values())))
    numbers = sum(parameter.numel() for parameter in mechanism.module.parameters())
    chunk = max(1, _NUMBERS_AT_ONCE // (numbers * settings.restarts * 4))
    parts = []
    for start in range(0, trials, chunk):
        some = {name: value[start : start + chunk] for name, value in gradients.items()}
        parts.append(_search(mechanism, some, batch_size, settings, seed))
    return Matched(
        *(torch.cat([getattr(part, name) for part in parts]) for name in Matched.__dataclass_fields__)
    )


def _search(
    mechanism: SharedGradient, gradients: Mapping[str, Tensor], batch_size: int, settings: Matching, seed: int
) -> Matched:
    target = {name: value.repeat_interleave(settings.restarts, 0) for name, value in gradients.items()}
    first = next(iter(target.values()))
    problems, device, dtype = len(first), first.device, first.dtype
    trials = problems // settings.restarts
    parameters = {name: value.to(device) for name, value in mechanism.parameters.items()}
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = settings.restarts, batch_size, *mechanism.example_shape
    x = torch.randn(shape, generator=generator, device=device, dtype=dtype).repeat(
        trials, *[1] * (len(shape) - 1)
    )
    classes = _classes(mechanism, parameters, x)
    if settings.labels == "optimise":
        drawn = torch.randn(*shape[:2], classes, generator=generator, device=device, dtype=dtype)
        unknowns = {"x": x, "y": drawn.repeat(trials, 1, 1)}
        labels = None
    else:
        unknowns = {"x": x}
        labels = infer_labels(mechanism, target, parameters, x)
    update = vmap(mechanism.update, in_dims=(None, 0, 0))
    dense = settings.distance == "cosine" and is_plain_dense(mechanism)
    lengths = _norm(target)
    unit = {name: value / lengths.view(-1, *[1] * (value.ndim - 1)) for name, value in target.items()}

    def objective(unknowns: dict[str, Tensor]) -> Tensor:
        """One value per problem."""
        own = unknowns["y"].softmax(-1) if labels is None else labels
        if dense:
            value = dense_angle(mechanism.module, parameters, unknowns["x"], own, unit)
        else:
            value = _distance(update(parameters, unknowns["x"], own), target, settings.distance)
        if settings.total_variation and len(mechanism.example_shape) == 3:
            value = value + settings.total_variation * _total_variation(unknowns["x"])
        return value

    descend = lbfgs if settings.optimiser == "l-bfgs" else signed_adam
    best, values = descend(objective, unknowns, settings)
    chosen = (
        values.view(trials, -1).nan_to_num(nan=torch.inf).argmin(1)
        + torch.arange(trials, device=device) * settings.restarts
    )
    x = best["x"][chosen]
    if settings.value_range is not None:
        x = x.clamp(*settings.value_range)
    probable = best["y"][chosen].softmax(-1) if labels is None else labels[chosen]
    found = update(parameters, x, probable)
    wanted = {name: value[chosen] for name, value in target.items()}
    left = _distance(found, wanted, "euclidean").sqrt() / _norm(wanted)
    return Matched(x, probable.argmax(-1) if labels is None else probable, left)


def infer_labels(
    mechanism: SharedGradient, gradients: Mapping[str, Tensor], parameters: Parameters, x: Tensor
) -> Tensor:
    """Labels from the last bias: its gradient is the mean prediction less the share of each class.

    The mean prediction is taken from the network's answers to random inputs; classes go by the largest
    remainder. For one sample this is iDLG's rule, the only negative entry (Zhao et al. 2020), and exact.
    Without a last bias the weight's rows are summed instead, which has the same signs.
    """
    last = list(gradients.values())[-1]
    share = last if last.ndim == 2 else last.flatten(2).sum(-1)
    if last.ndim > 2:
        share = share / share.abs().sum(1, keepdim=True).clamp(min=1e-30) * 2  # a scale that cannot be known
    batch_size = x.shape[1]
    with torch.no_grad():
        answers = functional_call(mechanism.module, parameters, (x.flatten(0, 1),))
        expected = answers.softmax(-1).unflatten(0, x.shape[:2]).mean(1) - share / mechanism.local_steps
    if batch_size == 1:
        return share.argmin(1, keepdim=True)
    wanted = (batch_size * expected).clamp(min=0)
    labels = []
    for _ in range(batch_size):
        labels.append(wanted.argmax(1))
        wanted = wanted.scatter_add(1, labels[-1][:, None], -torch.ones_like(wanted[:, :1]))
    return torch.stack(labels, 1).sort(1).values


def _classes(mechanism: SharedGradient, parameters: Parameters, x: Tensor) -> int:
    with torch.no_grad():
        return functional_call(mechanism.module, parameters, (x[0],)).shape[-1]


def _distance(found: Mapping[str, Tensor], target: Mapping[str, Tensor], kind: str) -> Tensor:
    """Over all tensors together, one value per problem."""
    if kind == "euclidean":
        return torch.stack([(found[n] - target[n]).flatten(1).square().sum(1) for n in target]).sum(0)
    inner = torch.stack([(found[n] * target[n]).flatten(1).sum(1) for n in target]).sum(0)
    return 1 - inner / (_norm(found) * _norm(target))


def is_plain_dense(mechanism: SharedGradient) -> bool:
    """Whether an update is one mean gradient of linear layers and functions of single numbers between them."""
    layers = list(mechanism.module) if isinstance(mechanism.module, nn.Sequential) else [None]
    plain = mechanism.local_steps == 1 and not mechanism.weight_decay and mechanism.max_grad_norm is None
    return plain and all(
        isinstance(layer, nn.Linear | nn.ReLU | nn.Sigmoid | nn.Identity) for layer in layers
    )


def dense_angle(
    module: nn.Module, parameters: Parameters, x: Tensor, labels: Tensor, target: Mapping[str, Tensor]
) -> Tensor:
    """1 − the cosine between the gradients of dense layers and others, one value per problem.

    A layer's gradient is Σ δᵢ aᵢᵀ, of slopes δ and inputs a of the samples. So its inner product with T is Σ δᵢ·T aᵢ,
    and its squared norm Σ (δᵢ·δⱼ)(aᵢ·aⱼ): the gradients themselves, each as large as the network, are never formed.
    Targets have norm 1.
    """
    assert isinstance(module, nn.Sequential)
    inner, square = torch.zeros(2, len(x), dtype=x.dtype, device=x.device)
    with torch.enable_grad():
        values = x if x.requires_grad else x.detach().requires_grad_()
        layers: list[tuple[str, Tensor, Tensor]] = []  # name, inputs, outputs
        for name, layer in module.named_children():
            before, values = values, functional_call(layer, _own(parameters, name), values)
            if isinstance(layer, nn.Linear):
                layers.append((name, before, values))
        losses = cross_entropy(values.flatten(0, 1), labels.flatten(0, 1), reduction="sum") / x.shape[1]
        slopes = torch.autograd.grad(losses, [after for _, _, after in layers], create_graph=True)
        for (name, before, _), slope in zip(layers, slopes, strict=True):
            wanted = _own(target, name)
            inner = inner + (slope * (before @ wanted["weight"].mT)).sum((1, 2))
            square = square + ((slope @ slope.mT) * (before @ before.mT)).sum((1, 2))
            if "bias" in wanted:
                inner = inner + (slope.sum(1) * wanted["bias"]).sum(1)
                square = square + slope.sum(1).square().sum(1)
        return 1 - inner / square.sqrt()


def _own(tensors: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """The weight and the bias of one layer."""
    return {
        name.removeprefix(f"{layer}."): value
        for name, value in tensors.items()
        if name.startswith(f"{layer}.")
    }


def _norm(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value.flatten(1).square().sum(1) for value in tensors.values()]).sum(0).sqrt()


def _total_variation(pictures: Tensor) -> Tensor:
    """Mean absolute differences between neighbouring pixels."""
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().flatten(1).mean(1)
    across = (pictures[..., 1:] - pictures[..., :-1]).abs().flatten(1).mean(1)
    return down + across


def _slopes(objective: Objective, unknowns: Unknowns) -> tuple[Tensor, Unknowns]:
    """The value of each problem, and the gradient in its own unknowns."""
    leaves = {name: value.detach().requires_grad_() for name, value in unknowns.items()}
    values = objective(leaves)
    slopes = torch.autograd.grad(values.sum(), list(leaves.values()))
    return values.detach(), dict(zip(leaves, slopes, strict=True))


def signed_adam(objective: Objective, unknowns: Unknowns, settings: Matching) -> tuple[Unknowns, Tensor]:
    """Adam on the signs of the gradient, the rate cut to a tenth after 3/8, 5/8 and 7/8 (Geiping et al. 2020)."""
    unknowns = {name: value.clone() for name, value in unknowns.items()}
    adam = torch.optim.Adam(list(unknowns.values()), lr=settings.learning_rate)
    drops = [settings.steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, [drop - 1 for drop in drops if drop > 1])
    best, lowest = dict(unknowns), torch.full((len(unknowns["x"]),), torch.inf, device=unknowns["x"].device)
    for _ in track(range(settings.steps), total=settings.steps, what="matching the gradient"):
        values, slopes = _slopes(objective, unknowns)
        best, lowest = _keep(best, lowest, unknowns, values)
        if (values < settings.tolerance**2).all():
            break
        for name, slope in slopes.items():
            unknowns[name].grad = slope.sign()
        adam.step()
        schedule.step()
        if settings.value_range is not None:
            unknowns["x"].clamp_(*settings.value_range)
    with torch.no_grad():
        return _keep(best, lowest, unknowns, objective(unknowns))


def lbfgs(
    objective: Objective, unknowns: Unknowns, settings: Matching, memory: int = 10
) -> tuple[Unknowns, Tensor]:
    """L-BFGS with a history of its own for each problem; a step that does not descend is halved next time."""
    sizes = {name: value.shape for name, value in unknowns.items()}

    def flat(parts: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    def unflat(point: Tensor) -> dict[str, Tensor]:
        parts = point.split([shape.numel() // shape[0] for shape in sizes.values()], 1)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, sizes.items(), strict=True)}

    point = flat(unknowns)
    values, slopes = _slopes(objective, unknowns)
    slope = flat(slopes)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    shrink = torch.ones_like(values)
    for _ in track(range(settings.steps), total=settings.steps, what="matching the gradient"):
        direction = -_two_loops(slope, steps)
        if not steps:
            direction = direction / slope.abs().sum(1, keepdim=True).clamp(min=1)
        moved = point + (shrink * settings.learning_rate)[:, None] * direction
        new_values, new_slopes = _slopes(objective, unflat(moved))
        better = new_values < values
        shrink = torch.where(better, 1.0, shrink / 2)
        new_slope = flat(new_slopes)
        step, change = moved - point, new_slope - slope
        curved = (step * change).sum(1)
        usable = better & (curved > 1e-10 * change.square().sum(1))
        weight = torch.where(usable, 1 / curved, 0.0)  # a weight of 0 leaves the pair out for this problem
        steps = [*steps, (step, change, weight)][-memory:]
        point = torch.where(better[:, None], moved, point)
        slope = torch.where(better[:, None], new_slope, slope)
        values = torch.where(better, new_values, values)
        if (values < settings.tolerance**2).all() or (shrink < 1e-12).all():
            break
    return unflat(point), values


def _two_loops(slope: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian times the slope, one problem per row (Nocedal 1980)."""
    q, weights = slope, []
    for step, change, weight in reversed(steps):
        weights.append(weight * (step * q).sum(1))
        q = q - weights[-1][:, None] * change
    scale = torch.ones_like(slope[:, 0])
    for _, change, weight in steps:
        scale = torch.where(weight > 0, 1 / (weight * change.square().sum(1)), scale)
    q = q * scale[:, None]
    for (step, change, weight), back in zip(steps, reversed(weights), strict=True):
        q = q + (back - weight * (change * q).sum(1))[:, None] * step
    return q


def _keep(
    best: dict[str, Tensor], lowest: Tensor, unknowns: dict[str, Tensor], values: Tensor
) -> tuple[Unknowns, Tensor]:
    """The best point of each problem so far."""
    better = values < lowest
    chosen = {
        name: torch.where(better.view(-1, *[1] * (value.ndim - 1)), value.detach(), best[name])
        for name, value in unknowns.items()
    }
    return chosen, torch.where(better, values, lowest)
