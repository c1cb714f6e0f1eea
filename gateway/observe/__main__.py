"""`python -m gateway.observe FOLDER`: writes the part of metrics.md in FOLDER that is made from the catalogue."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.observe.page import documented


def main(arguments: list[str]) -> int:
    match arguments:
        case [folder]:
            path = Path(folder) / "metrics.md"
            path.write_text(documented(path.read_text(encoding="utf-8")), encoding="utf-8")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
