"""The built-in audits now and at an earlier commit: the processor's time and the verdict of each, turn by turn.

    python benchmarks/against_commit.py COMMIT [--repeats 3] [--targets breast-cancer-logistic digits-heads]

Time is that of the processor, which a busy machine changes little, and the least of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = (
    "breast-cancer-logistic", "diabetes-ridge", "diabetes-shortlist", "digits-dpsgd", "digits-gradient",
    "digits-heads", "digits-mlp",
)  # fmt: skip


_PLAY = """
import json, sys, time
from remanence import audit
from remanence.targets import TARGETS

audit(TARGETS["diabetes-ridge"]())  # imports
started = time.process_time()
found = audit(TARGETS[sys.argv[1]]())
spent = time.process_time() - started
rate = found.strongest.main
print(json.dumps([spent, f"{found.verdict} {rate.successes}/{rate.trials}"]))
"""


def seconds(tree: Path, target: str) -> tuple[float, str]:
    """The processor's time of an audit with the code of that tree, without imports, and what it found."""
    path = os.pathsep.join(str(tree / part) for part in ("src", "papers"))
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _PLAY, target],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    spent, verdict = json.loads(done.stdout.splitlines()[-1])
    return spent, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description="The built-in audits now and at an earlier commit.")
    parser.add_argument("commit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder) / "then"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(then), options.commit], check=True)  # noqa: S603
        try:
            print("| audit | then | now | now over then | found then | found now |")
            print("|---|---|---|---|---|---|")
            for target in options.targets:
                times: dict[Path, list[float]] = {then: [], ROOT: []}
                words = {}
                for _ in range(options.repeats):
                    for tree in times:
                        spent, words[tree] = seconds(tree, target)
                        times[tree].append(spent)
                old, new = (min(spent) for spent in times.values())
                print(
                    f"| `{target}` | {old:.2f} s | {new:.2f} s | {new / old:.2f} | {words[then]} | {words[ROOT]} |",
                    flush=True,
                )
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(then)], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
