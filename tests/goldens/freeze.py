"""Write what today's code finds into frozen.json: `python tests/goldens/freeze.py [--only NAME ...]`.

Run it only where an issue says that a result shall change, and look at the difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from cases import CASES
from digest import digest

FROZEN = Path(__file__).parent / "frozen.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="NAME", help="the start of a name")
    parser.add_argument("--check", action="store_true", help="write nothing; name what differs")
    asked = parser.parse_args()
    stored = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    kept = {name: found for name, found in stored.items() if name in CASES}
    for name, each in CASES.items():
        if not name.startswith(tuple(asked.only)):
            continue
        begun = time.perf_counter()
        found = json.loads(json.dumps(digest(each)))
        differs = "" if kept.get(name) == found else "  differs"
        print(f"{time.perf_counter() - begun:6.2f} s  {name}{differs}", flush=True)  # noqa: T201
        kept[name] = found
    if not asked.check:
        lines = (
            f"{json.dumps(name)}:{json.dumps(kept[name], sort_keys=True, separators=(',', ':'))}"
            for name in sorted(kept)
        )
        FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
