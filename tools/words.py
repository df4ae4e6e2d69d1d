"""How many words and pages the docs have, at a commit and now: `python tools/words.py [COMMIT]`.

A screen is 1280 × 900 pixels of the built site, about 450 words of prose, tables and code together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEFORE = "91786b5"
DOORS = ("tables", "heads", "updates", "texts", "opacus", "dpsgd", "informed-adversary")
WRITTEN_BY_CODE = ("caveats.md", "glossary.md", "cli.md", "papers.md", "api.md")
KINDS = ("guides", "method", "evidence", "reproductions", "written by the code")


def kind(path: str) -> str:
    """What a page is for."""
    folder, name = Path(path).parts[1], Path(path).name
    if name in WRITTEN_BY_CODE:
        return "written by the code"
    if name == "errata.md" or folder == "benchmarks" or "benchmark" in name:
        return "evidence"
    return folder if folder in KINDS else "guides"


def words(text: str) -> int:
    return len(text.split())


def then(commit: str) -> dict[str, int]:
    """Words by page at a commit."""
    listed = git("ls-tree", "-r", "--name-only", commit, "--", "docs")
    return {path: words(git("show", f"{commit}:{path}")) for path in listed.splitlines() if path.endswith(".md")}


def now() -> dict[str, int]:
    """Words by page in the working tree."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {str(page.relative_to(ROOT)): words(page.read_text(encoding="utf-8")) for page in pages}


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else BEFORE
    sides = then(commit), now()
    print(f"| pages | at {commit} | words | now | words |\n|---|--:|--:|--:|--:|")
    for each in KINDS:
        counts = [[count for path, count in side.items() if kind(path) == each] for side in sides]
        cells = " | ".join(f"{len(found)} | {sum(found):,}" for found in counts)
        print(f"| {each} | {cells} |")
    print(f"| all | {' | '.join(f'{len(side)} | {sum(side.values()):,}' for side in sides)} |\n")
    print("| page of a door | words | screens |\n|---|--:|--:|")
    for door in DOORS:
        count = sides[1][f"docs/{door}.md"]
        print(f"| [{door}](../{door}.md) | {count:,} | {count / 450:.1f} |")


if __name__ == "__main__":
    main()
