"""Updates as a client makes them, and one of dense layers read from end to end without a file or a game around it."""

import copy
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from remanence.updates.declared import LocalTraining
from remanence.updates.dense.belonging import Belonging, belonging
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.layers import decays, dense_head
from remanence.updates.dense.peeling import Proposal
from remanence.updates.dense.proofs import Proof, verify
from remanence.updates.dense.reader import read_dense
from remanence.updates.opening import rounding_of_difference
from remanence.updates.parts import working
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import Sent


@dataclass(frozen=True)
class Reading:
    """What was found out about one update."""

    belonging: Belonging
    proof: Proof
    sign: int = 1  # −1 where the update goes against the gradient, as a difference of weights does
    basis: torch.Tensor | None = None  # of the coordinates in which a large first layer was read


def read_update(head, layers, rounding, *, training=None, scale_is_known=True) -> Reading:
    """Read one update; what is not several steps must be one."""
    one = list(layers)
    found = condensed(head, one[:1], rounding)
    sent = Sent(rounding, training or LocalTraining(), scale_is_known=scale_is_known)
    weight, bias = one[0]
    head, (first,), basis = found or (head, [weight.to(working(weight))], None)
    one[0] = first, bias
    fit = belonging(head, one, rounding)
    if sent.training.is_plain:
        if not fit.is_one_step:
            return Reading(fit, verify(head, one, Proposal.nothing(one), rounding=rounding))
        one = [
            (weight - fit.decay * own, None if bias is None or shift is None else bias - fit.decay * shift)
            for (weight, bias), (own, shift) in zip(one, decays(head), strict=True)
        ]
    staged = read_dense(head, one, sent)
    proof = staged.proof
    if basis is not None:
        inputs = proof.proposal.inputs[:, : len(basis)] @ basis
        proof = replace(proof, proposal=replace(proof.proposal, inputs=inputs))
    return Reading(fit, proof, staged.sign, basis)


def usual_loss(said, labels, **options):
    """Cross-entropy; of one output, that of a sigmoid."""
    if said.shape[-1] == 1:
        return binary_cross_entropy_with_logits(said.flatten(), labels.to(said))
    return cross_entropy(said, labels, **options)


def update(model, inputs, labels, factor=1.0, loss=usual_loss, dtype=None, **options):
    """The gradient of a batch by name, times a factor, and rounded to a format."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    parts = torch.autograd.grad(loss(model(inputs), labels, **options), list(named.values()))
    return {name: (factor * part).to(dtype or part.dtype) for name, part in zip(named, parts, strict=True)}


def trained(model, inputs, labels, training):
    """The weights before and after steps of SGD on one batch; the model keeps those before."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    free = {name: value for name, value in model.named_parameters() if value.requires_grad}
    rate, decay = training.learning_rate, training.weight_decay
    optimiser = torch.optim.SGD(free.values(), rate, training.momentum, weight_decay=decay)
    for _ in range(training.steps):
        for name, slope in update(model, inputs, labels).items():
            free[name].grad = slope
        optimiser.step()
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(before)
    return before, after


def after_steps(model, inputs, labels, training):
    """The difference of the weights over the rate after steps of SGD, and how coarse it is."""
    before, after = trained(model, inputs, labels, training)
    free = [name for name, value in model.named_parameters() if value.requires_grad]
    sent = {name: (before[name] - after[name]).double() / training.learning_rate for name in free}
    rounding = rounding_of_difference({name: before[name] for name in free})
    return sent, rounding.times(1 / training.learning_rate)


def off(claimed, inputs):
    """How far each of the claimed inputs lies from each of the true ones, relatively."""
    true = inputs.double().flatten(1)
    return torch.cdist(claimed.flatten(1), true) / true.norm(dim=1)


def read(model, gradient, rounding=None, *, example=None, **options):
    """One update of a module's dense layers, at the precision of its numbers if no other is given."""
    head = dense_head(model, example)
    rounding = rounding or Rounding.of(value.dtype for value in gradient.values())
    return read_update(head, head.layers_of(gradient), rounding, **options)


def foreign_update(kind, model, inputs, labels, *, off=0.01, **options):
    """Noise, rows in another order, another network's, or that of weights that are `off`."""
    torch.manual_seed(3)
    maker = copy.deepcopy(model)
    with torch.no_grad():
        for layer in maker.modules() if kind == "other" else ():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        for value in maker.parameters() if kind == "stale" else ():
            value.mul_(1 + off * torch.randn_like(value))
    true = update(maker, inputs, labels, **options)
    if kind == "noise":
        return {name: torch.randn_like(value) for name, value in true.items()}
    if kind == "shuffled":
        return {name: value.roll(1 + (value.ndim == 1), 0) for name, value in true.items()}
    return true
