"""Do the tests notice? Change one thing at a time in a copy of the repository, and see whether any test fails.

make mutants                                             # 200 of all rooms, 2 at a time
.venv/bin/python tools/mutants.py bounds --sample 20 --seed 3
.venv/bin/python tools/mutants.py --map map.json --jobs 1 --part 1 10    # a tenth of them, on one core

The tests run once, and it is noted which functions each of them calls; `--map` keeps that. A mutant is given the tests
that call the function it is in, fastest first, for about a minute at most, in a process that is forked from one which
has the large libraries loaded. Prints every survivor and the share that was killed. A survivor is a gap in the tests,
is noticed only by tests that take longer, or changes no result: a person decides.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Queue
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/remanence")
MAP = "REMANENCE_TOUCHED"  # where a run of the tests writes which of them call what
MOST_S = 60.0  # of tests for one mutant
WARM = ("opacus", "pandas", "pytest", "scipy.stats", "sklearn.linear_model", "torch")  # seconds to load

ROOMS = {
    "results": "results/claims.py results/evidence.py results/findings.py results/outcome.py "
    "results/result.py results/verdict.py results/verification.py auditing.py",
    "games": "game.py protocol.py networks/game.py tables/game.py tables/findings.py tables/single_columns.py "
    "core/rates.py core/roc.py core/priors.py",
    "bounds": "bounds/*.py bounds/engine/*.py",
    "recorded": "private/audit_run.py private/canaries.py private/consistency.py private/reading.py",
}
TESTS = (
    "tests/bounds tests/results tests/core tests/private tests/report tests/tables tests/networks "
    "tests/test_referee.py tests/faults/test_tampering.py tests/faults/test_verify.py tests/scale/test_journal.py "
    "tests/cli/test_wiring.py tests/cli/test_cli_bounds.py src/remanence/bounds src/remanence/results "
    "src/remanence/core src/remanence/private src/remanence/game.py src/remanence/protocol.py src/remanence/auditing.py"
)
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
    place: int  # among those of its file
    functions: frozenset[str]  # the one that it is in, or those that use the constant; none: all

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
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0)


def mutants(path: Path, tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of a file, but of what it says to people and of types. While it is yielded, the tree is it."""
    count, names = itertools.count(), dict(named(tree))

    def walk(parent: ast.AST, functions: frozenset[str]) -> Iterator[Mutant]:
        for name, field in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list") or isinstance(parent, TALK):
                continue
            for place, node in enumerate(field if isinstance(field, list) else [field]):
                if not isinstance(node, ast.AST):
                    continue
                inside = frozenset({names[node]}) if node in names else _users(node, tree, names) or functions
                for changed in changes(node):
                    ast.copy_location(changed, node)
                    _put(parent, name, place, changed)
                    line = getattr(node, "lineno", getattr(parent, "lineno", 0))
                    before, after = (ast.unparse(each)[:70] for each in (node, changed))
                    yield Mutant(path, line, before, after, next(count), inside)
                    _put(parent, name, place, node)
                yield from walk(node, inside)

    yield from walk(tree, frozenset())


def text_of(mutant: Mutant) -> str:
    """The whole file with the change."""
    tree = parsed(mutant.path)
    next(itertools.islice(mutants(mutant.path, tree), mutant.place, None))
    return ast.unparse(ast.fix_missing_locations(tree))


def parsed(path: Path) -> ast.Module:
    """A file of the repository."""
    return ast.parse((ROOT / path).read_text())


def named(parent: ast.AST, prefix: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All functions below a node, with the names that Python gives their code."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef):
            yield node, prefix + node.name
            yield from named(node, f"{prefix}{node.name}.<locals>.")
        else:
            yield from named(node, f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix)


def _users(node: ast.AST, tree: ast.Module, names: dict[ast.AST, str]) -> frozenset[str]:
    """The functions that use the constant that is set here."""
    if not (isinstance(node, ast.Assign) and node in tree.body):
        return frozenset()
    constants = {
        each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)
    }
    return frozenset(
        name
        for function, name in names.items()
        if any(isinstance(each, ast.Name) and each.id in constants for each in ast.walk(function))
    )


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


def run_tests(copied: Path, tests: Sequence[str], seconds: float, **variables: str) -> bool:
    """Whether all tests pass within these seconds of processor time, and ten times as many in all."""
    tried = multiprocessing.get_context("fork").Process(
        target=_pytest, args=(copied, tests, seconds, variables)
    )
    tried.start()
    tried.join(10 * seconds)
    if tried.is_alive():
        os.killpg(tried.pid, signal.SIGKILL)  # pyright: ignore[reportArgumentType]
        tried.join()
    return tried.exitcode == 0


