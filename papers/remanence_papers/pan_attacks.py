"""Pan et al. 2022: reconstruction from one gradient (Tables 1 and 2, Figures 6, 7 and 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.records import Records
from remanence.scale.progress import track
from remanence.updates.dense_layers import dense_head
from remanence.updates.exact import Exact
from remanence.updates.low_rank import reconstruct_low_rank
from remanence.updates.peeling import reconstruct
from remanence.updates.shared_gradient import SharedGradient
from remanence_papers.gradients.matching import DLG, IDLG, InvertingGradients, Matching, match_gradients
from remanence_papers.gradients.printed import paper_attack
from remanence_papers.pan_data import Scenario, insecure, leak, measured, scenarios, summary
from remanence_papers.picture_quality import match
from remanence_papers.reproduction import Cell, Outcome, Panel, Row, Settings, curve

PAPER_TABLE_2 = {
    ("CIFAR-10", "DLG"): (8.75, 0.475),
    ("CIFAR-10", "Inverting"): (12.50, 0.775),
    ("CIFAR-10", "the paper's algorithm"): (48.12, 1.0),
    ("RetinaMNIST", "DLG"): (4.48, 0.5),
    ("RetinaMNIST", "Inverting"): (4.97, 0.513),
    ("RetinaMNIST", "the paper's algorithm"): (19.88, 1.0),
}
Found = tuple[Tensor, Tensor]  # guesses and their labels


def table_1(_: Settings) -> Outcome:
    """The threat models, as the attacks themselves state them."""
    attacks = (DLG, IDLG, InvertingGradients, Exact)
    rows = [
        {
            "attack": info.name,
            "needs": info.needs,
            "batch size": "required" if "batch size" in info.needs else "not required",
            "from": info.reference.short,
        }
        for info in (attack.info for attack in attacks)
    ]
    note = "The paper's Table 1 has its own attack, DLG, iDLG and Inverting; iDLG for batches is ours (label counts)."
    return Outcome("none", rows, notes=[note])


def ours(network: nn.Module, gradient: Mapping[str, Tensor]) -> Found:
    """The exact attack."""
    head = dense_head(network)
    precision = torch.finfo(next(network.parameters()).dtype).eps
    found = reconstruct(head, head.layers_of(gradient), precision=precision, slots=256)
    return found.inputs[0][found.found[0]], found.labels[0][found.found[0]]


def optimised(network: nn.Module, gradient: Mapping[str, Tensor], kind: str, steps: int, size: int) -> Found:
    """DLG or Inverting on one batch of known size; inputs are kept in [−1, 1]."""
    first = next(iter(network.parameters()))
    mechanism = SharedGradient(network, (first.shape[1],))
    own = {
        "DLG": Matching("euclidean", "l-bfgs", "optimise", steps, learning_rate=1.0, value_range=(-1.0, 1.0)),
        "Inverting": Matching("cosine", "signed-adam", "infer", steps, value_range=(-1.0, 1.0)),
    }[kind]
    found = match_gradients(mechanism, gradient, batch_size=size, settings=own, seed=0)
    return found.inputs[0], found.labels[0]


def table_2(settings: Settings) -> Outcome:
    """Fully connected rows: insecure batches of 8 on (d-512-K), five attacks."""
    batches = settings.trials or (3 if settings.small else 10)
    widths = (256,) if settings.small else (512,)
    steps = {"DLG": 100, "Inverting": 300} if settings.small else {"DLG": 300, "Inverting": 4800}
    rows: list[Row] = []
    for scenario in scenarios(settings):
        results: dict[str, list] = {}
        theorem_1: dict[str, Cell] = {}
        for seed in track(range(batches), total=batches, what=f"batches of {scenario.name}"):
            for dtype, bias, label in (
                (torch.float64, True, "ours, float64"),
                (torch.float32, True, "ours, float32"),
                (torch.float64, False, "ours, float64, no biases"),
                (torch.float32, False, "ours, float32, no biases"),
            ):
                network = scenario.network(widths, seed=seed, bias=bias, dtype=dtype)
                batch = insecure(network, scenario.batch(8, seed))
                results.setdefault(label, []).append(
                    measured(scenario, batch, *ours(network, leak(network, batch)))
                )
            network = scenario.network(widths, seed=seed, dtype=torch.float64)
            batch = insecure(network, scenario.batch(8, seed))
            head = dense_head(network)
            printed = paper_attack(head, head.layers_of(leak(network, batch)))
            results.setdefault("the paper's algorithm", []).append(
                measured(scenario, batch, printed.inputs, printed.labels)
            )
            theorem_1 = {
                "β of G₀": printed.density[0],
                "β of G₁": printed.density[1],
                "LSMR residual": printed.residual,
            }
            network = scenario.network(widths, seed=seed)
            batch = insecure(network, scenario.batch(8, seed))
            for kind, count in steps.items():
                found = optimised(network, leak(network, batch), kind, count, 8)
                results.setdefault(kind, []).append(measured(scenario, batch, *found))
        for label, found in results.items():
            paper = PAPER_TABLE_2.get((scenario.name, label), (None, None))
            rows.append(
                {
                    "data": scenario.name,
                    "attack": label,
                    **summary(found),
                    "paper PSNR": paper[0],
                    "paper labels": paper[1],
                    **(theorem_1 if label == "the paper's algorithm" else {}),
                }
            )
    return Outcome(
        ", ".join(dict.fromkeys(str(row["data"]) for row in rows)),
        rows,
        settings={
            "batches": batches,
            "batch size": 8,
            "width": widths[0],
            **{f"{k} steps": v for k, v in steps.items()},
        },
        notes=[
            "Batches are made insecure by the least change of the inputs that gives each sample two exclusive neurons. "
            "PSNR is −10 log₁₀(MSE), the paper's convention. The paper's algorithm runs in float64; that it fixes "
            "|g_y| at 2/3 rescales its inputs. β is the share of a gradient that is not zero, and the residual what "
            "LSMR leaves of the last batch, relative (Theorem 1 bounds the error by β, with a constant that it does "
            "not give). The residual is large because loss vectors of the wrong scale fit no pattern of activations.",
        ],
    )


def figure_7(settings: Settings) -> Outcome:
    """PSNR over batch size, training epoch, width and depth, on insecure batches, in float32."""
    batches = settings.trials or (3 if settings.small else 10)
    sizes = (1, 2, 4, 8, 16) if settings.small else (1, 2, 4, 8, 16, 32, 64, 128)
    epochs = (0, 5, 10) if settings.small else tuple(range(0, 101, 20))
    rows: list[dict[str, Cell]] = []
    for scenario in scenarios(settings)[:2]:
        cases: list[tuple[str, int, dict[str, Any]]] = [
            ("batch size", size, {"size": size}) for size in sizes
        ]
        cases += [
            ("epoch", epoch, {"network": network})
            for epoch, network in checkpoints(scenario, epochs, settings)
        ]
        cases += [("width", width, {"widths": (width,)}) for width in (300, 400, 500, 600, 700)]
        cases += [("ReLU layers", depth, {"widths": (512,) * depth}) for depth in (1, 2, 3, 4)]
        rows += [
            {"data": scenario.name, "panel": panel, "value": value, **_psnr(scenario, batches, **case)}
            for panel, value, case in track(cases, total=len(cases), what=scenario.name)
        ]
    names = list(dict.fromkeys(str(row["data"]) for row in rows))
    panels = [
        Panel(
            panel,
            panel,
            "PSNR, dB",
            [
                curve(name, [r for r in rows if r["panel"] == panel and r["data"] == name], "value", "PSNR")
                for name in names
            ],
            log_across=False,
        )
        for panel in ("batch size", "epoch", "width", "ReLU layers")
    ]
    notes = ["Networks of the epochs are trained on at most 2,000 pictures. The paper: 20 to 50 dB."]
    return Outcome(", ".join(names), rows, panels, {"batches": batches}, notes)


def _psnr(
    scenario: Scenario,
    batches: int,
    *,
    size: int = 8,
    widths: tuple[int, ...] = (512,),
    network: nn.Sequential | None = None,
) -> dict[str, Cell]:
    found, sizes = [], 0
    for seed in range(batches):
        own = network or scenario.network(widths, seed=seed)
        batch = insecure(own, scenario.batch(size, seed))
        guesses, labels = ours(own, leak(own, batch))
        sizes += len(labels) == size
        found.append(measured(scenario, batch, guesses, labels))
    return {**summary(found), "batch size right": sizes / batches}


def checkpoints(
    scenario: Scenario, epochs: tuple[int, ...], settings: Settings
) -> list[tuple[int, nn.Sequential]]:
    """Checkpoints of (d-512-K) along a training by SGD, on at most 2,000 pictures."""
    network, data = scenario.network(seed=settings.seed), scenario.data[:2000]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(settings.seed)
    kept = []
    for epoch in track(range(max(epochs) + 1), total=max(epochs) + 1, what="epochs of training"):
        if epoch in epochs:
            kept.append((epoch, _copy(network, scenario)))
        for index in torch.randperm(len(data), generator=generator).split(128):
            optimiser.zero_grad()
            part = data[index]
            cross_entropy(network(part.features), part.labels).backward()
            optimiser.step()
    return kept


def _copy(network: nn.Sequential, scenario: Scenario) -> nn.Sequential:
    twin = scenario.network(seed=0)
    twin.load_state_dict(network.state_dict())
    return twin


def figure_11(settings: Settings) -> Outcome:
    """Inverting, and ours, on ordinary batches, on insecure ones, and on ones without exclusive neurons."""
    batches = settings.trials or (3 if settings.small else 20)
    steps = 200 if settings.small else 4800
    rows: list[Row] = []
    for scenario in scenarios(settings)[:3]:
        groups: dict[str, dict[str, list]] = {}
        for seed in track(range(batches), total=batches, what=f"batches of {scenario.name}"):
            network = scenario.network((256,) if settings.small else (512,), seed=seed)
            ordinary = scenario.batch(8, seed)
            kinds = {
                "with": insecure(network, ordinary),
                "ordinary": ordinary,
                "without": _shared(network, ordinary),
            }
            for kind, batch in kinds.items():
                gradient = leak(network, batch)
                attacks = {
                    "Inverting": optimised(network, gradient, "Inverting", steps, 8),
                    "exclusive-neurons": ours(network, gradient),
                    "low-rank": _low_rank(network, gradient),
                }
                for attack, found in attacks.items():
                    groups.setdefault(attack, {}).setdefault(kind, []).append(
                        measured(scenario, batch, *found)
                    )
        rows += [
            {"data": scenario.name, "attack": attack, "exclusive neurons": kind, **summary(found)}
            for attack, kinds in groups.items()
            for kind, found in kinds.items()
        ]
    note = (
        "*without*: samples are moved towards their mean, in steps, until none has an exclusive neuron (the paper uses "
        "a least change). That makes their patterns alike as well, which takes from the low-rank attack what it tells "
        "them apart by; batches of 16 without exclusive neurons whose patterns differ come back whole "
        "(docs/gradients.md). The paper finds Inverting weakest there."
    )
    return Outcome(
        ", ".join(dict.fromkeys(str(r["data"]) for r in rows)),
        rows,
        (),
        {"batches": batches, "steps": steps},
        [note],
    )


def _low_rank(network: nn.Module, gradient: Mapping[str, Tensor]) -> Found:
    head = dense_head(network)
    found = reconstruct_low_rank(head, head.layers_of(gradient), precision=1.2e-7)
    return found.inputs[0][found.found[0]], found.labels[0][found.found[0]]


def _shared(network: nn.Module, batch: Records) -> Records:
    """The batch pulled towards its mean, in steps of a tenth, until no neuron is exclusive."""
    layer = network.get_submodule("0")
    mean = batch.features.mean(0)
    pulled = batch.features
    for tenths in range(1, 11):
        if not ((layer(pulled) > 0).sum(0) == 1).any():
            break
        pulled = batch.features + (mean - batch.features) * tenths / 10 * 0.999
    return Records(pulled, batch.labels)


def figure_6(settings: Settings) -> Outcome:
    """A gallery: the batch, and what each attack makes of its gradient."""
    steps = 300 if settings.small else 4800
    panels, rows = [], []
    for scenario in scenarios(settings):
        network = scenario.network((256,) if settings.small else (512,), seed=settings.seed)
        batch = scenario.batch(8, settings.seed)
        gradient = leak(network, batch)
        attacks = {
            "ours": ours(network, gradient),
            "Inverting": optimised(network, gradient, "Inverting", steps, 8),
            "DLG": optimised(network, gradient, "DLG", 300, 8),
        }
        lines = {"batch": batch.features.double()}
        for attack, (guesses, labels) in attacks.items():
            padded = torch.cat([guesses.double(), torch.zeros(max(0, 8 - len(guesses)), guesses.shape[1])])
            lines[attack] = padded[match(batch.features.double(), padded)]
            rows.append(
                {
                    "data": scenario.name,
                    "attack": attack,
                    **summary([measured(scenario, batch, guesses, labels)]),
                }
            )
        grey = [grey_pictures(values, scenario.shape) for values in lines.values()]
        panels.append(Panel(scenario.name, pictures=grey, picture_rows=list(lines)))
    return Outcome(
        ", ".join(dict.fromkeys(str(row["data"]) for row in rows)),
        rows,
        panels,
        {"batch size": 8, "steps of Inverting": steps},
        ["Pictures in colour are shown as the mean of their channels. Ordinary batches, not made insecure."],
    )


def grey_pictures(values: Tensor, shape: tuple[int, ...]) -> list[list[list[float]]]:
    """Flat pictures in [−1, 1] as squares in [0, 1] for a panel, colours averaged."""
    pictures = ((values.view(-1, *shape).mean(1) + 1) / 2).clamp(0, 1)
    return [[[round(pixel, 3) for pixel in line] for line in picture] for picture in pictures.tolist()]
