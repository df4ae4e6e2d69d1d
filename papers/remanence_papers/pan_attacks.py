"""Pan et al. 2022: reconstruction from one gradient (Tables 1 and 2, Figures 6, 7 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.records import Records
from remanence.scale.progress import track
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import reconstruct
from remanence.updates.dense.sparse_columns import reconstruct_low_rank
from remanence.updates.exact import Exact
from remanence.updates.shared_gradient import SharedGradient
from remanence_papers.gradients.matching import DLG, IDLG, InvertingGradients, match_gradients
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
    ("DermaMNIST", "DLG"): (10.87, 0.450),
    ("DermaMNIST", "Inverting"): (17.11, 0.775),
    ("DermaMNIST", "the paper's algorithm"): (41.42, 1.0),
    ("OrganMNIST", "DLG"): (7.77, 0.375),
    ("OrganMNIST", "Inverting"): (12.95, 0.775),
    ("OrganMNIST", "the paper's algorithm"): (43.56, 1.0),
    ("FaceScrub", "DLG"): (6.94, 0.475),
    ("FaceScrub", "Inverting"): (11.59, 0.588),
    ("FaceScrub", "the paper's algorithm"): (35.48, 1.0),
}
PAPER_FIGURE_11 = {
    ("FaceScrub", "Inverting", "with"): 11.83,
    ("FaceScrub", "Inverting", "ordinary"): 11.55,
    ("FaceScrub", "Inverting", "without"): 10.47,
}
PAPER_FIGURE_7 = {
    ("batch size", 1): (37.8, 14.1),
    ("batch size", 128): (35.1, 11.2),
}  # FaceScrub, theirs and Inverting
SEARCHED = (1, 8, 128)  # batch sizes that Inverting meets too
_STEPS_OF_FIGURE_7 = {True: 200, False: 2400}
PER_NETWORK = 5  # batches that meet the same network, so that their gradients are searched together
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
    found = reconstruct(head, head.layers_of(_first(gradient)), precision=precision, slots=256).records
    return found.inputs, found.labels


def _first(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values[0] for name, values in gradients.items()}


def optimised(
    network: nn.Module,
    gradients: Sequence[Mapping[str, Tensor]],
    kind: str,
    steps: int,
    size: int,
    device: str,
    shape: tuple[int, ...] | None = None,
) -> list[Found]:
    """DLG or Inverting on gradients of one network, all at once; inputs are kept in [−1, 1], pictures smooth."""
    first = next(iter(network.parameters()))
    mechanism = SharedGradient(network, shape or (first.shape[1],))
    stacked = {name: torch.cat([each[name] for each in gradients]).to(device) for name in gradients[0]}
    attack = {"DLG": DLG, "Inverting": InvertingGradients}[kind](size, steps=steps, value_range=(-1.0, 1.0))
    found = match_gradients(mechanism, stacked, batch_size=size, settings=attack.search, seed=0)
    return list(zip(found.inputs.cpu(), found.labels.cpu(), strict=True))


def table_2(settings: Settings) -> Outcome:
    """Fully connected rows: insecure batches of 8 on (d-512-K), five attacks."""
    batches = settings.trials or (3 if settings.small else 10)
    widths = (256,) if settings.small else (512,)
    steps = {"DLG": 100, "Inverting": 300} if settings.small else {"DLG": 300, "Inverting": 4800}
    rows: list[Row] = []
    panels: list[Panel] = []
    for scenario in scenarios(settings):
        results: dict[str, list] = {}
        theorem_1: dict[str, Cell] = {}
        searched: dict[int, list[Records]] = {}
        for seed in track(range(batches), total=batches, what=f"batches of {scenario.name}"):
            drawn = seed // PER_NETWORK
            for dtype, bias, label in (
                (torch.float64, True, "ours, float64"),
                (torch.float32, True, "ours, float32"),
                (torch.float64, False, "ours, float64, no biases"),
                (torch.float32, False, "ours, float32, no biases"),
            ):
                network = scenario.network(widths, seed=drawn, bias=bias, dtype=dtype)
                batch = insecure(network, scenario.batch(8, seed))
                results.setdefault(label, []).append(measured(batch, *ours(network, leak(network, batch))))
            network = scenario.network(widths, seed=drawn, dtype=torch.float64)
            batch = insecure(network, scenario.batch(8, seed))
            head = dense_head(network)
            printed = paper_attack(head, head.layers_of(leak(network, batch)))
            results.setdefault("the paper's algorithm", []).append(
                measured(batch, printed.inputs, printed.labels)
            )
            theorem_1 = {
                "β of G₀": printed.density[0],
                "β of G₁": printed.density[1],
                "LSMR residual": printed.residual,
            }
            network = scenario.network(widths, seed=drawn)
            searched.setdefault(drawn, []).append(insecure(network, scenario.batch(8, seed)))
        for drawn, own in searched.items():
            network = scenario.network(widths, seed=drawn)
            leaked = [leak(network, batch) for batch in own]
            tried = {"ours": [ours(network, leaked[0])]}
            for kind, count in steps.items():
                tried[kind] = optimised(network, leaked, kind, count, 8, settings.device)
                for batch, answer in zip(own, tried[kind], strict=True):
                    results.setdefault(kind, []).append(measured(batch, *answer))
            if drawn == 0:
                panels.append(
                    _gallery(scenario, own[0], {kind: found[0][0] for kind, found in tried.items()})
                )
        for label, found in results.items():
            paper = PAPER_TABLE_2.get((scenario.paper, label), (None, None))
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
        panels,
        settings={
            "batches": batches,
            "batch size": 8,
            "width": widths[0],
            **{f"{k} steps": v for k, v in steps.items()},
        },
        notes=[
            "Batches are made insecure by the least change of the inputs that gives each sample two exclusive neurons. "
            "PSNR is −10 log₁₀(MSE), the paper's convention.",
            f"{PER_NETWORK} batches meet the same network. What is exact runs in float64 on the CPU, a search where "
            "`--device` says. The figure shows the first batch; colours are averaged.",
            "The paper's algorithm as printed (in float64) fixes |g_y| at 2/3. An untrained network has 1 − 1/K, so "
            "that every input comes back 1.35 times as large with ten classes, and 1.2 times with five. That leaves a "
            "PSNR 9 dB, or 14 dB, above that of a black picture: the 48 dB that the paper prints cannot come from it. "
            "With the scale solved for, which is ours, the same gradients give what the rows *ours* say.",
            "β is the share of a gradient that is not zero, and the residual what "
            "LSMR leaves of the last batch, relative (Theorem 1 bounds the error by β, with a constant that it does "
            "not give). The residual is large because loss vectors of the wrong scale fit no pattern of activations.",
        ],
    )


def _gallery(scenario: Scenario, batch: Records, found: Mapping[str, Tensor]) -> Panel:
    """A batch, and each attack's guesses in its order; a missing guess is grey."""
    lines = {"batch": batch.features.double()}
    for attack, guesses in found.items():
        missing = max(0, len(batch) - len(guesses))
        padded = torch.cat([guesses.double(), torch.zeros(missing, guesses.shape[1])])
        lines[attack] = padded[match(lines["batch"], padded)]
    grey = [grey_pictures(values, scenario.shape) for values in lines.values()]
    return Panel(scenario.name, pictures=grey, picture_rows=list(lines))


