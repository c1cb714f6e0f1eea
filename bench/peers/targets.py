"""What the gateway is held to beside its peers, and whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct

from bench.peers.dialects import DIALECTS
from bench.peers.page import OPEN, OURS, OWN, PROXY, TITLES, Comparison, samples, shown, table
from bench.peers.times import BOUNDS_MS, SHARES

TIMES = "\N{MULTIPLICATION SIGN}"


class Target(Struct, frozen=True):
    """One target.

    figure   of `page.TITLES` or `page.OWN`
    limit    a multiple of the peer's figure, or the figure itself where there is no peer
    peer     beside whom
    subject  whose figure it is: the gateway's, that of the gateway with nothing on, or that of one of its dialects
    more     at least the limit is wanted, not at most
    unit     of a limit without a peer
    """

    figure: str
    limit: float
    peer: str = ""
    subject: str = OURS
    more: bool = False
    unit: str = ""

    @property
    def title(self) -> str:
        title = (TITLES | OWN)[self.figure].format(self.subject)
        return f"{title}, open" if self.subject == OPEN else title

    @property
    def wanted(self) -> str:
        sign = "≥" if self.more else "≤"
        if not self.limit:
            return "0"
        return f"{sign} {self.limit:g} " + (f"{TIMES} {self.peer}" if self.peer else self.unit)


TARGETS = (
    Target("plain 1 KB", 0.75, "sglang-router", OPEN),
    Target("plain 1 KB", 4.2, PROXY, OPEN),
    Target("plain 1 KB", 1, "sglang-router"),
    Target("plain 1 KB", 0.7, "smg full"),
    Target("plain 1 KB", 0.7, "vllm-router"),
    Target("plain 1 KB", 0.01, "litellm"),
    Target("plain 400 KB", 1, "vllm-router"),
    Target("plain 400 KB", 2.5, PROXY),
    Target("chunk", 1.35, PROXY),
    Target("chunk", 1, "smg full"),
    Target("chunk", 0.85, "vllm-router"),
    *(Target("translated", 1.6, PROXY, dialect.name) for dialect in DIALECTS),
    Target("first token", 1.5, "vllm-router"),
    Target("first token loaded", 1.5, "vllm-router"),
    *(Target(f"loaded {share}, middle", 1, "vllm-router") for share in SHARES),
    *(Target(f"loaded {share}, most", 1.2, "vllm-router") for share in SHARES),
    *(Target(f"rate {bound}", 1, "vllm-router", more=True) for bound in BOUNDS_MS),
    Target("memory", 24, unit="KiB"),
    Target("idle memory", 65, unit="MiB"),
    Target("processes", 1.9, more=True, unit=TIMES),
    Target("frames", 0),
)


class Verdict(Struct, frozen=True):
    """What became of a target. pairs: what is held to the limit, round by round; reached: their middle."""

    target: Target
    ours: float
    theirs: float | None
    pairs: Sequence[float]
    reached: float

    @property
    def met(self) -> bool:
        target = self.target
        return self.reached >= target.limit if target.more else self.reached <= target.limit

    @property
    def said(self) -> str:
        """Whether it is met, or by how much it is not."""
        if self.met:
            return "yes"
        target = self.target
        if not target.limit:
            return f"no: {self.reached:,.0f}"
        if self.reached == float("inf"):
            return f"no: {target.peer} adds nothing that can be measured"
        times = target.limit / self.reached if target.more and self.reached else self.reached / target.limit
        return f"no: off by {times:.2f} {TIMES}"


def verdict(found: Comparison, target: Target) -> Verdict | None:
    """None where the run has not measured it."""
    if target.figure == "frames":
        if not found.figures.asked.get(OURS):
            return None
        lost = float(found.figures.frames.get(OURS, 0))
        return Verdict(target, lost, None, [lost], lost)
    ours = samples(found, target.figure, target.subject)
    if not ours:
        return None
    middle = statistics.median(ours)
    if not target.peer:
        return Verdict(target, middle, None, ours, middle)
    theirs = samples(found, target.figure, target.peer)
    if not theirs:
        return None
    base = statistics.median(theirs)
    pairs = [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]
    # A difference of two times may come out as nothing in a round: then the middles are compared, not the rounds.
    reached = statistics.median(pairs) if len(pairs) == len(ours) else middle / base if base > 0 else float("inf")
    return Verdict(target, middle, base, pairs, reached)


def verdicts(found: Comparison) -> list[Verdict]:
    """Of all targets that were measured."""
    return [one for target in TARGETS if (one := verdict(found, target)) is not None]


def markdown(found: Comparison) -> str:
    """A row a target: both figures, their ratio with its least and most of the rounds, and whether it is met."""
    rows = []
    for one in verdicts(found):
        pairs = one.pairs
        beside = f" ({shown(min(pairs))} to {shown(max(pairs))})" if len(pairs) > 1 else ""
        ratio = "" if one.theirs is None or one.reached == float("inf") else shown(one.reached) + beside
        ours = shown(one.ours) + (beside if one.theirs is None else "")
        theirs = "" if one.theirs is None else f"{shown(one.theirs)}"
        rows.append([one.target.title, one.target.wanted, one.said, ours, theirs, ratio])
    return table(["figure", "target", "met", "gateway", "peer", "gateway ÷ peer, pair by pair"], rows, 3)


def summed_up(found: Comparison) -> str:
    """How many are met."""
    known = verdicts(found)
    return f"{sum(one.met for one in known)} of {len(known)} targets are met."
