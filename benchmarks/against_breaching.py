"""One picture from one gradient: our Inverting Gradients against breaching's, with its published settings.

    pip download breaching==0.1.2 --no-deps && unzip breaching-*.whl -d BREACHING
    python benchmarks/against_breaching.py --breaching BREACHING --cifar cifar10.npz

Cosine similarity, total variation 0.2, signed Adam at 0.1 with the rate cut at 3/8, 5/8 and 7/8, pixels kept in range,
the label known; breaching's default of 24,000 steps is cut to --steps for both. Only its attack modules are loaded: the
package as a whole imports torchvision, which the attack itself does not use.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import nn

from remanence import Records, SharedGradient
from remanence_papers.gradients.matching import Matching, match_gradients
from remanence_papers.picture_quality import quality


class Config(dict):
    """A mapping whose keys are attributes, as hydra makes them."""

    def __getattr__(self, name: str):
        if name not in self:
            raise AttributeError(name)
        value = self[name]
        return Config(value) if isinstance(value, dict) else value


SETTINGS = Config(
    type="invertinggradients",
    attack_type="optimization",
    label_strategy="iDLG",
    objective={"type": "cosine-similarity", "scale": 1.0, "task_regularization": 0.0},
    restarts={"num_trials": 1, "scoring": "cosine-similarity"},
    init="randn",
    normalize_gradients=False,
    optim={
        "optimizer": "adam",
        "signed": "hard",
        "step_size": 0.1,
        "boxed": True,
        "max_iterations": 0,
        "step_size_decay": "step-lr",
        "langevin_noise": 0.0,
        "warmup": 0,
        "grad_clip": None,
        "callback": 10**9,
    },
    differentiable_augmentations=False,
    regularization={"total_variation": {"scale": 0.2, "inner_exp": 1, "outer_exp": 1}},
    impl={"dtype": "float", "mixed_precision": False, "JIT": None},
)


def attacker_class(folder: Path):
    """breaching's optimisation attack without the rest of the package."""
    sys.path.insert(0, str(folder))
    for name in ("breaching", "breaching.attacks", "breaching.cases", "breaching.cases.models"):
        stub = ModuleType(name)
        stub.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = stub
    from breaching.attacks.optimization_based_attack import (  # pyright: ignore[reportMissingImports]
        OptimizationBasedAttacker,
    )

    return OptimizationBasedAttacker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--breaching", type=Path, required=True)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pictures", type=int, default=2)
    options = parser.parse_args()
    attacker = attacker_class(options.breaching)
    with np.load(options.cifar) as arrays:
        pictures = torch.from_numpy(arrays["xte"][: options.pictures]).permute(0, 3, 1, 2).float() / 127.5 - 1
        classes = torch.from_numpy(arrays["yte"][: options.pictures]).long()
    for index in range(options.pictures):
        torch.manual_seed(index)
        network = nn.Sequential(
            *(
                nn.Conv2d(3, 16, 5, stride=2, padding=2),
                nn.ReLU(),
                nn.Conv2d(16, 16, 5, stride=2, padding=2),
                nn.ReLU(),
            ),
            *(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)),
        )
        picture, label = pictures[index : index + 1], classes[index : index + 1]
        mechanism = SharedGradient(network, (3, 32, 32))
        release = mechanism.release(None, Records(picture, label)[None], torch.Generator())
        # breaching's total variation is the mean of both directions; ours is their sum.
        own = Matching(steps=options.steps, total_variation=0.1, value_range=(-1.0, 1.0))
        started = time.perf_counter()
        ours = match_gradients(mechanism, release.tensors, batch_size=1, settings=own, seed=index)
        our_seconds = time.perf_counter() - started
        theirs, their_seconds = breach(attacker, network, release.tensors, label, options.steps)
        for name, guess, seconds in (
            ("ours", ours.inputs[0], our_seconds),
            ("breaching", theirs, their_seconds),
        ):
            found = quality(picture, label, guess.detach(), label, value_range=2.0)
            print(
                f"picture {index} {name:10s} {found}, {seconds:.1f} s, {seconds / our_seconds:.2f} times ours",
                flush=True,
            )


def breach(
    attacker, network: nn.Module, gradient, label: torch.Tensor, steps: int
) -> tuple[torch.Tensor, float]:
    settings = Config({**SETTINGS, "optim": {**SETTINGS["optim"], "max_iterations": steps}})
    shape = SimpleNamespace(
        shape=(3, 32, 32),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        modality="vision",
        classes=10,
        task="classification",
    )
    payload = [
        {"parameters": list(network.parameters()), "buffers": list(network.buffers()), "metadata": shape}
    ]
    shared = [
        {
            "gradients": [value[0] for value in gradient.values()],
            "buffers": None,
            "metadata": {"num_data_points": 1, "labels": label, "local_hyperparams": None},
        }
    ]
    attack = attacker(network, nn.CrossEntropyLoss(), settings)
    started = time.perf_counter()
    found, _ = attack.reconstruct(payload, shared, server_secrets={})
    return found["data"], time.perf_counter() - started


if __name__ == "__main__":
    main()
