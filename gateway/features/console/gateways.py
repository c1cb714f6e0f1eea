"""The other gateways of a `redis.namespace`, for the page: each writes a view of its own to Redis every few seconds."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.background import cancel_tasks, keep_running
from gateway.config import Redis
from gateway.core.key_kind import KeyKind
from gateway.features.console.state import State
from gateway.redis import FAILURES, connect

KEY_KINDS: Final = (
    KeyKind("{NAMESPACE-gateways}", saved=False),  # a sorted set: ids of gateways, by when each wrote last
    KeyKind("{NAMESPACE-gateways}:ID", saved=False),  # a View as JSON, compressed
)
EVERY_S: Final = 5.0
_LIFE_S: Final = 15
MOST: Final = 100
"""Gateways that are shown, and that Redis has ids of."""
_SHOWN: Final = 20
"""Workers of one gateway that are named."""
_MOST_BYTES: Final = 4 << 20
"""A view that is read, as JSON."""


class WorkerView(Struct, frozen=True, array_like=True):
    """One worker of a model, as in `state.WorkerState`."""

    model: str
    address: str
    condition: str
    reason: str | None
    in_flight: int


class Gateway(Struct, frozen=True):
    """One gateway. name: its host and the port of its admin address; running, waiting: its requests."""

    name: str
    version: str
    uptime_s: float
    ready: bool
    draining: bool
    starting: bool
    running: int
    waiting: int


class View(Gateway, frozen=True):
    """A gateway as it writes itself."""

    workers: tuple[WorkerView, ...]


class Other(Gateway, frozen=True):
    """A gateway as another one shows it. workers_ready: of those that it has. otherwise: the first workers that it sees
    in another condition; differs: how many there are."""

    workers_ready: int
    otherwise: tuple[WorkerView, ...]
    differs: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(View).decode


def view_of(name: str, state: State) -> View:
    """The part of a state that other gateways show."""
    return View(
        name=name,
        version=state.version,
        uptime_s=state.uptime_s,
        ready=state.ready,
        draining=state.draining,
        starting=state.starting,
        running=sum(state.running.values()),
        waiting=sum(model.waiting for model in state.models),
        workers=tuple(
            WorkerView(model.name, one.address, one.condition, one.reason, one.in_flight)
            for model in state.models
            for one in model.workers
        ),
    )


def _other(view: View, here: Mapping[tuple[str, str], str]) -> Other:
    """here: the conditions of workers at this gateway, by model and address."""
    differing = [one for one in view.workers if here.get((one.model, one.address)) != one.condition]
    ready = sum(one.condition == "ready" for one in view.workers)
    shared = {name: getattr(view, name) for name in Gateway.__struct_fields__}
    return Other(**shared, workers_ready=ready, otherwise=(*differing[:_SHOWN],), differs=len(differing))


class Gateways:
    """port: of the admin address. state: returns that of this gateway as it is now. log: called with a level, an event
    and facts."""

    def __init__(
        self, redis: Redis, port: str, state: Callable[[], Awaitable[State]], log: Callable[..., None]
    ) -> None:
        self._client: Any = connect(redis)
        self._call_s = redis.call_s
        self._key = f"{{{redis.namespace}-gateways}}"
        self._port = port
        self._state = state
        self._log = log
        self._failing = False
        self._id = secrets.token_hex(8)  # hosts of containers may have one name
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Writes from now on."""
        self._writing = asyncio.create_task(self._keep_writing())

    async def _keep_writing(self) -> None:
        while True:
            with keep_running("write what the console shows of this gateway"):
                await self._write()
            await asyncio.sleep(EVERY_S)

    async def _write(self) -> None:
        state = await self._state()
        name = f"{state.host}:{self._port}"
        text = await asyncio.to_thread(lambda: zlib.compress(_encode(view_of(name, state)), 1))
        try:
            async with asyncio.timeout(self._call_s):
                await self._client.set(f"{self._key}:{self._id}", text, ex=_LIFE_S)
                await self._client.zadd(self._key, {self._id: state.time})
                await self._client.zremrangebyrank(self._key, 0, -MOST - 1)
        except FAILURES as error:
            if not self._failing:
                self._log("warning", "other gateways do not see this one", reason=type(error).__name__)
            self._failing = True
        else:
            self._failing = False

    async def others(self) -> list[Other]:
        """The other gateways that wrote lately, by name. None are found while Redis does not answer."""
        try:
            async with asyncio.timeout(self._call_s):
                ids = await self._client.zrange(self._key, 0, -1)
                keys = [self._key.encode() + b":" + one for one in ids if one != self._id.encode()]
                found = await self._client.mget(keys) if keys else []
        except FAILURES:
            return []
        own = await self._state()
        return await asyncio.to_thread(self._read, [text for text in found if text is not None], own)

    def _read(self, texts: list[bytes], own: State) -> list[Other]:
        """A view that cannot be read is left out: another version wrote it."""
        here = {(model.name, one.address): one.condition for model in own.models for one in model.workers}
        views = []
        for text in texts:
            try:
                inflating = zlib.decompressobj()
                view = _decode(inflating.decompress(text, _MOST_BYTES))
            except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if inflating.eof:
                views.append(_other(view, here))
        return sorted(views, key=lambda one: one.name)

    async def close(self) -> None:
        """Writes no more; other gateways forget this one soon."""
        await cancel_tasks(self._writing)
        try:
            async with asyncio.timeout(self._call_s):
                await self._client.delete(f"{self._key}:{self._id}")
                await self._client.aclose()
        except FAILURES:
            pass
