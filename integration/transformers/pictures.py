"""Pictures from gradients of vision models of the families that people train, with random weights and no download.

pip install transformers; python integration/transformers/pictures.py
Every family gives its pictures, is refused by name, or leaves them open; nothing false is proven.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.exceptions import InputError
from remanence.updates.patches.fit import fit_patches
from remanence.updates.patches.model import PatchModel, patch_model
from remanence.updates.patches.reader import verify_pictures
from remanence.updates.rounding import Rounding

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_labels": 10,
}
ONE = {**SIZES, "image_size": 16, "patch_size": 8, "num_channels": 1}
STAGES = {"depths": [1, 1], "num_channels": 1, "num_labels": 10, "patch_size": 8, "image_size": 16}
FAMILIES = {  # the name in transformers, and its sizes
    "ViT": ("ViT", ONE),
    "DeiT": ("DeiT", ONE),
    "BEiT": ("Beit", ONE),
    "BEiT with positions": ("Beit", {**ONE, "use_absolute_position_embeddings": True}),
    "Data2Vec": ("Data2VecVision", ONE),
    "CLIP vision": ("CLIP", ONE),
    "SigLIP vision": ("Siglip", ONE),
    "DINOv2": ("Dinov2", ONE),
    "ViT-MSN": ("ViTMSN", ONE),
    "I-JEPA": ("IJepa", ONE),
    "Swin": ("Swin", {**STAGES, "image_size": 32, "embed_dim": 48, "num_heads": [2, 4], "window_size": 2}),
    "Swin v2": ("Swinv2", {**STAGES, "embed_dim": 48, "num_heads": [2, 4], "window_size": 2}),
    "ConvNeXt": ("ConvNext", {**STAGES, "num_stages": 2, "hidden_sizes": [48, 64], "layer_scale_init_value": 1.0}),
    "ConvNeXt v2": ("ConvNextV2", {**STAGES, "num_stages": 2, "hidden_sizes": [48, 64]}),
    "PoolFormer": ("PoolFormer", {"num_channels": 1, "num_labels": 10, "num_encoder_blocks": 2, "depths": [1, 1],
        "hidden_sizes": [48, 64], "patch_sizes": [8, 1], "strides": [8, 1], "padding": [0, 0]}),
    "MobileViT": ("MobileViT", {"image_size": 64, "num_channels": 1, "num_labels": 10}),
    "ResNet": ("ResNet", {"num_channels": 1, "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
        "num_labels": 10}),
}  # fmt: skip


def make(family: str) -> nn.Module:
    stem, sizes = FAMILIES[family]
    config = getattr(transformers, f"{stem}Config")
    if stem in ("CLIP", "Siglip"):
        sizes = {name: value for name, value in sizes.items() if name != "num_labels"}
        config = config(vision_config=sizes, num_labels=10)
    else:
        config = config(**sizes)
    torch.manual_seed(0)
    return getattr(transformers, f"{stem}ForImageClassification")(config).eval()


def update(model: nn.Module, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    loss = cross_entropy(model(pictures).logits, labels)
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    made = zip(named.items(), parts, strict=True)
    return {name: torch.zeros_like(value) if part is None else part for (name, value), part in made}


def worst(true: Tensor, found: Tensor, patch: PatchModel, *, as_sets: bool) -> float:
    """How far the worst picture is off, relative; or the worst patch, where their order is open."""
    if as_sets:
        true, found = patch.patches(true).flatten(0, 1), patch.patches(found).flatten(0, 1)
    apart = torch.cdist(true.flatten(1), found.flatten(1)).amin(1)
    return float((apart / true.flatten(1).norm(dim=1)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--sent", default="float32", choices=("float32", "float16", "bfloat16"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, options.sent)
    precision = torch.finfo(dtype).eps
    wrong = []
    for family in options.families:
        for count in options.pictures:
            model = make(family)
            try:
                patch = patch_model(model, (1, 32, 32) if family == "Swin" else (1, 16, 16))
            except InputError as error:
                print(f"{family:20} refused: {error.got}")
                break
            torch.manual_seed(count)
            pictures, labels = torch.rand(count, *patch.shape), torch.randint(10, (count,))
            sent = {name: value.to(dtype) for name, value in update(model, pictures, labels).items()}
            begun = time.process_time()
            gradient = {name: value.double() for name, value in sent.items()}
            found, said, patches = fit_patches(patch, gradient, precision=precision)
            proof = verify_pictures(patch, gradient, found, said, rounding=Rounding(precision))
            off = worst(pictures.double(), found, patch, as_sets=not proof.is_ordered) if len(found) else 1.0
            order = "" if proof.is_ordered else ", order open"
            seconds = time.process_time() - begun
            print(
                f"{family:20} {patches:2} patches, proven {proof.count} of {count}{order}, off {off:.1e}, "
                f"at most {proof.error:.1e}, left {proof.unexplained:.1e}, {seconds:.1f} s",
                flush=True,
            )
            if proof.count and not (proof.count == count and off <= proof.error):
                wrong.append((family, count))
    assert not wrong, wrong


if __name__ == "__main__":
    main()
