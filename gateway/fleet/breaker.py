"""Circuit breaker: consecutive failures eject a worker, longer each time, and it returns by slow start.

It has no clock: each call is given the time, in seconds of any monotonic clock.

A request notes the breaker's `generation` when it begins and reports its outcome with it. Outcomes of an earlier
generation are ignored: a hundred streams that die with the worker are one failure, and an old stream that ends well
does not prove that new requests would.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, Literal

from gateway.config import Breaker as BreakerOptions

_LONGEST = 10  # times eject_s
_LEAST_SHARE = 0.01


class Breaker:
    """One worker's state. `options` may be replaced at any time.

    changed     of all breakers: another object after each change but that of `begin`, which only closes one
    generation  ejections so far
    ejections   ejections in a row

    When the ejection time is over, the breaker is half open: one request goes through as a trial. The next one goes
    when the trial has an outcome, or after eject_s without one.
    """

    __slots__ = ("ejections", "failures", "generation", "open_until", "options", "returned_at", "trial_until")

    changed: ClassVar[object] = object()

    def __init__(self, options: BreakerOptions) -> None:
        self.options = options
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
    def allows_from(self) -> float:
        """When a request may go to the worker; 0 while it is not ejected."""
        return self.open_until and max(self.open_until, self.trial_until)

    @property
    def ejected(self) -> bool:
        return self.open_until != 0.0

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        """closed: it takes requests. open: it is out. half_open: one request at a time tries it."""
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half_open"

    def begin(self, now: float) -> None:
        """A request goes to the worker. While the worker is ejected, that request is the trial."""
        if self.open_until:
            self.trial_until = now + self.options.eject_s

    def abandon(self, generation: int) -> None:
        """The request's outcome does not judge the worker: its client left, or it was malformed."""
        if generation == self.generation and self.trial_until:
            self.trial_until, Breaker.changed = 0.0, object()

    def answer(self, now: float, generation: int) -> bool:
        """A reply has begun; True when this ends the trial. A stream may take minutes, so the trial does not wait for
        its end. Until one reply is complete, the next failure ejects again, and for longer."""
        return generation == self.generation and self._return(now)

    def succeed(self, now: float, generation: int) -> bool:
        """A reply is complete; True when this ends the trial."""
        if generation != self.generation:
            return False
        self.failures = self.ejections = 0
        return self._return(now)

    def _return(self, now: float) -> bool:
        if not self.open_until:
            return False
        self.open_until = self.trial_until = 0.0
        Breaker.changed = object()
        self.come_back(now)
        return True

    def come_back(self, now: float) -> None:
        """Begins the slow start."""
        self.returned_at = now

    def fail(self, now: float, generation: int, *, may_eject: bool) -> bool:
        """Counts a failure; True when it ejects the worker. `may_eject` is False for a worker that cannot be spared."""
        if generation != self.generation:
            return False
        self.failures += 1
        # `may_eject` does not protect a worker that is ejected already and failed its trial.
        if not self.open_until and (self.failures < self.options.failures or not may_eject):
            return False
        self._eject()
        self.open_until = now + self.eject_s
        return True

    def _eject(self) -> None:
        self.generation += 1
        Breaker.changed = object()
        self.ejections = min(self.ejections + 1, _LONGEST)
        self.trial_until = 0.0

    @property
    def eject_s(self) -> float:
        """For how long the worker is left out: longer each time in a row."""
        return self.options.eject_s * self.ejections

    def hold(self) -> None:
        """Leaves the worker out until `try_again`. Outcomes of its requests do not count any more."""
        self._eject()
        self.open_until = inf

    def try_again(self, now: float) -> None:
        """Ends `hold`: one request goes through as a trial."""
        if self.open_until == inf:
            self.open_until, Breaker.changed = now, object()

    def share(self, now: float) -> float:
        """0.01 to 1: the part of its fair share that a returned worker takes during its slow start.

        It begins near zero, as HAProxy's slowstart does. With a tenth to begin with, four of five workers that return
        together would take a third of the load at once.
        """
        if self.returned_at is None:
            return 1.0
        grown = (now - self.returned_at) / self.options.slowstart_s if self.options.slowstart_s else 1.0
        if grown >= 1.0:
            self.returned_at = None
            return 1.0
        if self.open_until:
            return 1.0  # the trial is one request: it must not wait until the other workers are busy
        return max(_LEAST_SHARE, grown)
