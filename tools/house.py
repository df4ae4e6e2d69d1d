"""Lines and files by room and door, the evening read, and imports that go the wrong way: `python tools/house.py`.

With `--test` it runs `make test` too, and prints its seconds.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "remanence"
EVENING = ("game.py", "protocol.py", "auditing.py", "core", "results")


def lines(path: Path) -> int:
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def files(path: Path) -> int:
    return 1 if path.is_file() else len(list(path.rglob("*.py")))


def main() -> None:
    spec = importlib.util.spec_from_file_location("project", ROOT / "tests" / "test_project.py")
    assert spec is not None
    assert spec.loader is not None
    project = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(project)
    rooms = [
        each for each in sorted(PACKAGE.iterdir()) if each.suffix == ".py" or (each / "__init__.py").exists()
    ]
    print(f"{'room or door':<18}{'lines':>8}{'files':>7}{'tests':>8}")
    for room in sorted(rooms, key=lambda each: (each.is_dir(), -lines(each))):
        own = ROOT / "tests" / room.stem
        tests = lines(own) if own.is_dir() else ""
        door = " (door)" if room.name in project.DOORS else ""
        print(f"{room.name + door:<18}{lines(room):>8}{files(room):>7}{tests:>8}")
    print(f"{'src':<18}{lines(PACKAGE):>8}{files(PACKAGE):>7}")
    for name in ("tests", "papers", "benchmarks"):
        print(f"{name:<18}{lines(ROOT / name):>8}{files(ROOT / name):>7}")
    print(
        f"\nThe evening read ({', '.join(EVENING)}): {sum(lines(PACKAGE / name) for name in EVENING)} lines."
    )
    wrong = {
        str(path.relative_to(PACKAGE)): found for path in project.modules() if (found := project.wrong(path))
    }
    for path, found in wrong.items():
        print(f"{path} imports {', '.join(sorted(found))}")
    print(f"Imports that go the wrong way: {len(wrong)}.")
    if "--test" in sys.argv[1:]:
        started = time.perf_counter()
        done = subprocess.run(["make", "test"], cwd=ROOT, check=False)  # noqa: S607
        print(f"`make test`: {time.perf_counter() - started:.0f} s, exit code {done.returncode}.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
