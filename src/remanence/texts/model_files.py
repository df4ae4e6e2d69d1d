"""Language models and PEFT adapters out of local files.

Everything is read from safetensors or GGUF. Nothing is downloaded, no pickle is opened, and no code that comes with a
model is run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from remanence.core.checks import extra
from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError, measured, parse_json, read_bytes
from remanence.texts.language_model import LanguageModel
from remanence.texts.transformers import language_model, words_of

_USUAL = "megatron.core"  # what peft writes into every adapter, and imports where a megatron_config is there
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# What libraries raise on files that are not what they should be.
_READING = (
    OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, ImportError, ArithmeticError,
    MemoryError, SafetensorError, UnusableFileError,
)  # fmt: skip

_READS = "the packages that read language models"


def load_language_model(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> tuple[LanguageModel, LanguageModel | None]:
    """The model of a folder or a GGUF file, with an adapter if there is one; and the same without the adapter."""
    transformers, path = extra("transformers", "text", _READS), Path(path)
    transformers.utils.logging.disable_progress_bar()
    _check_model(path)
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    options = {"local_files_only": True, "trust_remote_code": False}
    own = {**options, **({} if file is None else {"gguf_file": file})}
    try:
        if file is None:
            refuse_named_code(json.loads(read_bytes(path / "config.json")))  # some have an Infinity in them
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
    before = language_model(model, words).probe()
    adapted, own_hash = _with_adapter(model, Path(adapter)), _sha256(Path(adapter))
    both = hashlib.sha256((hashes + own_hash).encode()).hexdigest()
    tuned = language_model(adapted, words, name=f"{path.name} with {Path(adapter).name}", sha256=both)
    plain = language_model(adapted, words, name=path.name, sha256=hashes, as_base=adapted.disable_adapter)
    if not torch.allclose(plain.probe(), before, rtol=1e-3, atol=1e-3):
        # Adapters such as PiSSA take their own start out of the base weights, which are no longer the base's then.
        plain = load_language_model(path, tokenizer=tokenizer, device=device)[0]
    return tuned, plain


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


def refuse_named_code(settings: dict[str, Any]) -> None:
    """Raise where settings name a module or a kernel that a library would import; a folder may not choose code."""
    named = [key for key in ("megatron_config", "megatron_core") if settings.get(key) not in (None, _USUAL)]
    attention = [key for key in settings if key.endswith("attn_implementation") and "/" in str(settings[key])]
    if named or attention:
        raise UnusableFileError(f"{(named + attention)[0]} names code that would be run")


def _with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapter, which must have been made for it: every weight finds its place, and no other does."""
    peft = extra("peft", "text", _READS)
    weights, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if not weights.is_file() or not settings.is_file():
        inner = sorted(each.parent.name for each in folder.glob("*/adapter_config.json"))
        told = f" with the adapters {', '.join(inner[:5])}, of which one can be named" if inner else ""
        if (folder / "adapter_model.bin").is_file():
            told = " with adapter_model.bin, a pickle, which may run code"
        raise _unreadable_adapter(f"{folder}{told}")
    try:
        with safe_open(measured(weights), "pt") as file:
            own = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        told = parse_json(read_bytes(settings))
        kind, named = told["peft_type"], told.get("base_model_name_or_path")
        refuse_named_code(told)
    except _READING as error:
        raise _unreadable_adapter(f"{folder}: {words_of(error)}") from None
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=False)
        state = peft.get_peft_model_state_dict(adapted)
    except _READING as error:
        raise _foreign_adapter(words_of(error, last=True)) from None
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
        got=f"{path}: {words_of(error)}",
        hint="a file that was copied whole; compare its size with the original's"
        if whole
        else "model.save_pretrained(folder) and tokenizer.save_pretrained(folder)",
    )
