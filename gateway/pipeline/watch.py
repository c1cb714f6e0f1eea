"""Watchers: what looks at the steps of requests without being one of them (traces, quarantine, copies, explanations).

A feature that only looks on is a `Watcher`. `gateway.app` makes those of a configuration once and joins them to
`Watchers`, by step: a feature that is off is in no list, and a step that nobody looks at costs an empty loop. A watcher
keeps what it knows of a request in `Call.notes`: objects for each request that refer to their call would make a cycle,
and requests in fresh memory cost a quarter more (`bench.inside`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError

if TYPE_CHECKING:
    from gateway.pipeline.call import Call
    from gateway.pipeline.visit import Visit


class Watcher:
    """Looks at requests. The methods stand in the order of the steps; each does nothing unless it is overridden."""

    def begun(self, call: Call) -> None:
        """A request has come. Nothing of it was read but its head."""

    def received(self, call: Call) -> None:
        """The caller is known, and the body of the request has come."""

    def asked(self, call: Call) -> None:
        """The request was read, and its model found. Called again for each other model that is asked."""

    def withdrawn(self, call: Call) -> None:
        """The model cannot answer. Another one will be asked."""

    def before_worker(self, call: Call) -> Awaitable[None] | None:
        """A worker will be picked. To end the request by a GatewayError, this returns what raises it, once awaited."""
        return None

    def guarded(self, call: Call, guard: str, stage: str, result: str, seconds: float) -> None:
        """A guard has answered. See `core.ports.Observer.guarded`."""

    def waiting(self, call: Call) -> None:
        """The wait for a worker begins."""

    def visiting(self, call: Call, visit: Visit) -> None:
        """A worker was picked, and will be sent the request."""

    def responded(self, call: Call, visit: Visit, status: int) -> None:
        """The head of the worker's response is there."""

    def needs_prompt(self, call: Call) -> bool:
        """A stream has its first token. True: the request's body has to be kept."""
        return False

    def needs_operation(self, call: Call) -> bool:
        """A stream has its first token. True: the operation has to be kept, although its body is not."""
        return False

    def first_output(self, call: Call, ago_s: float) -> None:
        """A stream has ended whose first output came `ago_s` seconds ago."""

    def left(self, call: Call, visit: Visit, error: GatewayError | None) -> None:
        """A visit is over. error is what ended it, None for a whole reply and for a cancelled request."""

    def failed(self, call: Call, visit: Visit, error: GatewayError, again: bool) -> None:
        """An attempt failed. again: another worker will be tried."""

    def settled(self, call: Call) -> None:
        """The usage is known. Called as `Call.settle` is: before a stream's end reaches the client, and at the end."""

    def closed(self, call: Call) -> None:
        """The request is over, and its record complete. Called once, on every exit."""


class Watchers:
    """The methods of several watchers, by step."""

    begun: tuple[Callable[[Call], None], ...]
    received: tuple[Callable[[Call], None], ...]
    asked: tuple[Callable[[Call], None], ...]
    withdrawn: tuple[Callable[[Call], None], ...]
    before_worker: tuple[Callable[[Call], Awaitable[None] | None], ...]
    guarded: tuple[Callable[[Call, str, str, str, float], None], ...]
    waiting: tuple[Callable[[Call], None], ...]
    visiting: tuple[Callable[[Call, Visit], None], ...]
    responded: tuple[Callable[[Call, Visit, int], None], ...]
    needs_prompt: tuple[Callable[[Call], bool], ...]
    needs_operation: tuple[Callable[[Call], bool], ...]
    first_output: tuple[Callable[[Call, float], None], ...]
    left: tuple[Callable[[Call, Visit, GatewayError | None], None], ...]
    failed: tuple[Callable[[Call, Visit, GatewayError, bool], None], ...]
    settled: tuple[Callable[[Call], None], ...]
    closed: tuple[Callable[[Call], None], ...]

    def __init__(self, *watchers: Watcher) -> None:
        self.all = watchers
        for step in self.__annotations__:
            looking = (one for one in watchers if getattr(type(one), step) is not getattr(Watcher, step))
            setattr(self, step, tuple(getattr(one, step) for one in looking))


NOBODY = Watchers()
