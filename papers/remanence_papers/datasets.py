"""The data of reproductions: scikit-learn's digits stand in at the small scale, files of the user's else."""

from __future__ import annotations

import numpy as np
import torch

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.reading import GIB, UnusableFileError, read_arrays
from remanence_papers.reproduction import Settings
from remanence_papers.signatures import READ

DIGITS = "scikit-learn's digits (8x8 pixels), a stand-in for MNIST"
MNIST = "MNIST (28x28 pixels)"


def handwriting(settings: Settings) -> tuple[Records, str]:
    """Flat pictures with pixels in [0, 1] and what they are: MNIST's training set, or the stand-in.

    The order is the files' own for seed 0, and shuffled for every other: other known records and shortlists.
    """
    if settings.small:
        from sklearn.datasets import load_digits

        features, labels = load_digits(return_X_y=True)
        pixels, name = features / 16, DIGITS
    else:
        arrays = load_arrays(settings, "mnist.npz", "xtr", "ytr")
        pixels, labels, name = arrays["xtr"].reshape(len(arrays["xtr"]), -1) / 255, arrays["ytr"], MNIST
    records = Records(torch.from_numpy(pixels).float(), torch.from_numpy(labels).long())
    if settings.seed:
        records = records[
            torch.randperm(len(records), generator=torch.Generator().manual_seed(settings.seed))
        ]
    return records, name


def load_arrays(
    settings: Settings, file: str, *names: str, optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Arrays out of an npz file in the user's data folder; nothing in it is ever unpickled."""
    assert settings.data is not None, "Settings refuses the paper's scale without data"
    path = settings.data / file if settings.data.is_dir() else settings.data
    try:
        found = read_arrays(path, (*names, *optional), 8 * GIB)
        READ.add(path)
        if missing := [name for name in names if name not in found]:
            raise UnusableFileError(f"it lacks {', '.join(missing)}")
        return found
    except UnusableFileError as error:
        raise InputError(
            "The data cannot be read.",
            needs=f"{file} with the arrays {', '.join(names)}",
            got=f"{path}: {str(error).splitlines()[0]}",
            hint=f"--data FOLDER, where FOLDER holds {file}",
        ) from None


def pictures(features: torch.Tensor) -> list:
    """Flat pictures in [0, 1] as squares, for a panel; those of 3,072 numbers have three colours."""
    side = 32 if features.shape[-1] == 3072 else round(features.shape[-1] ** 0.5)
    squares = features.clamp(0, 1).unflatten(-1, (-1, side, side)).squeeze(-3)
    return squares.double().cpu().numpy().round(3).tolist()
