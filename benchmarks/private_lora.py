"""Private fine-tuning with LoRA, as claimed and with less noise: how often is the claim contradicted?

    python benchmarks/private_lora.py --seeds 10
    .venv-peft/bin/python benchmarks/private_lora.py --seeds 10 --peft      # a Llama with an adapter by peft itself

By the recording, which sees every step, and by what the finished model says of its canaries.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "texts"))

from dp_lora import SHORT, VARIANTS, Setting, verdicts  # pyright: ignore[reportMissingImports]


def one(job: tuple[str, int], peft: bool):
    """Both verdicts on one run."""
    torch.set_num_threads(1)
    return verdicts(*job, SHORT if peft else Setting())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--peft", action="store_true")
    options = parser.parse_args()
    jobs = list(product(VARIANTS, range(options.seeds)))
    with ProcessPoolExecutor(options.workers) as pool:
        found = dict(zip(jobs, pool.map(partial(one, peft=options.peft), jobs), strict=True))
    for variant in VARIANTS:
        for place, door in enumerate(("recorded", "canaries alone")):
            counts = Counter(str(verdict[place]) for (name, _), verdict in found.items() if name == variant)
            print(f"{variant:16} {door:15}", dict(counts))


if __name__ == "__main__":
    main()
