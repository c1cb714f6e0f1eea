"""An exact cache: a request gets the reply that an equal one of its tenant got, and no worker is asked.

Requests are equal if their canonical form is (`key.key_of`), whatever their dialects, streamed or not. A reply is
kept as its dialect wrote it, and behind guards: one that is cut, fails or is refused never comes to its end there.
If equal requests come at once, one asks a worker, and the others wait for its reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from gateway.config import Config
from gateway.config.reply_cache import ReplyCache as Options
from gateway.core.charged import NOTHING
from gateway.core.http import Headers, Response
from gateway.core.key_kind import KeyKind
from gateway.core.lifecycle import Embeddings, Reply
from gateway.core.messages import Chat, Complete, Embed, Generate
from gateway.core.ports import Dialect
from gateway.core.usage import Usage
from gateway.features import Built, OneModel, Parts
from gateway.features.reply_cache.entries import Entries, Flight
from gateway.features.reply_cache.events import Replayed
from gateway.features.reply_cache.in_redis import RedisEntries
from gateway.features.reply_cache.key import key_of
from gateway.features.reply_cache.recording import Recording, decode_embeddings, decode_reply
from gateway.kernel.call import Call
from gateway.kernel.delivery import conclude
from gateway.kernel.feature import Feature, Step
from gateway.light_task import become_task
from gateway.observe.metrics import Metrics
from gateway.offload import offload_in_turn, run_step
from gateway.translation.lanes import EventLane
from gateway.wire import clock
from gateway.wire.bulk import is_large

HEADER = b"x-dragoman-cache"


class ReplyCache(Feature):
    """Answers a request with the reply that an equal one got before.

    keys: the keys that it is for, None for all. shared: all tenants are one."""

    def __init__(self, entries: Entries, keys: frozenset[str] | None, shared: bool, metrics: Metrics) -> None:
        self._entries = entries
        self._keys = keys
        self._shared = shared
        self._metrics = metrics

    def around_workers(self, inner: Step) -> Step:
        def workers(call: Call) -> Awaitable[None]:
            control = _control(call.request.headers)
            if b"no-store" in control or not self._concerns(call):
                return inner(call)
            return self._answer(call, b"no-cache" not in control, inner)

        return workers

    def _concerns(self, call: Call) -> bool:
        op = call.op
        if self._keys is not None and call.principal.key not in self._keys:
            return False
        if type(op) is Chat and op.server_tools:
            return False  # what a tool of the gateway's finds is not the model's to repeat
        return type(op) is Embed or ((type(op) is Chat or type(op) is Complete) and op.sampling.temperature == 0)

    async def _answer(self, call: Call, may_hit: bool, inner: Step) -> None:
        owner = "" if self._shared else call.principal.tenant
        key = await run_step(call.share, key_of, call, owner)
        entry = await self._cached(call, key, owner) if may_hit else None
        found = None if entry is None else await self._read(call, key, entry)
        result = "miss" if found is None else "hit"
        call.record.cache = result
        call.reply.headers.append((HEADER, result.encode()))
        self._metrics.cache_requests.labels(call.record.model, result).inc()
        if found is None:
            await self._ask(call, key, owner, inner)
        else:
            await self._replay(call, found, is_large(entry or b""))

    async def _cached(self, call: Call, key: bytes, owner: str) -> bytes | None:
        """The reply that is kept, once an equal request that is under way has it."""
        entry = await self._entries.find(key, owner)
        flight = self._entries.flights.get(key)
        if entry is not None or flight is None or not self._entries.may_wait:
            return entry
        if call.record.stream:
            call.reply.keep_alive(partial(call.delivery.lane, call))
        since, call.stage = call.runtime.clock(), "queued"
        try:
            entry = await self._entries.wait(key, flight)
        finally:
            call.waited(since)
        call.confirm(call.served)
        return entry

    async def _read(self, call: Call, key: bytes, entry: bytes) -> Reply | Embeddings | None:
        """The reply in an entry; None if it cannot be read."""
        read: Callable[[bytes], Reply | Embeddings] = decode_embeddings if type(call.op) is Embed else decode_reply
        try:
            if is_large(entry):
                return await offload_in_turn(call.owner, read, entry, share=call.share)
            return read(entry)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._entries.refuse(key)
            return None

    # -- a miss -----------------------------------------------------------------------------------------------------

    async def _ask(self, call: Call, key: bytes, owner: str, inner: Step) -> None:
        entries, reply = self._entries, call.reply
        dialect, flight = reply.dialect, entries.begin(key)
        recording = Recording(dialect, entries, partial(entries.end, key, flight))
        reply.dialect = cast("Dialect", recording)  # the rest of it is the dialect's own
        call.at_end[self] = partial(self._settle, recording, key, owner, flight)
        try:
            await inner(call)
        except BaseException:
            reply.dialect = dialect
            recording.close()
            entries.end(key, flight)
            raise

    def _settle(self, recording: Recording, key: bytes, owner: str, flight: Flight | None, call: Call) -> None:
        """The reply is complete, or the request is over."""
        entry = None if call.record.continued else recording.entry(call.record.status)
        recording.close()
        if entry is not None and self._entries.put(key, owner, entry) and flight is not None:
            flight.entry = entry
        self._entries.end(key, flight)
        self._metrics.cache_bytes.set(self._entries.bytes)

    # -- a hit ------------------------------------------------------------------------------------------------------

    async def _replay(self, call: Call, found: Reply | Embeddings, large: bool) -> None:
        if call.hold is not None:
            await become_task()
        op = cast("Generate | Embed", call.asked)
        self._save(call, found.usage)
        call.record.usage = NOTHING
        if isinstance(found, Reply):
            begin, dash, _ = found.start.id.partition("-")  # `chatcmpl-`, by which some clients go
            found.start.id = (begin + dash if dash else "") + call.record.id
            found.start.created = int(clock.seconds())
            if found.start.usage is None and found.usage is not None:  # a worker may have been asked for none so early
                found.start.usage = replace(found.usage, output=0)
        if call.record.stream:
            await _stream(call, cast("Reply", found), large)
            return
        if isinstance(found, Reply) and call.record.trace is not None:
            call.finishes = [choice.reason for choice in found.choices]
        write: Callable[[], Response] = partial(call.reply.dialect.write, found, op)
        response = await offload_in_turn(call.owner, write, share=call.share) if large else write()
        if call.hold is None:
            await call.reply.respond(response)
        else:
            call.hold.keep(response, cast("Reply", found))

    def _save(self, call: Call, usage: Usage | None) -> None:
        """Counts what a worker would have been paid for."""
        if usage is None:
            return
        for kind, tokens in (("input", usage.input), ("output", usage.output)):
            self._metrics.cache_saved.labels(call.record.model, kind).inc(tokens or 0)
        rates = None if call.served.tariff is None else call.served.tariff.now()
        if rates is not None:
            call.record.saved = rates.of(usage)


async def _stream(call: Call, reply: Reply, large: bool) -> None:
    """Sends the reply as a stream, at once or as guards allow it."""
    op, most = cast("Generate", call.asked), call.runtime.relay.max_reply_bytes
    reader, writer = partial(Replayed, reply), call.reply.dialect.writer(op)
    if call.hold is None:
        lane = call.lane = EventLane(reader, writer, most)
    else:
        lane = call.lane = cast("EventLane", call.hold.lane(reader, writer, most, call.sent_text))
    if large and call.hold is None:
        out = await offload_in_turn(call.owner, lane.feed, b"\n", share=call.share)
    else:
        out = lane.feed(b"\n")  # a guard is asked in the loop
    if lane.error is not None:
        raise lane.error
    lane.usage = NOTHING
    if lane.done:
        call.settle()
        await call.reply.conclude(out, lane)
    else:
        await conclude(call, out)  # a guard is asked


def _control(headers: Headers) -> set[bytes]:
    """The directives of the request's `Cache-Control` (RFC 9111), without their values."""
    values = b",".join([value for name, value in headers if name == b"cache-control"])
    return {one.split(b"=")[0].strip().lower() for one in values.split(b",")}


