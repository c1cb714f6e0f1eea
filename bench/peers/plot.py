"""`python -m bench.peers.plot PAGE MARK IMAGE`: draws the table behind `<!-- MARK: begin -->`, a chart for each row. A
cell may name its own bar: `178 at 4`. Run by `make plots`, in the environment that has matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PEERS, GROWTH = "peers", "growth"
"""Marks of tables: beside other gateways, and how the gateway's cost grows."""
OURS = "dragoman"
_OURS, _OTHERS = "#2457a6", "#9aa5b1"
_COLUMNS = 3


class Chart(NamedTuple):
    """One row of the table: (name of the bar, value) for each cell that has one."""

    title: str
    values: list[tuple[str, float]]


def charts(page: str, mark: str) -> list[Chart]:
    """The table's rows. Raises ValueError if the page has no such table."""
    lines = page.partition(f"<!-- {mark}: begin -->")[2].splitlines()
    table = [line for line in lines[: _end(lines)] if line.startswith("|")]
    if not table:
        raise ValueError(f"the page has no table marked {mark}")
    names = [cell.split()[0] if cell else "" for cell in _cells(table[0])[1:]]
    found = []
    for line in table[2:]:
        title, *cells = _cells(line)
        # `17.8 (17.1 to 19.0)` or `178 at 4`; a row of `0 of 85,728` is no chart.
        if not any(" of " in cell for cell in cells):
            pairs = zip(names, (cell.partition(" at ") for cell in cells), strict=True)
            known = [(at or name, value.split()[0]) for name, (value, _, at) in pairs if value]
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
        bars = axes.barh(
            names, values, color=[_OURS if name == OURS or OURS not in names else _OTHERS for name in names]
        )
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
    if len(arguments) != 3:
        print("usage: python -m bench.peers.plot PAGE MARK IMAGE", file=sys.stderr)
        return 2
    page, mark, image = arguments
    draw(charts(Path(page).read_text(), mark), Path(image))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
