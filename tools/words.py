"""How many words and pages the docs have, at a commit and now: `python tools/words.py [COMMIT]`.

After `make docs`, and with what `make test-browser` installs, it also prints how high the doors' pages are.
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
    return {
        path: words(git("show", f"{commit}:{path}")) for path in listed.splitlines() if path.endswith(".md")
    }


def now() -> dict[str, int]:
    """Words by page in the working tree."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {str(page.relative_to(ROOT)): words(page.read_text(encoding="utf-8")) for page in pages}


def heights() -> dict[str, int]:
    """How high each door's page of the built site is; nothing where it was not built."""
    site = ROOT / "site"
    if not site.is_dir():
        return {}
    sys.path.insert(0, str(ROOT / "tests"))
    from watched import launched

    with launched() as browser:
        page, found = browser.new_page(viewport={"width": 1280, "height": 900}), {}
        for door in DOORS:
            page.goto((site / door / "index.html").as_uri())
            found[door] = page.evaluate("document.querySelector('article').scrollHeight")
    return found


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
    print("| page of a door | words | pixels, in a window of 1280 |\n|---|--:|--:|")
    high = heights()
    for door in DOORS:
        print(f"| [{door}](../{door}.md) | {sides[1][f'docs/{door}.md']:,} | {high.get(door, '')} |")


if __name__ == "__main__":
    main()
