"""Maciazek and Allison 2025, Tables 1 and 5: heads that know one person among others, on unbalanced sets.

The Olivetti faces stand in for CelebA at the paper's scale, and digits for people at the small one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.stratified import StratifiedPrior
from remanence.attacks.reconstructor.attack import Reconstructor
from remanence.attacks.reconstructor.shadows import Shadows
from remanence.data.records import Records, concatenate
from remanence.data.releases import Weights
from remanence.mechanisms.heads.transfer_head import TransferHead, augment, embed
from remanence.scale.progress import track
from remanence.scoring.errors import Criterion, Reduction, mean_squared_error, nearest_neighbour_errors
from remanence_papers.datasets import load_arrays
from remanence_papers.letters import letters_network, random_affine
from remanence_papers.maciazek import Trials, gallery, judged
from remanence_papers.reproduction import Cell, Outcome, Panel, Settings

# TPR and FPR at the threshold, TPR at 1 %; accuracy, TPR and TNR of the classifiers: Tables 1 and 5.
PAPER = {10: (0.441, 0.012, 0.385, 0.914, 0.434, 0.967), 40: (0.341, 0.102, 0.084, 0.935, 0.645, 0.967)}
OTHERS = 9  # pictures of others for each of the person's
_SIDE = 32
_BLOCK = 500


@dataclass(frozen=True)
class People:
    """Embedded pictures with the person as label: what the adversary has, and whom heads are trained to know."""

    name: str
    public: Records
    private: Records
    head: TransferHead


def faces(settings: Settings) -> Outcome:
    """One picture of a person among nine of others, and four among thirty-six."""
    people = _digits() if settings.small else _olivetti(settings)
    shadows, steps = (6000, 500) if settings.small else (8000, 400)
    trials = settings.trials or 500
    threshold = float(nearest_neighbour_errors(people.private, people.public).mean())
    rows: list[dict[str, Cell]] = []
    panels: list[Panel] = []
    for own in (1, 4):
        size = own * (1 + OTHERS)
        generator = torch.Generator(settings.device).manual_seed(settings.seed)
        known = _trained(people.head, people.public, own, shadows, generator)
        knowledge = Knowledge(people.head, _prior(people.public, own), None)
        attack = Reconstructor(steps=steps, batch=64, width=32, shadows=shadows, separation=0.3)
        reconstruct = attack.learn(knowledge, generator, known)
        found, scores = _attacked(people, own, reconstruct, threshold, trials, generator)
        rows.append({"N": size, "whose": "ours", **judged(found, threshold), **scores})
        if not settings.small:
            names = "TPR", "FPR", "TPR at 1 %", "accuracy", "classification TPR", "classification TNR"
            rows.append({"N": size, "whose": "CelebA", **dict(zip(names, PAPER[size], strict=True))})
        panels.append(gallery(f"N = {size}", found, threshold))
    notes = [
        f"The nearest-neighbour threshold is {threshold:.4f}. A head has 4 hidden units and one output; a person's "
        "pictures count ten times. A stranger is another person's set, so that the person's usual look counts too.",
        "The last three columns are the heads' own: how often they are right about pictures that they were not "
        "trained on.",
        "Intervals are about heads of these private people: few of them stand behind many trials. The network's best "
        "state was chosen on shadows of the same public people.",
        "The paper trains again from new initial weights until the loss is below 0.05; here every head trains once.",
    ]
    settings_shown = {"trials": trials, "shadows": shadows, "steps": steps, **_shown(people.head)}
    return Outcome(people.name, rows, panels, settings_shown, notes)


def _olivetti(settings: Settings) -> People:
    """Thirty people for the adversary and the backbone, ten others for the victims."""
    arrays = load_arrays(settings, "olivetti-faces.npz", "x", "y")
    pixels = interpolate(torch.from_numpy(arrays["x"])[:, None].float(), size=(_SIDE, _SIDE), mode="area")
    records = Records(pixels / 127.5 - 1, torch.from_numpy(arrays["y"].astype(np.int64))).to(settings.device)
    known = records.labels < 30
    backbone = _face_backbone(records[known], settings)

    def change(pictures: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(pictures), 1, 1, 1, generator=generator, device=generator.device) < 0.5
        turned = torch.where(flipped.to(pictures.device), pictures.flip(3), pictures)
        return random_affine(turned, generator, turn=0.1, scale=0.08, shear=0.05, shift=1.5)

    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    public = augment(records[known], backbone, change, 8, generator)
    head = TransferHead(2, 100, 0.05, 1e-3, hidden=4, initialisation=0.05, class_weights=(1.0, 10.0))
    name = "Olivetti faces (32x32, 30 people public, 10 private), a stand-in for CelebA"
    return People(name, public, embed(records[~known], backbone), head)


def _face_backbone(records: Records, settings: Settings, steps: int = 200) -> nn.Module:
    """A small network that learned to tell the public people apart."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = letters_network(30, width=16, features=128).to(settings.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    for _ in track(range(steps), total=steps, what="training the backbone"):
        index = torch.randint(len(records), (64,), generator=generator, device=settings.device)
        views = random_affine(records.features[index], generator, turn=0.15, scale=0.1, shear=0.1, shift=2.0)
        loss = cross_entropy(network(views), records.labels[index], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return nn.Sequential(*list(network)[:-1]).eval().requires_grad_(False)


def _digits() -> People:
    from remanence.targets import digits_transfer

    public, private = digits_transfer()
    head = TransferHead(2, 100, 0.1, 1e-3, hidden=4, initialisation=0.1, class_weights=(1.0, 10.0))
    return People("scikit-learn's digits 5 to 9, a stand-in for people", public, private, head)


def one_person_sets(
    pool: Records, own: int, count: int, generator: torch.Generator, other_than: Tensor | None = None
) -> tuple[Records, Tensor]:
    """Sets of others (label 0) and then of one person (label 1), and who that is; nobody of `other_than`."""
    people = torch.unique(pool.labels)
    draws = torch.rand(count, len(people), generator=generator, device=generator.device).to(people.device)
    if other_than is not None:
        draws = draws.where(people != other_than[:, None], -1.0)
    person = people[draws.argmax(1)]
    mine = pool.labels == person[:, None]  # (count, pictures)
    keys = torch.rand(mine.shape, generator=generator, device=generator.device).to(people.device)
    positives = keys.where(mine, -1.0).topk(own, 1).indices
    negatives = keys.where(~mine, -1.0).topk(OTHERS * own, 1).indices
    drawn = pool[torch.cat([negatives, positives], 1)]
    labels = torch.tensor([0] * OTHERS * own + [1] * own, device=people.device).expand(count, -1)
    return Records(drawn.features, labels, embedding=drawn.embedding), person


def _trained(head: TransferHead, pool: Records, own: int, count: int, generator: torch.Generator) -> Shadows:
    sets, heads = [], []
    starts = range(0, count, _BLOCK)
    for _ in track(starts, total=len(starts), what="training shadows"):
        drawn, _ = one_person_sets(pool, own, _BLOCK, generator)
        sets.append(drawn)
        heads.append(head.release(None, drawn, generator))
    return Shadows(Weights.concatenate(heads).tensors, concatenate(sets))


def _prior(pool: Records, own: int) -> StratifiedPrior:
    """What tells the reconstructor how sets are laid out; the shadows themselves are drawn by person."""
    both = concatenate(
        [Records(pool.features, torch.full_like(pool.labels, c), None, pool.embedding) for c in (0, 1)]
    )
    return StratifiedPrior(both, (OTHERS * own, own))


def _attacked(
    people: People, own: int, reconstruct, threshold: float, trials: int, generator: torch.Generator
) -> tuple[Trials, dict[str, Cell]]:
    """What comes back of the person, and how good the heads are."""
    targets, person = one_person_sets(people.private, own, trials, generator)
    strangers, _ = one_person_sets(people.private, own, trials, generator, other_than=person)
    release = people.head.release(None, targets, generator)
    guesses = reconstruct(release).records[:, 1:]  # of the person; nobody asks for the others
    criterion = Criterion(mean_squared_error, threshold, Reduction.CLASS)
    errors = [criterion.compare(records, guesses).errors.cpu() for records in (targets, strangers)]
    found = Trials(targets.to("cpu"), strangers.to("cpu"), guesses.to("cpu"), errors[0], errors[1], release)
    return found, _scores(people, targets, person, release)


def _scores(people: People, targets: Records, person: Tensor, release: Weights) -> dict[str, Cell]:
    test = people.private
    known = (targets.flat[:, :, None] == test.flat).all(3).any(1)  # (trials, pictures)
    unlabelled = Records(test.features, torch.zeros_like(test.labels), embedding=test.embedding)
    says = people.head.answer(release, unlabelled).argmax(2) == 1
    truth = test.labels == person[:, None]

    def share(right: Tensor, of: Tensor) -> float:
        return float((right & of).sum() / of.sum())

    fresh = ~known
    return {
        "accuracy": share(says == truth, fresh),
        "classification TPR": share(says, fresh & truth),
        "classification TNR": share(~says, fresh & ~truth),
    }


def _shown(head: TransferHead) -> dict[str, Cell]:
    names = "epochs", "learning_rate", "weight_decay", "initialisation"
    return {name.replace("_", " "): getattr(head, name) for name in names}
