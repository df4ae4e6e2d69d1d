"""The weight of each position of each text in an update: prompts without a loss, weighted tokens, means of means.

Behind the last layer before the output no place sees another. There the gradient of place p is δ_p a_pᵀ, and the
update is the sum of them by their shares: one linear equation for each number of the layer, solved through the
products of all pairs. Where that layer has no gradient, as in adapters, every place is computed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.updates.texts.model import TextModel

OPEN = -1  # a token that is not known yet: as a label it counts for nothing
_AT_ONCE = 1024  # tokens whose gradient is computed at once
_LOOKED_AT = 2**18  # numbers of the update that shares are fitted to; all are recomputed afterwards
_NONE = 1e-3  # of the largest share: places with less have none
_LABEL = 1e-6  # the same for the labels of a classifier, which smoothing gives little to
_FAINT = 1e-5  # of the largest gradient: places with less take any share
_ALIKE = 1e-2  # shares that differ by less were the same before rounding
_LEAST = 1e-12  # of the largest eigenvalue of all products: directions below say nothing

Named = tuple[Tensor, int | None]  # a text, and its label where a classifier read it
Shares = Sequence[Tensor]  # the loss weight of each position of each text; for a classifier, of each text


def equal_shares(named: Sequence[Named]) -> list[Tensor]:
    """All places count the same, as in a mean over tokens."""
    counts = (len(ids) - 1 if label is None else 1 for ids, label in named)
    return [torch.ones(count, dtype=torch.float64) for count in counts]


def losses_of(
    text: TextModel, ids: Tensor, labels: Sequence[int | None], weights: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Losses of texts of one length, place by place, or of their labels; and the logits at the last place."""
    given = [label for label in labels if label is not None]
    if given:
        answers = text.logits(ids, weights)
        wanted = torch.tensor(given, device=text.device)
        return cross_entropy(answers, wanted, reduction="none")[:, None], answers
    wanted = ids[:, 1:]
    if (wanted == OPEN).any():
        answers = text.logits(ids[:, :-1], weights)
        labelled = answers.gather(2, wanted.clamp(min=0)[..., None])[..., 0]
        return answers.logsumexp(-1) - labelled.where(wanted != OPEN, 0.0), answers[:, -1]
    answers = text.logits(ids[:, : text.longest], weights)  # the last token may be a label only
    losses = cross_entropy(answers[:, : wanted.shape[1]].flatten(0, 1), wanted.flatten(), reduction="none")
    return losses.view_as(wanted), answers[:, -1]


