"""`python -m scripts.dashboards FOLDER`: writes every dashboard to FOLDER, a file each."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.dashboards import limits, model, overview, team, workers
from scripts.dashboards.grafana import text

BOARDS = (overview.BOARD, model.BOARD, team.BOARD, limits.BOARD, workers.BOARD)


def main(arguments: list[str]) -> int:
    match arguments:
        case [folder]:
            Path(folder).mkdir(exist_ok=True)
            for board in BOARDS:
                (Path(folder) / f"{board.name}.json").write_text(text(board), encoding="utf-8")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
