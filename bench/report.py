"""Figures to Markdown, JSON and a verdict."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.load import Sample
from bench.rows import BEFORE, LIMITED, LIMITER_ROW, LIMITER_US, Kind, Row


class Cell(Struct, frozen=True):
    """One subject under one row: CPU microseconds for one unit, over the rounds.

    n      requests or chunks measured, all rounds together
    rate   units a second, median of the rounds
    """

    subject: str
    row: str
    kind: Kind
    n: int
    micros: list[float]
    rate: float

    @property
    def median(self) -> float:
        return statistics.median(self.micros)


class Report(Struct, frozen=True):
    """One run of the benchmark."""

    taken: str
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, float]
    cells: list[Cell]


def cell(subject: str, row: Row, samples: Sequence[Sample]) -> Cell:
    """Sums up one subject's rounds of one row."""
    return Cell(
        subject=subject,
        row=row.name,
        kind=row.kind,
        n=sum(sample.count for sample in samples),
        micros=[round(sample.micros, 2) for sample in samples],
        rate=round(statistics.median(sample.count / sample.wall for sample in samples), 1),
    )


def machine() -> dict[str, str]:
    """Where this ran."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def baseline(report: Report, kind: Kind) -> Cell | None:
    """nginx under the same kind of load, if it ran."""
    return next((cell for cell in report.cells if cell.subject == "nginx" and cell.kind == kind), None)


def ratio(report: Report, cell: Cell) -> float | None:
    """The median as a multiple of nginx's."""
    base = baseline(report, cell.kind)
    return None if base is None else cell.median / base.median


def markdown(report: Report) -> str:
    """The table, and below it the versions, the machine and the method."""
    lines = [
        "| subject | row | unit | CPU µs: median | min | max | to nginx | units/s | n | rounds |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for cell in report.cells:
        times = ratio(report, cell)
        unit = "request" if cell.kind == "plain" else "chunk"
        figures = f"{cell.median:.1f} | {min(cell.micros):.1f} | {max(cell.micros):.1f}"
        shown = "" if times is None else f"{times:.2f}"
        rest = f"{shown} | {cell.rate:,.0f} | {cell.n:,} | {len(cell.micros)}"
        lines.append(f"| {cell.subject} | {cell.row} | {unit} | {figures} | {rest} |")
    for cell in report.cells:
        pairs = against(report, cell)
        if pairs is not None:
            low, _, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
            told = f"{statistics.median(pairs):.3f} times before, quartiles {low:.3f} to {high:.3f}"
            lines += ["", f"{cell.subject}, {cell.row}: {told}, {len(pairs)} pairs."]
    added = limiter_us(report)
    if added is not None:
        lines += ["", f"Redis and three limits add {added:.1f} µs to a request."]
    facts = [*report.machine.items(), *report.versions.items(), *report.settings.items()]
    return "\n".join([*lines, "", f"{report.taken}: " + ", ".join(f"{name} {value}" for name, value in facts)])


def limiter_us(report: Report) -> float | None:
    """CPU microseconds that limits and Redis add to a request, or None when that was not measured. Rounds are taken in
    turns, so each is compared with its neighbour."""
    found = {cell.subject: cell for cell in report.cells if cell.row == LIMITER_ROW}
    if LIMITED not in found or "dragoman" not in found:
        return None
    pairs = zip(found[LIMITED].micros, found["dragoman"].micros, strict=True)
    return statistics.median(limited - free for limited, free in pairs)


def against(report: Report, cell: Cell) -> list[float] | None:
    """Round by round the figure as a multiple of that of the other checkout, or None where that was not measured."""
    named = cell.subject + BEFORE
    found = next((other for other in report.cells if (other.subject, other.row) == (named, cell.row)), None)
    if found is None:
        return None
    return [now / then for now, then in zip(cell.micros, found.micros, strict=True)]


def verdict(report: Report, rows: Sequence[Row]) -> list[str]:
    """A line for each row that exceeds its limits, or whose limit could not be checked."""
    failures = []
    for row in rows:
        if row.limit_us is None and row.limit_ratio is None:
            continue
        found = next((cell for cell in report.cells if cell.subject == "dragoman" and cell.row == row.name), None)
        if found is None:
            failures.append(f"{row.name}: not measured")
            continue
        if row.limit_us is not None and found.median > row.limit_us:
            failures.append(f"{row.name}: {found.median:.1f} µs, limit {row.limit_us:.0f}")
        if row.limit_ratio is not None:
            times = ratio(report, found)
            if times is None:
                failures.append(f"{row.name}: no nginx figure to compare with")
            elif times > row.limit_ratio:
                failures.append(f"{row.name}: {times:.2f} times nginx, limit {row.limit_ratio:g}")
    added = limiter_us(report)
    if added is not None and added > LIMITER_US:
        failures.append(f"limits: {added:.1f} µs added to a request, limit {LIMITER_US:.0f}")
    return failures


def encode(report: Report) -> bytes:
    """JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
