"""Whether a gateway that has just started knows enough to be sent requests."""

from __future__ import annotations

from collections.abc import Callable

from gateway.app.deployment import Deployment


class Readiness:
    """Once ready, it stays so: what was read is kept while its source is away.

    deployment  returns the one in force
    log         called with a level, an event and facts
    clock       monotonic seconds
    """

    def __init__(
        self, deployment: Callable[[], Deployment], log: Callable[..., None], clock: Callable[[], float]
    ) -> None:
        self._deployment = deployment
        self._log = log
        self._clock = clock
        self._began: float | None = None
        self._known = False
        self._waits = False

    def begin(self) -> None:
        """The gateway has started."""
        self._began = self._clock()
        self._known = self._look()

    @property
    def known(self) -> bool:
        """Whether each source was read, or has had the time that `start.ready_within_s` gives it."""
        self._known = self._known or self._look()
        return self._known

    def _look(self) -> bool:
        if self._began is None:
            return False
        deployment = self._deployment()
        passed, unread = self._clock() - self._began, deployment.unread
        if not unread:
            if self._waits:
                self._log("info", "ready, all sources were read", after_s=round(passed, 1))
            return True
        if passed >= deployment.config.start.ready_within_s:
            self._log("error", "ready although sources could not be read", sources=unread, after_s=round(passed, 1))
            return True
        if not self._waits:
            self._waits = True
            within = deployment.config.start.ready_within_s
            self._log("warning", "not ready, sources could not be read", sources=unread, ready_within_s=within)
        return False
