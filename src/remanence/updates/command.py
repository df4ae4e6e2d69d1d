"""`remanence update`: what does one client's update give away?"""

from __future__ import annotations

import contextlib
import sys
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.grouped import options
from remanence.cli.playing import Judged, OnDevice, compute_device, console, default_folder, finish
from remanence.cli.playing import policy as limit
from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError

_MOST_NUMBERS = 2**28  # of one input


@options("What left the client, or is about to")
class Sent:
    """The files."""

    gradients: Annotated[
        list[Path] | None,
        "--gradient",
        "A gradient, or new weights minus old ones: .safetensors, .npz or a state dict. Repeatable.",
    ] = None
    before: Annotated[
        Path | None, "--before", "--weights", "The weights that the update was made from.", "the factory's"
    ] = None
    after: Annotated[
        list[Path] | None, "A client's weights after the round, instead of an update. Repeatable."
    ] = None
    batch: Annotated[Path | None, "Your own batch instead: an .npz file with inputs and labels."] = None
    input_shape: Annotated[str | None, "Shape of one input, as in 3,32,32.", "the batch's, or a vector"] = (
        None
    )


@options("What is known about the client")
class Client:
    """Declared training and noise."""

    learning_rate: Annotated[
        float | None, "With it, a --gradient is new weights minus old ones.", "solved for"
    ] = None
    local_steps: Annotated[int, "How many steps the client took, all on one batch; of texts, one."] = 1
    optimizer: Annotated[str, "sgd, adam or adamw."] = "sgd"
    momentum: Annotated[float, "Of SGD, over several steps."] = 0.0
    weight_decay: Annotated[
        float, "Of the client's optimiser; behind dense layers, one step's is solved for."
    ] = 0.0
    batch_size: Annotated[int | None, "How many samples are behind each update.", "the proven number"] = None
    noise_multiplier: Annotated[float | None, "Gaussian noise, in units of --max-grad-norm."] = None
    max_grad_norm: Annotated[float, "The norm that each record's gradient was clipped to."] = 1.0


@options("The adversary")
class Effort:
    """What is allowed for."""

    candidates: Annotated[int, "For the ceiling of noise: the length of their shortlist of candidates."] = 10
    longest: Annotated[int, "For transformers: the most tokens that a text may have."] = 64


def update(
    model: Annotated[
        str,
        typer.Argument(
            help="path/to/file.py:factory, where factory() returns the network (a torch.nn.Module)."
        ),
    ],
    *,
    sent: Sent,
    client: Client,
    effort: Effort,
    shared: Judged,
    device: OnDevice = "auto",
) -> None:
    """Tell what an update gives away: which samples, and through which layer.

    With `--gradient`, or `--before` and `--after`, the attack knows what a server knows: the network and the
    update. Recovered records are proven by recomputing the update, without the data. With `--batch` you look at your
    own batch before its gradient leaves. Exit codes are those of `audit`; an update that does not belong to the
    weights ends with 2. audit.json and report.html are written too, and hold no sample.
    """
    from remanence.report.svg import as_file
    from remanence.results.verdict import Policy
    from remanence.scale.files import check_writable, write_files
    from remanence.updates.declared import Declared, LocalTraining, Noise
    from remanence.updates.inspection import audit_files
    from remanence.updates.leak_map import leak_map_picture, leak_table, proven_sentence, tokens_sentence
    from remanence.updates.opening import open_network

    updates, weights_after = list(sent.gradients or []), list(sent.after or [])
    given = {"an update (--gradient, or --before and --after)": updates + weights_after or None}
    hint = "--gradient for a captured update, --batch for one that is about to be sent"
    exactly_one({**given, "--batch": sent.batch}, hint)
    declared = Declared(
        LocalTraining(
            client.local_steps,
            client.learning_rate,
            client.momentum,
            client.weight_decay,
            client.optimizer,  # pyright: ignore[reportArgumentType]
        ),
        client.batch_size,
        sent.before,
        _shape(sent.input_shape),
        None if client.noise_multiplier is None else Noise(client.noise_multiplier, client.max_grad_norm),
        effort.candidates,
    )
    policy = limit(shared.max_success) or Policy(set_by="default")
    first = sent.batch or (updates + weights_after)[0]
    folder = shared.out or default_folder(f"{model}-{first.name}")
    check_writable(folder)
    with contextlib.redirect_stdout(sys.stderr):  # a factory may print; our own output stays clean
        result = audit_files(
            open_network(model, declared),
            declared,
            updates=updates,
            after=weights_after,
            batch=sent.batch,
            policy=policy,
            seed=shared.seed,
            device=compute_device(device),
            target=model,
            longest=effort.longest,
        )
    leaks = result.subject["leak_map"]
    write_files(folder, {"leak-map.svg": as_file(leak_map_picture(leaks)).encode()})
    said = [*result.subject["notes"], *tokens_sentence(result), proven_sentence(result, client.batch_size)]

    def leaks_first() -> None:
        out = console()
        for part in (leak_table(leaks), *said):
            out.print(part, highlight=False, soft_wrap=True)

    finish(result, folder, shared, first=leaks_first)


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        shape = None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if shape is not None and not (shape and min(shape) > 0 and prod(shape) <= _MOST_NUMBERS):
        raise InputError(
            "The shape of an input cannot be read.",
            needs=f"comma-separated whole numbers, of an input of at most {_MOST_NUMBERS:,} numbers",
            got=str(text),
            hint="--input-shape 3,32,32",
        )
    return shape
