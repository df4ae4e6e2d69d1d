"""Models of Hugging Face's `transformers`, with adapters of `peft` or without, as language models to audit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.texts.mechanism import Chat, LanguageModel, Read

Encode = Callable[[str], list[int]]


def language_model(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "the model",
    sha256: str = "",
    as_base: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> LanguageModel:
    """A causal model of `transformers` (or of `peft` around one) and its tokenizer, ready to be audited.

    `as_base` is a context in which the model runs without its adapter: `model.disable_adapter`.
    """
    model.eval()
    device, head = model.device, model.get_output_embeddings()
    vocabulary = int(model.config.vocab_size if head is None else head.weight.shape[0])
    if len(tokenizer) > vocabulary:
        raise InputError(
            "The tokenizer does not fit the model.",
            needs=f"at most {vocabulary} tokens, as many as the model has logits for",
            got=f"{len(tokenizer)} tokens",
            hint="the tokenizer that the model was trained with; it is in the same folder",
        )

    def read(ids: Tensor) -> Tensor:
        with torch.no_grad(), as_base():
            return model(input_ids=ids, use_cache=False).logits[:, -ids.shape[1] :]

    def remember(start: Tensor) -> Read:
        with torch.no_grad(), as_base():
            seen = model(input_ids=start[None], use_cache=True).past_key_values

        def read_on(ids: Tensor) -> Tensor:
            own = copy.deepcopy(seen)  # reading on changes it in place
            own.batch_repeat_interleave(len(ids))
            with torch.no_grad(), as_base():
                return model(input_ids=ids, past_key_values=own, use_cache=True).logits

        return read_on

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    told = getattr(model, "active_peft_config", None)
    virtual = int(getattr(told, "num_virtual_tokens", None) or 0)  # that an adapter prepends to every text
    remembers = "past_key_values" in inspect.signature(inner.forward).parameters and not virtual
    encode, ends = _encoder(tokenizer, special=True)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")  # as configurations spell it
    longest = next((found for name in names if (found := getattr(model.config, name, None))), None)
    return LanguageModel(
        name=name,
        logits=read,
        encode=encode,
        decode=lambda ids: tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
        vocabulary=vocabulary,
        context=int(min(longest or tokenizer.model_max_length, 2**31)) - virtual,
        opening=tuple(takewhile(lambda token: token in tokenizer.all_special_ids, encode("a"))),
        ends=ends,
        chat=_chat(tokenizer) if tokenizer.chat_template else None,
        start=next((t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), None),
        remember=remember if remembers else None,
        device=device,
        sha256=sha256,
    )


def _encoder(tokenizer: Any, *, special: bool) -> tuple[Encode, Encode | None]:
    """From a text to its tokens and, if the tokenizer knows, their end positions in the text."""

    def closed(ids: list[int], text: str) -> bool:  # some tokenizers append an end token
        end = tokenizer.eos_token_id
        return special and bool(ids) and ids[-1] == end and not text.endswith(str(tokenizer.eos_token))

    def encode(text: str) -> list[int]:
        ids = list(tokenizer(text, add_special_tokens=special)["input_ids"])
        return ids[:-1] if closed(ids, text) else ids

    def ends(text: str) -> list[int]:
        told = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        found = [end for _, end in told["offset_mapping"]]
        return found[:-1] if closed(told["input_ids"], text) else found

    return encode, ends if tokenizer.is_fast else None


def _chat(tokenizer: Any) -> Chat:
    """Conversations by the tokenizer's own template, which is rendered in a sandbox."""

    def render(messages: Sequence[Any]) -> str:
        with refusing(  # the template is code from the model
            Exception,
            "The chat template rejects this conversation.",
            needs="roles and an order that it knows",
            got="the template",
            hint='{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}',
        ):
            return tokenizer.apply_chat_template(list(messages), tokenize=False)

    return Chat(render, *_encoder(tokenizer, special=False))


def text_loss(logits: Tensor, ids: Tensor, padding: int) -> Tensor:
    """The mean over texts of each text's own mean loss per token.

    Private fine-tuning needs this. A mean over all tokens of a batch, as models compute it from `labels=`, makes every
    text's gradient depend on the lengths of the others, and clipping each text does not undo that.
    """
    wanted = ids[:, 1:]
    losses = cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
    counted = wanted != padding
    return ((losses * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def text_reading(
    padding: int, call: Callable[[Any, Tensor], Tensor] | None = None
) -> tuple[Callable[[Any, Tensor], Tensor], Callable[[Any, Tensor], Any]]:
    """The loss and the call of a loop that uses `text_loss`, for the `Reading` of a recorded run.

    `call` returns logits, for models that are not called like those of `transformers`.
    """

    def logits(model: Any, ids: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=(ids != padding).long()).logits

    read = call or logits
    return (
        lambda both, _: text_loss(both[0], both[1], padding),
        lambda model, ids: (read(model, ids), ids),
    )
