"""One missing record of one fitted model: Remanence's closed form against ART's DatabaseReconstruction.

    python -m venv /tmp/art && /tmp/art/bin/pip install -c constraints.txt -e '.[bench]'
    /tmp/art/bin/python benchmarks/against_art.py

ART refits the model for every step of a numerical optimisation over the record. Both attacks get the
same scikit-learn model, fitted tightly, and the same other records.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from art.attacks.inference.reconstruction import DatabaseReconstruction  # pyright: ignore[reportMissingImports]
from art.estimators.classification.scikitlearn import ScikitlearnLogisticRegression  # pyright: ignore[reportMissingImports]
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from remanence import ClosedForm, Knowledge, Uninformed
from remanence.tables.sklearn import leave_one_out

RECORDS = (0, 100)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'data':15} {'record':>6} {'attack':12} {'seconds':>9} {'relative error':>15} {'label':>6}")
    for name, load in (("iris", load_iris), ("breast cancer", load_breast_cancer)):
        features, labels = load(return_X_y=True)
        features = StandardScaler().fit_transform(features)
        model = LogisticRegression(C=0.01, tol=1e-12, solver="newton-cholesky").fit(features, labels)
        game = leave_one_out(model, features, labels)
        for record in RECORDS:
            started = time.perf_counter()
            knowledge = Knowledge(game.mechanism, Uninformed(), game.data.without(record))
            found = ClosedForm().prepare(knowledge, torch.Generator())(game.release).records  # pyright: ignore
            ours = time.perf_counter() - started
            _row(name, record, "remanence", ours, found.features[0, 0].numpy(), features[record],
                 int(found.labels[0, 0]) == labels[record])  # fmt: skip

            started = time.perf_counter()
            attack = DatabaseReconstruction(ScikitlearnLogisticRegression(model))
            guess, label = attack.reconstruct(np.delete(features, record, 0), np.delete(labels, record, 0))
            theirs = time.perf_counter() - started
            _row(name, record, "ART", theirs, guess[0], features[record], label[0].argmax() == labels[record])
            print(f"{'':22} ratio ART / remanence: {theirs / ours:.0f}")


def _row(
    name: str, record: int, attack: str, seconds: float, guess: np.ndarray, target: np.ndarray, label: bool
) -> None:
    error = np.linalg.norm(guess - target) / np.linalg.norm(target)
    print(f"{name:15} {record:6} {attack:12} {seconds:9.4f} {error:15.1e} {'right' if label else 'wrong':>6}")


if __name__ == "__main__":
    main()
