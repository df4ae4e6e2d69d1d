"""How far updates of true texts are from what is computed anew, beside what rounding every weight once moves.

pip install transformers; python integration/transformers/margins.py
Sixteen times that is allowed. *worst*: the quotient in the worst tensor of a model. Both sides are computed on one
machine; an encoder's single text is computed in the same order on both, and leaves nothing.
"""

from __future__ import annotations

import torch
from families import FAMILIES, VOCABULARY, make, update

from remanence import InputError
from remanence.updates.rounding import Rounding
from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import recompute
from remanence.updates.texts.shares import equal_shares


def main() -> None:
    torch.set_num_threads(1)
    for family in FAMILIES:
        model = make(family)
        try:
            text = text_model(model)
        except InputError as error:
            print(f"{family:12} refused: {error.got}", flush=True)
            continue
        torch.manual_seed(1)
        ids = torch.randint(5, VOCABULARY, (4 if text.is_causal else 1, 12))
        sent = update(model, ids)
        named = [(row, None if text.is_causal else 2) for row in ids]
        found = recompute(text, sent, named, equal_shares(named), Rounding(0.0))
        quotients = sorted(
            16 * found.held.off[name] / allowed for name, allowed in found.held.allowed.items() if allowed
        )
        print(
            f"{family:12} worst {quotients[-1]:.2f}, median {quotients[len(quotients) // 2]:.2f}", flush=True
        )
        assert quotients[-1] < 16, family


if __name__ == "__main__":
    main()
