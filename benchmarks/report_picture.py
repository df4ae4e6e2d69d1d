"""The picture of docs/report.md: `python benchmarks/report_picture.py docs` audits digits-dpsgd and draws it."""

import sys
from pathlib import Path

from remanence import audit
from remanence.report.figures import line
from remanence.targets import digits_dpsgd

# As a file of its own a picture has no page to take its colours from.
NIGHT = "--ink:#e6e9ee;--faint:#9aa3ae;--attack:#ff8a7a;--guess:#9fbfe6;--ceiling:#c9a7f5"
STYLE = f"<style>@media (prefers-color-scheme: dark) {{ svg {{ {NIGHT} }} }}</style>"


def main(folder: Path) -> None:
    result = audit(digits_dpsgd(), target="digits-dpsgd")
    opening, rest = line(result).split(">", 1)
    (folder / "report-line.svg").write_text(f"{opening}>{STYLE}{rest}\n")
    print(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