def alike(named: Sequence[Named]) -> list[list[int]]:
    """Texts of one length together, up to this many tokens."""
    lengths: dict[int, list[int]] = {}
    for index, (sequence, _) in enumerate(named):
        lengths.setdefault(len(sequence), []).append(index)
    return [
        some[start : start + max(1, _AT_ONCE // length)]
        for length, some in lengths.items()
        for start in range(0, len(some), max(1, _AT_ONCE // length))
    ]


def fit_shares(text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named]) -> list[Tensor]:
    """The weight of each position of the texts that reproduces the update.

    Positions with a common prefix are the same position: each gets their total weight.
    """
    numbers = _numbered(named)
    products, sent = _local(text, gradient, named, numbers) or _one_by_one(text, gradient, named, numbers)
    shares = _not_negative(products, sent)
    sizes = products.diagonal().cpu()
    faint = sizes <= _FAINT**2 * sizes.max()  # the model is sure of the next token
    least = _NONE if named[0][1] is None else _LABEL
    shares = _evened(shares.where(shares > least * shares.max(), 0.0), numbers, faint)
    return [shares[one] for one in numbers]


def _numbered(named: Sequence[Named]) -> list[list[int]]:
    """A number for each place of each text; places of texts that are the same up to there have the same."""
    known: dict[tuple[tuple[int, ...], int | None], int] = {}
    numbers = []
    for sequence, label in named:
        ids = tuple(sequence.tolist())
        ends = range(2, len(ids) + 1) if label is None else [len(ids)]
        numbers.append([known.setdefault((ids[:end], label), len(known)) for end in ends])
    return numbers


def fit_begun(text: TextModel, gradient: Mapping[str, Tensor], begun: Sequence[Named]) -> Shares:
    """The same for texts whose last token is open: it counts as the token before it does."""
    together = fit_shares(text, gradient, begun)
    counting = torch.cat(together)
    usual = counting[counting > 0].median() if (counting > 0).any() else counting.new_ones(())
    for shares in together:
        shares[-1] = shares[-2] if len(shares) > 1 and shares[-2] > 0 else usual
    return count_once(begun, together)[1]


def count_once(named: Sequence[Named], together: Shares) -> tuple[list[Named], Shares, bool]:
    """Texts that count up to their ends; the weight of shared positions goes to the first text that has them.

    Also whether their number is certain: not if one of them may continue as another, or a text has two labels.
    """
    kept: dict[tuple[tuple[int, ...], int | None], tuple[Tensor, Tensor]] = {}
    for (sequence, label), shares in zip(named, together, strict=True):
        counting = shares.nonzero().flatten()
        if len(counting):
            end = int(counting[-1]) + 1
            ids = sequence if label is not None else sequence[: end + 1]
            kept[tuple(ids.tolist()), label] = ids, shares[:end]
    whole = [
        ((ids, label), shares)
        for (key, label), (ids, shares) in kept.items()
        if not any(len(other) > len(key) and other[: len(key)] == key for other, _ in kept)
    ]
    found: list[Named] = [one for one, _ in whole]
    totals: dict[int, float] = {}
    own = []
    for one, (_, shares) in zip(_numbered(found), whole, strict=True):
        own.append(shares * torch.tensor([number not in totals for number in one]))
        for number in one:
            totals[number] = totals.get(number, 0.0) + float(shares[-1])
    is_certain = len({tuple(ids.tolist()) for ids, _ in found}) == len(found) and all(
        share == 0 or abs(totals[number] - share) <= _ALIKE * share
        for one, (_, shares) in zip(_numbered(found), whole, strict=True)
        for number, share in zip(one, shares.tolist(), strict=True)
    )
    return found, own, is_certain


def _not_negative(products: Tensor, sent: Tensor) -> Tensor:
    """Non-negative least squares through products of columns."""
    sizes = products.diagonal()
    scales = sizes.rsqrt().where(sizes > _FAINT**2 * sizes.max(), 0.0)
    values, vectors = torch.linalg.eigh(products * scales * scales[:, None])
    kept = values > _LEAST * values[-1]
    roots = values[kept].sqrt()
    matrix = roots[:, None] * vectors[:, kept].mT
    aim = (vectors[:, kept].mT @ (scales * sent)) / roots
    solution, _ = nnls(matrix.cpu().numpy(), aim.cpu().numpy())
    return torch.from_numpy(solution) * scales.cpu()


def _evened(shares: Tensor, numbers: Sequence[Sequence[int]], faint: Tensor) -> Tensor:
    """Equalise shares that differ only by rounding: over all positions, or within each text.

    Faint positions before others that count get the share of the next position.
    """
    for one in numbers:
        for place, after in zip(reversed(one[:-1]), reversed(one[1:]), strict=True):
            if faint[place]:
                shares[place] = shares[after]
    ends = shares[[one[-1] for one in numbers]]
    unit = ends[ends > 0].median() if (ends > 0).any() else shares.max().clamp(min=1e-300)
    times = (shares / unit).round()
    if ((shares / unit - times).abs() <= _ALIKE * times).all():
        return unit * times
    even = shares.clone()
    for one in numbers:
        counting = [number for number in one if shares[number] > 0]
        middle = shares[counting].median() if counting else shares.max()
        if counting and ((shares[counting] - middle).abs() <= _ALIKE * middle).all():
            even[counting] = shares[counting].mean()
    return even


def _local(
    text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named], numbers: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor] | None:
    """Inner products of the gradients of all pairs of places, and of each with the update, in the last inner layer.

    None where that layer has no gradient, or places mix behind it.
    """
    if f"{text.last}.weight" not in gradient or named[0][1] is not None:
        return None
    layer = text.model.get_submodule(text.last)
    sent = gradient[f"{text.last}.weight"].double()
    sent = sent if isinstance(layer, nn.Linear) else sent.mT
    count = 1 + max(max(one) for one in numbers)
    read, pulls = sent.new_zeros(count, sent.shape[1]), sent.new_zeros(count, sent.shape[0])
    seen: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...], made: Tensor) -> Tensor:
        seen.append((arguments[0].detach(), made.detach().requires_grad_()))
        return seen[-1][1].clone()  # some models add to it in place

    handle = layer.register_forward_hook(note)
    try:
        for some in alike(named):
            seen.clear()
            losses, _ = losses_of(text, torch.stack([named[index][0] for index in some]), [None])
            if len(seen) != 1:
                return None
            ((entered, made),) = seen
            places = losses.shape[1]
            mixed = torch.autograd.grad(losses[:, -1].sum(), made, retain_graph=True)[0]
            if mixed[:, : places - 1].any():
                return None
            at = torch.tensor([numbers[index] for index in some]).flatten().to(text.device)
            pulled = torch.autograd.grad(losses.sum(), made)[0]
            read[at] = entered[:, :places].double().flatten(0, 1)
            pulls[at] = pulled[:, :places].double().flatten(0, 1)
    finally:
        handle.remove()
    ends = [one[-1] for (sequence, _), one in zip(named, numbers, strict=True) if sequence[-1] == OPEN]
    if ends:  # whatever the open places make lies along what was read there: look across it
        along = torch.linalg.svd(read[ends], full_matrices=False).Vh
        sent, read = (values - (values @ along.mT) @ along for values in (sent, read))
        read[ends] = 0.0
    return (pulls @ pulls.mT) * (read @ read.mT), ((pulls @ sent) * read).sum(1)


def _one_by_one(
    text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named], numbers: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """The same in the layers whose spans were used, from the gradient of every place."""
    names = [*text.first.weights(gradient), *text.second.weights(gradient)]
    parameters = [text.model.get_parameter(name) for name in names]
    generator = torch.Generator().manual_seed(0)
    looked = [
        torch.randperm(value.numel(), generator=generator)[: _LOOKED_AT // len(names)].to(text.device)
        for value in parameters
    ]

    def flat(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.flatten()[at].double() for part, at in zip(parts, looked, strict=True)])

    rows: dict[int, Tensor] = {}
    for (sequence, label), one in zip(named, numbers, strict=True):
        if not set(one) - rows.keys():
            continue
        losses, _ = losses_of(text, sequence[None], [label])
        for loss, number in zip(losses[0], one, strict=True):
            if number not in rows:
                rows[number] = flat(torch.autograd.grad(loss, parameters, retain_graph=True))
    stacked = torch.stack([rows[number] for number in range(len(rows))])
    return stacked @ stacked.mT, stacked @ flat([gradient[name] for name in names])
