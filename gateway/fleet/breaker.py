"""When a worker is left out: consecutive failures eject it, longer each time, and it returns by degrees.

Sans-clock: every call is given the time, in seconds of any monotonic clock.

A request notes the breaker's `generation` when it begins and gives it back with what became of it. What began before an
ejection says nothing of the worker as it is now: a hundred streams that die with it are one failure, and one that was
lucky to end well is no proof that new ones would.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class BreakerPolicy(Struct, frozen=True):
    """failures in a row that eject; eject_s x n seconds out, the n-th time in a row; slowstart_s of growing share."""

    failures: int = 5
    eject_s: float = 30.0
    slowstart_s: float = 10.0


_LONGEST = 10  # times eject_s
_LEAST_SHARE = 0.01


class Breaker:
    """One worker's record. `policy` may be exchanged at any time.

    generation counts its ejections so far, `ejections` those in a row. While it is out, a request is let through on
    trial once its time is over; the next one when that has told something, or has told nothing for eject_s.
    """

    __slots__ = ("ejections", "failures", "generation", "open_until", "policy", "returned_at", "trial_until")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.failures = 0
        self.ejections = 0
        self.generation = 0
        self.open_until = 0.0
        self.trial_until = 0.0
        self.returned_at: float | None = None

    def allows(self, now: float) -> bool:
        """Whether a request may go to the worker."""
        return self.open_until == 0.0 or (now >= self.open_until and now >= self.trial_until)

    @property
    def ejected(self) -> bool:
        return self.open_until != 0.0

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        """closed: it takes requests. open: it is out. half_open: one request at a time tries it."""
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half_open"

    def begin(self, now: float) -> None:
        """A request goes to the worker; while that is out, it is the trial."""
        if self.open_until:
            self.trial_until = now + self.policy.eject_s

    def abandon(self, generation: int) -> None:
        """The request that began told nothing about the worker (its client left, it was malformed)."""
        if generation == self.generation:
            self.trial_until = 0.0

    def answer(self, now: float, generation: int) -> bool:
        """A reply has begun; True when this ends the trial. A stream may take minutes: nobody waits for its end. But
        until a reply has come to its end, the next failure ejects again, and longer."""
        return generation == self.generation and self._return(now)

    def succeed(self, now: float, generation: int) -> bool:
        """A reply is whole; True when this ends the trial."""
        if generation != self.generation:
            return False
        self.failures = self.ejections = 0
        return self._return(now)

    def _return(self, now: float) -> bool:
        if not self.open_until:
            return False
        self.open_until = self.trial_until = 0.0
        self.come_back(now)
        return True

    def come_back(self, now: float) -> None:
        """From now on its share grows."""
        self.returned_at = now

    def fail(self, now: float, generation: int, *, may_eject: bool) -> bool:
        """Counts a failure; True when it ejects the worker. `may_eject` False keeps a worker that cannot be spared."""
        if generation != self.generation:
            return False
        self.failures += 1
        # One that is out already, and failed its trial, need not be spared.
        if not self.open_until and (self.failures < self.policy.failures or not may_eject):
            return False
        self.generation += 1
        self.ejections = min(self.ejections + 1, _LONGEST)
        self.open_until = now + self.policy.eject_s * self.ejections
        self.trial_until = 0.0
        return True

    def share(self, now: float) -> float:
        """0.01 to 1: how much of its fair share a returned worker takes while it warms up. Nearly nothing at first, as
        HAProxy's slowstart: a tenth each, for four of five that return together, is a third of what is fair."""
        if self.returned_at is None or not self.policy.slowstart_s:
            return 1.0
        grown = (now - self.returned_at) / self.policy.slowstart_s
        if grown >= 1.0:
            self.returned_at = None
            return 1.0
        if self.open_until:
            return 1.0  # one request is no load, and its trial is not to wait until others are busy
        return max(_LEAST_SHARE, grown)
