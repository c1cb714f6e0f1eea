"""The simulated worker: its routes, its start and its end."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import msgspec

from tests.support.simulated import answers, control, extras, faults, ranks, render
from tests.support.simulated.engine import Engine
from tests.support.simulated.http import Connection, Request
from tests.support.simulated.kv import Connector
from tests.support.simulated.ledger import Entry, Ledger
from tests.support.simulated.metrics import Metrics
from tests.support.simulated.options import Options
from tests.support.simulated.requests import Refused

GENERATION = {
    "/v1/chat/completions": answers.chat,
    "/v1/completions": answers.complete,
    "/v1/embeddings": extras.embed,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), ranks.rerank),
    **dict.fromkeys(("/score", "/v1/score"), ranks.score),
}
KNOWN = {*GENERATION, "/tokenize", "/detokenize", *extras.ADAPTERS, "/v1/models", "/version", "/load", "/metrics"}


class Simulated:
    """One worker that speaks vLLM's wire. `async with Simulated(itl_ms=5) as sim:` listens on `sim.url`.

    Options are the fields of `Options`, by keyword or as a whole. `stop` and `start` again keep the port.
    """

    def __init__(self, options: Options | None = None, **settings: Any) -> None:
        self.options = options or Options(**settings)
        self.adapters = list(self.options.adapters)
        self.connector = Connector(self.options, str(uuid.uuid4()))
        self.keep_alive = self.options.keep_alive_s
        self.ledger = Ledger(self.options.ledger)
        self.metrics = Metrics()
        self.defaults = faults.Defaults(faults.parse(self.options.fault) if self.options.fault else None)
        self.connections: set[Connection] = set()
        self.memo: dict[bytes, answers.Prepared] = {}
        self.numbers = 0
        self.port = self.options.port
        self.kv_ports = self.options.kv_events_port, self.options.kv_replay_port
        self.health = 200
        self.serving = True
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.dead = asyncio.Event()
        self.loading: asyncio.TimerHandle | None = None
        self._frozen: str | None = None

    @property
    def url(self) -> str:
        """Base address, without a slash at its end."""
        return f"http://{self.options.host}:{self.port}"

    async def __aenter__(self) -> Simulated:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self.loop = asyncio.get_running_loop()
        self.engine = Engine(self.options, self.loop)
        self.memo.clear()  # it holds what belongs to the engine before
        events, replay = self.kv_ports
        if events is not None:
            from tests.support.simulated.kv_events import Publisher  # imports an extra

            publisher = self.engine.publisher = Publisher(self.options.host, events, replay)
            self.kv_ports = publisher.port, publisher.replay_port
        self.dead.clear()
        self.server = await self.loop.create_server(self._connection, self.options.host, self.port, backlog=2048)
        self.port = self.server.sockets[0].getsockname()[1]
        if self.options.loading_s:
            self.health, self.serving = 503, False
            self.loading = self.loop.call_later(self.options.loading_s, self._loaded)

    def _loaded(self) -> None:
        self.health, self.serving = 200, True

    async def stop(self) -> None:
        """Drop every connection and stop listening, at once."""
        self.die(leave=False)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        # Closed transports report it on the next turn: nothing may outlive the worker.
        await self.ledger.wait(connections=0)

    def die(self, leave: bool = True) -> None:
        """End as a killed process does: listener and connections go away."""
        if leave and self.options.exit_on_die:
            os._exit(1)
        if self.loading is not None:
            self.loading.cancel()
        if self.server is not None:
            self.server.close()
            self.server = None
        self.engine.close()
        for connection in list(self.connections):
            connection.reset()
        self.dead.set()

    async def load(self) -> tuple[int, int]:
        """How many sequences run, and how many requests wait."""
        return self.engine.running, len(self.engine.queue)

    async def wait(self, timeout: float = 20.0, **wanted: int) -> None:  # noqa: ASYNC109 (its error names the counters)
        """Wait until counters are as wanted, e.g. running=0, aborted=3. Raises TimeoutError."""
        await self.ledger.wait(timeout, **wanted)

    def fault(self, spec: str, count: int | None = None, skip: int = 0, path: str = "") -> None:
        """Set the default fault; an empty one sets none. Raises ValueError."""
        self.defaults = faults.Defaults(faults.parse(spec) if spec else None, count, skip, path)

    @property
    def hung(self) -> bool:
        """The engine is stuck: nothing is computed, and all but generation is answered as before."""
        return self.engine.hung

    @hung.setter
    def hung(self, hung: bool) -> None:
        if hung != self.engine.hung:
            self._frozen = self.metrics_text() if hung else None
            self.engine.hang(hung)

    def go_on(self) -> None:
        """End the silence of all requests that stall for ever."""
        self.engine.go_on()

    def reset(self) -> None:
        """Forget the ledger, the counters, the default fault, the prefix cache and a set state."""
        self.ledger.reset()
        self.metrics = Metrics()
        self.engine.forget()
        self.engine.queries = self.engine.hits = self.engine.rejections = 0
        self.defaults = faults.Defaults()
        self.health, self.serving, self.hung = 200, True, False

    @property
    def entries(self) -> list[Entry]:
        """The generation requests of the ledger, oldest first."""
        return [entry for entry in self.ledger.entries if entry.generation]

    # the connections' calls

    def _connection(self) -> Connection:
        self.numbers += 1
        return Connection(self, self.numbers)

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.ledger.connections += 1
        self.ledger.check()

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.ledger.connections -= 1
        self.ledger.check()

    def request(self, connection: Connection, request: Request) -> None:
        """Answer a request, or start to."""
        path = request.path
        generate = GENERATION.get(path) if request.method == "POST" else None
        if path.startswith("/sim/"):
            control.answer(self, connection, request, path)
            return
        entry = self.ledger.open(
            request.method, path, request.headers, request.body, connection.number, generate is not None
        )
        try:
            if generate is None:
                self._other(connection, request, path, entry)
                return
            self._admit(request)
            generate(self, connection, request, entry)
        except Refused as refused:
            self._answer(connection, entry, refused.status, refused.body())

    def _admit(self, request: Request) -> None:
        if not self.serving:
            raise Refused(503, "ServiceUnavailableError", "The model is still loading.")
        kind = request.header(b"content-type") or b""
        if kind.split(b";")[0].strip().lower() != b"application/json":
            message = "['Unsupported Media Type: Only `application/json` is allowed']"
            raise Refused(400, "Bad Request", message)

    def _answer(self, connection: Connection, entry: Entry, status: int, body: bytes, kind: bytes = b"") -> None:
        entry.status = status
        connection.answering = None
        self.ledger.close(entry, "completed")
        connection.answer(status, body, kind or b"application/json")

    def _other(self, connection: Connection, request: Request, path: str, entry: Entry) -> None:
        """Answer any request that generates nothing. Raises Refused."""
        post = request.method == "POST"
        if path in ("/health", "/ping"):
            self._answer(connection, entry, self.health, b"")
            return
        if post and path == "/tokenize":
            body: Any = extras.tokenize(self, request.body)
        elif post and path == "/detokenize":
            body = extras.detokenize(self, request.body)
        elif post and path in extras.ADAPTERS:
            self._answer(connection, entry, 200, extras.change_adapters(self, path, request.body), b"text/plain")
            return
        elif post:
            body = None
        elif path == "/v1/models":
            body = extras.models(self)
        elif path == "/version":
            body = {"version": "0.33.0"}
        elif path == "/load":
            body = {"server_load": self.ledger.running}
        elif path == "/metrics":
            text = self.metrics_text().encode()
            self._answer(connection, entry, 200, text, b"text/plain; version=0.0.4; charset=utf-8")
            return
        else:
            body = None
        if body is None:
            status, phrase = (405, "Method Not Allowed") if path in KNOWN else (404, "Not Found")
            self._answer(connection, entry, status, render.error(status, phrase, phrase))
            return
        self._answer(connection, entry, 200, msgspec.json.encode(body))

    def metrics_text(self) -> str:
        """What /metrics answers; of an engine that hangs what it answered before."""
        if self._frozen is not None:
            return self._frozen
        engine = self.engine
        return self.metrics.render(engine)
