"""A whole gateway with its workers, for tests: real sockets, a thread of their own, nothing left behind.

with Stack() as stack:                       # one simulated worker, model "m"
    httpx.post(stack.url + "/v1/chat/completions", json=...)
    stack.run(stack.sim.ledger.wait(aborted=1))
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import uvicorn.server
import uvloop
import yaml

from gateway.app import KNOWN, Gateway
from gateway.config import Config, Listen, has_feature, load
from gateway.observe.log import Log
from gateway.server import OperationsListener, Server
from tests.support.records import Members, parsed
from tests.support.simulated import Simulated

T = TypeVar("T")

# uvicorn looks ten times a second whether a server has to end and whether all its connections have: twice as long as
# most tests take.
uvicorn.server.asyncio = types.SimpleNamespace(  # type: ignore[assignment,attr-defined]
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 10)}
)

# A machine that stands still for seconds must not make a worker look dead. A refused connection and a failed request
# are noticed at once all the same; what is about probes asks for more of them (PROBED). For the same reason no test's
# gateway refuses requests because its loop is late, unless it asks for that.
HEALTH = {"interval_s": 10, "timeout_s": 10}
PROBED = {"health": {"interval_s": 0.5, "timeout_s": 0.5}}


class Captured(io.BytesIO):
    """Where a stack's log goes: `lines()` are its records. Each line is parsed once, however often it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._parsed: list[Members] = []
        self._end = 0

    def lines(self) -> list[Members]:
        new = self.getvalue()[self._end :]
        new = new[: new.rfind(b"\n") + 1]
        self._end += len(new)
        self._parsed += [parsed(line) for line in new.splitlines()]
        return [Members(line) for line in self._parsed]


class Stack:
    """A gateway on a free port.

    workers  options of the simulated workers, one mapping each; () for none
    config   sections of gateway.yaml, merged over the default: model "m" on the simulated workers, alias "alias"
    environ  the environment that the configuration may refer to
    wrap     the ASGI application as it is served, for tests of the plain ASGI path

    native   the native relay may be used, if it was built: for all stacks

    With `metrics.listen` in the configuration the admin address is at `admin_url`, on a free port.
    """

    native = True

    def __init__(
        self,
        workers: tuple[Mapping[str, Any], ...] = ({},),
        config: Mapping[str, Any] | None = None,
        wrap: Callable[[Any], Any] = lambda app: app,
        listen: Listen | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._options = workers
        self.sections = dict(config or {})
        self._wrap = wrap
        self._listen = listen or Listen()
        self.environ = environ
        self._thread = threading.Thread(target=self._main, name="stack")
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._stop: asyncio.Event
        self.sims: list[Simulated] = []
        self.output = Captured()
        self.url = ""
        self.admin_url = ""
        self.gateway: Gateway
        self.server: Server
        self.loop: asyncio.AbstractEventLoop

    @property
    def sim(self) -> Simulated:
        return self.sims[0]

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            self._thread.join()
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def service(self, feature: str) -> Any:
        """The service of a feature, by the name of its folder; None without one."""
        return self.gateway.deployment.features.services.get(feature)

    def run(self, job: Coroutine[Any, Any, T] | Awaitable[T], timeout: float = 30.0) -> T:
        """Awaits `job` on the stack's own loop and returns its result here."""

        async def awaited() -> T:
            async with asyncio.timeout(timeout):
                return await job

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(timeout + 5)

    def records(self) -> list[Members]:
        """All request records, once no request is under way, also of a configuration that was replaced: a client may
        have its reply before that is written."""
        for deployment in list(self.gateway.host.deployments):  # it is nobody else's business which there still are
            self.run(deployment.runtime.active.empty(20))
        return self.events("request")

    def record(self) -> Members:
        """The last one."""
        return self.records()[-1]

    def events(self, name: str) -> list[Members]:
        """The lines logged so far of this event, flushed."""
        self.gateway.log.flush()
        return [line for line in self.output.lines() if line["event"] == name]

    def config(self, sections: Mapping[str, Any] | None = None) -> Config:
        """A configuration as from a file, `sections` merged over this stack's own."""
        shedding = {"shed_lag_s": 0} if has_feature("shedding") else {}
        merged: dict[str, Any] = {"listen": {"port": 0, **shedding}, "health": HEALTH}
        merged["relay"] = {"native": self.native}
        merged["dialects"] = {"ollama_style": {}}  # so `ollama` is read: gateway.config.former
        merged["models"] = {"m": {"backend": "vllm", "upstream_model": "sim", "aliases": ["alias"]}}
        if self.sims:
            merged["models"]["m"]["workers"] = [sim.url for sim in self.sims]
        for section in (self.sections, sections or {}):
            merged = _merge(merged, section)
        if not merged["models"].get("m", {}).keys() & {"workers", "discover"}:
            merged["models"].pop("m", None)
        return load_text(yaml.dump(merged, Dumper=yaml.CSafeDumper), self.environ)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failed = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as exits:
            for options in self._options:
                self.sims.append(await exits.enter_async_context(Simulated(**{"models": ("sim",), **options})))
            config = self.config()
            log = Log(config.log.level, config.log.requests, self.output, config.log.format)
            exits.callback(log.close)
            self.gateway = Gateway(config, log)
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            listener.setblocking(False)
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

            async def nothing() -> None:
                """A stack is stopped, not drained."""

            operations = None
            if config.metrics.listen is not None:
                admin = socket.create_server(("127.0.0.1", 0))
                admin.setblocking(False)
                self.admin_url = f"http://127.0.0.1:{admin.getsockname()[1]}"
                operations = OperationsListener(self.gateway.operations, admin)
            self.server = Server(
                self._wrap(self.gateway),
                self._listen,
                self.gateway.drain,
                nothing,
                self.gateway.refused,
                self.gateway.opens_socket,
                operations,
            )
            self.gateway.process.connections = lambda: len(self.server.server_state.connections)
            serving = asyncio.create_task(self.server.serve(sockets=[listener]))
            await self.server.listening.wait()
            self._started.set()
            await self._stop.wait()
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()
            self.server.should_exit = True
            await serving


def begun_stream(stack: Stack, path: str, body: Mapping[str, Any], enough: Callable[[bytes], bool]) -> httpx.Response:
    """The whole reply to a request whose worker stalls until what has come of it is enough."""
    received = b""
    with httpx.stream("POST", stack.url + path, json=body, timeout=30) as reply:
        for block in reply.iter_raw():
            received += block
            if enough(received):  # and again at the next one: the first may have come before the worker was asked
                stack.loop.call_soon_threadsafe(stack.sim.go_on)
        return httpx.Response(reply.status_code, headers=reply.headers, content=received)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for what happens in another thread or process and announces itself in no other way."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


async def soon(condition: Callable[[], bool], seconds: float = 30.0) -> float:
    """Waits as `until` does, for what other tasks of this loop do, and returns after how many seconds it had come."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "it did not happen"
        await asyncio.sleep(0.002)
    return time.monotonic() - begun


async def in_one_of(tries: int, holds: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it holds in one of the tries: for what is about a pace. A machine that stands still for a moment may
    spoil one; a fault spoils all."""
    for _ in range(tries):
        if await holds():
            return True
    return False


def load_text(text: str, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in `text`, as from a file, with `environ` alone as its environment."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(text)
        return load(path, KNOWN, environ or {})


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def sse_data(body: bytes) -> Iterator[bytes]:
    """The data of every event in a finished stream, `[DONE]` included."""
    for piece in body.split(b"\n\n"):
        piece = piece.strip(b"\n")
        if piece:
            assert piece.startswith(b"data: "), piece
            yield piece[6:]
