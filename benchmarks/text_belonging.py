"""Texts, adapters and bases that belong together, and some that do not: who is refused, and who is told?

    python benchmarks/text_belonging.py --models 10 --texts 100

A tiny transformer is fine-tuned on 100 made-up records for 10, 40 and 150 steps, and audited with its own texts and
base; with its texts' secrets swapped among them; with texts of the same kind that it never saw; with one secret in all
texts; and with its adapter (what training added to the weights) on another base of the same shape: one with another
start, and one that went on training elsewhere. Nobody hands in unseen texts. `silent` is a verdict without a word
about belonging; only the rows of what belongs may have it.
"""

import argparse
import copy
from collections import Counter

import torch

from remanence.core.exceptions import MisfitError
from remanence.texts.game import audit_text
from remanence.texts.tiny import TinyTransformer, as_language_model, made_up_records, tiny_model, train

STEPS = (10, 40, 150)
Records = list[dict[str, str]]


def texts(records: Records) -> list[str]:
    """As they are trained on."""
    return [record["prefix"] + record["secret"] for record in records]


def moved(base: TinyTransformer, tuned: TinyTransformer, other: TinyTransformer) -> TinyTransformer:
    """The other base with what fine-tuning added to the first."""
    found = copy.deepcopy(other)
    with torch.no_grad():
        for weight, after, before in zip(
            found.parameters(), tuned.parameters(), base.parameters(), strict=True
        ):
            weight += after - before
    return found


def said(model: TinyTransformer, base: TinyTransformer, records: Records) -> str:
    """The outcome of one audit in a word or two."""
    try:
        result = audit_text(as_language_model(model, "tuned"), records, base=as_language_model(base, "base"))
    except MisfitError:
        return "refused"
    told = any(caveat.id == "training-not-shown" for entry in result.evidence for caveat in entry.caveats)
    return f"{result.verdict}, {'told' if told else 'silent'}"


def cases(seed: int, count: int, steps: int):
    """What is handed in: a name, the model, its base and the texts."""
    public, mine, never, elsewhere = (
        made_up_records(n, seed=1000 * seed + place) for place, n in enumerate((200, count, count, 200))
    )
    same = [{**record, "secret": "7305"} for record in mine]
    base = train(tiny_model(seed), texts(public), steps=80, seed=seed)
    stranger = train(tiny_model(seed + 500), texts(elsewhere), steps=80, seed=seed)
    related = train(copy.deepcopy(base).requires_grad_(True), texts(elsewhere), steps=80, seed=seed + 1)

    def tune(records: Records) -> TinyTransformer:
        return train(copy.deepcopy(base).requires_grad_(True), texts(records), steps=steps, seed=seed + 2)

    tuned, secrets = tune(mine), [record["secret"] for record in mine]
    turned = [{**r, "secret": s} for r, s in zip(mine, secrets[1:] + secrets[:1], strict=True)]
    yield "own texts, own base", tuned, base, mine
    yield "one secret in all texts", tune(same), base, same
    yield "secrets swapped", tuned, base, turned
    yield "texts never trained on", tuned, base, never
    yield "base with another start", moved(base, tuned, stranger), stranger, mine
    yield "base trained further", moved(base, tuned, related), related, mine


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--texts", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[tuple[str, int], Counter[str]] = {}
    for seed in range(options.models):
        for steps in STEPS:
            for name, model, base, records in cases(seed, options.texts, steps):
                counts.setdefault((name, steps), Counter())[said(model, base, records)] += 1
    kinds = sorted({kind for each in counts.values() for kind in each})
    print(f"{options.models} models, {options.texts} texts each")
    print(f"{'handed in':24} {'steps':>5}  " + "  ".join(f"{kind:>16}" for kind in kinds))
    for (name, steps), found in sorted(
        counts.items(), key=lambda item: list(counts).index((item[0][0], STEPS[0]))
    ):
        print(f"{name:24} {steps:5}  " + "  ".join(f"{found[kind]:16}" for kind in kinds))


if __name__ == "__main__":
    main()
