"""`python -m tests.laws.fidelity FOLDER` writes fidelity.md there."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.laws.fidelity.matrix import page, rows


def main(folder: str) -> None:
    Path(folder, "fidelity.md").write_text(page(list(rows())), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
