"""Hugging Face models and PEFT adapters as language models to audit.

Everything is read from local files in safetensors or GGUF. Nothing is downloaded, no pickle is opened, and no code that
comes with a model is run.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import cross_entropy

from remanence.exceptions import InputError
from remanence.mechanisms.language_model import Chat, LanguageModel, Read
from remanence.scale.reading import UnusableFileError, measured, parse_json, read_bytes

if TYPE_CHECKING:
    from remanence.integrations.opacus_replica import Reading

Encode = Callable[[str], list[int]]

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# What libraries raise on files that are not what they should be.
_READING = (
    OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, ImportError, ArithmeticError,
    MemoryError, SafetensorError, UnusableFileError,
)  # fmt: skip


def language_model(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "the model",
    sha256: str = "",
    as_base: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> LanguageModel:
    """A causal model of `transformers` (or of `peft` around one) and its tokenizer, ready to be audited.

    `as_base` opens a context in which the model answers without its adapter: `model.disable_adapter`.
    """
    model.eval()
    device, head = model.device, model.get_output_embeddings()
    vocabulary = int(model.config.vocab_size if head is None else head.weight.shape[0])
    if len(tokenizer) > vocabulary:
        raise InputError(
            "The tokenizer does not fit the model.",
            needs=f"at most {vocabulary} tokens, as many as the model has logits for",
            got=f"{len(tokenizer)} tokens",
            hint="the tokenizer that the model was trained with; it lies in the same folder",
        )

    def read(ids: Tensor) -> Tensor:
        with torch.no_grad(), as_base():
            return model(input_ids=ids, use_cache=False).logits[:, -ids.shape[1] :]

    def remember(start: Tensor) -> Read:
        with torch.no_grad(), as_base():
            seen = model(input_ids=start[None], use_cache=True).past_key_values

        def read_on(ids: Tensor) -> Tensor:
            own = copy.deepcopy(seen)  # reading on writes into it
            own.batch_repeat_interleave(len(ids))
            with torch.no_grad(), as_base():
                return model(input_ids=ids, past_key_values=own, use_cache=True).logits

        return read_on

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    told = getattr(model, "active_peft_config", None)
    virtual = int(getattr(told, "num_virtual_tokens", None) or 0)  # which an adapter puts before every text
    remembers = "past_key_values" in inspect.signature(inner.forward).parameters and not virtual
    encode, ends = _encoder(tokenizer, special=True)
    return LanguageModel(
        name=name,
        logits=read,
        encode=encode,
        decode=lambda ids: tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
        vocabulary=vocabulary,
        context=_context(model.config, tokenizer) - virtual,
        opening=tuple(encode("")),
        ends=ends,
        chat=_chat(tokenizer) if tokenizer.chat_template else None,
        start=next((t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), None),
        remember=remember if remembers else None,
        device=device,
        sha256=sha256,
    )


def _encoder(tokenizer: Any, *, special: bool) -> tuple[Encode, Encode | None]:
    """From a text to its tokens and, where the tokenizer knows, to where in the text each of them ends."""

    def closed(ids: list[int], text: str) -> bool:  # some tokenizers close what is to go on
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
        try:
            return tokenizer.apply_chat_template(list(messages), tokenize=False)
        except Exception as error:  # noqa: BLE001, a template is code of the model's own, and raises what it likes
            raise InputError(
                "The chat template does not take this conversation.",
                needs="roles and an order that the model's template knows",
                got=_words(error),
                hint='{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}',
            ) from None

    return Chat(render, *_encoder(tokenizer, special=False))


def text_loss(logits: Tensor, ids: Tensor, padding: int) -> Tensor:
    """The mean over texts of each text's own mean loss per token.

    Private fine-tuning needs this. A mean over all tokens of a batch, as models compute it from `labels=`, lets every
    text's gradient depend on how long the others are, and no clipping of single texts undoes that.
    """
    wanted = ids[:, 1:]
    losses = cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
    counted = wanted != padding
    return ((losses * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def text_reading(padding: int, call: Callable[[Any, Tensor], Tensor] | None = None) -> Reading:
    """How a loop that uses `text_loss` looks at a text, for `record(..., reading=...)`; `call` gives logits."""
    from remanence.integrations.opacus_replica import Reading

    def logits(model: Any, ids: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=(ids != padding).long()).logits

    read = call or logits
    return Reading(
        call=lambda model, ids: (read(model, ids), ids),
        loss=lambda both, _: text_loss(both[0], both[1], padding),
    )


def load_language_model(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> tuple[LanguageModel, LanguageModel | None]:
    """The model of a folder or a GGUF file, with an adapter if there is one; and the same without the adapter."""
    transformers, path = _library("transformers"), Path(path)
    transformers.utils.logging.disable_progress_bar()
    _check_model(path)
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    options = {"local_files_only": True, "trust_remote_code": False}
    own = {**options, **({} if file is None else {"gguf_file": file})}
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            output_loading_info=True,
            **own,
            **({"use_safetensors": True} if file is None else {}),
        )
    except _READING as error:
        raise _unreadable("model", path, error) from None
    _check_weights(path, [*told["missing_keys"], *(str(key) for key in told["mismatched_keys"])])
    model = model.to(device)
    try:
        words = transformers.AutoTokenizer.from_pretrained(
            *([folder] if tokenizer is None else [Path(tokenizer)]), **(own if tokenizer is None else options)
        )
    except _READING as error:
        raise _unreadable("tokenizer", Path(tokenizer or path), error) from None
    hashes = _sha256(path)
    if adapter is None:
        return language_model(model, words, name=path.name, sha256=hashes), None
    adapted, own_hash = _with_adapter(model, Path(adapter)), _sha256(Path(adapter))
    both = hashlib.sha256((hashes + own_hash).encode()).hexdigest()
    named = f"{path.name} with {Path(adapter).name}"
    return (
        language_model(adapted, words, name=named, sha256=both),
        language_model(adapted, words, name=path.name, sha256=hashes, as_base=adapted.disable_adapter),
    )


def _check_model(path: Path) -> None:
    """Refuse what is no model in a safe format, before a library opens it."""
    found = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    if path.is_dir() and "adapter_config.json" in found and "config.json" not in found:
        problem = "an adapter without its model"
    elif path.is_dir() and "config.json" not in found:
        problem = f"a folder with {', '.join(found[:5]) or 'nothing'} in it"
    elif path.is_dir() and not any(name.endswith(".safetensors") for name in found):
        pickles = [name for name in found if name.endswith(_PICKLES)]
        problem = f"{pickles[0]}, a pickle, which may run code" if pickles else "no weights"
    elif path.is_file() and path.suffix != ".gguf":
        problem = f"{path.name}" + (", a pickle, which may run code" if path.suffix in _PICKLES else "")
    elif not path.exists():
        problem = f"{path}, which does not exist"
    else:
        return
    raise InputError(
        "The model cannot be read.",
        needs="a folder with config.json and weights in safetensors, or a .gguf file",
        got=problem,
        hint="model.save_pretrained(folder) writes safetensors; an adapter goes to --adapter",
    )


def _check_weights(path: Path, missing: list[str]) -> None:
    """A weight that is not in the files is made up at random, which no library calls an error."""
    if missing:
        raise InputError(
            "The model is not whole.",
            needs="all weights that config.json asks for",
            got=f"{path} without {sorted(missing)[0]}"
            + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            hint="copy the whole folder; a model in parts has several .safetensors files and an index",
        )


def _with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter, which must have been made for it: every weight finds its place, and no other does."""
    peft = _library("peft")
    weights, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if not weights.is_file() or not settings.is_file():
        pickle = (folder / "adapter_model.bin").is_file()
        raise _unreadable_adapter(
            f"{folder}" + (" with adapter_model.bin, a pickle, which may run code" if pickle else "")
        )
    try:
        with safe_open(measured(weights), "pt") as file:
            own = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        told = parse_json(read_bytes(settings))
        kind, named = told["peft_type"], told.get("base_model_name_or_path")
    except _READING as error:
        raise _unreadable_adapter(f"{folder}: {_words(error)}") from None
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=False)
        state = peft.get_peft_model_state_dict(adapted)
    except _READING as error:
        raise _foreign_adapter(_words(error, last=True)) from None
    placed = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if own != placed:
        strange = sorted(own.items() ^ placed.items())[0][0]
        raise _foreign_adapter(f"a weight without a place, {strange} ({kind}, made for {named})")
    return adapted