def key_kinds() -> Sequence[KeyKind]:
    return (
        KeyKind("{NAMESPACE-replies}:reply:KEY", saved=False),  # a digest
        KeyKind("{NAMESPACE-replies}:ends", saved=False),
        KeyKind("{NAMESPACE-replies}:sizes", saved=False),
    )


def _entries(parts: Parts, options: Options) -> Entries:
    """Replies in memory stay over a reload."""
    redis, before = parts.config.redis, parts.earlier_services.get("reply_cache")
    if options.store == "redis":
        assert redis is not None  # the configuration was checked
        return RedisEntries(redis, parts.log, parts.metrics)
    return before if type(before) is Entries else Entries()


def build(parts: Parts) -> Built | None:
    config: Config = parts.config
    options = config.reply_cache
    if options is None:
        return None
    entries = _entries(parts, options)
    keys = None if options.keys is None else frozenset(options.keys)
    models = None if options.models is None else {config.resolve(name) for name in options.models}
    layer = ReplyCache(entries, keys, options.shared, parts.metrics)

    def of_model(model: OneModel) -> Feature | None:
        return layer if models is None or model.name in models else None

    def take_effect() -> None:
        entries.bound(options.max_bytes, options.max_entry_bytes, options.ttl_s)

    return Built(of_model=of_model, service=entries, take_effect=take_effect)
