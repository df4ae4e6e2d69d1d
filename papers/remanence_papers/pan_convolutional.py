"""Pan et al. 2022: convolutional networks, features exactly and pictures by a generator (Table 2, Figure 8)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import interpolate

from remanence.core.records import Records
from remanence.scale.progress import track
from remanence_papers.gradients.hybrid import hybrid_attack
from remanence_papers.pan_attacks import grey_pictures, optimised
from remanence_papers.pan_data import Scenario, leak, scenarios, summary
from remanence_papers.picture_quality import Quality, match, quality
from remanence_papers.reproduction import Outcome, Panel, Row, Settings

PAPER = {  # the least and the greatest over three data sets
    "LeNet-5": {"ours": "19.52 to 28.88", "DLG": "7.77 to 13.46", "Inverting": "12.73 to 17.31"},
    "AlexNet": {"ours": "12.79 to 24.90", "DLG": "7.86 to 12.51", "Inverting": "10.57 to 17.32"},
    "VGG-13": {"ours": "17.55 to 29.53", "DLG": "10.11 to 14.20", "Inverting": "11.89 to 16.17"},
}


def lenet5(channels: int, side: int, classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and maximum pooling; 44,944 features at 224 × 224."""
    left = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(
            nn.Flatten(),
            nn.Linear(16 * left**2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        ),
    )


def alexnet(channels: int, side: int, classes: int) -> nn.Sequential:
    """AlexNet's shapes for 224 × 224, without dropout."""
    assert side == 224, "the pooling is laid out for this size"
    return nn.Sequential(
        *(
            nn.Conv2d(channels, 64, 11, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, 1, 2),
            nn.ReLU(),
        ),
        *(
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, 1, 1),
            nn.ReLU(),
        ),
        *(nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(9216, 4096)),
        *(nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, classes)),
    )


def vgg13(channels: int, side: int, classes: int) -> nn.Sequential:
    """VGG-13's convolutions without batch normalisation; dense layers 1024 wide instead of 4096."""
    layers: list[nn.Module] = []
    before = channels
    for width in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            # torch's default shrinks the signal to nothing in ten layers
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")  # pyright: ignore
            before = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * (side // 32) ** 2, 1024), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, classes))


NETWORKS = {"LeNet-5": lenet5, "AlexNet": alexnet, "VGG-13": vgg13}


def table_2(settings: Settings) -> Outcome:
    """The convolutional rows: pictures upsampled to 224 × 224 (32 × 32 and LeNet-5 alone at the small scale)."""
    side, steps = (32, 600) if settings.small else (224, 2000)
    searches = {"DLG": 30, "Inverting": 60} if settings.small else {"DLG": 300, "Inverting": 1200}
    batches = settings.trials or (1 if settings.small else 3)
    scenario = scenarios(settings)[0]
    shape = (scenario.shape[0], side, side)
    rows: list[Row] = []
    panels: list[Panel] = []
    for name in list(NETWORKS)[: 1 if settings.small else 3]:
        results: dict[str, list[Quality]] = {}
        recovered = 0
        for seed in track(range(batches), total=batches, what=f"{name} on {scenario.name}"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                network = NETWORKS[name](scenario.shape[0], side, scenario.classes).to(settings.device)
            batch = upsampled(scenario, side, seed).to(settings.device)
            leaked = leak(network, batch)
            gradient = {key: value[0] for key, value in leaked.items()}
            guesses, labels, found = hybrid_attack(network, gradient, shape, precision=1.2e-7, steps=steps)
            recovered += len(found.records)
            tried = {"features, then a generator": (guesses, labels)}
            for kind, count in searches.items():
                (tried[kind],) = optimised(network, [leaked], kind, count, 8, settings.device, shape)
            own = Records(batch.features.cpu(), batch.labels.cpu())
            for attack, (pictures, classes) in tried.items():
                measured = quality(own.features, own.labels, pictures.cpu(), classes.cpu(), value_range=2.0)
                results.setdefault(attack, []).append(measured)
            if seed == 0 and len(guesses) == len(batch):
                drawn = {"batch": own.features} | {kind: each[0].cpu() for kind, each in tried.items()}
                ordered = [one[match(own.features.double(), one.double())] for one in drawn.values()]
                grey = [grey_pictures(values, shape) for values in ordered]
                panels.append(Panel(name, pictures=grey, picture_rows=list(drawn)))
        for attack, found in results.items():
            rows.append(
                {
                    "network": name,
                    "attack": attack,
                    "features recovered": None if attack in searches else f"{recovered} of {8 * batches}",
                    **summary(found),
                    "paper PSNR": PAPER[name].get(attack, PAPER[name]["ours"]),
                }
            )
    notes = [
        "The paper's ranges are over ImageNet, ISIC and FaceScrub, none of which is to be had here at this size. PSNR "
        "is −10 log₁₀(MSE). The paper gives no settings for its generator; ours has five convolutions per picture.",
        "DLG and Inverting search as in Table 2's dense rows, all eight pictures at once, with the total variation "
        "(0.01) that Geiping et al. add for pictures.",
    ]
    used = {"batch size": 8, "batches": batches, "side": side, "steps": steps}
    used |= {f"{kind} steps": count for kind, count in searches.items()}
    return Outcome(scenario.name, rows, panels, used, notes)


def upsampled(scenario: Scenario, side: int, seed: int) -> Records:
    """A batch of eight pictures, enlarged."""
    batch = scenario.batch(8, seed)
    pictures = batch.features.view(-1, *scenario.shape)
    larger = interpolate(pictures, size=(side, side), mode="bilinear", align_corners=False)
    return Records(larger, batch.labels)
