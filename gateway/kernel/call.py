"""One request under way, with one owner: what was asked, what a worker is sent, what came back, what it cost."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET
from msgspec.structs import replace

from gateway.auth import ANONYMOUS, PendingAuth, Principal
from gateway.core.byte_budget import Held
from gateway.core.continuation import NO_TEXT, SentText
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.failures import Cause
from gateway.core.figures import milliseconds
from gateway.core.http import Headers, Response, Route
from gateway.core.messages import Op
from gateway.core.ports import Lane, RequestRecord, WorkerHandle
from gateway.core.routing_facts import RoutingFacts
from gateway.core.usage import Usage
from gateway.kernel.client import Scope
from gateway.kernel.deadlines import MARGIN_S, Waits, sooner
from gateway.kernel.models import unknown_model
from gateway.kernel.outgoing import Outgoing
from gateway.kernel.reply import ClientReply
from gateway.light_task import AnyTask
from gateway.offload import Share

if TYPE_CHECKING:
    from gateway.core.ports import StoredTexts
    from gateway.kernel.delivery import Delivery, Hold
    from gateway.kernel.feature import CallObserver, Feature
    from gateway.kernel.models import ServedModel
    from gateway.kernel.runtime import Runtime
    from gateway.kernel.serving import Endpoint
    from gateway.kernel.visit import Visit
    from gateway.kernel.way import Way

_MOST_WORKERS = 32
"""Workers that a record names: as many as a stream that survives ten failures is usually sent to."""


class Call:
    """One request, from its head to its record.

    How it came
    runtime     what all requests of its configuration share
    endpoint    that it came to; route: what the endpoint has for its method, None for nothing
    scope       of ASGI
    request     as it came, until `drop_prompt`
    client      the connection; reply: what the client has seen; record: what the log gets
    context     headers that carry the client's trace to workers
    began       when it began, in seconds of the runtime's clock
    task        runs it
    way         its steps: the configuration's, and from `ask` on those of the model
    layers      features of this request alone, outside all others
    observers   look at it
    notes       what features keep of it between two steps, by feature
    at_end      called once its usage is known, by feature, the outermost first; more than once, see `settle`

    The caller
    pending     the caller as the head names it; proven: it is known, and no signature has to be checked first
    principal   who calls
    confirmed   `Runtime.callers` as it was when the caller was identified; None if its key may end without a change
    again       identifies a caller that shows no key; None where the headers do

    The operation
    coding      the content coding of the body as it came, None for none
    op          what is asked of the model; None before it was read, and after `drop_prompt`
    untouched   a copy of `op` for other models, since `op` becomes what the first one gets; None if no other is asked
    share       of the thread's time; None if reading and writing it takes less than milliseconds
    waits       how long its client announces to wait
    until       when nobody waits for it any more, in seconds of the runtime's clock
    stored_bytes  of the stored texts that it refers to
    store       has these texts; None if nothing is stored

    The part of workers
    served      the model that is asked
    delivery    how replies to the operation pass
    outgoing    what its workers are sent
    routing     what the pick of a worker goes by
    prompt      estimated tokens of the prompt; None until they are needed
    stage       how far it is; not a step of the way: reading, queued (for a worker), or visiting
    visit       the one that is under way
    tried       workers of `served` that failed, and are not asked again
    attempts_before  of other models, and of rounds before this one
    failed      address of the worker whose visit failed first; None while none has
    lane        of the last stream that a worker began
    sent_text   keeps the text of the stream, for a worker that goes on with it
    hold        holds the reply back from the client; None: the client gets it as it comes
    keeps_body, keeps_op  a feature needs the body of the request, or the operation, behind the first token
    reply_at    when a worker's whole reply had come: what follows is not the worker's time
    counted     until when the record has the times of waits and visits, in seconds of the clock
    finishes    why the choices of a plain reply ended, if the request is traced
    fallbacks   models that are asked if the workers of `served` are not there; none once the client has seen a part
    chosen      the model that a feature has chosen to answer in place of the one that is meant; None for that one
    awaits      what has to be awaited before a worker is asked: meanwhile the request is written
    apart_ms    time that is neither the gateway's own nor that of workers
    error       that the client got
    interrupted  the error that ends the request from outside
    """

    # Attributes that most requests never set stand in the class: a slot would be written for each request. An ordinary
    # stream sets none of these: it would have a dictionary then, of 300 bytes for as long as it lasts.
    __slots__ = (
        "__dict__", "_admitted", "at_end", "began", "client", "confirmed", "context", "counted", "delivery", "endpoint",
        "lane", "notes", "op", "outgoing", "pending", "principal", "prompt", "proven", "record", "reply", "reply_at",
        "request", "route", "routing", "runtime", "scope", "sent_text", "served", "stage", "task", "tried", "visit",
        "waits", "way",
    )  # fmt: skip

    served: ServedModel
    outgoing: Outgoing
    routing: RoutingFacts
    delivery: Delivery
    pending: PendingAuth
    principal: Principal
    waits: Waits | None
    way: Way

    layers: tuple[Feature, ...] = ()
    observers: tuple[CallObserver, ...] = ()
    again: Callable[[], Principal] | None = None
    untouched: Op | None = None
    share: Share | None = None
    until: float | None = None
    stored_bytes = 0
    coding: str | None = None
    attempts_before = 0
    failed: str | None = None
    hold: Hold | None = None
    keeps_body = keeps_op = False
    finishes: Sequence[str] = ()
    fallbacks: Sequence[str] = ()
    chosen: ServedModel | None = None
    awaits: Awaitable[None] | None = None
    apart_ms = 0.0
    error: GatewayError | None = None
    interrupted: GatewayError | None = None
    _deadline: TimerHandle | None = None
    _store: StoredTexts | None = None

    def __init__(
        self,
        runtime: Runtime,
        endpoint: Endpoint,
        scope: Scope,
        reply: ClientReply,
        record: RequestRecord,
        context: Headers,
        route: Route | None,
    ) -> None:
        self.runtime = runtime
        self.endpoint = endpoint
        self.scope = scope
        self.reply = reply
        self.client = reply.client
        self.request = reply.request
        self.route = route
        self.record = record
        self.context = context
        self.began = runtime.clock()
        self.way = endpoint.way or runtime.way
        self.notes: dict[Feature, Any] = {}
        self.at_end: dict[Feature, Callable[[Call], None]] = {}
        self.task: AnyTask | None = None
        self.principal = ANONYMOUS
        self.proven = self._admitted = False
        self.confirmed: object = None
        self.op: Op | None = None
        self.stage: Literal["reading", "queued", "visiting"] = "reading"
        self.visit: Visit | None = None
        self.lane: Lane | None = None
        self.prompt: int | None = None
        self.sent_text: SentText = NO_TEXT
        self.tried: Sequence[WorkerHandle] = ()
        self.reply_at: float | None = None
        self.counted: float | None = None

    @property
    def store(self) -> StoredTexts | None:
        return self._store or self.runtime.response_store

    @store.setter
    def store(self, store: StoredTexts) -> None:
        self._store = store

    def ask(self, served: ServedModel) -> None:
        """From now on `served` is asked, instead of any model before."""
        self.served = served
        self.record.model = served.name
        if served.adapter is not None:
            self.record.adapter = served.adapter
        self.way = way = served.way.inside(*self.layers) if self.layers else served.way
        if way.headers:
            self.reply.call, self.reply.more_headers = self, way.headers
        self.delivery = self.runtime.deliveries[type(self.op)]
        self.outgoing = Outgoing(served, self.record.id, self.share, self.context)
        if self.tried or self.lane is not None or self.prompt is not None:  # by the model before
            self.lane = self.prompt = None
            self.tried = ()
        self.record.usage = None

    def confirm(self, served: ServedModel | None = None) -> None:
        """Looks again, behind a wait, whether the caller may still call, and use `served`. Raises GatewayError if
        not. A caller that shows no key is from now on the one that was found; any other stays the one on whose bill
        the request began."""
        callers = self.runtime.callers
        if self.confirmed is callers:
            return  # no key has changed
        if self.again is not None:
            caller = self.principal = self.again()
        else:
            caller = callers.confirm(self.principal, self.request.headers, self.record.dialect)
        if served is not None and not callers.may_use(caller, served.name):
            raise unknown_model((self.op is not None and self.op.model) or served.name)

    @property
    def asked(self) -> Op:
        """`op`, while nothing can have dropped it."""
        assert self.op is not None
        return self.op

    @property
    def owner(self) -> str:
        """As `Runtime.owner`."""
        return self.runtime.owner(self.principal, self.scope)

    @property
    def fault(self) -> Callable[[Response], GatewayError]:
        """Makes the error of a worker's response whose status is not 200."""
        return partial(self.served.backend.fault, op=self.op)

    def name_worker(self, failed: str, address: str) -> None:
        """A worker is asked after the one that failed first: the record names both."""
        record = self.record
        before = (failed,) if record.workers is UNSET else record.workers
        record.workers = (*before, address)[:_MOST_WORKERS]

    def name_reasons(self, *causes: Cause) -> None:
        """Workers failed the request by these causes, or are not there: the record names them."""
        if causes:
            before = () if self.record.reasons is UNSET else self.record.reasons
            self.record.reasons = (*before, *[cause.value for cause in causes])[:_MOST_WORKERS]

    def own_lane(self) -> Lane:
        """A lane for words of the gateway's own, while no worker's is there."""
        return self.delivery.lane(self)

    # -- what it holds ----------------------------------------------------------------------------------------------

    async def admit_early(self) -> None:
        """Called before the request takes room or time that many requests share. Raises GatewayError if a feature
        refuses it. A caller who still has to prove who sent the request passes nothing yet."""
        if self.proven and not self._admitted:
            self._admitted = True
            await self.way.admission(self)

    async def hold_body(self, size: int) -> None:
        """As `client.TakeRoom`: takes room for so many bytes of the body."""
        client = self.client
        if client.room is None:
            await self.admit_early()
            client.room = Held(self.runtime.body_budget, self.owner)
        if size > client.room.size:
            client.room.require(size)

    async def hold_expanded(self, size: int) -> None:
        """As `hold_body`. Whatever a decoder needs beside the text, one body alone has room."""
        await self.hold_body(min(size, self.runtime.body_budget.limit))

    # -- times ------------------------------------------------------------------------------------------------------

    def limit_time(self, own: float | None, total_s: float | None, patience: float | None) -> None:
        """Sets the deadline of the whole request: by its own field, by configuration, and by how long its client
        announced to wait."""
        if self._deadline is not None or (own is None and total_s is None and patience is None):
            return
        seconds = sooner(sooner(own, total_s), None if patience is None else patience + MARGIN_S)
        assert seconds is not None
        late = GatewayError(
            Kind.TIMEOUT,
            f"the request took longer than {seconds:g} s",
            param="timeout" if seconds == own else None,
            blame=Blame.US,
            code="deadline_exceeded",
        )
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.interrupt, late)
        self.until = self.runtime.clock() + min(seconds, patience or seconds)

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
        return "first_output" if self.record.time_to_first_token_ms is None else "streaming"

    # -- from outside -----------------------------------------------------------------------------------------------

    def interrupt(self, error: GatewayError) -> None:
        """Ends the request with `error`, which the client gets in its dialect. An error that is on its way already is
        left alone."""
        reply = self.reply
        if reply.committed and not reply.between:
            reply.interrupt(error)
        elif (reply.unseen or reply.between) and self.task and self.interrupted is None and self.error is None:
            self.interrupted = error
            self.task.cancel()

    def left(self) -> None:
        """The client is gone: whatever this request waits for is cancelled, the worker's connection closed."""
        if self.task is not None:
            self.task.cancel()

    # -- the end ----------------------------------------------------------------------------------------------------

    def drop_prompt(self) -> None:
        """Lets go of the prompt, and of its share of the memory for bodies. Called when a stream has its first token:
        the prompt is in memory several times, and a stream lasts long. Another worker may still be asked to go on; for
        that the worker's request is enough."""
        visit = self.visit
        if visit is not None and visit.request is not None:
            visit.request.body = b""  # it was made for this visit alone
        if self.sent_text.request is not None or self.keeps_body:
            return
        op, runtime = self.op, self.runtime
        assert op is not None
        if self.prompt is None:
            self.prompt = runtime.estimate(op)
        if self.untouched is not None:
            self.untouched, self.fallbacks = None, ()
        if not self.sent_text.keep(self.outgoing.request):
            self.outgoing.forget()
        self.request.body = b""
        self.routing.forget_prompt(goes_on=self.sent_text.lost is None)
        if self.keeps_op:
            return
        self.op = None
        room = self.client.room
        if room is not None and self.lane is not None and not self.lane.keeps_op:
            room.resize(0)

    def settle(self) -> None:
        """Records the usage, by which limits are charged.

        Called when a stream is complete, before its end reaches the client, so that an immediate next request is not
        refused; and at the end of each request."""
        if self.stage != "reading":
            self.record.usage = self.used()
        for ended in self.at_end.values():
            ended(self)

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

    def close(self) -> None:
        """The request is over: its record is completed, and what it holds is given back."""
        record, client = self.record, self.client
        if self.error is not None:
            self.error.release_frames()
        if self._deadline is not None:
            self._deadline.cancel()
        if client.room is not None:
            client.room.resize(0)
        if self.route is not None and self.route.form:
            self._drop_upload()
        if self.share is not None:
            self.share.end_turn()
        self.settle()
        if record.outcome == "cancelled":
            record.phase = self.phase
        self.reply.close()
        took = self.runtime.clock() - self.began
        record.duration_ms = milliseconds(took)
        others_ms = record.queue_ms + record.upstream_ms + self.apart_ms
        record.overhead_ms = milliseconds(max(0.0, took - others_ms / 1000))

    def _drop_upload(self) -> None:
        if self.client.disk is not None:
            self.client.disk.resize(0)
        if self.request.form is not None:
            self.request.form.source.close()
