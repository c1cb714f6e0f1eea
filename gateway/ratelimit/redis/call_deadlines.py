"""How long a call to the store may take before its requests are decided without the store."""

from __future__ import annotations

from gateway.ratelimit.model import LATE, Verdict
from gateway.ratelimit.redis.codec import Result

REMEMBERED_S = 5.0
"""A round trip counts for this long at least, and for twice as long at most."""
MOST = 10.0


class CallDeadlines:
    """The times of calls to one server.

    `seconds`, which a call may take, is `least`, or twice the slowest round trip of the last 5 to 10 seconds if that is
    longer, but at most ten times `least`. So a server that is always 30 ms away, or on a busy machine, does not count
    as down. Deadlines are in the server's clock, which is known from its answers.
    """

    def __init__(self, least: float) -> None:
        self._slowest = 0.0
        self._before = 0.0
        self.use(least)
        self._until = 0.0
        self._offset: int | None = None
        self._jumped = False

    def use(self, least: float) -> None:
        """As a new one with `least`; what is known of answers and of the server's clock stays."""
        self.least = least
        self.most = MOST * least
        self._adapt()

    def _adapt(self) -> None:
        self.seconds = min(max(self.least, 2 * self._slowest, 2 * self._before), self.most)

    def took(self, seconds: float, now: float) -> None:
        """A call was answered after `seconds`; `now` is monotonic."""
        if now >= self._until:
            # After two periods without calls, older measurements do not count.
            self._before = self._slowest if now < self._until + REMEMBERED_S else 0.0
            self._slowest, self._until = 0.0, now + REMEMBERED_S
        elif seconds <= self._slowest:
            return
        self._slowest = max(self._slowest, seconds)
        self._adapt()

    def deadline(self, sent: int, within: float) -> int:
        """The end of `within` seconds from `sent` (own clock), in microseconds of the server's clock."""
        return 1 << 52 if self._offset is None else sent + self._offset + int(within * 1_000_000)

    def is_prompt(self, seconds: float) -> bool:
        """Whether an answer took so little time that it shows what the server's clock says now."""
        return seconds < self.seconds / 2

    def read_clock(self, answered: int, sent: int, results: list[Result], prompt: bool) -> None:
        """answered: by the server's clock; sent: by ours. An answer that stood still on its way makes the server's
        clock look later than it is. Deadlines that are late let the server charge calls that were given up before."""
        offset = answered - sent
        if (
            prompt
            or self._offset is None
            or offset < self._offset
            or any(isinstance(one, Verdict) and one.violated == LATE for one in results)
        ):
            self._offset = offset

    def has_jumped(self, late: bool, prompt: bool) -> bool:
        """Whether one of the clocks jumped: a prompt answer says that a call was late. The server did nothing, so it is
        safe to ask again now that the clocks agree, once."""
        self._jumped = late and prompt and not self._jumped
        return self._jumped
