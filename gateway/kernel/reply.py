"""The reply to one client: what the client has seen of it, and the only place that sends the client anything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from gateway.auth import KnownKeys
from gateway.core.errors import Blame, GatewayError, GuardRefusal, Kind
from gateway.core.fields import own_names
from gateway.core.http import Headers, Request, Response
from gateway.core.messages import Op
from gateway.core.ports import Client, Dialect, Lane, Observer, RequestRecord
from gateway.light_task import OneTimeEvent

if TYPE_CHECKING:
    from gateway.kernel.call import Call
    from gateway.kernel.pump import Pump

# How much is named of what was dropped, in a header and in a record. Names are the client's own words.
_MOST_NAMES = 32
_LONGEST_NAME = 64
# A key that the cut goes through must still be recognised.
_MOST_OF_NAME = 1024
_ALONE_S = 0.25
"""The pause before an error that must not be read together with the text before it: Node hands on at once what came
while its reader was busy. A few milliseconds are enough where the client has the CPU."""
_MODEL_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")
_UNFIT = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class ClientReply(Struct, eq=False):
    """The reply to one request, in three states.

    unseen     nothing went out, or only the head of a 200 and keep-alives: another worker may still get all of it
    committed  bytes of a worker's stream may have reached the client: another worker may only go on with it
    ended      a whole response, the end of a stream, or an error went out

    It keeps what belongs to each state: the headers of any reply, the names of what was dropped, a worker's bytes that
    wait for the commit, and the keep-alive timer. It writes into the record what the client got: status, outcome,
    code, dropped.

    headers    that any reply carries, those of the request's dialect aside; the first is the request's id
    client     its connection
    request    the client's
    committed  see above
    stream     the worker's stream that is attached, or None
    more_headers  what features add to a head when it is sent, called with `call`
    """

    # A Struct, because an object of a plain class gets a dictionary if many were made before the first one had all its
    # attributes: a crowd of streams begins so.
    client: Client
    dialect: Dialect
    request: Request
    _record: RequestRecord
    _observer: Observer
    _keepalive_s: float
    _known: KnownKeys
    headers: Headers
    _dropped: tuple[str, ...] = ()
    committed: bool = False
    _flowing: bool = False
    _pending: bytes = b""
    stream: Pump | None = None
    # It has the words for what follows while no worker's stream is attached: set when the head of a 200 goes out, and
    # until the end.
    _lane: Lane | None = None
    _early: _EarlyHead | None = None
    _timer: asyncio.TimerHandle | None = None
    more_headers: Sequence[Callable[[Call], Headers]] = ()
    call: Call | None = None
    # When the client was last sent something other than a stream's output, or began to wait, by the monotonic clock.
    _sent_at: float = 0.0

    @property
    def unseen(self) -> bool:
        """The client has seen nothing of a reply, keep-alives at most."""
        return not self.committed and (self._lane is not None or not self.client.started)

    @property
    def begun_stream(self) -> bool:
        """The head of a stream goes out, or has: no other one may follow."""
        return self._lane is not None

    @property
    def between(self) -> bool:
        """One worker's stream broke, and no other one goes on with it yet."""
        return self.committed and self.stream is None and self._lane is not None

    # -- headers ----------------------------------------------------------------------------------------------------

    def name_dropped(self, names: tuple[str, ...]) -> None:
        """From now on the reply's head and the record name these fields."""
        shown = [self._masked(name[:_MOST_OF_NAME])[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
        self._dropped = (*self._dropped, *shown, *names[_MOST_NAMES:])
        self._record.dropped = self._dropped[:_MOST_NAMES]

    def name_left_out(self, names: tuple[str, ...]) -> None:
        """Like `name_dropped`, for names of a worker's wire: the client's own are shown, and each once, though several
        requests to workers leave it out."""
        own = own_names(names, self.dialect.fields)
        self.name_dropped(tuple([name for name in own if name not in self._dropped]))

    def name_unknown(self, op: Op) -> None:
        """The record names the model that `op` asked for, of which there is none, if that looks like a model's name."""
        name = unquote(op.model or next(iter(op.model_hints), ""))
        if _MODEL_NAME.fullmatch(name):
            self._record.asked = self._known.masked_name(name, self.request.headers)

    def _head(self) -> Headers:
        head = [*self.headers]
        if self._dropped:
            head.append((b"x-dragoman-dropped", dropped_header(self._dropped)))
        if (call := self.call) is not None:
            for more in self.more_headers:
                head += more(call)
        if not self.request.reply:
            return head
        # The dialect's may repeat what the client sent.
        id_ = self._record.id.encode()
        own = [
            (name, value if value == id_ else self._masked(value.decode("latin-1")).encode("latin-1"))
            for name, value in self.request.reply
        ]
        return head + own

    def _masked(self, text: str) -> str:
        return self._known.masked(text, self.request.headers)

    def mark(self) -> tuple[Headers, tuple[str, ...]]:
        """Headers and names of dropped fields until now, for `return_to`."""
        return list(self.headers), self._dropped

    def return_to(self, mark: tuple[Headers, tuple[str, ...]]) -> None:
        """Another model is asked: headers, and names of what was dropped, are what they were at `mark`."""
        headers, dropped = mark
        self.headers[:], self._dropped = headers, ()
        self.name_dropped(dropped)

    # -- whole replies and errors -----------------------------------------------------------------------------------

    def respond(self, response: Response) -> Awaitable[None]:
        """Sends a whole reply, once it is awaited."""
        self._record.status = response.status
        return self.client.respond(response.status, response.headers + self._head(), response.body)

    async def refuse(self, error: GatewayError, op: Op | None) -> None:
        """Sends `error` to the client in the form that the state allows: a response in the client's dialect while
        nothing went out, an error in the stream if only keep-alives did. Otherwise the connection is cut.

        Errors that the dialect or the client raises pass through. If nothing went out until then, call it again.
        """
        client = self.client
        if client.gone or error.kind is Kind.CLIENT_GONE:
            self._report(error)
            self.left()
        elif self._lane is not None:
            self.committed = True
            await self._end_early()
            await self.send_error(self._lane, error)
        elif client.started:
            self._failed(error)
            await client.cut(b"")
        else:
            error.code = self._masked(error.code) if error.code is not None else None
            response, code = self.dialect.refuse(error, self.request, op)
            self._failed(error, code)
            # Its text may quote the client, and some dialects show the value at fault.
            response.body = self._masked(response.body.decode("utf-8", "surrogateescape")).encode(
                "utf-8", "surrogateescape"
            )
            await self.respond(response)

    async def send_error(self, lane: Lane, error: GatewayError) -> None:
        """Ends a stream with `error` in the client's own form; cuts the connection where that form has no orderly
        end."""
        error.message = self._masked(error.message)
        error.param = self._masked(error.param) if error.param is not None else None
        error.code = self._masked(error.code) if error.code is not None else None
        self._lane = None
        if self.dialect.lone_errors:
            await asyncio.sleep(_ALONE_S)
        last = lane.fail(error)
        self._failed(error, in_stream=True)
        if lane.clean_end:
            await self.client.finish(last)
        else:
            await self.client.cut(last)

    def left(self) -> None:
        """Records that the client is gone, or why the server itself has refused its request."""
        record, refused = self._record, self.client.refused
        if refused is None:
            record.outcome, record.code = "cancelled", Kind.CLIENT_GONE.value
        else:
            record.outcome, (record.status, record.code) = "refused", refused

    def _failed(self, error: GatewayError, code: str | None = None, in_stream: bool = False) -> None:
        """Records `error`; `code` is the one that the dialect sent to the client, if it sent one of its own."""
        self._report(error)
        refused = isinstance(error, GuardRefusal) or (error.blame is Blame.CLIENT and not in_stream)
        self._record.outcome = "refused" if refused else "failed"
        self._record.code = code or error.code or self.dialect.errors[error.kind][2]

    def _report(self, error: GatewayError) -> None:
        """Reports the bug behind `error`, if it was met where only a GatewayError could be handed on, and what the
        worker's operator can do about it."""
        if error.flags:
            self._observer.misses(self._record, error.flags)
        if error.kind is Kind.INTERNAL and error.__cause__ is not None:
            self._observer.bug(self._record, error.__cause__)
            error.__cause__ = None  # it holds the frames that it passed, and they hold the error

    # -- a worker's stream ------------------------------------------------------------------------------------------

    def attach(self, stream: Pump) -> None:
        """From now on `stream` writes. Its bytes are kept until `commit`."""
        self.stream = stream

    def detach(self) -> None:
        """The attached stream is over. Bytes that it wrote without a commit are dropped."""
        if self.stream is not None and self.stream.written_at > self._sent_at:
            self._sent_at = self.stream.written_at
        self.stream = None
        self._pending = b""

    async def commit(
        self, lane: Lane, pause: Callable[[], None], resume: Callable[[], None]
    ) -> Callable[[bytes], None]:
        """The attached stream is the reply, or goes on with it: sends the head, unless that went out before, and what
        was kept.

        lane is the stream's. The client calls `pause` when it reads more slowly than we write, and `resume`.
        Returns what writes to the client, in place of `write`: a call fewer for every chunk.
        """
        self.committed = True
        self._lane = lane
        client = self.client
        if self._early is not None:
            await self._end_early()
        client.flow(pause, resume)
        self._record.status = 200
        if not client.started:
            await client.start(200, [*lane.headers, *self._head()])
            self.headers = []  # they are out, and a stream lasts long
        self._flowing = True
        pending, self._pending = self._pending, b""
        if pending:
            client.write(pending)
        return client.write

    def write(self, data: bytes) -> None:
        """Sends `data` of the attached stream, or keeps it until the commit."""
        if self._flowing:
            self.client.write(data)
        else:
            self._pending += data

    def carry(self, until: OneTimeEvent) -> Awaitable[None]:
        """Carries what is written to the client until `until` has happened, once it is awaited."""
        return self.client.carry(until)

    def end(self) -> None:
        """The attached stream is whole: it ends with what was written last, if that goes to the client already."""
        if self._flowing:
            self.client.end()

    async def finish(self) -> None:
        """Ends the stream: it is whole. Returns when the client has been handed all of it."""
        self._lane = None
        await self.client.finish(b"")

    async def conclude(self, last: bytes, lane: Lane) -> None:
        """Ends a stream by its last bytes, without a worker. The client may have seen nothing of it."""
        await self._end_early()
        self._record.status = 200
        if not self.client.started:
            await self.client.start(200, [*lane.headers, *self._head()])
        self._lane = None
        await self.client.finish(last)

    def pause(self) -> None:
        """The attached stream is over, and the reply is not: what is next may come from any worker, and until then the
        reply is as before its first."""
        self.committed = self._flowing = False

    async def inject(self, data: bytes, lane: Lane) -> None:
        """Sends `data`, if there is some, while no worker's stream is attached. `lane` wrote it, and has the words for
        what follows."""
        if not data:
            return
        if self._lane is not lane:  # the client has seen nothing of a worker's stream
            await self._end_early()
            self._lane = lane
            self._record.status = 200
            if not self.client.started:
                await self.client.start(200, [*lane.headers, *self._head()])
        if self._early is None:
            self._early = _EarlyHead(self.client, lane, self._head())
        self._early.write(data)
        self._sent_at = monotonic()

    def interrupt(self, error: GatewayError) -> None:
        """Ends a committed stream with `error`. A whole reply or an error that is on its way is left alone."""
        if self.stream is not None:
            self.stream.interrupt(error)

    # -- keep-alives ------------------------------------------------------------------------------------------------

    def keep_alive(self, lane: Callable[[], Lane]) -> None:
        """From now on the client gets a keep-alive whenever nothing was sent for `keepalive_s`, so that proxies
        and read timers in between do not give up. `lane` makes a lane for words of ours, while no worker's is here."""
        if self._keepalive_s:
            if self._timer is None:
                self._sent_at = monotonic()
            else:  # another model is asked: the client waits as before
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._keepalive_s, self._look, lane)

    def _look(self, lane: Callable[[], Lane]) -> None:
        now, stream = monotonic(), self.stream
        sent_at = self._sent_at if stream is None else max(self._sent_at, stream.written_at)
        due = sent_at + self._keepalive_s - now
        if due <= 0:
            self._send_keepalive(lane)
            self._sent_at, due = now, self._keepalive_s
        self._timer = asyncio.get_running_loop().call_later(due, self._look, lane)

    def _send_keepalive(self, lane: Callable[[], Lane]) -> None:
        """Before the stream of a worker has sent anything, this sends the head of a 200 and commits to nothing."""
        stream = self.stream
        if stream is not None and self._flowing:
            blank = stream.lane.keepalive()
            if blank and not stream.over:
                self.client.write(blank)
                stream.open()
        elif self._early is not None:
            self._early.send_keepalive()
        elif not self.committed or self.between:
            if self._lane is None:
                self._lane = lane()
                self._record.status = 200
            self._early = _EarlyHead(self.client, self._lane, self._head())

    async def _end_early(self) -> None:
        if self._early is not None:
            await self._early.end()
            self._early = None

    def close(self) -> None:
        """Nothing more is sent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._early is not None:
            self._early.close()
        self.call = None  # it refers to this
        self.client.close()


class _EarlyHead:
    """Sends keep-alives while no worker has anything for the client, and before them the head of a 200, unless that is
    out. `lane` has the words for them."""

    def __init__(self, client: Client, lane: Lane, headers: Headers) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._lane = lane
        self._over = OneTimeEvent()
        self._task = loop.create_task(self._carry(headers))

    async def _carry(self, headers: Headers) -> None:
        if not self._client.started:
            await self._client.start(200, [*self._lane.headers, *headers])
        self.send_keepalive()
        await self._client.carry(self._over)

    def send_keepalive(self) -> None:
        self.write(self._lane.keepalive())

    def write(self, data: bytes) -> None:
        if not self._over.happened:
            self._client.write(data)

    async def end(self) -> None:
        """Returns when others may write to the client."""
        self._over.set()
        await self._task

    def close(self) -> None:
        self._task.cancel()


def dropped_header(names: tuple[str, ...]) -> bytes:
    """Names of fields as a header's value, and how many more there are: `a, messages[].b, +3`. Whatever could break a
    header is replaced by `?`."""
    shown = [_UNFIT.sub("?", name[:_LONGEST_NAME]) for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"+{len(names) - _MOST_NAMES}")
    return ", ".join(shown).encode()
