"""Answers one generation request on the engine's clock, with its fault at the right moment. Holds plain replies."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.support.simulated import render
from tests.support.simulated.engine import Engine
from tests.support.simulated.faults import BEFORE, CROWDED, HEADERS, Fault, crowded
from tests.support.simulated.http import Connection, head
from tests.support.simulated.ledger import Entry, Ledger
from tests.support.simulated.metrics import Metrics

BLOCK = 64 * 1024
_NO_FAULT = Fault("")
_JSON = b"content-type: application/json\r\n"


class Worker(Protocol):
    """The parts of the worker that an answer needs."""

    engine: Engine
    ledger: Ledger
    metrics: Metrics

    def die(self) -> None: ...


class Exchange:
    """One request and its answer. It reports its end once to the engine, the ledger and the metrics."""

    def __init__(self, worker: Worker, connection: Connection, entry: Entry, fault: Fault | None) -> None:
        self.worker = worker
        self.connection = connection
        self.entry = entry
        self.fault = fault or _NO_FAULT
        self.open = True
        self.quiet = False
        self.weight = 1
        self.need = self.uncached = 0
        self.scheduled = self.admitted = 0.0
        self.left = 0
        self.finishes: list[str] = []
        connection.answering = self
        if "drip" in self.fault.forms:
            connection.drip = self.fault.drip

    # the engine's calls

    def prefilled(self) -> None:
        """The prompt is read. Faults with `before` happen now."""
        self.admitted = time.monotonic()
        if self.fault.end == "stall" and self.fault.at == BEFORE:
            self.stall(self.begin)
        else:
            self.begin()

    def begin(self) -> None:
        """Start the answer."""
        raise NotImplementedError

    def step(self) -> bool:
        raise NotImplementedError

    # the connection's calls

    def lost(self) -> None:
        self.close("aborted")

    def resume(self) -> None:
        """The client reads again."""

    # ends

    def close(self, state: str) -> None:
        """The request is over."""
        if not self.open:
            return
        self.open = False
        self.worker.engine.release(self)
        ledger = self.worker.ledger
        ledger.waiting = len(self.worker.engine.queue)
        finishes = self.finishes if state == "completed" else ["abort"]
        self.worker.metrics.finish(self.entry, self.scheduled, self.admitted, finishes)
        ledger.close(self.entry, state)

    def done(self, keep: bool = True) -> None:
        """The answer is whole."""
        self.close("completed")
        self.connection.end(keep)

    def stall(self, then: Callable[[], None]) -> None:
        """Send nothing, for a while or until the engine is told to go on."""
        self.quiet = True
        self.worker.engine.decoding.pop(self, None)
        if self.fault.argument:
            self.worker.engine.loop.call_later(self.fault.number(0), self._wake, then)
        else:
            self.worker.engine.stalled[self] = partial(self._wake, then)

    def _wake(self, then: Callable[[], None]) -> None:
        self.quiet = False
        if self.open:
            then()

    def break_off(self) -> None:
        """End the connection as the fault says: die, reset or fin."""
        end = self.fault.end
        self.close("failed")
        if end == "die":
            self.worker.die()
        elif end == "reset":
            self.connection.reset()
        else:
            self.connection.close()

    def hostile(self) -> bool:
        """Answer with a fault that replaces the whole answer. False if the fault is of another kind."""
        fault, connection = self.fault, self.connection
        end = fault.end
        if end in ("die", "reset", "fin") and fault.at == BEFORE:
            self.break_off()
        elif end == "status":
            self.refuse()
        elif end == "html":
            page = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
            self.close("failed")
            connection.answer(int(fault.number(200)), page, b"text/html")
        elif end == "empty":
            self.close("failed")
            connection.answer(200, b"")
        elif end == "huge-headers":
            line = b"x-padding: " + b"a" * 87 + b"\r\n"
            self.close("failed")
            connection.answer(200, b"{}", lines=line * int(fault.number(100_000)))
        elif end == "header-junk":
            self.close("failed")
            connection.answer(200, b"{}", lines=b"\x00bad header without colon\r\n")
        elif end == "gzip-bomb":
            body = gzip.compress(bytes(int(fault.number(64) * 1024 * 1024)), 9)
            self.close("failed")
            connection.answer(200, body, lines=b"content-encoding: gzip\r\n")
        else:
            return False
        return True

    def refuse(self) -> None:
        """An error answer with vLLM's body."""
        code, _, retry = self.fault.argument.partition(":")
        status = int(code)
        kinds = {400: "BadRequestError", 404: "NotFoundError", 422: "UnprocessableEntityError", 429: "RateLimitError"}
        kind = kinds.get(status, "ServiceUnavailableError" if status == 503 else "InternalServerError")
        lines = b"retry-after: %b\r\n" % retry.encode() if retry else b""
        self.entry.status = status
        self.close("failed")
        self.connection.answer(status, render.error(status, kind, f"Simulated error {status}."), lines=lines)


