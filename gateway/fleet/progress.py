"""The progress of one worker's engine, and how long its silence may last before it counts as stalled.

A worker makes progress when the figures of its engine change or a piece of a reply comes. Silence counts while the
worker owes answers. A silence that ended is the worker's history: an engine that was silent for 30 s over a long prompt
may be silent for longer again.

There is no clock here: each call is given the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

from gateway.core.figures import Silence

TIMES = 4.0
"""Times the longest silence in its history, a silence may last."""
HISTORY_S = 300.0
"""Seconds of owed answers after which a worker has a history. Before that its engine may still compile."""
COUNTED_S = 20.0, 150.0
"""Least and most seconds for an engine that reports figures. The most holds before there is a history, too: healthy
engines were silent for up to 108 s while they compiled."""
UNCOUNTED_S = 60.0, 600.0
"""Likewise for an engine that reports none: a reply that is not streamed is silent until its end."""
_UNCOUNTED_NEW_S = 300.0
_HALF_LIFE_S = 3600.0
"""Seconds in which the longest silence counts half as much."""


class Progress:
    """The progress of one worker's engine, as far as it was seen.

    counted      its engine reports figures, and they have changed since it started
    life         the life of the worker that this is about: see `Worker.lives`
    moved_at     when it made progress last
    owing        it owed answers at the last look
    silent_from  since when it has owed answers without progress; if it owes none, the time of the last look
    owed_s       for so long it has owed answers, in its present life
    replied_at   when it last completed a reply
    left_at      when a client last left a request of it
    answered_at  when a piece of a reply came last, as far as it was looked at
    left_alone   it is stalled because clients left it unanswered: only an answer proves that it is not
    vouched_at   when it answered the gateway's own question in that state
    doubted      it did, and clients left it again: its answers to the gateway prove nothing
    stalled_at   since when it has been stalled; None if it is not
    asked_at     when it was last asked for a token without success
    """

    __slots__ = (
        "_figures", "_longest", "_longest_at", "answered_at", "asked_at", "counted", "doubted", "left_alone", "left_at",
        "life", "moved_at", "owed_s", "owing", "replied_at", "silent_from", "stalled_at", "vouched_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self._figures: tuple[float, ...] = ()
        self._longest = 0.0
        self._longest_at = 0.0
        self.answered_at = 0.0
        self.asked_at = 0.0
        self.left_alone = False
        self.vouched_at = 0.0
        self.doubted = False
        self.counted = False
        self.life = 0
        self.left_at = 0.0
        self.moved_at = 0.0
        self.owed_s = 0.0
        self.owing = False
        self.replied_at = 0.0
        self.silent_from = 0.0
        self.stalled_at: float | None = None

    @property
    def stalled(self) -> bool:
        return self.stalled_at is not None

    @property
    def lived_at(self) -> float:
        """When it last answered anybody."""
        return max(self.answered_at, self.vouched_at)

    def read(self, figures: tuple[float, ...], now: float) -> None:
        """Takes a reading of the engine's figures. The first one of a life says nothing of progress."""
        if figures and figures != self._figures:
            if self._figures:
                self.counted = True
                self.move(now)
            self._figures = figures

    def move(self, at: float) -> None:
        """The engine made progress."""
        if at <= self.moved_at:
            return
        if self.owing:
            silence = at - self.silent_from
            if self.longest(at) < silence <= self._bounds[1]:  # an engine that was silent for longer hung
                self._longest, self._longest_at = silence, at
            self.silent_from = max(self.silent_from, at)
        self.moved_at = at

    def look(self, now: float, passed_s: float, silence: Silence | None, engine_owes: bool) -> float:
        """Returns for how long the worker has been silent, in seconds; 0 if it owes nothing.

        passed_s     since the look before this one
        silence      of the replies that it owes this gateway
        engine_owes  by the engine's own figures it has work
        """
        body_at = None if silence is None else silence.body_at
        self.answered_at = max(self.answered_at, self.replied_at, body_at or 0.0)
        self.move(self.answered_at)
        # A request that its client left unanswered counts as owed until an engine that reports figures does something.
        left = self.counted and self.left_at > self.moved_at
        if silence is None and not engine_owes and not left:
            self.owing, self.silent_from = False, now
            return 0.0
        if not self.owing:
            self.owing = True
            since = silence.since if silence is not None else self.left_at if left else now
            self.silent_from = max(self.moved_at, since)
        self.owed_s += passed_s
        return now - self.silent_from

    def resume(self, now: float) -> None:
        """The worker is not stalled any more: its silence counts from now on."""
        self.stalled_at, self.owing, self.moved_at = None, False, max(now, self.moved_at)
        self.left_alone = self.doubted = False

    def begin_life(self, life: int) -> None:
        """The worker has started again: it has to load, and to compile."""
        self.life, self.owed_s, self._figures, self.counted, self.owing = life, 0.0, (), False, False

    @property
    def _bounds(self) -> tuple[float, float]:
        return COUNTED_S if self.counted else UNCOUNTED_S

    def longest(self, now: float) -> float:
        """The longest silence in its history, which fades, in seconds."""
        return float(self._longest * 0.5 ** ((now - self._longest_at) / _HALF_LIFE_S))

    @property
    def least(self) -> float:
        """The least bound, in seconds: that of a worker whose web server is silent, too."""
        return self._bounds[0]

    def bound(self, longest: float) -> float:
        """How long its silence may last, in seconds. longest: the longest one of any worker of its model."""
        least, most = self._bounds
        if self.owed_s < HISTORY_S:
            return most if self.counted else _UNCOUNTED_NEW_S
        return min(most, max(least, TIMES * longest))
