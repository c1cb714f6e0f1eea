"""Draws the dashboards for the documents: `make screenshots`.

Grafana is not here. A real Prometheus that scrapes a gateway under load answers every query of every panel; the answers
are drawn at the panels' places, as SVG, in the form that the panel asks for.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.acceptance.monitoring import loaded
from tests.acceptance.monitoring.dashboards import FILES, load
from tests.acceptance.monitoring.loaded import Seen, Series
from tests.repo.tree import ROOT

IMAGES = ROOT / "docs" / "images"
COLUMN, ROW, GAP = 50, 27, 6
"""Pixels of Grafana's grid, which has 24 columns, and between two panels."""
HEAD, FOOT = 40, 26
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#e02f44", "#37872d", "#8ab8ff")
MOST_SHOWN = 5
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_AFTER = {"s": " s", "bytes": "B", "reqps": " req/s", "cps": "/s", "ops": "/s", "percentunit": " %"}
_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


def shown(value: float, unit: str) -> str:
    """`value` as a panel of this unit shows it."""
    if not math.isfinite(value):
        return "-"
    if unit == "bool_on_off":
        return "on" if value else "off"
    if unit == "s" and abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    after = _AFTER.get(unit, "")
    value = value * 100 if unit == "percentunit" else value
    for scale, letter in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}{after}"
    return f"{value:.3g}{after}"


def text(x: float, y: float, said: str, *, size: int = 11, colour: str = "#ccccdc", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(said)}</text>'
    )


def legend(form: str, labels: Mapping[str, str]) -> str:
    """A series' name by the panel's `legendFormat`."""
    return _LABEL.sub(lambda found: labels.get(found[1], ""), form).strip() or "value"


Drawn = tuple[str, Series]
"""A series' name, and the series."""


def lines(found: Sequence[Drawn], unit: str, width: float, height: float, low_high: tuple[float, float]) -> list[str]:
    """A line a series, a scale at the left, and the names of the first below."""
    values = [value for _, one in found for _, value in one.samples if math.isfinite(value)]
    most = max([*values, 0.0]) * 1.1 or 1.0
    left, top, right, bottom = 64.0, 30.0, width - 10, height - 34
    begin, end = low_high
    out = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        out.append(f'<path d="M{left} {y:.0f}H{right:.0f}" stroke="#34363d"/>')
        out.append(text(left - 6, y + 4, shown(most * share, unit), size=10, colour="#9a9aa5", anchor="end"))
    for number, (_, one) in enumerate(found):
        path, pen = "", "M"
        for at, value in one.samples:
            if not math.isfinite(value):
                pen = "M"
                continue
            x = left + (at - begin) / (end - begin) * (right - left)
            path += f"{pen}{x:.1f} {bottom - value / most * (bottom - top):.1f}"
            pen = "L"
        colour = COLOURS[number % len(COLOURS)]
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    x = left
    for number, (name, _) in enumerate(found[:MOST_SHOWN]):
        said = name if len(name) <= 24 else name[:23] + "…"
        if x + 7 * len(said) + 14 > width:
            break
        out.append(
            f'<rect x="{x:.0f}" y="{height - 19:.0f}" width="9" height="3" fill="{COLOURS[number % len(COLOURS)]}"/>'
        )
        out.append(text(x + 13, height - 14, said, size=10, colour="#9a9aa5"))
        x += 7 * len(said) + 26
    return out


def bars(found: Sequence[Drawn], unit: str, width: float, height: float) -> list[str]:
    """A bar a series, by its last value."""
    last = [(name, one.samples[-1][1]) for name, one in found][: max(1, int((height - 36) // 22))]
    most = max([value for _, value in last if math.isfinite(value)] or [0.0]) or 1.0
    out = []
    for number, (name, value) in enumerate(last):
        y = 36 + 22 * number
        size = max(0.0, value if math.isfinite(value) else 0.0) / most * (width - 260)
        out.append(text(140, y + 11, name[:22], size=10, colour="#9a9aa5", anchor="end"))
        out.append(f'<rect x="148" y="{y}" width="{max(2.0, size):.0f}" height="14" fill="{COLOURS[0]}"/>')
        out.append(text(156 + size, y + 11, shown(value, unit), size=11))
    return out


def states(found: Sequence[Drawn], width: float, height: float, low_high: tuple[float, float]) -> list[str]:
    """A band a series, green while it is on."""
    out = []
    begin, end = low_high
    for number, (name, one) in enumerate(found[: max(1, int((height - 36) // 24))]):
        y = 36 + 24 * number
        out.append(text(200, y + 12, name[-34:], size=10, colour="#9a9aa5", anchor="end"))
        scale = (width - 220) / (end - begin)
        step = scale * (one.samples[1][0] - one.samples[0][0]) if len(one.samples) > 1 else width - 220
        for at, value in one.samples:
            colour = COLOURS[0] if value else COLOURS[5]
            x = 208 + (at - begin) * scale
            size = min(step + 0.5, width - 12 - x)
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="16" fill="{colour}"/>')
    return out


def panel_drawn(board: str, panel: Mapping[str, Any], seen: Seen) -> str:
    """One panel: a group at its place."""
    place = panel["gridPos"]
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    found = [
        (legend(target["legendFormat"], one.labels), one)
        for target in panel["targets"]
        for one in seen.panels[board, panel["id"], target["refId"]]
    ]
    out = [f'<g transform="translate({place["x"] * COLUMN} {HEAD + place["y"] * ROW})">']
    out.append(f'<rect width="{width}" height="{height}" rx="2" fill="#181b1f" stroke="#2c2f36"/>')
    out.append(text(10, 19, panel["title"], size=12))
    if panel["type"] == "stat":
        last = found[0][1].samples[-1][1] if found else math.nan
        out.append(text(width / 2, height / 2 + 18, shown(last, unit), size=30, colour=COLOURS[0], anchor="middle"))
    elif panel["type"] == "bargauge":
        out += bars(found, unit, width, height)
    elif panel["type"] == "state-timeline":
        out += states(found, width, height, seen.between)
    else:
        out += lines(found, unit, width, height, seen.between)
    return "".join([*out, "</g>"])


def drawn(path: Path, seen: Seen) -> str:
    """The dashboard in `path`."""
    board = load(path)
    height = HEAD + FOOT + ROW * max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in board["panels"])
    width = 24 * COLUMN
    note = "Not Grafana: drawn from a real Prometheus's answers to the dashboard's own queries"
    note += f", {loaded.SECONDS} s of load."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="#111217"/>',
            text(10, 26, board["title"], size=17),
            *(panel_drawn(path.stem, panel, seen) for panel in board["panels"]),
            text(10, height - 9, note, colour="#9a9aa5"),
            "</svg>\n",
        ]
    )


def take() -> None:
    """Writes docs/images/dashboard-NAME.svg for every dashboard."""
    seen = asyncio.run(loaded.seen())
    for path in FILES:
        (IMAGES / f"dashboard-{path.stem}.svg").write_text(drawn(path, seen))


if __name__ == "__main__":
    take()
