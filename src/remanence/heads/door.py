"""Heads on frozen backbones."""

from remanence.core.doors import Door

DOOR = Door(
    "heads",
    commands=("remanence.heads.command:head",),
    attacks=(
        "remanence.heads.linear_reader:LinearReader",
        "remanence.reconstructor.attack:Reconstructor",
    ),
    targets=("remanence.heads.targets:digits_heads",),
    caveats="remanence.heads.caveats",
    hashed={"released": "the released head"},
    files=dict.fromkeys(
        (".safetensors", ".pt", ".pth"),
        "head {} --backbone file.py:make --images mine/ --public others/",
    ),
    findings={"this-head": "remanence.heads.this_head:ThisHead"},
    moved=dict.fromkeys(
        ("audit --head", "audit --backbone"),
        "remanence head head.safetensors --backbone file.py:make --images mine/ --public others/",
    )
    | dict.fromkeys(
        (f"head --{name}" for name in ("hidden", "initialisation", "label-smoothing", "bias", "no-bias")),
        "--recipe file.py:make, a function that returns a TransferHead or an OwnHead",
    )
    | dict.fromkeys(
        ("audit --backbone-weights", "head --backbone-weights"),
        "remanence head --weights backbone.safetensors",
    )
    | dict.fromkeys(("head --mean", "head --deviation"), "--normalise MEAN/DEVIATION")
    | dict.fromkeys(
        ("head --trials", "head --steps"), "--quick for a first answer; audit_head(...) in Python"
    ),
)
