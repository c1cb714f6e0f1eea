"""Records, limits, traces and the observer of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType

from gateway.core.errors import GatewayError
from gateway.core.estimate import Cost
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.money import Rates
from gateway.core.usage import Usage
from gateway.core.written import Moment, always


class RequestRecord(Struct, omit_defaults=True):
    """The record of one request, for the log, the metrics and accounting. Never holds text of a prompt or a reply.
    Members that are None or empty are not written.

    time      when it ended
    status    the status that the client saw; 0 for none
    outcome   ok | refused (a 4xx, ours or the worker's) | failed | cancelled (the client left)
    duration_ms  milliseconds from begin to end
    queue_ms  part of `duration_ms`: the wait for a worker
    upstream_ms  part of `duration_ms`: the time with workers, from sending until the end of the reply or of the attempt
    time_to_first_token_ms  milliseconds to the first output of a stream
    overhead_ms  part of `duration_ms`: the rest, our own
    attempts  how many times a worker was picked
    picked    why that worker: `core.routing_facts.RoutingFacts.picked`
    prefill   the worker that computed the prompt for it, or None
    served    the name by which `worker` serves the model, if that is another one than it was taken to; else absent
    adapter   the LoRA adapter of `model` that was meant, or None
    limit     the name of the limit that refused it
    asked     the model that the request named, if another one answered or none has that name
    routed    why another one: unavailable | overloaded | account | context_length (its fallback) | split | chosen by
              a guard
    alias     the name by which the request meant the model that it named; absent if that was the model's own name
    phase     what a client that left was waiting for: reading | queued | first_output | streaming; else None
    trace     the id of its trace, if it is sampled
    moved     why it left workers before its client had seen anything: stalled | leaving | late, one for each
    continued  why other workers went on with its stream: those, died | silent | failed | ended (only its end was added)
    not_continued  why none did, although the worker was at fault; see docs/reliability.md
    recomputed  tokens that those workers computed again: the prompt, and the reply so far
    workers   those that it was sent to, in order, the first of them if they are many; absent if there was one at most
    reasons   why workers failed it, one for each visit that failed, or why those of a model without a ready worker are
              not, each once: `core.failures.Cause`, the first of them if they are many; absent if there is none
    tools     calls of the tools that the gateway ran, `search` or `fetch`, with why it failed if it did; absent if
              there were none
    batch     the id of the batch that it is a line of; absent for all others
    guards    what came of asking guards, as `pii before replaced`: allowed | refused | replaced | failed, each once;
              absent if none was asked
    guard_ms  part of `duration_ms`: the wait for guards while no worker was at work; absent if none was asked
    cost      nano (billionths) of the currency that it is charged; absent if its model has no price
    cache     what came of the cache of replies: hit | miss; absent if it was not asked
    saved     nano of the currency that a hit would have cost; absent if its model has no price
    end_user  whom the client named, see `core.end_users`; absent if it named nobody
    """

    time: Moment = Moment(0.0)
    level: str = always("info")
    event: str = always("request")
    id: str = always("")
    dialect: str = always("")
    operation: str = always("")
    model: str = always("")
    key: str = always("")
    team: str | None = None
    stream: bool = always(False)
    status: int = always(0)
    outcome: str = always("ok")
    code: str | None = None
    duration_ms: float = always(0.0)
    queue_ms: float = always(0.0)
    upstream_ms: float = always(0.0)
    overhead_ms: float = always(0.0)
    time_to_first_token_ms: float | None = None
    attempts: int = always(0)
    worker: str | None = None
    picked: str | None = None
    prefill: str | None = None
    adapter: str | None = None
    usage: Usage | None = None
    limit: str | None = None
    asked: str | None = None
    routed: str | None = None
    dropped: tuple[str, ...] = ()
    phase: str | None = None
    trace: str | None = None
    moved: tuple[str, ...] = ()
    continued: tuple[str, ...] = ()
    not_continued: str | None = None
    recomputed: int | None = None
    workers: tuple[str, ...] | UnsetType = UNSET
    reasons: tuple[str, ...] | UnsetType = UNSET
    served: str | UnsetType = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    batch: str | UnsetType = UNSET
    guards: tuple[str, ...] | UnsetType = UNSET
    guard_ms: float | UnsetType = UNSET
    cost: int | UnsetType = UNSET
    cache: str | UnsetType = UNSET
    saved: int | UnsetType = UNSET
    end_user: str | UnsetType = UNSET
    alias: str | UnsetType = UNSET


class Charge(Protocol):
    """The charge of an admitted request on its limits."""

    def settle(self, record: RequestRecord) -> None:
        """Corrects the charge to the usage in `record`, and releases the request's slots. Call it on every exit; only
        the first call counts."""

    def withdraw(self) -> None:
        """Gives all of it back, the request itself too, instead of `settle`; but not what `admit_early` made."""


class RateLimiter(Protocol):
    """The limits that a request must pass before it is sent to a worker."""

    def cost(self, op: Op, max_context: int | None, rates: Rates | None) -> Cost | None:
        """The most that `op` may use, for `admit`, with its price by `rates`. It takes long for a large request."""

    def admit(
        self, record: RequestRecord, cost: Cost | None, scope: Any, headers: Headers, charges: list[Charge]
    ) -> Awaitable[None] | None:
        """Admits the request of the key, team and model in `record`, and adds its charge to `charges`, which has
        those that were made for it before. Raises GatewayError, and charges nothing, if a limit refuses it.

        In both cases it adds the reply's headers about limits to `headers`. scope is the request's ASGI scope.
        Returns None if that is done; what has to be awaited if a shared store was asked. Its answer comes while the
        caller does something else in the same turn of the loop.
        """

    async def admit_early(self, record: RequestRecord, scope: Any, headers: Headers, charges: list[Charge]) -> None:
        """As `admit`, for a request whose body takes long to read, before it is read, on the limits that count it
        whatever it holds: those of requests and concurrency by key, team and address.

        The request stays charged whatever becomes of it. Its slots are freed by `settle`.
        """


class RequestTrace(Protocol):
    """The spans of one running request, in a trace of W3C's Trace Context.

    id       the trace's id, 32 hexadecimal digits; None if the request is not sampled
    context  headers that name the request's span; none if the request is not sampled
    """

    @property
    def id(self) -> str | None: ...
    @property
    def context(self) -> Headers: ...
    def logged(self) -> None:
        """The texts of the request, and its usage, are sent in a span of their own."""

    def waiting(self) -> None:
        """The request begins to wait for a worker."""

    def sending(self, worker: str, attempt: int) -> Headers:
        """The request is sent to `worker` now. Returns the headers that carry the trace to the worker."""

    def first_output(self, ago_s: float) -> None:
        """The attempt's first output came `ago_s` seconds ago."""

    def went_on(self, step: str, reason: str) -> None:
        """step: moved | continued | retried."""

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        """A guard was asked, and has answered after so many seconds, just now. See `Observer.guarded`."""

    def attempt_ended(self, error: GatewayError | None) -> None: ...
    def finished(self, record: RequestRecord, finishes: Sequence[str]) -> None:
        """The request is over. finishes: why each choice of its reply ended. Call it once, on every exit."""


class Tracer(Protocol):
    """Makes the spans of requests."""

    def begin(self, context: Headers, method: str, route: str) -> RequestTrace:
        """A request begins; `context` comes from `core.trace_context`. route is its path as a template, such as
        `/v1/models/{model}`, or "" for a path that is not served."""


class Observer(Protocol):
    """Receives the begin and end of every request, retries, second workers, and bugs."""

    def begun(self, dialect: str) -> None: ...
    def finished(self, record: RequestRecord) -> None: ...
    def retried(self, model: str, worker: str, error: GatewayError) -> None: ...
    def answered_with(self, record: RequestRecord, worker: str, error: GatewayError) -> None:
        """`worker` answered with an error of its own, which is not about the request, or not in any known form."""

    def moved(self, model: str, reason: str) -> None:
        """A request left its worker, before its client had seen anything."""

    def continued(self, model: str, worker: str, reason: str) -> None:
        """Another worker goes on with a stream that `worker` began."""

    def not_continued(self, model: str, reason: str) -> None: ...
    def hedged(self, model: str, won: bool) -> None:
        """A second worker was asked. won: its answer came first."""

    def prefilled(self, model: str, worker: str | None, error: GatewayError | None) -> None:
        """A prefill worker computed a prompt, or failed to with `error`; worker is None if none was available."""

    def tool_called(self, kind: str, error: str | None) -> None:
        """The gateway ran a tool for a client. error: why that failed."""

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        """A guard was asked. stage: before (a worker) | after. result: allowed | refused | replaced | failed."""

    def misses(self, record: RequestRecord, flags: tuple[str, ...]) -> None:
        """A worker refused the request because it was started without these flags of its engine."""

    def bug(self, record: RequestRecord, error: BaseException) -> None: ...
