"""Fine-tuned language models."""

from remanence.core.doors import Door

DOOR = Door(
    "texts",
    commands=(
        "remanence.texts.command:text",
        "remanence.texts.command:canaries",
    ),
    attacks=(
        "remanence.texts.attacks:GreedyDecoding",
        "remanence.texts.attacks:Sampling",
        "remanence.texts.attacks:TopKSampling",
        "remanence.texts.attacks:NearVerbatim",
    ),
    targets=("remanence.texts.targets:tiny_text",),
    caveats="remanence.texts.caveats",
    hashed={
        "texts": "the training texts",
        "unseen": "the texts of the control",
        "model": "the model",
        "base": "the base model",
    },
    files={
        "adapter_config.json": "text BASE_MODEL --adapter {} --texts train.jsonl",
        "config.json": "text {} --texts train.jsonl",
    },
    sections="remanence.texts.words:sections",
    moved=dict.fromkeys(("--model", "--adapter", "--texts"), "remanence text FOLDER --texts train.jsonl")
    | {"--canaries": "remanence text FOLDER --canaries key.json"},
)
