"""Guards: services of the operator's that see requests before workers do, and replies before clients do.

Each is asked by HTTP about canonical texts (`translation.texts`), whatever dialect and backend. docs/guards.md has the
protocol. A guard is asked once about a request, however many models and workers are tried for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.config.guards import Guard as Options
from gateway.core.continuation import SentText
from gateway.core.errors import Blame, GatewayError, GuardRefusal, Kind
from gateway.core.figures import milliseconds
from gateway.core.http import JSON_TYPE, Headers, Request, Response
from gateway.core.lifecycle import Reply
from gateway.core.messages import Generate, choices_of
from gateway.core.ports import Deadlines, Lane, StreamReader, StreamWriter, Transport
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.kernel.models import ServedModel
from gateway.light_task import become_task
from gateway.offload import run_step
from gateway.translation.guarded import GuardedLane, GuardedWriter, event_lane
from gateway.translation.texts import (
    Guarded,
    Replacements,
    Shown,
    fit,
    put_reply_texts,
    put_texts,
    texts_of,
    texts_of_reply,
    unshown,
)
from gateway.transport.pooled import Pooled
from gateway.wire.json import encode

_LONGEST_REASON = 500

Stage = Literal["before", "after"]


class _Question(Struct, omit_defaults=True):
    """A question to a guard. others: `texts.unshown`. window: the number of a part of a stream; last: the reply ends
    with it."""

    stage: Stage
    guard: str
    id: str
    model: str
    dialect: str
    operation: str
    stream: bool
    key: str
    team: str | None
    user: str | None
    texts: Sequence[Shown]
    others: Sequence[str] = ()
    window: int | UnsetType = UNSET
    last: bool | UnsetType = UNSET


class _Allow(Struct, tag_field="action", tag="allow"):
    """model: answers instead."""

    model: str | None = None


class _Replace(_Allow, tag="replace", kw_only=True):
    """texts: one for each that was shown, null to keep it."""

    texts: Sequence[str | None]


class _Refuse(Struct, tag_field="action", tag="refuse"):
    """It counts whatever stands beside it: a guard that fails open must not let through what it refused."""

    reason: Any = None


_Answer = _Allow | _Replace | _Refuse
_decode = msgspec.json.Decoder(_Answer).decode
_RESULTS: dict[type, str] = {_Allow: "allowed", _Refuse: "refused", _Replace: "replaced"}


class _Failed(Exception):
    """A guard has not answered rightly. Its text is why, for logs: timeout, unreachable, status, too_large, invalid."""


class Service(Struct, frozen=True):
    """One guard. models: names without aliases, None for all."""

    name: str
    options: Options
    models: frozenset[str] | None
    headers: Headers
    transport: Transport

    def __repr__(self) -> str:
        return f"Service({self.name!r})"  # a header may hold a key

    def concerns(self, model: str, key: str) -> bool:
        keys = self.options.keys
        return (self.models is None or model in self.models) and (keys is None or key in keys)

    async def ask(self, question: bytes, texts: Sequence[Shown]) -> _Answer:
        """The answer to a question about these texts. Raises _Failed. Needs an asyncio task."""
        options = self.options
        if len(question) > options.max_bytes:
            raise _Failed("too_large")
        url, seconds = urlsplit(options.url), options.timeout_s
        request = Request("POST", url.path or "/", [JSON_TYPE, *self.headers], question)
        deadlines = Deadlines(seconds, seconds, seconds)
        try:
            async with asyncio.timeout(seconds):
                exchange = await self.transport.send(request, f"{url.scheme}://{url.netloc}", deadlines)
                try:
                    if exchange.status != 200:
                        raise _Failed("status")
                    body = await exchange.body(options.max_bytes)
                finally:
                    exchange.close()
            answer: _Answer = _decode(body)
        except TimeoutError:
            raise _Failed("timeout") from None
        except GatewayError as error:
            error.release_frames()
            why = {"upstream_too_large": "too_large", "connect_timeout": "timeout"}.get(error.code or "", "unreachable")
            raise _Failed(why) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Failed("invalid") from None
        if isinstance(answer, _Replace) and not fit(texts, answer.texts):
            raise _Failed("invalid")
        return answer


class Guards(Feature):
    """The guards of a configuration. A call's notes have the names of those that have seen it.

    failed     called with (guard, request id, why) for each failure
    end_users  records name the end users; without, guards are shown whom the body names
    """

    def __init__(self, services: Sequence[Service], failed: Callable[[str, str, str], None], end_users: bool) -> None:
        self._services = services
        self._failed = failed
        self._end_users = end_users

    def around_read(self, inner: Step) -> Step:
        """Asks the guards about a request for the model that it means. They may choose another one."""

        async def read(call: Call) -> None:
            await inner(call)
            if call.op is not None:
                call.record.model = call.served.name
                for service in self._services:
                    call.chosen = await self._before(service, call, call.chosen or call.served) or call.chosen

        return read

    def around_answer(self, inner: Step) -> Step:
        """Asks the guards of the model that is asked now, if it is another one, and holds its reply for those that see
        replies."""

        async def answer(call: Call) -> None:
            served, key = call.served, call.principal.key
            for service in self._services:
                await self._before(service, call, served)
            after = [one for one in self._services if one.options.after != "never" and one.concerns(served.name, key)]
            if not after or not isinstance(call.op, Generate):
                call.hold = None
                await inner(call)
                return
            held = call.hold = HeldReply(self, after, call)
            try:
                await inner(call)
                await held.finish()
            except BaseException:  # also the client that leaves
                if call.op is not None:
                    call.op.to_store = None  # not allowed
                raise
            finally:
                held.close()

        return answer

    async def _before(self, service: Service, call: Call, served: ServedModel) -> ServedModel | None:
        """Asks one guard about the request for `served`, if it has to be asked. Returns another model that the guard
        wants."""
        asked, op = call.notes.setdefault(self, set[str]()), call.asked
        concerned = service.options.before and service.concerns(served.name, call.principal.key)
        if not concerned or service.name in asked or not isinstance(op, Guarded):
            return None
        await call.admit_early()  # no caller has guards asked beyond its limits

        def written() -> tuple[Sequence[Shown], bytes]:
            texts = texts_of(op)
            question = self.question(call, service, "before", texts)
            question.others = unshown(op)
            return texts, encode(question)

        shown, question = await run_step(call.share, written)
        await become_task()
        began = call.runtime.clock()
        try:
            answer = await self.ask(call, service, "before", question, shown, call.principal.may_use)
        finally:
            _waited(call, began)
        asked.add(service.name)
        if isinstance(answer, _Replace):
            for one in (op, call.untouched):
                if one is not None:
                    put_texts(cast("Guarded", one), answer.texts)
        other = None if answer is None or answer.model is None else call.runtime.models[answer.model]
        return None if other is served else other

    def question(self, call: Call, service: Service, stage: Stage, texts: Sequence[Shown]) -> _Question:
        record = call.record
        if self._end_users:
            user = None if record.end_user is UNSET else record.end_user
        else:
            user = None if call.op is None else call.op.end_user or call.op.user
        return _Question(
            stage, service.name, record.id, record.model, record.dialect, record.operation, record.stream,
            record.key, record.team, user, texts,
        )  # fmt: skip

    async def ask(
        self,
        call: Call,
        service: Service,
        stage: Stage,
        question: bytes,
        texts: Sequence[Shown],
        may_use: Callable[[str], bool],
    ) -> _Allow | None:
        """The answer, None if there is none and the guard lets things through then. Raises GatewayError if it refuses,
        or if there is none. may_use: whether the caller may use a model."""
        runtime, record, failure = call.runtime, call.record, None
        began = runtime.clock()
        try:
            answer = await service.ask(question, texts)
            if isinstance(answer, _Allow) and answer.model is not None:
                found = runtime.models.get(answer.model)
                if found is None or not may_use(found.name):
                    raise _Failed("model")
            result = _RESULTS[type(answer)]
        except _Failed as why:
            failure, result = str(why), "failed"  # the text: the error holds frames, with all that came
        seconds = runtime.clock() - began
        runtime.observer.guarded(service.name, stage, result, seconds)
        for observer in call.observers:
            observer.guarded(service.name, stage, result, seconds)
        before = () if record.guards is UNSET else record.guards
        record.guards = tuple(dict.fromkeys((*before, f"{service.name} {stage} {result}")))
        if failure is not None:
            self._failed(service.name, record.id, failure)
            if service.options.on_failure == "open":
                return None
            message = "a guard of this gateway cannot be asked"
            raise GatewayError(Kind.UPSTREAM, message, code="guard_unavailable", blame=Blame.US, retryable=False)
        if isinstance(answer, _Refuse):
            reason = answer.reason[:_LONGEST_REASON] if isinstance(answer.reason, str) else ""
            raise GuardRefusal(reason or f"refused by the guard {service.name}")
        return answer


def _waited(call: Call, since: float) -> None:
    """The request did nothing but wait for guards since `since`."""
    call.apart_ms += milliseconds(call.runtime.clock() - since)
    call.record.guard_ms = round(call.apart_ms, 3)


class HeldReply:
    """A reply that its client gets once guards have allowed it: a whole one, or a stream in windows."""

    def __init__(self, guards: Guards, services: Sequence[Service], call: Call) -> None:
        self._guards = guards
        self._services = services
        self._call = call
        self._questions = [guards.question(call, service, "after", ()) for service in services]
        windows = [one.options for one in services if one.options.after == "windows"]
        self._window = min(one.window_chars for one in windows) if len(windows) == len(services) else None
        self._overlap = max((one.overlap_chars for one in windows), default=0) if self._window is not None else 0
        self._whole: tuple[Response, Reply] | None = None
        self._checks: dict[GuardedWriter, asyncio.Task[None]] = {}
        self._error: GatewayError | None = None
        self._windows = 0

    async def _check(self, texts: list[Shown], **position: int | bool) -> Replacements:
        """The texts that all guards allow, None for each that stays. Raises GatewayError."""
        found: list[str | None] = [None] * len(texts)
        for service, question in zip(self._services, self._questions, strict=True):
            asked = msgspec.structs.replace(question, texts=texts, **position)
            answer = await self._guards.ask(self._call, service, "after", encode(asked), texts, lambda _: True)
            if isinstance(answer, _Replace):
                found = [old if new is None else new for old, new in zip(found, answer.texts, strict=True)]
                texts = [
                    shown if new is None else msgspec.structs.replace(shown, text=new)
                    for shown, new in zip(texts, found, strict=True)
                ]
        return found

    async def allow_call(self, words: str, tool: str) -> str:
        """The query or the URL with which a tool of the gateway's is called, as all guards allow it. Raises
        GatewayError. Needs an asyncio task."""
        call, began = self._call, self._call.runtime.clock()
        try:
            position = {} if self._window is None else {"window": self._windows, "last": False}
            self._windows += 1
            (new,) = await self._check([Shown("assistant", words, "tool", tool)], **position)
        finally:
            _waited(call, began)
        return words if new is None else new

    # -- streams ----------------------------------------------------------------------------------------------------

    def lane(self, reader: Callable[[], StreamReader], writer: StreamWriter, most_bytes: int, text: SentText) -> Lane:
        """As `kernel.delivery.Hold`."""
        if choices_of(cast("Generate", self._call.asked)) != 1:
            text.stop("choices")
        return event_lane(reader, self.writer(writer), most_bytes, text)

    def writer(self, writer: StreamWriter) -> GuardedWriter:
        """`writer` for a stream of this reply."""

        def ask(texts: list[Shown], last: bool) -> None:
            self._checks[held] = asyncio.get_running_loop().create_task(self._check_window(held, texts, last))

        held = GuardedWriter(writer, self._window, self._overlap, ask)
        return held

    async def _check_window(self, held: GuardedWriter, texts: list[Shown], last: bool) -> None:
        position = {"last": last} if self._window is None else {"window": self._windows, "last": last}
        self._windows += 1
        error: GatewayError | None = None
        try:
            held.allowed(await self._check(texts, **position))
        except GatewayError as refusal:
            error = refusal
        lane, stream = self._call.lane, self._call.reply.stream
        if not isinstance(lane, GuardedLane) or lane.guarded is not held:
            return  # another worker was asked since then
        self._error = error
        if stream is not None and error is not None:
            stream.interrupt(error)
        elif stream is not None:
            stream.block(b"")

    async def finish(self) -> None:
        """The worker's part in the reply is over: sends the client what is left of it, once that is allowed. Raises
        GatewayError."""
        call, lane = self._call, self._call.lane
        began = call.runtime.clock()
        try:
            if self._whole is not None:
                response, reply = self._whole
                await become_task()
                texts = await self._check(texts_of_reply(reply))
                if any(text is not None for text in texts):
                    put_reply_texts(reply, texts)
                    response = call.reply.dialect.write(reply, call.asked)
                await call.reply.respond(response)
            elif isinstance(lane, GuardedLane) and not lane.done:
                await self._finish_stream(lane)
        finally:
            _waited(call, began)

    async def _finish_stream(self, lane: GuardedLane) -> None:
        call, part = self._call, b""
        while not lane.done:
            if part:  # a keep-alive must not overtake it
                await call.reply.inject(part, lane)
                call.reply.committed = True
            if (check := self._checks.pop(lane.guarded, None)) is not None:
                await check
            part = lane.feed(b"")
            if error := self._error or lane.error:
                raise error
        call.settle()
        await call.reply.conclude(part, lane)

    # -- whole replies ----------------------------------------------------------------------------------------------

    def keep(self, response: Response, reply: Reply) -> None:
        """`reply` came, and `response` is how the client gets it unless a guard changes its texts."""
        self._whole = response, reply

    def close(self) -> None:
        for task in self._checks.values():
            task.cancel()


def build(parts: Parts) -> Built | None:
    if not parts.config.guards:
        return None
    context, names = parts.trust[None], parts.config.model_names
    transport = Pooled(ssl_for=lambda address: context)
    services = [
        Service(
            name,
            options,
            None if options.models is None else frozenset(names[model] for model in options.models),
            [(header.lower().encode(), value.encode()) for header, value in options.headers.items()],
            transport,
        )
        for name, options in parts.config.guards.items()
    ]

    def failed(guard: str, id: str, why: str) -> None:
        parts.log.rationed("warning", "guard failed", guard=guard, id=id, reason=why)

    return Built((Guards(services, failed, parts.config.end_users is not None),), close=transport.close)
