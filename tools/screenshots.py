"""Make eight audits and photograph their pages: `python tools/screenshots.py [FOLDER]`.

Each report is opened as wide as a screen (1280 pixels) and as a telephone (390), and printed: NAME-1280.png,
NAME-390.png and NAME.pdf. Needs what `make test-browser` installs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ("table_files.py", "head_files.py", "update_files.py", "recorded_run.py")
HEAD = (
    "head {head} --backbone backbone.py:load --images mine --public public --size 8 --normalise 0.5/0.5 "
    "--max-success 0.3 --quick"
)
# By name: the command and the exit code of its verdict.
AUDITS = {
    "forest": ("table model.py:load --data train.csv --label outcome --max-success 0.7", 1),  # columns decide
    "head": (HEAD.format(head="head.safetensors") + " --epochs 60 --learning-rate 0.5", 1),
    "head-without-leaks": (HEAD.format(head="brief.safetensors") + " --epochs 1 --learning-rate 0.001", 3),
    "text": ("audit tiny-text", 1),
    "update": ("update network.py:make --before before.safetensors --gradient update.safetensors", 1),
    "recorded-run": ("run recording --max-success 0.4", 0),
    "bound-only": (
        "audit digits-noisy-sum --trials 20",
        0,
    ),  # so few trials show nothing, and the proof decides
    "unproven": ("audit breast-cancer-sloppy", 3),
}


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".browser" / "screenshots" / "audits").absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name in FILES:
            shutil.copy(ROOT / "docs" / "walks" / name, place)
            run([name], Path(place))
        for name, (words, code) in AUDITS.items():
            run(["-m", "remanence", *words.split(), "--out", str(out / name)], Path(place), code)
            run(["-m", "remanence", "report", str(out / name), "--format", "dossier-html"], Path(place))
    photograph(out)
    print(f"Look at them one by one: {out}")


def run(words: list[str], place: Path, code: int = 0) -> None:
    """Run Python where the files are, and insist on how it ends."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "papers"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(  # noqa: S603
        [sys.executable, *words], cwd=place, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != code:
        sys.exit(f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")


def photograph(out: Path) -> None:
    """Every report on a screen, on a telephone and on paper."""
    sys.path.insert(0, str(ROOT / "tests"))
    from watched import launched, pages_of

    with launched() as browser:
        for name in AUDITS:
            page = browser.new_page()
            page.goto((out / name / "report.html").as_uri())
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 900})
                page.screenshot(path=out / f"{name}-{width}.png", full_page=True)
            paper = page.pdf(prefer_css_page_size=True)
            (out / f"{name}.pdf").write_bytes(paper)
            told = (page.locator(where).first.inner_text() for where in (".band strong", ".headline"))
            print(f"| {name} | {' | '.join(told)} | {pages_of(paper)} |", flush=True)
            page.close()


if __name__ == "__main__":
    main()