def figure_7(settings: Settings) -> Outcome:
    """PSNR over batch size, training epoch, width and depth, on insecure batches, in float32."""
    batches = settings.trials or (3 if settings.small else 10)
    sizes = (1, 2, 4, 8, 16) if settings.small else (1, 2, 4, 8, 16, 32, 64, 128)
    epochs = (0, 5, 10) if settings.small else tuple(range(0, 101, 20))
    rows: list[dict[str, Cell]] = []
    for scenario in _of_figure_7(settings):
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
        for row in rows[-len(cases) :]:
            if row["panel"] == "batch size" and row["value"] in SEARCHED:
                row |= _inverted(scenario, int(str(row["value"])), settings)
            if not settings.small:
                place = str(row["panel"]), int(str(row["value"]))
                row["paper PSNR"], row["paper PSNR, Inverting"] = PAPER_FIGURE_7.get(place, (None, None))
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
    notes = [
        "Networks of the epochs are trained on at most 2,000 pictures. The paper: 20 to 50 dB, above 40 at every epoch "
        "on CIFAR-10; its two numbers over the batch size are for FaceScrub.",
        f"*Inverting*: {PER_NETWORK} batches, {_STEPS_OF_FIGURE_7[settings.small]} steps, at some batch sizes.",
    ]
    return Outcome(", ".join(names), rows, panels, {"batches": batches}, notes)


