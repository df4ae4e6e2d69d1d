"""The closed form on generalised linear models: error against tolerance, success against noise, speed.

.venv/bin/python benchmarks/glm.py            # prints the tables of docs/reproductions/balle-glm.md
"""

from __future__ import annotations

import time
import warnings

import torch
from sklearn.linear_model import LogisticRegression

from remanence import (
    GLM,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    Logistic,
    Records,
    RetrainAndCompare,
    SuccessRate,
    Uninformed,
    play,
)
from remanence.scale.seeds import stream
from remanence.tables.sklearn import leave_one_out
from remanence.targets import breast_cancer_logistic, digits_logistic


def rate(found: SuccessRate) -> str:
    return f"{found.rate:.3f} ({found.lower:.3f} to {found.upper:.3f})"


def tolerance_table(data: Records) -> None:
    print("\nError against tolerance: breast cancer, standardised, LogisticRegression(solver='lbfgs')\n")
    print("| C | tol | remaining gradient | predicted error | measured error | records | labels |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    features, labels = data.features.numpy(), data.labels.numpy()
    for strength in (1.0, 0.01):
        for tol in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = LogisticRegression(C=strength, tol=tol, max_iter=100_000).fit(features, labels)
            found = play(leave_one_out(model, features, labels), ClosedForm())
            assert found.label_rate is not None
            print(
                f"| {strength:g} | {tol:.0e} | {found.errors.remaining_gradient:.1e} "
                f"| {found.errors.median_predicted:.1e} | {found.errors.median:.1e} "
                f"| {rate(found.main)} | {rate(found.label_rate)} |"
            )


def noise_table(data: Records) -> None:
    print("\nSuccess against output noise: breast cancer, λ = 100, 500 trials, 95 % intervals\n")
    print("| noise | closed form | control | retrain-and-compare, 32 candidates (guess 0.031) | control |")
    print("|--:|--:|--:|--:|--:|")
    target, known = data[:32], data[32:]
    criterion = Criterion()
    for noise in (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        mechanism = GLM(Logistic(), penalty=100.0, noise=noise)
        blind = Game(mechanism, Uninformed(), known, criterion, targets=EmpiricalPrior(target))
        listed = Game(mechanism, FinitePrior(target), known, criterion)
        closed = play(blind, ClosedForm(), trials=500)
        retrained = play(listed, RetrainAndCompare(), trials=500)
        print(
            f"| {noise:g} | {rate(closed.main)} | {rate(closed.control)} "
            f"| {rate(retrained.main)} | {rate(retrained.control)} |"
        )


def speed() -> None:
    print("\nSpeed, one thread\n")
    for name, factory in (("breast cancer", breast_cancer_logistic), ("digits", digits_logistic)):
        game = factory()
        release = game.mechanism.release(game.data[1:], game.data[:1][None], stream(0, "training", "cpu"))
        count = len(game.data)
        started = time.perf_counter()
        ClosedForm().expose(game.mechanism, game.data, release)
        together = time.perf_counter() - started
        sample = range(0, count, max(1, count // 50))
        started = time.perf_counter()
        for index in sample:
            one = type(game.knowledge)(game.mechanism, Uninformed(), game.data.without(index))
            ClosedForm().prepare(one, stream(0, "attack", "cpu"))(release)  # pyright: ignore
        alone = (time.perf_counter() - started) / len(sample) * count
        print(f"- {name}: all {count} records in one pass {together:.3f} s; one by one {alone:.2f} s; "
              f"ratio {alone / together:.0f}")  # fmt: skip
    game = breast_cancer_logistic()
    targets, known = game.data[:300][:, None], game.data[300:]
    started = time.perf_counter()
    GLM(Logistic(), penalty=100.0).release(known, targets, stream(0, "training", "cpu"))
    batched = time.perf_counter() - started
    started = time.perf_counter()
    for index in range(0, 300, 10):
        training = torch.cat([known.features, targets.features[index]])
        labels = torch.cat([known.labels, targets.labels[index]])
        LogisticRegression(C=0.01, solver="newton-cholesky", tol=1e-12).fit(training.numpy(), labels.numpy())
    looped = (time.perf_counter() - started) * 10
    print(f"- 300 logistic regressions on 270 records: batched Newton {batched:.2f} s; "
          f"scikit-learn's newton-cholesky in a loop {looped:.2f} s; ratio {looped / batched:.1f}")  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    patients = breast_cancer_logistic().data
    tolerance_table(patients)
    noise_table(patients)
    speed()
