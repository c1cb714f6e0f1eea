"""`python -m bench.peers.plot PAGE IMAGE`: draws the table of the comparison that a page holds. Run by `make plots`, in
the environment that has matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BEGIN = "<!-- peers: begin -->"
"""What stands before the table: `bench.peers.pages.BEGIN`."""
OURS = "dragoman"
_OURS, _OTHERS = "#2457a6", "#9aa5b1"
_COLUMNS = 3


class Chart(NamedTuple):
    """One figure of the table: (subject, value) where there is one."""

    title: str
    values: list[tuple[str, float]]


def charts(page: str) -> list[Chart]:
    """The table's rows. Raises ValueError if the page has no such table."""
    lines = page.partition(BEGIN)[2].splitlines()
    table = [line for line in lines[: _end(lines)] if line.startswith("|")]
    if not table:
        raise ValueError("the page has no table of bench.peers")
    names = [cell.split()[0] for cell in _cells(table[0])[1:]]
    found = []
    for line in table[2:]:
        title, *cells = _cells(line)
        # `17.8 (17.1 to 19.0)`; a row of `0 of 85,728` is no chart.
        if not any(" of " in cell for cell in cells):
            known = [(name, cell.split()[0]) for name, cell in zip(names, cells, strict=True) if cell]
            found.append(Chart(title, [(name, float(value.replace(",", ""))) for name, value in known]))
    return found


def _end(lines: Sequence[str]) -> int:
    """Where the first table ends."""
    start = next((at for at, line in enumerate(lines) if line.startswith("|")), 0)
    return next((at for at in range(start, len(lines)) if not lines[at].startswith("|")), len(lines))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def draw(found: Sequence[Chart], image: Path) -> None:
    """Writes a PNG: bars for each figure, on a logarithmic axis where the peers lie far apart."""
    import matplotlib  # type: ignore[import-not-found]  # in no other environment

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(found) // _COLUMNS)
    figure, panels = pyplot.subplots(rows, _COLUMNS, figsize=(13, 2.5 * rows), squeeze=False)
    for axes, chart in zip(panels.flat, found, strict=False):
        names, values = [name for name, _ in chart.values], [value for _, value in chart.values]
        bars = axes.barh(names, values, color=[_OURS if name == OURS else _OTHERS for name in names])
        axes.bar_label(
            bars, labels=[f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values], padding=3
        )
        if max(values) > 30 * min(values):
            # Linear up to 1, since a difference may be nothing.
            axes.set_xscale("log" if min(values) > 0 else "symlog")
        axes.margins(x=0.25)
        axes.set_title(chart.title, fontsize=10)
        axes.invert_yaxis()
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.set_visible(bool(axes.has_data()))
    figure.tight_layout()
    figure.savefig(image, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, 2 for a wrong call."""
    if len(arguments) != 2:
        print("usage: python -m bench.peers.plot PAGE IMAGE", file=sys.stderr)
        return 2
    draw(charts(Path(arguments[0]).read_text()), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
