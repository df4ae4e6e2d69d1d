"""Networks as they are read: dense layers, patches of pictures, tokens of texts. Each is recognised once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remanence.core.attack import Reconstruction
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates.belonging import Belonging, belonging, misfit
from remanence.updates.caveats import (
    PATCHES_OPEN,
    TEXTS_OPEN,
    UPDATE_COARSE,
    UPDATE_CROWDED,
    UPDATE_ONE_OUTPUT,
    UPDATE_OTHER_LOSS,
    UPDATE_SINGLE_LAYER,
    UPDATE_UNTESTED,
)
from remanence.updates.dense_layers import DenseHead, dense_head, own_gradients
from remanence.updates.one_logit import has_one_logit
from remanence.updates.patch_fit import fit_patches
from remanence.updates.patch_models import PatchModel, patch_model
from remanence.updates.pictures import Pictures, verify_pictures
from remanence.updates.reading import prove, read_dense
from remanence.updates.recomputed import Proposal
from remanence.updates.rounding import Layer, Rounding, coarsest
from remanence.updates.text_models import TextModel, text_model
from remanence.updates.texts import Texts, verify_texts
from remanence.updates.token_spans import name_after_steps, name_sequences
from remanence.updates.verification import Proof, verify

if TYPE_CHECKING:
    from remanence.updates.shared_gradient import Sent, SharedGradient

_SLOTS = 64  # guesses that are returned at least, so that reconstructions of several units have one shape
_PICTURES, _TEXTS = 16, 64
_COPIED = 2**24  # weights of a network that is copied in double precision
_AGREES = 1e-6  # relative: two ways to compute one gradient in double precision, in networks that cancel much


@final
@dataclass(frozen=True)
class Effort:
    """What a search may use."""

    seed: int = 0
    longest: int = 64  # tokens of a text


class Proven(Protocol):
    """What recomputation says about the records that were named for one update."""

    @property
    def count(self) -> int:
        """How many of them are proven."""
        ...

    @property
    def batch_size(self) -> int | None:
        """How many there were, where that is proven too."""
        ...

    def numbers(self) -> dict[str, float]:
        """What else is stored about it."""
        ...


class Reader(Protocol):
    """A network that was recognised, and how records are read off an update of it."""

    many: ClassVar[str]  # what its records are called
    counts: ClassVar[str]  # when one counts as recovered, where that needs saying
    counts_records: ClassVar[bool]  # whether records are proven one by one, so that each is a trial

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Raise `MisfitError` where an update was not made from these weights."""
        ...

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterable[Caveat]:
        """What could stand in the way of a proof."""
        ...

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> Sequence[Proven]:
        """What recomputation says about what was named; without `claims` nothing is proven."""
        ...

    def check(self, mechanism: SharedGradient) -> None:
        """Raise `InputError` where nothing can be read off the updates of a mechanism."""
        ...

    def reconstruct(self, release: Gradient, mechanism: SharedGradient, effort: Effort) -> Reconstruction:
        """What the stages name for every update."""
        ...


@final
@dataclass(frozen=True)
class Own:
    """The client's own module, by which what dense layers are said to make of records is computed once more."""

    model: nn.Module
    head: DenseHead  # with the module's names
    shape: tuple[int, ...]  # of an input

    @classmethod
    def of(cls, model: nn.Module, head: DenseHead, shape: tuple[int, ...] | None) -> Own | None:
        """None where it would take a copy of a large network, or normalisation was folded into its layers."""
        numbers = sum(value.numel() for value in model.parameters())
        shape = shape or ((head.weights[0].shape[1],) if head.is_whole_network else None)
        return None if numbers > _COPIED or head.folded or shape is None else cls(model, head, shape)

    def agrees(self, records: Proposal) -> bool:
        """Whether autograd on the module makes what the layers' formulas make, in double precision."""
        made = own_gradients(
            self.model, self.head, self.shape, records.inputs, records.labels, records.shares
        )
        said = self.head.layers_of({name: value[None] for name, value in made.items()})
        told = self.head.gradients(records.inputs.cpu(), records.labels.cpu(), records.shares.cpu())
        return all(
            float((own[0].double() - weight).norm()) <= _AGREES * float(weight.norm())
            for (own, _), (weight, _) in zip(said, told, strict=True)
        )


