"""Do the tests notice? Change one thing at a time in a copy of the repository, and see whether any test fails.

make mutants                                           # 200 of all rooms, 2 at a time
.venv/bin/python tools/mutants.py verdict roc --sample 20 --seed 3

Prints every survivor and the share that was killed. A survivor is a gap in the tests, or equivalent: a person decides.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
SOURCE = Path("src/remanence")

ROOMS = {  # what is mutated, and the tests that must notice
    "verdict": (
        "results/verdict.py results/evidence.py results/outcome.py auditing.py",
        "tests/test_verdict.py tests/test_wiring.py tests/test_auditing.py tests/test_game.py",
    ),
    "games": (
        "game.py protocol.py games/membership.py games/leave_one_out.py scale/seeds.py",
        "tests/test_wiring.py tests/test_game.py tests/test_referee.py tests/attacks/test_closed_form.py tests/tables",
    ),
    "scoring": (
        "scoring/rates.py scoring/roc.py scoring/errors.py",
        "tests/test_statistics.py tests/test_roc.py tests/test_errors.py tests/test_wiring.py",
    ),
    "adversary": (
        "adversary/priors.py adversary/guess_coverage.py",
        "tests/test_priors.py tests/test_wiring.py tests/bounds/test_baselines.py",
    ),
    "bounds": (
        "bounds/bound.py bounds/settings.py bounds/definitions.py bounds/pairs.py bounds/of_mechanism.py "
        "bounds/engine/closed_forms.py bounds/engine/bracket.py bounds/engine/lattice.py bounds/engine/law.py",
        "tests/bounds/test_closed_forms.py tests/bounds/test_dpsgd_bracket.py tests/bounds/test_lattice.py "
        "tests/bounds/test_public_bounds.py tests/bounds/test_errata.py tests/test_wiring.py",
    ),
    "recorded": (
        "games/recorded_runs/consistency.py games/recorded_runs/exchange_test.py games/recorded_runs/canaries.py "
        "games/recorded_runs/audit_run.py bounds/one_run.py",
        "tests/test_wiring.py tests/test_exchange.py tests/test_one_run.py tests/test_opacus.py",
    ),
}
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
NAMES = {
    "min": "max",
    "any": "all",
    "argmin": "argmax",
    "lower": "upper",
    "minimum": "maximum",
    "floor": "ceil",
}
NAMES |= {new: old for old, new in NAMES.items()}
TALK = (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)  # words for people, and types


@dataclass(frozen=True)
class Mutant:
    """One change in one file."""

    path: Path
    line: int
    before: str
    after: str
    text: str  # of the whole file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before} → {self.after}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Every way to change this node alone."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield ast.Attribute(node.value, NAMES[node.attr], node.ctx)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 2)


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, but of what it says to people and of types."""
    tree = ast.parse((ROOT / path).read_text())

    def walk(parent: ast.AST) -> Iterator[Mutant]:
        for name, field in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list") or isinstance(parent, TALK):
                continue
            for place, node in enumerate(field if isinstance(field, list) else [field]):
                if not isinstance(node, ast.AST):
                    continue
                for changed in changes(node):
                    ast.copy_location(changed, node)
                    _put(parent, name, place, changed)
                    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
                    _put(parent, name, place, node)
                    line = getattr(node, "lineno", getattr(parent, "lineno", 0))
                    yield Mutant(path, line, ast.unparse(node)[:70], ast.unparse(changed)[:70], text)
                yield from walk(node)

    yield from walk(tree)


def _put(parent: ast.AST, name: str, place: int, node: ast.AST) -> None:
    field = getattr(parent, name)
    if isinstance(field, list):
        field[place] = node
    else:
        setattr(parent, name, node)


def checkout(folder: Path) -> Path:
    """A copy of the repository, to be broken."""
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "site", ".browser", "remanence-runs")
    return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored))


def noticed(copied: Path, tests: str, seconds: float) -> bool:
    """Whether a test fails, or does not end."""
    sources = os.pathsep.join(str(copied / folder) for folder in ("src", "papers"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
    environment = {
        **os.environ,
        "PYTHONPATH": sources,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=copied, env=environment, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    """Sample mutants, try them, and print the share that was killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; all by default")
    parser.add_argument("--sample", type=int, default=200, help="how many in all")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400, help="another one every day")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rooms = options.rooms or list(ROOMS)
    every = [(room, m) for room in rooms for part in ROOMS[room][0].split() for m in mutants(SOURCE / part)]
    chosen = random.Random(options.seed).sample(every, min(options.sample, len(every)))  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(checkout(Path(folder) / str(number)))
        seconds = {}
        for room in sorted({room for room, _ in chosen}):
            copied, clock = copies.get(), time.perf_counter()
            if noticed(copied, ROOMS[room][1], 3600):
                sys.exit(f"The tests of {room} fail without any mutant.")
            seconds[room] = 60 + 4 * (time.perf_counter() - clock)
            copies.put(copied)

        def attempt(entry: tuple[str, Mutant]) -> bool:
            room, mutant = entry
            copied = copies.get()
            original = (copied / mutant.path).read_text()
            try:
                (copied / mutant.path).write_text(mutant.text)
                killed = noticed(copied, ROOMS[room][1], seconds[room])
            finally:
                (copied / mutant.path).write_text(original)
                copies.put(copied)
            print(f"{'killed  ' if killed else 'SURVIVES'} {mutant}", flush=True)
            return killed

        with ThreadPoolExecutor(options.jobs) as pool:
            killed = sum(pool.map(attempt, chosen))
    print(
        f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({killed / len(chosen):.0%}), of {len(every)}."
    )


if __name__ == "__main__":
    main()
