"""What a guess without any model can meet: how closely it is bracketed, and how long that takes.

python benchmarks/guessing.py
"""

import torch

from remanence import Criterion, Records, mean_squared_error
from remanence.core.guess_coverage import good_guess, most_met
from remanence.targets import digits_heads
from shadows import seconds


def within_reach(records: Records, criterion: Criterion) -> int:
    """The triangle inequality alone, by differences: all that one guess meets are within its reach of each other."""
    reach = 4 * criterion.threshold
    return max(
        int((criterion.error(records, records[i : i + 1]) <= reach).sum()) for i in range(len(records))
    )


def main() -> None:
    """Print the bracket for the built-in heads' pictures, and the times for two thousand of MNIST's size."""
    game = digits_heads()
    pool, criterion = game.prior.records, game.criterion  # pyright: ignore[reportAttributeAccessIssue]
    print("Of the public digits of a class, one guess within τ meets")
    for label in torch.unique(pool.labels).tolist():
        own = pool[pool.labels == label]
        record = max(
            int((criterion.error(own, own[i : i + 1]) <= criterion.threshold).sum()) for i in range(len(own))
        )
        found = int((criterion.error(own, good_guess(own, criterion)) <= criterion.threshold).sum())
        print(
            f"  {label}: at least {found} (a record as the guess: {record}), at most {most_met(own, criterion)} "
            f"(by its reach alone: {within_reach(own, criterion)}) of {len(own)}"
        )
    generator = torch.Generator().manual_seed(0)
    pictures = Records(torch.rand(2000, 28, 28, generator=generator), torch.zeros(2000))
    loose = Criterion(mean_squared_error, 0.05)
    ours = seconds(lambda: most_met(pictures, loose), "cpu")
    naive = seconds(lambda: within_reach(pictures, loose), "cpu", 1)
    print(f"2,000 pictures of 28 x 28: {ours:.2f} s, by differences {naive:.1f} s, ratio {naive / ours:.0f}")


if __name__ == "__main__":
    main()