@final
@dataclass(frozen=True)
class DenseReader:
    """A network that ends in dense layers: what enters them is read."""

    head: DenseHead
    own: Own | None = field(default=None, repr=False, compare=False)
    many: ClassVar[str] = "samples"
    counts: ClassVar[str] = ""
    counts_records: ClassVar[bool] = True
    _held: list[tuple[Gradient, list[Belonging]]] = field(default_factory=list, repr=False, compare=False)

    def note(self, gradients: Gradient, found: Sequence[Belonging]) -> None:
        """These updates were held against the weights already."""
        self._held[:] = [(gradients, list(found))]

    def belongings(self, gradients: Gradient, rounding: Rounding) -> list[Belonging]:
        """How well updates meet the identities of these weights; they are held against them once."""
        if not self._held or self._held[0][0] is not gradients:
            head, updates = self._updates(gradients)
            self.note(gradients, [belonging(head, one, rounding) for one in updates])
        return self._held[0][1]

    def _updates(self, gradients: Gradient) -> tuple[DenseHead, list[list[Layer]]]:
        """The dense layers, and each update of them."""
        head = self.head.to(next(iter(gradients.tensors.values())).device)
        layers = head.layers_of(gradients.tensors)
        return head, [
            [(weight[index], None if bias is None else bias[index]) for weight, bias in layers]
            for index in range(len(gradients))
        ]

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Neurons balance, and the last layer's columns add up to nothing."""
        if mechanism.sent.training.is_plain:
            for number, fit in enumerate(self.belongings(gradients, mechanism.sent.rounding)):
                if not fit.is_one_step:
                    raise misfit(fit, f"update {number}")

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """What the network or the numbers keep from being tested or proven."""
        head, sent = self.head, mechanism.sent
        other = sent.training.is_plain and any(
            fit.loss_is_other for fit in self.belongings(gradients, sent.rounding)
        )
        where = (
            (UPDATE_UNTESTED, not head.activation.is_kinked),
            (UPDATE_SINGLE_LAYER, len(head.weights) == 1),
            (UPDATE_ONE_OUTPUT, has_one_logit(head)),
            (UPDATE_COARSE, sent.rounding.is_coarse),
            (UPDATE_OTHER_LOSS, other),
        )
        yield from (caveat for caveat, holds in where if holds)

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> list[Proof]:
        """By the whole update, by some of its neurons, or by rows alone."""
        (head, updates), sent = self._updates(gradients), mechanism.sent
        signs = guess.diagnostics.get("sign", torch.ones(len(updates)))
        found = []
        for index, one in enumerate(updates):
            named = _proposal(guess.records[index])
            if not claims:
                found.append(verify(head, one, named[:0], rounding=sent.rounding))
                continue
            turned = bool(signs[index] < 0)
            sent_as = [(-weight, None if bias is None else -bias) for weight, bias in one] if turned else one
            known = sent.scale_is_known and not turned
            proof = prove(head, sent_as, named, sent.rounding, sent.training, scale_is_known=known)
            if proof.explains_all and self.own is not None:
                records = named.with_shares(proof.proposal.shares)[proof.proven]
                if not self.own.agrees(records):  # the layers were taken for what they are not
                    proof = verify(head, one, named[:0], rounding=sent.rounding)
            found.append(proof)
        return found

    def check(self, mechanism: SharedGradient) -> None:
        """What enters the head is a record, and one step leaves enough of it, or rows of its own through several."""
        head, example = self.head, torch.Size(mechanism.example_shape)
        numbers = head.weights[0].shape[1]
        if example.numel() != numbers or not (head.is_whole_network or len(example) == 1):
            raise InputError(
                "What enters the dense layers is no record.",
                needs="a network of dense layers alone",
                got="features made by earlier layers",
                hint="remanence update reads the features; remanence_papers.gradients.hybrid draws pictures from them",
            )
        if mechanism.sent.training.is_plain:
            if head.activation.is_relu and len(head.weights) > 1:
                head.require_readable()
        elif len(head.weights) > 1 and (head.biases[0] is None or not head.activation.is_relu):
            raise InputError(
                "Through several local steps nothing is left of this network's records.",
                needs="ReLU and a bias in the first layer, or a single layer",
                got=f"several local steps behind {head.activation.name}",
                hint="audit an update of one step: what it gives away, the batch gives away",
            )

    def reconstruct(self, release: Gradient, mechanism: SharedGradient, effort: Effort) -> Reconstruction:
        """Samples with their shares; a sign of −1 where an update goes against the gradient."""
        device = next(iter(release.tensors.values())).device
        head = self.head.to(device).double(only_first=True)
        found = read_dense(head, head.layers_of(release.tensors), mechanism.sent, seed=effort.seed)
        slots = max([_SLOTS, *(len(one.named) for one in found)])
        inputs = torch.stack([pad(one.named.inputs, (0, 0, 0, slots - len(one.named))) for one in found])
        labels = torch.stack(
            [pad(one.named.labels.double(), (0, slots - len(one.named)), value=torch.nan) for one in found]
        )
        shares = torch.stack([pad(one.named.shares, (0, slots - len(one.named))) for one in found])
        records = Records(inputs.unflatten(-1, mechanism.example_shape), labels, shares)
        numbers = {
            "proposed": torch.tensor([len(one.named) for one in found]),
            "sign": torch.tensor([one.sign for one in found]),
        }
        return Reconstruction(records, diagnostics=numbers)