class Plain(Exchange):
    """A plain reply: silence until the last token, then all of it."""

    body = b""
    tokens = 0
    longest = 0
    tells = b""

    def begin(self) -> None:
        engine = self.worker.engine
        steps = self.longest - 1
        if self.fault.end and self.fault.at > HEADERS:
            steps = min(steps, self.fault.at)
        if engine.itl and steps > 0:
            engine.after(self, steps * engine.itl)
        else:
            self.step()

    def step(self) -> bool:
        fault, connection, body = self.fault, self.connection, self.body
        end = fault.end
        entry = self.entry
        entry.tokens = self.tokens
        if self.longest and not entry.first_token:
            entry.first_token = self.admitted
        if end and not (end == "stall" and fault.at == BEFORE):
            self.spoil(end, body)
            return False
        entry.status = 200
        if "close" in fault.forms:
            connection.send(head(200, _JSON + b"connection: close\r\n") + body)
            self.done(keep=False)
            return False
        lines = self.load()
        self.close("completed")
        connection.answer(200, body, lines=lines)
        return False

    def load(self) -> bytes:
        """vLLM's header with its load, in the form that the request asks for by `tells`; most ask for none."""
        form = self.tells.lower()
        if form not in (b"text", b"json"):
            return b""
        engine = self.worker.engine
        figures = {"kv_cache_usage_perc": float(engine.usage), "num_requests_waiting": float(len(engine.queue))}
        if form == b"json":
            said = "JSON " + json.dumps({"named_metrics": figures})
        else:
            said = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in figures.items())
        return f"endpoint-load-metrics: {said}\r\n".encode()

    def _whole(self) -> None:
        self.fault = _NO_FAULT
        self.step()

    def spoil(self, end: str, body: bytes) -> None:
        """Send a plain answer with its fault."""
        fault, connection = self.fault, self.connection
        length = b"content-length: %d\r\n"
        started = fault.at == HEADERS
        if end in ("die", "reset", "fin", "stall") and started:
            connection.send(head(200, _JSON + length % len(body)))
        if end == "stall":
            self.stall(self._whole if not started else self._rest)
        elif end in ("die", "reset", "fin"):
            self.break_off()
        elif end == "endless":
            connection.send(head(200, _JSON + b"connection: close\r\n") + b'{"id":"')
            self.left = int(fault.number(1 << 20) * 1024 * 1024)
            self.resume()
        elif end == "bad-chunk":
            self.close("failed")
            connection.send(head(200, _JSON + b"transfer-encoding: chunked\r\n") + b"zz\r\n" + body + b"\r\n")
            connection.end()
        elif end == "short-body":
            self.close("failed")
            connection.send(head(200, _JSON + length % (len(body) + 100)) + body)
            connection.close()
        else:
            sent = {
                "eof": body[: len(body) // 2],
                "bad-json": b'{"id":"chatcmpl-1","choices":[{"index":0,]}',
                "error-frame": render.error(int(fault.number(500)), "InternalServerError", "Simulated error."),
            }.get(end, body)
            if end in CROWDED:
                sent = crowded(fault, "message")
            self.close("failed")
            connection.send(head(200, _JSON + length % (len(sent) - 10 if end == "long-body" else len(sent))) + sent)
            connection.end()

    def _rest(self) -> None:
        self.connection.send(self.body)
        self.done()

    def resume(self) -> None:
        while self.left > 0 and self.open and not self.connection.paused:
            self.connection.send(b"a" * BLOCK)
            self.left -= BLOCK
            if self.left <= 0:
                self.break_off()