def _of_figure_7(settings: Settings) -> list[Scenario]:
    """CIFAR-10, RetinaMNIST and the faces."""
    every = scenarios(settings)
    return [each for each in every if each.paper in ("", "CIFAR-10", "RetinaMNIST", "FaceScrub")]


def _inverted(scenario: Scenario, size: int, settings: Settings) -> dict[str, Cell]:
    """What Inverting makes of the same kind of batches."""
    network = scenario.network(seed=0)
    batches = [insecure(network, scenario.batch(size, seed)) for seed in range(PER_NETWORK)]
    leaked = [leak(network, batch) for batch in batches]
    steps = _STEPS_OF_FIGURE_7[settings.small]
    answers = optimised(network, leaked, "Inverting", steps, size, settings.device)
    found = summary([measured(b, *a) for b, a in zip(batches, answers, strict=True)])
    return {"Inverting PSNR": found["PSNR"], "± Inverting": found["± (two errors)"]}


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
        found.append(measured(batch, guesses, labels))
    return {**summary(found), "batch size right": sizes / batches}


def checkpoints(
    scenario: Scenario, epochs: tuple[int, ...], settings: Settings
) -> list[tuple[int, nn.Sequential]]:
    """Checkpoints of (d-512-K) along a training by SGD, on at most 2,000 pictures."""
    network = scenario.network(seed=settings.seed).to(settings.device)
    data = scenario.data[:2000].to(settings.device)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(settings.seed)
    kept = []
    for epoch in track(range(max(epochs) + 1), total=max(epochs) + 1, what="epochs of training"):
        if epoch in epochs:
            kept.append((epoch, _copy(network, scenario)))
        for index in torch.randperm(len(data), generator=generator).split(128):
            optimiser.zero_grad()
            part = data[index.to(settings.device)]
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
    widths = (256,) if settings.small else (512,)
    rows: list[Row] = []
    for scenario in _of_figure_7(settings):
        groups: dict[str, dict[str, list]] = {}
        searched: dict[int, list[tuple[str, Records, Mapping[str, Tensor]]]] = {}
        for seed in track(range(batches), total=batches, what=f"batches of {scenario.name}"):
            network = scenario.network(widths, seed=seed // PER_NETWORK)
            ordinary = scenario.batch(8, seed)
            kinds = {
                "with": insecure(network, ordinary),
                "ordinary": ordinary,
                "without": _shared(network, ordinary),
            }
            for kind, batch in kinds.items():
                gradient = leak(network, batch)
                searched.setdefault(seed // PER_NETWORK, []).append((kind, batch, gradient))
                for attack, found in (
                    ("exclusive-neurons", ours(network, gradient)),
                    ("low-rank", _low_rank(network, gradient)),
                ):
                    groups.setdefault(attack, {}).setdefault(kind, []).append(measured(batch, *found))
        for drawn, cases in searched.items():
            network = scenario.network(widths, seed=drawn)
            answers = optimised(network, [case[2] for case in cases], "Inverting", steps, 8, settings.device)
            for (kind, batch, _), answer in zip(cases, answers, strict=True):
                groups.setdefault("Inverting", {}).setdefault(kind, []).append(measured(batch, *answer))
        rows += [
            {"data": scenario.name, "attack": attack, "exclusive neurons": kind, **summary(found)}
            | {"paper PSNR": PAPER_FIGURE_11.get((scenario.paper, attack, kind))}
            for attack, kinds in groups.items()
            for kind, found in kinds.items()
        ]
    note = (
        "*without*: samples are moved towards their mean, in steps, until none has an exclusive neuron (the paper uses "
        "a least change). That makes their patterns alike as well, which takes from the low-rank attack what it tells "
        "them apart by; batches of 16 without exclusive neurons whose patterns differ come back whole "
        "(docs/method/updates.md). The paper finds Inverting weakest there."
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
    found = reconstruct_low_rank(head, head.layers_of(_first(gradient)), precision=1.2e-7).records
    return found.inputs, found.labels


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


def grey_pictures(values: Tensor, shape: tuple[int, ...]) -> list[list[list[float]]]:
    """Flat pictures in [−1, 1] as squares in [0, 1] for a panel, colours averaged."""
    pictures = ((values.view(-1, *shape).mean(1) + 1) / 2).clamp(0, 1)
    return [[[round(pixel, 3) for pixel in line] for line in picture] for picture in pictures.tolist()]