@final
@dataclass(frozen=True)
class PatchReader:
    """A network whose first layer reads patches that do not overlap: whole pictures are read."""

    model: PatchModel
    many: ClassVar[str] = "pictures"
    counts: ClassVar[str] = (
        "Only what the whole update can be computed again from counts; of one picture, the layer that reads its "
        "patches is enough."
    )
    counts_records: ClassVar[bool] = False

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Nothing but recomputation tells."""

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """What the layer's gradient may leave open."""
        yield PATCHES_OPEN

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> list[Pictures]:
        """By the whole update; one picture also by the gradient of its layer and of the positions."""
        found, sent = [], mechanism.sent
        signs = guess.diagnostics.get("sign", torch.ones(len(gradients)))
        for index, (pictures, labels) in enumerate(
            zip(guess.records.features, guess.records.labels, strict=True)
        ):
            named = ~labels.isnan() & claims
            sign = -1 if signs[index] < 0 else 1
            one = {name: sign * values[index] for name, values in gradients.tensors.items()}
            found.append(self._verified(one, pictures[named].double(), labels[named].long(), sent))
        return found

    def _verified(self, one: dict[str, Tensor], pictures: Tensor, labels: Tensor, sent: Sent) -> Pictures:
        return verify_pictures(
            self.model, one, pictures, labels, rounding=sent.rounding, training=sent.training
        )

    def check(self, mechanism: SharedGradient) -> None:
        """Steps of SGD, which adds gradients up."""
        if mechanism.sent.training.optimizer != "sgd":
            raise InputError(
                "Adam leaves nothing of the span of pictures in patches.",
                needs="an update of SGD, of one step or several",
                got=f"{mechanism.sent.training.steps} steps of {mechanism.sent.training.optimizer}",
                hint="audit the same training with SGD: what it gives away, the batch gives away",
            )

    def reconstruct(self, release: Gradient, mechanism: SharedGradient, effort: Effort) -> Reconstruction:
        """Pictures with their labels."""
        model, sent = self.model, mechanism.sent
        pictures = torch.zeros(len(release), _PICTURES, *model.shape, dtype=torch.float64)
        labels = torch.full((len(release), _PICTURES), torch.nan, dtype=torch.float64)
        ranks = torch.zeros(len(release), dtype=torch.int64)
        signs = torch.ones(len(release), dtype=torch.int64)
        for trial in range(len(release)):
            for sign in (1,) if sent.sign_is_known else (1, -1):
                gradient = {name: sign * values[trial].double() for name, values in release.tensors.items()}
                found, named, rank = fit_patches(
                    model,
                    gradient,
                    precision=coarsest([gradient], sent.rounding),
                    seed=effort.seed,
                    along=None if sent.training.is_plain else sent.training.along,
                    is_difference=sent.is_difference,
                )
                is_last = sent.sign_is_known or self._verified(gradient, found, named, sent).count > 0
                if sign == 1 or is_last:
                    count = min(_PICTURES, len(found))
                    pictures[trial, :count], labels[trial, :count] = found[:count], named[:count].double()
                    labels[trial, count:], ranks[trial], signs[trial] = torch.nan, rank, sign
                if is_last:
                    break
        numbers = {"independent_patches": ranks, "sign": signs}
        return Reconstruction(Records(pictures, labels), diagnostics=numbers)


