"""The picture of docs/report.md: `python benchmarks/report_picture.py docs` audits digits-dpsgd and draws it."""

import sys
from pathlib import Path

from remanence import audit
from remanence.report.figures import line
from remanence.report.svg import as_file
from remanence.targets import digits_dpsgd


def main(folder: Path) -> None:
    result = audit(digits_dpsgd(), target="digits-dpsgd")
    (folder / "report-line.svg").write_text(as_file(line(result)))
    print(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
