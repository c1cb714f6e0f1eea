"""When a worker is left out: consecutive failures eject it, longer each time, and it returns by degrees.

Sans-clock: every call is given the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

from msgspec import Struct


class BreakerPolicy(Struct, frozen=True):
    """failures in a row that eject; eject_s x n seconds out, the n-th time in a row; slowstart_s of growing share."""

    failures: int = 5
    eject_s: float = 30.0
    slowstart_s: float = 10.0


_LONGEST = 10  # times eject_s


class Breaker:
    """One worker's record. `policy` may be exchanged at any time."""

    __slots__ = ("ejections", "failures", "open_until", "policy", "returned_at", "trial")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.failures = 0
        self.ejections = 0
        self.open_until = 0.0
        self.returned_at: float | None = None
        self.trial = False

    def allows(self, now: float) -> bool:
        """Whether a request may go to the worker. After an ejection one trial request at a time, until one succeeds."""
        if self.open_until == 0.0:
            return True
        return now >= self.open_until and not self.trial

    @property
    def ejected(self) -> bool:
        return self.open_until != 0.0

    def begin(self) -> None:
        if self.open_until:
            self.trial = True

    def abandon(self) -> None:
        """The request that began told nothing about the worker (its client left, it was malformed)."""
        self.trial = False

    def succeed(self, now: float) -> None:
        self.failures = 0
        self.trial = False
        if self.open_until:
            self.open_until = 0.0
            self.ejections = 0
            self.come_back(now)

    def come_back(self, now: float) -> None:
        """From now on its share grows."""
        self.returned_at = now

    def fail(self, now: float, *, may_eject: bool) -> bool:
        """Counts a failure; True when it ejects the worker. `may_eject` False keeps a worker that cannot be spared."""
        self.failures += 1
        tried_again = self.trial
        self.trial = False
        if not tried_again and (self.open_until or self.failures < self.policy.failures or not may_eject):
            return False  # where it is out already: requests from before that fail one by one, for the same reason
        self.ejections = min(self.ejections + 1, _LONGEST)
        self.open_until = now + self.policy.eject_s * self.ejections
        return True

    def share(self, now: float) -> float:
        """0.1 to 1: how much of its fair share a returned worker takes while it warms up."""
        if self.returned_at is None or not self.policy.slowstart_s:
            return 1.0
        grown = (now - self.returned_at) / self.policy.slowstart_s
        if grown >= 1.0:
            self.returned_at = None
            return 1.0
        return max(0.1, grown)