@final
@dataclass(frozen=True)
class TokenReader:
    """A transformer that reads token ids: whole texts are read."""

    model: TextModel
    many: ClassVar[str] = "texts"
    counts: ClassVar[str] = "Only what the whole update can be computed again from counts."
    counts_records: ClassVar[bool] = False

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Nothing but recomputation tells."""

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """Whether the layers had room to tell texts by."""
        text = self.text(mechanism)
        for index in range(len(gradients)):
            one = {name: values[index] for name, values in gradients.tensors.items()}
            precision = self.precision([one], mechanism)
            for layer, which in (("first", text.first), ("second", text.second)):
                span = text.span(which, one, precision)
                if not span.tells:
                    fills = (
                        f"update {index}: what entered the {layer} attention layer fills {span.rank} dimensions, of "
                        f"{span.most} that its gradient has."
                    )
                    none = f"update {index}: the {layer} attention layer has no gradient."
                    yield replace(UPDATE_CROWDED, seen=none if span.part is None else fills)
                    return
        yield TEXTS_OPEN

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> list[Texts]:
        """By the whole update, in either sign where nobody declared one: spans, and what is named, are the same."""
        text, sent, found = self.text(mechanism), mechanism.sent, []
        for index, sequences in enumerate(guess.records.features):
            named = [ids[ids >= 0] for ids in sequences if claims and (ids >= 0).any()]
            tokens = int(guess.diagnostics["tokens_in_batch"][index])
            best = None
            for sign in (1,) if sent.sign_is_known else (1, -1):
                one = {name: sign * values[index] for name, values in gradients.tensors.items()}
                tried = verify_texts(
                    text, one, named, rounding=sent.rounding, tokens=tokens, training=sent.training
                )
                if best is None or tried.explains_all:
                    best = replace(tried, sign=sign)
                if tried.explains_all:
                    break
            assert best is not None
            found.append(best)
        return found

    def check(self, mechanism: SharedGradient) -> None:
        """Any optimiser: what is left of the span is seen when it is read."""

    def text(self, mechanism: SharedGradient) -> TextModel:
        """The model, told how its updates were rounded."""
        return replace(self.model, is_difference=mechanism.sent.is_difference)

    def precision(self, gradients: Sequence[dict[str, Tensor]], mechanism: SharedGradient) -> float:
        """How coarse the layers are whose spans are read."""
        return self.coarseness(gradients, mechanism.sent.rounding)

    def coarseness(self, gradients: Sequence[dict[str, Tensor]], rounding: Rounding) -> float:
        """The same, by what is known of their numbers."""
        read = {*self.model.first.weights(gradients[0]), *self.model.second.weights(gradients[0])}
        layers = [{name: value for name, value in one.items() if name in read} for one in gradients]
        told = layers if any(value.any() for value in layers[0].values()) else gradients
        return coarsest(told, rounding)

    def reconstruct(self, release: Gradient, mechanism: SharedGradient, effort: Effort) -> Reconstruction:
        """Texts as ids; −1 fills the rest. The last token of a language model's texts is a label only."""
        text = self.text(mechanism)
        name = name_sequences if mechanism.sent.training.steps == 1 else name_after_steps
        ids = torch.full((len(release), _TEXTS, effort.longest), -1)
        tokens = torch.zeros(len(release), dtype=torch.int64)
        for trial in range(len(release)):
            gradient = {name: values[trial] for name, values in release.tensors.items()}
            precision = self.precision([gradient], mechanism)
            found, tokens[trial] = name(text, gradient, precision=precision, longest=effort.longest)
            for slot, sequence in enumerate(found[:_TEXTS]):
                ids[trial, slot, : len(sequence)] = sequence
        unnamed = torch.full(ids.shape[:2], torch.nan, dtype=torch.float64)
        return Reconstruction(Records(ids, unnamed), diagnostics={"tokens_in_batch": tokens})


def _proposal(records: Records) -> Proposal:
    """What an attack names for one update; without shares, all samples have the same."""
    named = ~records.labels.isnan()
    labels = records.labels[named].long()
    shares = torch.full_like(labels, 1 / max(1, len(labels)), dtype=torch.float64)
    if records.weights is not None:
        shares = records.weights[named]
    return Proposal(records.features[named].flatten(1).double(), labels, shares)


def recognise(module: nn.Module, shape: tuple[int, ...] | None = None) -> Reader:
    """How a network is read: as one of tokens, of patches, or of dense layers; in evaluation mode."""
    was_training = {name for name, part in module.named_modules() if part.training}
    module.eval()
    try:
        return _recognised(module, shape)
    finally:
        for name, part in module.named_modules():
            part.training = name in was_training


def _recognised(module: nn.Module, shape: tuple[int, ...] | None) -> Reader:
    try:
        return TokenReader(text_model(module))
    except InputError:
        pass
    found = _patches(module, shape)
    return (
        PatchReader(found) if found is not None else DenseReader(dense_head(module, _example(module, shape)))
    )


def _patches(module: nn.Module, shape: tuple[int, ...] | None) -> PatchModel | None:
    """The network as one that reads patches; None where it is none, or where the layer that does is frozen."""
    try:
        found = patch_model(module, shape)
    except InputError:
        return None
    return found if module.get_parameter(found.own("weight")).requires_grad else None


def _example(module: nn.Module, shape: tuple[int, ...] | None) -> Tensor | None:
    if shape is None:
        return None
    parameter = next(module.parameters(), torch.zeros(()))
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    return torch.randn(4, *shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
