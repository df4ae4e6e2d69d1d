"""One update of dense layers read from end to end, without a file or a game around it."""

from dataclasses import dataclass, replace

from remanence.updates.declared import LocalTraining
from remanence.updates.dense.belonging import Belonging, belonging, without_decay
from remanence.updates.dense.coordinates import Coordinates, condensed
from remanence.updates.dense.proofs import Proof, verify
from remanence.updates.dense.reader import no_records, read_dense
from remanence.updates.parts import working
from remanence.updates.shared_gradient import Sent


@dataclass(frozen=True)
class Reading:
    """What was found out about one update."""

    belonging: Belonging
    proof: Proof
    sign: int = 1  # −1 where the update goes against the gradient, as a difference of weights does
    coordinates: Coordinates | None = None  # in which a large first layer was read


def read_update(head, layers, rounding, *, training=None, scale_is_known=True) -> Reading:
    """Read one update, whose tensors have a dimension for trials, of size 1; what is not several steps must be one."""
    one = [(weight[0], None if bias is None else bias[0]) for weight, bias in layers]
    found = condensed(head, one[:1], relative=rounding.relative, absolute=rounding.absolute)
    sent = Sent(rounding, training or LocalTraining(), scale_is_known=scale_is_known)
    weight, bias = one[0]
    one[0] = (weight.to(working(weight)) if found is None else found.gradients[0]), bias
    head = head if found is None else found.head
    fit = belonging(head, one, rounding)
    if sent.training.is_plain:
        if not fit.is_one_step:
            return Reading(fit, verify(head, one, no_records(one), rounding=rounding))
        one = without_decay(head, one, fit.decay) if fit.decay else one
    (staged,) = read_dense(head, [(w[None], None if b is None else b[None]) for w, b in one], sent)
    proof = staged.proof
    if found is not None:
        proof = replace(proof, proposal=replace(proof.proposal, inputs=found.inputs(proof.proposal.inputs)))
    return Reading(fit, proof, staged.sign, found)
