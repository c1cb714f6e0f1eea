"""The comparison as Markdown and JSON."""

from __future__ import annotations

import statistics

import msgspec
from msgspec import Struct

from bench.peers.figures import Taken

TITLES = {
    "plain 1 KB": "CPU µs, a plain 1 KB request",
    "plain 100 KB": "CPU µs, a plain 100 KB request",
    "plain 400 KB": "CPU µs, a plain 400 KB request",
    "chunk": "CPU µs, a streamed chunk",
    "first token": "added ms to the first token, one client, p50",
    "first token loaded": "added ms to the first token, 100 streams, p99",
    "rate": "requests a second on a core, p99 ≤ 50 ms",
    "memory": "KiB, an idle open stream",
    "idle memory": "MiB, idle",
}
# Less is better in all but these.
MORE = frozenset({"rate"})


class Figures(Struct):
    """Samples by figure and subject, and by subject how many frames were due and how many were lost or altered."""

    taken: dict[str, Taken] = {}
    asked: dict[str, int] = {}
    frames: dict[str, int] = {}


class Comparison(Struct):
    """One run."""

    taken: str
    machine: dict[str, str]
    versions: dict[str, str]
    on: dict[str, str]
    rounds: int
    figures: Figures


def median(found: Comparison, figure: str, subject: str) -> float | None:
    """The figure of a subject, or None. Times to the first token are what the subject adds to the backend's own."""
    samples = found.figures.taken.get(figure, {}).get(subject)
    if not samples:
        return None
    middle = statistics.median(samples)
    if figure.startswith("first token"):
        middle -= statistics.median(found.figures.taken[figure]["backend"])
    return middle


def markdown(found: Comparison) -> str:
    """A row a figure, a column a subject: the median of the turns, and their least and most in brackets."""
    names = list(found.versions)
    lines = [
        "| | " + " | ".join(f"{name} {found.versions[name]}" for name in names) + " |",
        "|---|" + "--:|" * len(names),
    ]
    for figure, title in TITLES.items():
        if figure not in found.figures.taken:
            continue
        cells = []
        for name in names:
            middle = median(found, figure, name)
            samples = found.figures.taken[figure].get(name, [])
            if middle is None:
                cells.append("")
            elif len(samples) == 1 or figure.startswith("first token"):
                cells.append(_shown(middle))
            else:
                cells.append(f"{_shown(middle)} ({_shown(min(samples))} to {_shown(max(samples))})")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    frames = found.figures.frames
    if frames:
        lines.append("| frames lost or altered | " + " | ".join(str(frames.get(name, "")) for name in names) + " |")
        lines.append("| of | " + " | ".join(f"{found.figures.asked.get(name, 0):,}" for name in names) + " |")
    lines += ["", *(f"- {name}: {found.on[name]}" for name in names)]
    facts = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    return "\n".join([*lines, "", f"{found.taken}: {facts}, rounds {found.rounds}"])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def encode(found: Comparison) -> bytes:
    """JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
