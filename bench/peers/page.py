"""The comparison as Markdown and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from bench.peers.figures import Taken
from bench.peers.times import BOUNDS_MS, SHARES

OURS, OPEN, PROXY = "dragoman", "dragoman open", "nginx"
TITLES = {
    "plain 1 KB": "CPU µs, a plain 1 KB request",
    "plain 100 KB": "CPU µs, a plain 100 KB request",
    "plain 400 KB": "CPU µs, a plain 400 KB request",
    "chunk": "CPU µs, a streamed chunk",
    "anthropic": "CPU µs, a streamed chunk, Anthropic → vLLM",
    "responses": "CPU µs, a streamed chunk, Responses → vLLM",
    "one client, middle": "added ms, a plain request, one client, p50",
    "one client, most": "added ms, a plain request, one client, p99",
    "first token": "added ms to the first token, one client, p50",
    "first token loaded": "added ms to the first token, 100 streams, p99",
    **{
        f"loaded {share}, {part}": f"added ms to the first token at {share} % of a core, {name}"
        for part, name in (("middle", "p50"), ("most", "p99"))
        for share in SHARES
    },
    **{f"rate {bound}": f"requests a second on a core, p99 ≤ {bound} ms" for bound in BOUNDS_MS},
    "memory": "KiB, an idle open stream",
    "idle memory": "MiB, idle",
    "growth": "MiB more in a minute of requests",
}
"""What every subject is measured by."""
OWN = {
    "translated": "CPU µs, a streamed chunk, {}",
    "processes": "two processes beside one, by CPU",
    "frames": "frames lost or altered",
}
"""What only the gateway is held to. {}: the dialect."""
SIZES = ("plain 1 KB", "plain 100 KB", "plain 400 KB")
SPOKEN = ("anthropic", "responses")
"""Dialects that peers speak, too."""
ASKED = (
    *(*SIZES, "chunk", *SPOKEN, "translated", "one client", "first token", "first token loaded", "loaded", "rate"),
    *("memory", "growth", "processes"),
)
"""What can be asked for, some of it several figures; frames are counted in all that is."""


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


def samples(found: Comparison, figure: str, subject: str) -> list[float]:
    """The figure of a subject, round by round. Times are what the subject adds to the backend's own in the same
    round."""
    taken = found.figures.taken.get(figure, {})
    values = taken.get(subject, [])
    if figure.startswith(("first token", "one client")):
        return [one - own for one, own in zip(values, taken.get("backend", []), strict=False)]
    return values


def middle(found: Comparison, figure: str, subject: str) -> str:
    """The median of the figure of `subject`; empty where it was not measured."""
    values = samples(found, figure, subject)
    return shown(statistics.median(values)) if values else ""


def spread(found: Comparison) -> str:
    """A row a figure, a column a subject: the median, with the least and most of the rounds in brackets."""
    names = list(found.versions)
    rows = []
    for figure, title in TITLES.items():
        if figure in found.figures.taken:
            values = [samples(found, figure, name) for name in names]
            rows.append([title, *(_spread(one) if one else "" for one in values)])
    asked, frames = found.figures.asked, found.figures.frames
    if asked:
        cells = (f"{frames.get(name, 0)} of {asked[name]:,}" if name in asked else "" for name in names)
        rows.append([OWN["frames"], *cells])
    return table(["", *(f"{name} {found.versions[name]}" for name in names)], rows, 1)


def _spread(values: Sequence[float]) -> str:
    middle = shown(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))} to {shown(max(values))})"


def on(found: Comparison) -> str:
    """What was on and off for each subject."""
    return "\n".join(f"- {name}: {features}." for name, features in found.on.items())


def facts(found: Comparison) -> str:
    """When, where and how often it was measured."""
    told = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    return f"{found.taken}: {told}, rounds {found.rounds}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table of Markdown. words: so many columns at the left are no figures."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * words + "--:|" * (len(head) - words)]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def shown(value: float) -> str:
    """A figure with three digits or so."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def encode(found: Comparison) -> bytes:
    """JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
