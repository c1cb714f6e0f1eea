"""The seam at which optional features meet the way of a request.

The way has these steps, each within the one that it is indented below:

request        from the head of the request to its end; behind it the record is complete
  read         the request becomes an operation of a model
    receive    the body of the request comes; who calls is known, unless a signature covers the body
  answer       one model answers: the request is written for its workers; again for each model in place of the first
    workers    one worker after another is asked
      attempt  one worker is asked, and its reply passes to the client
      failure  behind an attempt that failed: is another worker asked?
admission      in `read` or `answer`, once, as the request is about to take room or time that all callers share: what
               counts requests may refuse it. Most small requests take neither, and have no such step

A feature wraps steps. `way.Way` joins the features of a configuration once; a feature that is off is in no chain, and a
step that no feature wraps is the kernel's own function. A wrapper keeps what it needs from the begin to the end of a
step in a local variable, and what it needs in another step in `Call.notes`, by its own identity. It holds the `Call`,
never an operation or a body: a stream lasts long, and the prompt goes at its first token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.core.errors import GatewayError
from gateway.core.http import Headers

if TYPE_CHECKING:
    from gateway.kernel.call import Call
    from gateway.kernel.visit import Visit

Step = Callable[["Call"], Awaitable[None]]
"""Raises GatewayError to refuse the request."""
Attempt = Callable[["Call", "Visit"], Awaitable[None]]
"""Raises GatewayError if the worker failed, or refused the request."""
Failure = Callable[["Call", "Visit", GatewayError], Awaitable[bool]]
"""Returns whether another worker is asked. Raises GatewayError to end the request by that error."""


class CallObserver:
    """Looks at what happens to one request within its steps."""

    def waiting(self) -> None:
        """The wait for a worker begins."""

    def responded(self, worker: str, status: int) -> None:
        """The head of a worker's response is there."""

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        """A guard has answered. See `core.ports.Observer.guarded`."""


class Feature:
    """An optional feature. Each method gets a step, and returns what runs in its place: the step itself unless the
    method is overridden. A wrapper that has nothing to do for a request returns what `inner` returns.

    headers  called with the request when the head of its reply is sent: the headers that the feature adds
    """

    headers: Callable[[Call], Headers] | None = None

    def around_request(self, inner: Step) -> Step:
        return inner

    def around_read(self, inner: Step) -> Step:
        return inner

    def around_receive(self, inner: Step) -> Step:
        return inner

    def around_admission(self, inner: Step) -> Step:
        return inner

    def around_answer(self, inner: Step) -> Step:
        return inner

    def around_workers(self, inner: Step) -> Step:
        return inner

    def around_attempt(self, inner: Attempt) -> Attempt:
        return inner

    def around_failure(self, inner: Failure) -> Failure:
        return inner

    def for_adapter(self, pools: Sequence[Any]) -> Feature | None:
        """This feature for an adapter of its model, None if adapters go without. pools: the adapter's part of the
        model's pool, and of the pool that computes prompts for it if there is one."""
        return self

    def in_background(self) -> Feature | None:
        """This feature for requests that nobody waits for, None if these go without."""
        return self
