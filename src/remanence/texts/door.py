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
    moved=dict.fromkeys(
        ("audit --model", "audit --adapter", "audit --texts"), "remanence text FOLDER --texts train.jsonl"
    )
    | {
        "audit --canaries": "remanence text FOLDER --canaries key.json",
        "canaries --kind": "remanence canaries without it for random codes, --texts FILE for records of your own",
        "canaries --length": "--digits N",
        "text --names": '"spans": [[15, 21]] in each record says which characters are secrets',
        "text --prefix-tokens": '"prefix" in each record, as long as you like',
        "text --tokenizer": "a folder that holds the model and its tokenizer",
        "text --chance": "--tries N: a secret counts if N queries emit it with a probability of one half",
        "text --top-k": "Sampling(Decoding(top_k=...)) in Python; --attack top-k-sampling has the 40 likeliest tokens",
        "text --show-secrets": "the report, which names the riskiest places of your file",
        "text --accuse-at": "remanence text without it: a claim is refuted at 5 %",
    },
)
