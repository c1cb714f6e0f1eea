"""`python -m bench.routing.plot PAGE IMAGE`: draws the table of `bench.routing` that a page holds. Run by `make plots`,
in the environment that has matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = "| subject | requests | hit rate |"
"""How the table begins: `bench.routing.__main__.HEADER`."""
_OURS, _OTHERS, _MARK = "#2457a6", "#9aa5b1", "#c2410c"


class Row(NamedTuple):
    """One subject: share of prompt tokens that were cached, milliseconds, busiest worker beside the mean."""

    name: str
    hits: float
    p50_ms: float
    p99_ms: float
    work: float


def rows(page: str) -> list[Row]:
    """The table's rows. Raises ValueError if the page has no such table, or a row that is none."""
    lines = page.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(TABLE)), None)
    if start is None:
        raise ValueError("the page has no table of bench.routing")
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, _, *numbers = [cell.strip() for cell in line.strip("|").split("|")]
        hits, p50, p99, work, _ = map(float, numbers)
        found.append(Row(name, hits, p50, p99, work))
    return found


def draw(found: Sequence[Row], image: Path) -> None:
    """Writes a PNG: hit rate, time to first token, spread of work."""
    import matplotlib  # type: ignore[import-not-found]  # in no other environment

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [row.name for row in found]
    colours = [_OURS if row.name.startswith("prefix") else _OTHERS for row in found]
    figure, (hits, first, work) = pyplot.subplots(1, 3, figsize=(12, 0.42 * len(found) + 1.3), sharey=True)
    hits.barh(names, [row.hits for row in found], color=colours)
    hits.set(title="prompt tokens from the cache", xlim=(0, 1))
    first.barh(names, [row.p99_ms for row in found], color=colours)
    first.plot([row.p50_ms for row in found], names, "o", color=_MARK)
    first.set(title="time to first token, ms: p99, and p50 (dots)")
    work.barh(names, [row.work for row in found], color=colours)
    work.axvline(1.25, color=_MARK, linewidth=1)
    work.set(title="work of the busiest worker, of the mean")
    hits.invert_yaxis()
    for axes in (hits, first, work):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    figure.tight_layout()
    figure.savefig(image, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 2 for a wrong call."""
    if len(arguments) != 2:
        print("usage: python -m bench.routing.plot PAGE IMAGE", file=sys.stderr)
        return 2
    draw(rows(Path(arguments[0]).read_text()), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
