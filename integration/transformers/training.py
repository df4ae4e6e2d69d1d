"""Texts from updates as people train: prompts without a loss, smoothed labels, weights, padding, dropout.

pip install transformers; python integration/transformers/training.py
Four texts of 6 to 12 tokens behind random models. *exact*: texts that came back to the last token; *false*: texts that
were proven and are none of the batch's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from families import make
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.updates.texts.model import text_model
from remanence.updates.texts.naming import tokens_in_batch
from remanence.updates.texts.reader import read_texts

FLOAT32, IGNORED = 1.2e-7, -100
LENGTHS, PROMPT = (6, 9, 12, 12), 3


def update(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    made = zip(named.items(), parts, strict=True)
    return {name: torch.zeros_like(value) if part is None else part for (name, value), part in made}


def padded(rows: list[Tensor], *, left: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention mask and labels."""
    side = "left" if left else "right"
    ids, labels = (
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
        for value in (0, IGNORED)
    )
    return ids, (labels >= 0).long(), labels


def ways(model: nn.Module, rows: list[Tensor]) -> dict[str, Callable[[], Tensor]]:
    def loss(
        *, left: bool = False, prompt: int = 0, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Tensor:
        ids, mask, labels = padded(rows, left=left)
        begins = (labels >= 0).long().argmax(1, keepdim=True)
        wanted = labels.masked_fill(torch.arange(labels.shape[1]) < begins + prompt, IGNORED)
        answers = model(ids, attention_mask=mask).logits[:, :-1]
        return cross_entropy(
            answers.flatten(0, 1), wanted[:, 1:].flatten(), weight=weights, label_smoothing=smoothing
        )

    def each() -> Tensor:
        """Accumulated over batches of one."""
        losses = [cross_entropy(model(row[None]).logits[0, :-1], row[1:]) for row in rows]
        return torch.stack(losses).mean()

    def dropping() -> Tensor:
        model.train()
        torch.manual_seed(0)
        made = loss()
        model.eval()
        return made

    classes = 1 + 2 * torch.rand(1000, generator=torch.Generator().manual_seed(0))
    return {
        "padded on the right": loss,
        "padded on the left": lambda: loss(left=True),
        "accumulated, one by one": each,
        "prompts without a loss": lambda: loss(prompt=PROMPT),
        "labels smoothed by 0.1": lambda: loss(smoothing=0.1),
        "tokens weighted, 1 to 3": lambda: loss(weights=classes),
        "dropout in training": dropping,
    }


def main() -> None:
    false = 0
    for family in ("Llama", "Llama, tied", "GPT-2"):
        model = make(family)
        text = text_model(model)
        generator = torch.Generator().manual_seed(1)
        rows = [torch.randint(5, 1000, (length,), generator=generator) for length in LENGTHS]
        true = {tuple(row.tolist()) for row in rows}
        inside = {token for row in rows for token in row[:-1].tolist()}
        for name, loss in ways(model, rows).items():
            gradient = update(model, loss())
            found = read_texts(text, gradient, precision=FLOAT32, longest=16)
            tokens = set(torch.cat(tokens_in_batch(text, gradient, precision=FLOAT32, length=16)).tolist())
            wrong = len(set(found.sequences) - true) if found.count else 0
            print(
                f"{family:12} {name:28} tokens {len(inside & tokens):3} of {len(inside)}, false "
                f"{len(tokens - inside)}; texts exact {len(set(found.sequences) & true)} of {len(true)}, proven "
                f"{found.count}, false {wrong}, left {found.unexplained:.0e}",
                flush=True,
            )
            false += wrong
    assert not false


if __name__ == "__main__":
    main()
