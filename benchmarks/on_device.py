"""The same games on CPU and GPU: equal verdicts, and the time of each.

PYTHONPATH=src python benchmarks/on_device.py
"""

from __future__ import annotations

import argparse
import time

import torch

from remanence import (
    GLM,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    Gaussian,
    LeaveOneOut,
    Logistic,
    Membership,
    Multinomial,
    Records,
    RetrainAndCompare,
    Uninformed,
    play,
)


def synthetic(count: int, features: int, classes: int) -> Records:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    scores = x[:, :classes] + 2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return Records(x, scores.argmax(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    many = parser.parse_args().trials
    two, ten = synthetic(600, 30, 2), synthetic(1800, 64, 10)
    fresh = Game(
        GLM(Logistic(), penalty=10.0), Uninformed(), two[100:], Criterion(label_scale=1.0),
        targets=EmpiricalPrior(two[:100]),
    )  # fmt: skip
    listed = Game(GLM(Gaussian(), penalty=10.0, noise=1e-3), FinitePrior(two[:32]), two[32:])
    cases = [
        ("leave one out, logistic, 600 records", LeaveOneOut(GLM(Logistic()), two), ClosedForm(), None),
        (
            "leave one out, 10 classes, 1,800 records",
            LeaveOneOut(GLM(Multinomial(10)), ten),
            ClosedForm(),
            None,
        ),
        ("10,000 fresh targets, logistic", fresh, ClosedForm(), many),
        ("10,000 trials of a shortlist of 32", listed, RetrainAndCompare(), many),
        ("10,000 membership trials", Membership(listed), RetrainAndCompare(), many),
    ]
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    print(f"torch {torch.__version__}; {torch.cuda.get_device_name() if len(devices) > 1 else 'no GPU'}")
    for name, game, attack, trials in cases:
        for device in devices:
            play(game, attack, trials=50, device=device)  # loads kernels
            started = time.perf_counter()
            found = play(game, attack, trials=trials, device=device)
            seconds = time.perf_counter() - started
            print(f"{name:42} {device:5} {seconds:7.2f} s  main {found.main}, control {found.control}")


if __name__ == "__main__":
    main()
