"""How fast a queue moves: for the Retry-After of refused clients, and for how long a wait will be."""

from __future__ import annotations

from math import exp

_MEMORY_S = 30.0
"""Seconds after which a served token counts for about a third."""
_SHORTEST_S, _LONGEST_S = 1.0, 60.0
"""Bounds of a Retry-After. OpenAI's own client ignores waits of more than a minute."""


class Speed:
    """Tokens a second that leave a queue while something waits in it. The newest count most.

    All times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._at: float | None = None
        self._sent_back = 0.0
        self._sent_back_at = 0.0

    def run(self, now: float) -> None:
        """Something waits, and workers serve. Idempotent."""
        if self._at is None:
            self._at = now

    def rest(self, now: float) -> None:
        """Nothing waits, or no worker serves: the time until `run` does not count. Idempotent."""
        if self._at is not None:
            self._pass(now)
            self._at = None

    def served(self, tokens: int, now: float) -> None:
        """A request that had waited got its worker."""
        self._pass(now)
        self._tokens += tokens

    def _pass(self, now: float) -> None:
        passed = now - self._at if self._at is not None else 0.0
        if passed > 0:
            faded = exp(-passed / _MEMORY_S)
            self._tokens *= faded
            self._seconds = self._seconds * faded + _MEMORY_S * (1 - faded)
            self._at = now

    def wait(self, tokens: float, now: float) -> float | None:
        """Seconds until `tokens` were served; None while the speed is unknown."""
        if not self._tokens:
            return None
        passed = max(0.0, now - self._at) if self._at is not None else 0.0
        return tokens * (self._seconds + passed) / self._tokens

    def send_back(self, ahead: int, tokens: int, now: float) -> float:
        """Seconds after which a refused request finds room, with `ahead` tokens before it. Those that are refused are
        sent back one behind the other, as fast as the queue moves, 60 s at most: not all for the one place that is
        free."""
        a_token = self.wait(1, now)
        if a_token is None:
            return _SHORTEST_S
        room = _LONGEST_S / a_token if a_token else float("inf")
        behind = max(0.0, self._sent_back - (now - self._sent_back_at) / a_token) if a_token else 0.0
        self._sent_back, self._sent_back_at = min(room, behind + tokens), now
        return min(_LONGEST_S, max(_SHORTEST_S, (ahead + behind) * a_token))
