"""Texts from the gradient of a classifier that reads in both directions, several in a batch.

pip install transformers; python integration/transformers/encoders.py
Random BERTs of width 192, texts of 8 tokens that begin and end with the same ones, four classes.
"""

from __future__ import annotations

import time

import torch
from torch.nn.functional import cross_entropy
from training import FLOAT32, update
from transformers import BertConfig, BertForSequenceClassification

from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import read_texts

SIZES = {"vocab_size": 1000, "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 3}


def main() -> None:
    torch.set_num_threads(1)
    for count in (1, 2, 4, 8):
        for seed in range(4):
            torch.manual_seed(seed)
            config = BertConfig(num_attention_heads=4, max_position_embeddings=64, num_labels=4, **SIZES)
            model = BertForSequenceClassification(config).eval()
            ids = torch.randint(5, 1000, (count, 8))
            ids[:, 0], ids[:, -1] = 2, 3
            gradient = update(model, cross_entropy(model(ids).logits, torch.randint(4, (count,))))
            started = time.process_time()
            found = read_texts(text_model(model), gradient, precision=FLOAT32, longest=12)
            true = set(map(tuple, ids.tolist()))
            false = len(set(found.sequences) - true) if found.count else 0
            print(
                f"{count} texts, seed {seed}: {found.tokens} tokens of {len(ids.unique())}, proven {found.count}, "
                f"false {false}, {time.process_time() - started:.1f} s",
                flush=True,
            )
            assert not false


if __name__ == "__main__":
    main()
