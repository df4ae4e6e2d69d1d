"""Does a head belong: was it made by this recipe from these pictures?

The owner holds both, so it can be tested. The recipe trains new heads, and what training determines is compared:
a head's answers on the training pictures, its losses and margins, the norms of its layers, the traces of its initial
weights, its response to features that only public pictures have, and its similarity to heads on these pictures rather
than on others of the same classes. All heads, the one in question included, are measured by the same symmetric rule.
So a head that belongs is as likely to be the furthest off as any other, whatever the recipe, and the p-value is exact.

Whether the test can distinguish these pictures from similar ones is measured too: heads of the recipe on public
pictures of the same classes take the same test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from remanence.core.exceptions import MisfitError
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.head import Head
from remanence.heads.pictures import without_pictures
from remanence.heads.transfer_head import TransferHead

SIBLINGS = 199  # new heads: the smallest p-value is 1 in 200
LEVEL = 0.01  # below it a head is refused, and so is one in a hundred of those that belong
_OTHERS = 40  # heads on other pictures that are put to the test
_MEANS = 100  # heads that tell what training on these pictures, and on others, puts there
_USUAL = 20  # heads that tell how large layers are
_SHRINK = 0.1  # towards independent coordinates, which a few hundred heads cannot tell apart
_LIKELY = 0.05  # what another recipe must reach to be named
_BLUR = 1e-4  # of a layer's size: two programs that train alike differ by less
_DIRECTIONS = 8  # of public pictures beyond the training pictures
_ELSEWHERE = "what other pictures would have put there"
_ELSEWHERE_SHARE = "what other pictures would have put there, for its size"
_START = "the weights that it must have started from"
_ONE_SIDED = frozenset({_ELSEWHERE, _ELSEWHERE_SHARE, _START})  # more is further off, and less is not

Scores = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Measure:
    """Measures heads by what training determines; what it compares with is fixed beforehand.

    `trained` is what training on these pictures puts into a head, by itself, and `towards` leads from there to what
    training on other pictures of the same classes puts there.
    """

    recipe: Head
    own: Records
    trained: Tensor  # the first layer of the mean head
    shared: Tensor  # the same as rows, within the span of the pictures
    towards: Tensor  # (rows * numbers,)
    span: Tensor  # an orthonormal basis of what the pictures span
    beyond: Tensor  # directions of public pictures outside
    sizes: dict[str, float]  # of a number in each layer

    @classmethod
    def of(
        cls,
        recipe: Head,
        own: Records,
        public: Records,
        trained: tuple[Weights, Weights],
        usual: Weights,
    ) -> Measure:
        """From heads that were `trained` on these pictures and on others, and a few `usual` ones of the recipe."""
        inputs = recipe.inputs_of(own).double()
        basis = torch.linalg.svd(inputs, full_matrices=False)
        span, size = basis.Vh[1e-6 * basis.S[0] < basis.S], float(basis.S[0])
        rows, others = (_rows(heads, recipe).mean(0) for heads in trained)
        theirs = recipe.inputs_of(public).double()
        left = theirs - (theirs @ span.mT) @ span
        groups = torch.stack([left[public.labels == label].mean(0) for label in torch.unique(public.labels)])
        directions = torch.linalg.svd(groups, full_matrices=False)
        beyond = directions.Vh[1e-6 * size < directions.S][:_DIRECTIONS]
        sizes = {name: float(values.square().mean().sqrt()) for name, values in usual.tensors.items()}
        first = trained[0]["weight"].double().mean(0)
        shared, towards = (rows @ span.mT).flatten(), (others - rows).flatten()
        return cls(recipe, own, first, shared, towards, span, beyond, sizes)

    def __call__(self, heads: Weights, generator: torch.Generator) -> dict[str, Tensor]:
        """What training determines, `(heads, numbers)` each, by names that a message can use."""
        heads, recipe = self._blurred(heads, generator), self.recipe
        answers = recipe.answer(heads, self.own).double()  # (heads, records, classes)
        labels = recipe.classes_of(self.own)
        index = labels.expand(len(answers), -1).unsqueeze(2)
        centred = answers - answers.mean(2, keepdim=True)
        moved = centred - centred.mean(1, keepdim=True)  # less what initial weights say about every picture
        others = answers.scatter(2, index, -torch.inf).amax(2)
        margins = answers.gather(2, index).squeeze(2) - others
        losses = cross_entropy(answers.flatten(0, 1), labels.repeat(len(answers)), reduction="none")
        losses = losses.view_as(margins)
        own_share = moved.gather(2, index).squeeze(2)
        of_losses = losses.mean(1).log(), losses.amax(1).log()
        sums = [*of_losses, margins.mean(1), margins.amin(1), own_share.mean(1)]
        norms = [tensor.flatten(1).double().norm(dim=1) for tensor in heads.tensors.values()]
        rows = _rows(heads, recipe)
        inside = (rows @ self.span.mT).flatten(1)
        shared, length = inside @ self.shared, inside.norm(dim=1).clamp(min=1e-30)
        elsewhere = rows.flatten(1) @ self.towards
        outside = (rows - (rows @ self.span.mT) @ self.span).flatten(1).norm(dim=1, keepdim=True)
        return {
            "its answers on the training pictures": moved.flatten(1),
            "its margins on the training pictures": margins,
            "what it says about each training picture's own class": own_share,
            "its loss on the training pictures": torch.stack(sums, 1),
            "the size of its weights": torch.stack(norms, 1).clamp(min=1e-30).log(),
            "what it shares with heads made anew": torch.stack([shared, shared / length], 1),
            "what its initial weights left in it": outside.clamp(min=1e-30).log(),
            "what it says beyond the training pictures": _seen(heads, self.beyond).flatten(1),
            _ELSEWHERE: elsewhere[:, None],
            _ELSEWHERE_SHARE: (elsewhere / length)[:, None],
            **self._started(heads),
        }

    def _started(self, heads: Weights) -> dict[str, Tensor]:
        """How far the start must have been outside of what nn.Linear draws, if training did what it does here.

        Initial weights lie within ±1/√numbers, all of them. Training on other pictures moved some of them elsewhere.
        """
        drawn = isinstance(self.recipe, TransferHead) and self.recipe.initialisation == "pytorch"
        if not drawn or self.recipe.hidden is not None:
            return {}
        weight = heads["weight"].double() - self.trained
        outside = (weight.abs() - weight.shape[2] ** -0.5).clamp(min=0)
        return {_START: outside.flatten(1).sum(1, keepdim=True)}

    def _blurred(self, heads: Weights, generator: torch.Generator) -> Weights:
        """With a little noise added to every head alike: a rounding difference does not make another recipe."""
        blurred = {}
        for name, values in heads.tensors.items():
            noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
            blurred[name] = values + _BLUR * self.sizes[name] * noise
        return Weights(blurred)


def _seen(heads: Weights, directions: Tensor | None = None) -> Tensor:
    """What a head says along some directions, `(heads, rows, directions)`; the order of hidden units means nothing."""
    seen = heads["weight"].double() if directions is None else heads["weight"].double() @ directions.mT
    return seen if (last := heads.tensors.get("out_weight")) is None else last.double() @ seen


def _rows(heads: Weights, recipe: Head) -> Tensor:
    """All that it says, less what its rows have in common, `(heads, rows, numbers)`."""
    rows = _seen(heads)
    return rows - rows.mean(1, keepdim=True) if recipe.outputs > 1 else rows


@final
@dataclass(frozen=True)
class Fit:
    """How a head compares with heads that were made by the recipe from the same pictures."""

    p_value: float  # how often one of those is as far off
    furthest: str  # in what it differs most
    power: SuccessRate | None = None  # of heads on other pictures of the same classes, how many are refused

    @property
    def belongs(self) -> bool:
        """Whether it may have been made like this."""
        return self.p_value > LEVEL

    def refusal(self, recipe: Head, instead: str) -> MisfitError:
        """Why a head that does not match the declared recipe has no verdict; `instead` is how it may have been made."""
        shown = recipe.settings().items()
        settings = [f"{name} {value}" for name, value in shown if value not in (None, False, 0.0)]
        return MisfitError(
            "This head does not match the declared recipe.",
            needs=f"a head of this recipe on these pictures: {', '.join(settings)}",
            got=f"one that is further off than heads made anew, p = {self.p_value:.3g}; most of all in {self.furthest}",
            hint=instead
            or "the epochs, optimizer, batches, initialisation and preprocessing that made it; the same pictures, "
            "with their labels in the same order",
        )


def fit(
    recipe: Head,
    own: Records,
    public: Records,
    head: Weights,
    generator: torch.Generator,
    *,
    others: int = _OTHERS,
) -> Fit:
    """Train new heads on your pictures `(pictures,)` and rank this one among them.

    As many heads as `others` are made from other pictures of the same classes, to see what the test can tell.
    """
    counts = tuple(torch.unique(own.labels, return_counts=True)[1].tolist())
    sets = StratifiedPrior(without_pictures(public), counts)
    same = without_pictures(own)[None][torch.zeros(SIBLINGS, dtype=torch.int64, device=own.labels.device)]

    def made(how: Head, pictures: Records) -> Weights:
        return _as_precise(how.release(None, pictures, generator), head)

    bare = recipe  # from weights of 0, where that is possible: nothing random hides what training does
    if isinstance(recipe, TransferHead) and recipe.hidden is None:
        bare = replace(recipe, initialisation=0.0)
    trained = made(bare, same[:_MEANS]), made(bare, sets.sample(_MEANS, generator))
    measure = Measure.of(recipe, own, public, trained, made(recipe, same[:_USUAL]))
    siblings = measure(made(recipe, same), generator)
    found = compare(measure(_as_precise(head, head), generator), siblings)
    if not others or not found.belongs:
        return found
    strangers = measure(made(recipe, sets.sample(others, generator)), generator)
    each = ({name: values[k : k + 1] for name, values in strangers.items()} for k in range(others))
    refused = sum(not compare(one, siblings).belongs for one in each)
    return replace(found, power=SuccessRate(refused, others))


def likelier(recipe: Head, own: Records, public: Records, head: Weights, generator: torch.Generator) -> str:
    """Of a few recipes that are easily taken for this one, those that would fit, in words; nothing if none does."""
    if not isinstance(recipe, TransferHead):  # other loops cannot be enumerated
        return ""
    found = []
    for changes in _neighbours(recipe, len(own)):
        other = replace(recipe, **changes)
        p_value = 0.0 if other == recipe else fit(other, own, public, head, generator, others=0).p_value
        if p_value > _LIKELY:
            shown = ((name.replace("_", " "), "all" if v is None else v) for name, v in changes.items())
            words = ", ".join(f"{name} {value}" for name, value in shown)
            found.append((p_value, f"{words} (p = {p_value:.2g})"))
    found.sort(key=lambda each: -each[0])
    return " or ".join(words for _, words in found[:2]) + ", which would fit" if found else ""


def _neighbours(recipe: TransferHead, pictures: int) -> list[dict[str, Any]]:
    """The recipes that are most easily mistaken for this one, one change each."""
    factors = 1 / 10, 1 / 5, 1 / 3, 1 / 2, 2, 3, 5, 10
    settings = [("epochs", max(1, round(recipe.epochs * factor))) for factor in factors]
    settings += [("initialisation", start) for start in ("pytorch", 0.002, 0.01, 0.0)]
    if recipe.noise_multiplier is not None:
        return [dict([each]) for each in settings]
    settings += [("batch_size", size) for size in (None, 4, 8, 16, 32) if size is None or size < pictures]
    settings += [("momentum", momentum) for momentum in (0.0, 0.9) if recipe.optimizer == "sgd"]
    settings += [("weight_decay", decay) for decay in (0.0, 1e-4, 1e-2, 0.1)]
    rates = ("adam", 0.001), ("adam", 0.01), ("sgd", 0.01), ("sgd", 0.1)
    others = [{"optimizer": name, "learning_rate": rate} for name, rate in rates if name != recipe.optimizer]
    return [*(dict([each]) for each in settings), *others]


def compare(head: Scores, siblings: Scores) -> Fit:
    """Where a head, measured, stands among others that were measured alike."""
    scores = {
        name: _standard(_distances(name, torch.cat([values, siblings[name]])))
        for name, values in head.items()
    }
    furthest = torch.stack(list(scores.values())).max(0).values
    p_value = float((furthest >= furthest[0]).double().mean())
    return Fit(p_value, max(scores, key=lambda name: float(scores[name][0])))


def _as_precise(heads: Weights, like: Weights) -> Weights:
    """In the released head's own precision, and back."""
    return Weights({name: values.to(like[name].dtype).float() for name, values in heads.tensors.items()})


def _distances(name: str, values: Tensor) -> Tensor:
    """How far each head is from all of them, `(heads,)`, in units of how they vary."""
    if not values.shape[1]:
        return torch.zeros(len(values), dtype=values.dtype, device=values.device)
    if name in _ONE_SIDED:
        return values[:, 0]
    apart = values - values.mean(0)
    apart = apart / apart.std(0).clamp(min=1e-30)
    if apart.shape[1] > len(apart) // 4:  # too many for how they vary together
        return apart.square().mean(1)
    together = apart.mT @ apart / len(apart)
    unit = torch.eye(len(together), dtype=apart.dtype, device=apart.device)
    solved = torch.linalg.solve((1 - _SHRINK) * together + _SHRINK * unit, apart.mT).mT
    return (apart * solved).mean(1)


def _standard(distances: Tensor) -> Tensor:
    """In units in which different kinds of distances can be compared: from the middle one to the larger ones."""
    middle = distances.median()
    spread = (distances.quantile(0.9) - middle).clamp(min=1e-30)
    return (distances - middle) / spread