def _unreadable_adapter(got: str) -> InputError:
    return InputError(
        "The adapter cannot be read.",
        needs="a folder with adapter_config.json and adapter_model.safetensors",
        got=got,
        hint="peft_model.save_pretrained(folder) writes both",
    )


def _foreign_adapter(got: str) -> InputError:
    return InputError(
        "The adapter is for another model.",
        needs="an adapter whose every weight has its place in this model",
        got=got,
        hint="the base model that adapter_config.json names",
    )


def _context(config: Any, tokenizer: Any) -> int:
    """How many tokens the model sees, by whichever name its configuration has for it."""
    names = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
    found = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    return int(min(found or tokenizer.model_max_length, 2**31))


def _sha256(path: Path) -> str:
    """Of all weights and settings, file by file in the order of their names."""
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*config.json")])
    total = hashlib.sha256()
    for each in files:
        with each.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _unreadable(what: str, path: Path, error: Exception) -> InputError:
    whole = path.suffix == ".gguf"
    return InputError(
        f"The {what} cannot be read.",
        needs="a causal language model that transformers knows, in local files, without code of its own",
        got=f"{path}: {_words(error)}",
        hint="a file that was copied whole; compare its size with the original's"
        if whole
        else "model.save_pretrained(folder) and tokenizer.save_pretrained(folder)",
    )


def _words(error: Exception, *, last: bool = False) -> str:
    """What a library's error says, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    missing = "no entry " if isinstance(error, KeyError) else ""
    return missing + lines[-1 if last else 0].strip()[:200]


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"{name} is not installed.",
            needs=f"{name}, to read language models",
            got="an environment without it",
            hint="pip install 'remanence[text]'",
        ) from None