def _pytest(copied: Path, tests: Sequence[str], seconds: float, variables: dict[str, str]) -> None:
    """Run tests of a copy in this process, silently, and leave with what pytest says."""
    os.setsid()  # so that what the tests start ends with them
    limit = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    os.chdir(copied)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    folders = [str(copied / folder) for folder in ("src", "papers", "tests", "tools")]
    sys.path[:0] = folders
    os.environ |= {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    sys.dont_write_bytecode = True
    options = ["-p", "mutants"] if variables else ["-x"]
    os._exit(int(import_module("pytest").main([*options, "-q", "-p", "no:cacheprovider", *tests])))


class Touched:
    """A plugin of pytest: which functions of the package each test that passes calls, and how long it takes."""

    def __init__(self, path: str) -> None:
        self.path, self.tests = path, {}
        self.codes: set[CodeType] = set()
        self.began = 0.0

    def _called(self, frame: FrameType, *_: object) -> None:
        self.codes.add(frame.f_code)

    def pytest_runtest_logstart(self) -> None:
        self.codes, self.began = set(), time.process_time()
        sys.settrace(self._called)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" or not report.passed:
            return
        sys.settrace(None)
        found = set()
        for code in self.codes:
            if str(SOURCE) in code.co_filename:
                found.add(f"{code.co_filename.split(str(SOURCE) + '/')[1]}:{code.co_qualname}")
        self.tests[report.nodeid] = {"seconds": time.process_time() - self.began, "functions": sorted(found)}

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        Path(self.path).write_text(json.dumps(self.tests))


def pytest_configure(config: Any) -> None:
    """Called where this file is loaded as a plugin."""
    config.pluginmanager.register(Touched(os.environ[MAP]))


def tests_of(mutant: Mutant, touched: dict[str, Any]) -> tuple[list[str], float]:
    """The tests that call what was changed, fastest first, and how long they take."""
    path = str(mutant.path.relative_to(SOURCE))
    wanted = {f"{path}:{name}" for name in mutant.functions}
    chosen, total = [], 0.0
    for name, test in sorted(touched.items(), key=lambda entry: entry[1]["seconds"]):
        calls = wanted & set(test["functions"])
        if not wanted:
            calls = {each for each in test["functions"] if each.startswith(f"{path}:")}
        if calls and total < MOST_S:
            chosen.append(name)
            total += test["seconds"]
    return chosen, total


def main() -> None:
    """Sample mutants, try them, and print the share that was killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; all by default")
    parser.add_argument("--sample", type=int, default=200, help="how many in all")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86400, help="another one every day")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", type=int, nargs=2, default=(1, 1), help="the first of three parts: 1 3")
    parser.add_argument("--map", type=Path, help="which tests call what; made if it is not there")
    options = parser.parse_args()
    rooms = [
        [
            mutant
            for pattern in ROOMS[room].split()
            for path in sorted((ROOT / SOURCE).glob(pattern))
            for mutant in mutants(path.relative_to(ROOT), parsed(path))
        ]
        for room in options.rooms or ROOMS
    ]
    part, parts = options.part
    generator = random.Random(options.seed)  # noqa: S311
    each = options.sample // len(rooms)  # as many of every room
    sample = [mutant for room in rooms for mutant in generator.sample(room, min(each, len(room)))]
    chosen = sample[part - 1 :: parts]
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in WARM:
        with suppress(ImportError):
            import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(checkout(Path(folder) / str(number)))
        path = options.map or Path(folder) / "map.json"
        if not path.exists():
            copied = copies.get()
            run_tests(copied, TESTS.split(), 7200, **{MAP: str(path.resolve())})
            copies.put(copied)
        touched = json.loads(path.read_text())
        print(f"{len(touched)} tests pass without a mutant.", flush=True)

        def attempt(mutant: Mutant) -> bool:
            tests, seconds = tests_of(mutant, touched)
            copied = copies.get()
            original = (copied / mutant.path).read_text()
            try:
                (copied / mutant.path).write_text(text_of(mutant))
                killed = bool(tests) and not run_tests(copied, tests, 20 + 2 * seconds)
            finally:
                (copied / mutant.path).write_text(original)
                copies.put(copied)
            print(f"{'killed  ' if killed else 'SURVIVES'} {mutant} ({len(tests)} tests)", flush=True)
            return killed

        with ThreadPoolExecutor(options.jobs) as pool:
            killed = sum(pool.map(attempt, chosen))
    share = killed / max(len(chosen), 1)
    print(
        f"seed {options.seed}: {killed} of {len(chosen)} mutants killed ({share:.0%}), of {sum(map(len, rooms))}."
    )


if __name__ == "__main__":
    main()
