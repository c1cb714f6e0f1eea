"""`python -m tests.acceptance.libraries FOLDER` writes libraries.md there."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.acceptance.libraries.table import page


def main(folder: str) -> None:
    Path(folder, "libraries.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
