"""The material of one request, with one owner: what was asked, what a worker is sent, what came back, what it cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET
from msgspec.structs import replace

from gateway.auth import ANONYMOUS, Principal
from gateway.core.byte_budget import Held
from gateway.core.continuation import NOT_KEPT, SeenText
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Lane, RequestRecord, WorkerHandle
from gateway.core.routing_facts import RoutingFacts
from gateway.core.usage import Usage
from gateway.pipeline.client import Scope
from gateway.pipeline.offload import Share
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.reply import ClientReply
from gateway.pipeline.timing import milliseconds
from gateway.pipeline.watch import Watcher

if TYPE_CHECKING:
    from gateway.pipeline.going_on import Continuation
    from gateway.pipeline.guards import HeldReply
    from gateway.pipeline.models import ServedModel
    from gateway.pipeline.runtime import Runtime
    from gateway.pipeline.visit import Visit

_MOST_WORKERS = 32
"""Workers that a record names: as many as a stream that survives ten failures is usually sent to."""


class Call:
    """One request.

    runtime    what all requests share
    scope      of ASGI
    reply      what the client has seen; it has the request as it came, until `drop_prompt`
    began      when the request began, in seconds of the runtime's clock
    watchers   look at its steps: those of the configuration, and from `ask` on those of the model, too
    notes      what watchers keep of it
    principal  who calls
    confirmed  `Runtime.callers` as it was when the caller was identified; None if its key may end without a change
    again      identifies a caller that shows no key; None where the headers do
    share      of the threads' time; None if reading and writing it takes less than milliseconds (`large`)
    op         what is asked of the model; None before it was read, and after `drop_prompt`
    untouched  a copy of `op` for fallbacks, since what a model cannot do is left out of `op`
    served     the model that is asked
    outgoing   what its workers are sent
    context    headers that carry the client's trace to workers
    routing    what the pick of a worker goes by
    prompt     estimated tokens of the prompt; None until they are needed
    stage      how far it is
    seen       keeps the text of the stream, for a worker that goes on with it; None if that is not wanted
    continuation  set once the stream of a worker broke that another one may go on with
    produced_before  output of the stream before the visit that is under way
    visit      the one that is under way
    tried      workers of `served` that failed, and are not asked again
    failed     address of the worker whose visit failed first; None while none has
    interrupted  the error that ends the request from outside
    lane       of the last stream that a worker began
    finishes   why the choices of a plain reply ended, if the request is traced
    counted    until when the record has the times of waits and visits, in seconds of the clock
    guard      holds the reply back until guards have allowed it; None if none sees it
    reply_at   when a worker's whole reply had come: what follows is not the worker's time
    """

    op: Op | None = None
    untouched: Op | None = None
    served: ServedModel
    outgoing: Outgoing
    routing: RoutingFacts
    principal: Principal = ANONYMOUS
    confirmed: object = None
    again: Callable[[], object] | None = None
    share: Share | None = None
    prompt: int | None = None
    context: Headers
    stage: Literal["reading", "queued", "visiting"] = "reading"
    lane: Lane | None = None
    finishes: Sequence[str] = ()
    seen: SeenText | None = None
    continuation: Continuation | None = None
    produced_before: int = 0
    visit: Visit | None = None
    tried: Sequence[WorkerHandle] = ()
    failed: str | None = None
    interrupted: GatewayError | None = None
    counted: float | None = None
    reply_at: float | None = None
    guard: HeldReply | None = None

    def __init__(
        self,
        runtime: Runtime,
        scope: Scope,
        reply: ClientReply,
        record: RequestRecord,
        context: Headers,
    ) -> None:
        self.runtime = runtime
        self.scope = scope
        self.reply = reply
        self.record = record
        self.context = context
        self.began = runtime.clock()
        self.watchers = runtime.watchers
        self.notes: dict[Watcher, Any] = {}

    def ask(self, served: ServedModel) -> None:
        """From now on `served` is asked, instead of any model before."""
        self.served = served
        self.record.model = served.name
        if served.adapter is not None:
            self.record.adapter = served.adapter
        self.outgoing = Outgoing(served, self.record.id, self.share, self.context)
        self.lane = self.record.usage = self.prompt = None
        self.tried = ()
        self.watchers = served.watchers
        for asked in self.watchers.asked:
            asked(self)

    def confirm(self) -> None:
        """Looks again, behind a wait, whether the caller may still call. Raises GatewayError if not."""
        runtime = self.runtime
        if self.confirmed is runtime.callers:
            return  # no key has changed
        if self.again is not None:
            self.again()
        else:
            runtime.callers.confirm(self.principal, self.reply.request.headers, self.record.dialect)

    @property
    def large(self) -> bool:
        """Reading or writing it takes milliseconds, so both are done in a thread."""
        return self.share is not None

    @property
    def asked(self) -> Op:
        """`op`, while nothing can have dropped it."""
        assert self.op is not None
        return self.op

    @property
    def question(self) -> bool:
        """The operation needs no model (`core.messages.Question`)."""
        return self.outgoing.question is not None

    @property
    def owner(self) -> str:
        """As `Runtime.owner`."""
        return self.runtime.owner(self.principal, self.scope)

    def name_worker(self, address: str) -> None:
        """A worker is asked after another one: the record names both."""
        record = self.record
        if self.failed is not None:
            before = (self.failed,) if record.workers is UNSET else record.workers
            record.workers = (*before, address)[:_MOST_WORKERS]

    # -- times ------------------------------------------------------------------------------------------------------

    def waited(self, since: float) -> None:
        """The request did nothing but wait for a worker since `since`."""
        now = self.runtime.clock()
        self.record.queue_ms += milliseconds(now - since)
        if self.counted is not None:
            self.counted = now

    def explain(self) -> Headers:
        """Headers about worker, attempts and times until now; none before a worker was picked."""
        record = self.record
        if record.worker is None or self.counted is None:
            return []
        now = self.runtime.clock()
        waited_s = (record.queue_ms + record.upstream_ms) / 1000 + (self.reply_at or now) - self.counted
        values = {
            b"x-dragoman-worker": record.worker,
            b"x-dragoman-attempts": record.attempts,
            b"x-dragoman-queue-ms": f"{record.queue_ms:.3f}",
            b"x-dragoman-overhead-ms": f"{max(0.0, now - self.began - waited_s) * 1000:.3f}",
            b"x-dragoman-picked": record.picked,
            b"x-dragoman-prefill": record.prefill,
            b"x-dragoman-moved": ", ".join(record.moved) or None,
        }
        return [(name, str(value).encode()) for name, value in values.items() if value is not None]

    @property
    def phase(self) -> str:
        """The phase that a client which left was waiting in, as in `RequestRecord.phase`."""
        if self.stage != "visiting":
            return self.stage
        return "first_output" if self.record.ttft_ms is None else "streaming"

    # -- the end ----------------------------------------------------------------------------------------------------

    def keep_text(self) -> SeenText:
        """Keeps the text of a stream that begins now, if another worker may go on with it."""
        if not self.served.continues:
            return NOT_KEPT
        if self.seen is not None:
            self.seen.close()
        self.seen = seen = SeenText(Held(self.runtime.budgets.kept, self.owner))
        return seen

    def _forget_request(self) -> None:
        """Keeps of the worker's request what it takes to go on with its reply, if there is room."""
        seen, request = self.seen, self.outgoing.request
        if seen is None or seen.lost is not None:
            self.outgoing.forget()
        elif seen.keep(request):
            self.outgoing.handed_on = None
        else:
            self.outgoing.forget()

    def drop_prompt(self) -> None:
        """Lets go of the prompt, and of its share of the memory for bodies. Called when a stream has its first token:
        the prompt is in memory several times, and a stream lasts long. Another worker may still be asked to go on; for
        that the worker's request is enough."""
        if self.continuation is not None and self.continuation.resumption is not None:
            self.continuation.resumption.request.body = b""  # the next one would be made of the first request
        if self.seen is not None and self.seen.request is not None:
            return
        if any(needs(self) for needs in self.watchers.needs_prompt):
            return
        op, runtime = self.op, self.runtime
        assert op is not None
        if self.prompt is None:
            self.prompt = runtime.estimate(op)
        self.untouched = None
        self._forget_request()
        self.reply.request.body = b""
        self.routing.forget_prompt(goes_on=self.seen is not None and self.seen.lost is None)
        if any(needs(self) for needs in self.watchers.needs_operation):
            return
        self.op = None
        room = self.reply.client.room
        if room is not None and self.lane is not None and not self.lane.keeps_op:
            room.resize(0)

    def settle(self) -> None:
        """Records the usage, by which limits are charged.

        Called when a stream is complete, before its end reaches the client, so that an immediate next request is not
        refused; and at the end of each request."""
        if self.stage != "reading":
            usage = self.record.usage = self.used()
            if self.continuation is not None and self.continuation.asked:
                prompt = (usage.input if usage is not None else None) or self.prompt or 0
                self.record.recomputed = self.continuation.asked * prompt + self.continuation.tokens
        for settled in self.watchers.settled:
            settled(self)

    def used(self) -> Usage | None:
        """The usage that the worker reported; if it reported none, an estimate; None if that cannot be known either.

        A stream without a report used the output that was relayed. If its client left before the first token, it used
        its prompt only; if it failed before the first token, nothing. The usage of a plain reply that never came is
        unknown.
        """
        lane, record = self.lane, self.record
        usage = record.usage if lane is None else lane.usage
        if usage is None and record.stream and record.attempts:
            produced = 0 if lane is None else lane.produced
            failed = lane is None or lane.error is not None
            if produced or not failed or record.outcome == "cancelled":
                usage = Usage(None, produced, source="estimated")
        if usage is not None and usage.input is None:
            if self.prompt is None and self.op is not None:
                self.prompt = self.runtime.estimate(self.op)
            usage = replace(usage, input=self.prompt, source="estimated", stored=None)
        return usage


Stage = Callable[[Call], Awaitable[None]]
"""A step between reading a request and picking its worker. It may refuse the request (GatewayError), or change `op`
before it is written for a worker. `gateway.app` lists those of a configuration."""
Routing = Callable[[Call], Awaitable[None] | None]
"""A step once the request is written for a worker, before one is picked. It may refuse the request (GatewayError), or
add to what the pick goes by. If it has to wait, it returns what is awaited."""
Choice = Callable[[Call, "ServedModel"], Awaitable[str | None]]
"""A stage that may choose the model which answers in place of the one that is meant. None: that one itself."""
