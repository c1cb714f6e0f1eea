"""Answering one generation request: plain or streamed, on the engine's clock, with its fault at the right moment."""

from __future__ import annotations

import gzip
import time
from typing import Protocol

from workers.simulated import render
from workers.simulated.engine import Engine
from workers.simulated.faults import BEFORE, HEADERS, Fault
from workers.simulated.http import Connection, head
from workers.simulated.ledger import Entry, Ledger
from workers.simulated.metrics import Metrics

BURST = 256
BLOCK = 64 * 1024
_NO_FAULT = Fault("")
_SSE = b"content-type: text/event-stream; charset=utf-8\r\n"
_JSON = b"content-type: application/json\r\n"


class Worker(Protocol):
    """What an answer needs of the worker it belongs to."""

    engine: Engine
    ledger: Ledger
    metrics: Metrics

    def die(self) -> None: ...


class Exchange:
    """One request and its answer. Its end is told to the engine, the ledger and the metrics once."""

    def __init__(self, worker: Worker, connection: Connection, entry: Entry, fault: Fault | None) -> None:
        self.worker = worker
        self.connection = connection
        self.entry = entry
        self.fault = fault or _NO_FAULT
        self.open = True
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
        """The prompt is read. Faults that come before the head come now."""
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

    def stall(self, then: object) -> None:
        """Say nothing, for a while or for ever."""
        self.worker.engine.decoding.pop(self, None)
        if self.fault.argument:
            self.worker.engine.loop.call_later(self.fault.number(0), self._wake, then)

    def _wake(self, then: object) -> None:
        if self.open and callable(then):
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
        """Answer with a fault that replaces the whole answer. False when the fault is none of these."""
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
        self.close("completed")
        connection.answer(200, body)
        return False

    def _whole(self) -> None:
        self.fault = _NO_FAULT
        self.step()

    def spoil(self, end: str, body: bytes) -> None:
        """A plain answer with its fault."""
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


class Streamed(Exchange):
    """A streamed reply: one event a token, in one HTTP chunk each."""

    stream: render.Stream

    def begin(self) -> None:
        stream, forms = self.stream, self.fault.forms
        self.at = 0
        self.length = max([plan.length for plan in stream.plans], default=0)
        self.simple = not forms
        self.chunked = "close" not in forms
        self.trip = self.fault.at if self.fault.end and self.fault.end != "stall" else -1
        if self.fault.end == "stall" and self.fault.at != BEFORE:
            self.trip = self.fault.at
        elif self.fault.end and self.fault.end != "stall":
            self.trip = max(self.trip, HEADERS)
        self.fast: tuple[bytes, bytes] | None = None
        if self.simple and len(stream.plans) == 1 and (template := stream.template(0)) is not None:
            before, after = template
            size = b"%x\r\ndata: " % (len(before) + 4 + len(after) + 8)
            self.fast = size + before, after + b"\n\n\r\n"
        self.entry.status = 200
        transfer = b"transfer-encoding: chunked\r\n" if self.chunked else b"connection: close\r\n"
        self.out = [head(200, _SSE + transfer)]
        if "bom" in forms:
            self.out.append(self.chunk(b"\xef\xbb\xbf"))
        if self.trip == HEADERS and self.fault.end == "error-frame":
            self.tripped()
            return
        if self.trip == HEADERS:
            self.flush()
            if self.tripped():
                return
        self.opened()

    def opened(self) -> None:
        """The first chunks and the first token; then the rest at its pace."""
        self.out += [self.event(chunk.encode()) for chunk in self.stream.opening()]
        self.entry.first_token = time.monotonic()
        self.go_on()

    def go_on(self) -> None:
        engine = self.worker.engine
        if engine.itl:
            if self.step():
                engine.decode(self)
        else:
            self.pump()

    def chunk(self, data: bytes) -> bytes:
        """One HTTP chunk."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def event(self, payload: bytes) -> bytes:
        """One server-sent event, in the form the fault asks for."""
        if self.simple:
            return b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload)
        forms = self.fault.forms
        data = b"data:" if "nospace" in forms else b"data: "
        if "multi-data" in forms:
            payload = payload.replace(b',"choices":', b",\n" + data + b'"choices":')
        text = data + payload + b"\n\n"
        if "comments" in forms:
            text = b": ping\n\n" + text
        if "crlf" in forms:
            text = text.replace(b"\n", b"\r\n")
        return self.chunk(text)

    def flush(self) -> None:
        if self.out:
            self.connection.send(b"".join(self.out))
            self.out.clear()

    def one(self) -> bool:
        """Make the chunks of the next token of every choice. False after the last, or when a fault took over."""
        at = self.at
        if self.fast is not None and at < self.length - 1:
            before, after = self.fast
            self.out.append(before + self.stream.plans[0].words[at] + after)
        else:
            for index, plan in enumerate(self.stream.plans):
                if at < plan.length and (payload := self.stream.chunk(index, at)):
                    self.out.append(self.event(payload.encode()))
        self.at += 1
        self.entry.tokens += 1
        return self.after()

    def after(self) -> bool:
        """What follows a token: a fault, the end, or nothing."""
        if self.at == self.trip:
            self.flush()
            if self.tripped():
                return False
        if self.at >= self.length:
            self.finish()
            return False
        return True

    def step(self) -> bool:
        if self.connection.paused:
            return True
        if not self.one():
            return False
        self.flush()
        return True

    def pump(self) -> None:
        """Everything as fast as the client reads it, in bursts so that others get a turn."""
        if not self.open or self.connection.paused:
            return
        if self.fast is not None:
            until = min(self.at + BURST, self.length - 1)
            if self.at < self.trip:
                until = min(until, self.trip)
            if until > self.at:
                before, after = self.fast
                words = self.stream.plans[0].words[self.at : until]
                self.out += (before, (after + before).join(words), after)
                self.entry.tokens += until - self.at
                self.at = until
                if not self.after():
                    return
            elif not self.one():
                return
            if self.at == self.length - 1 and not self.one():
                return
        else:
            for _ in range(BURST):
                if not self.one():
                    return
        self.flush()
        self.worker.engine.loop.call_soon(self.pump)

    def resume(self) -> None:
        if self.left:
            self.pour()
        elif self.open and not self.worker.engine.itl and self.at < self.length:
            self.worker.engine.loop.call_soon(self.pump)

    def finish(self) -> None:
        """The end of a stream: usage, [DONE], the last HTTP chunk."""
        self.entry.tokens = sum([plan.tokens for plan in self.stream.plans])
        self.finishes = [plan.finish for plan in self.stream.plans]
        self.out += [self.event(chunk.encode()) for chunk in self.stream.closing()]
        if "no-done" not in self.fault.forms:
            self.out.append(self.event(b"[DONE]"))
        self.over()
        self.done(keep=self.chunked)

    def over(self) -> None:
        if self.chunked:
            self.out.append(b"0\r\n\r\n")
        self.flush()

    def tripped(self) -> bool:
        """The fault's moment has come. True when it ended or took over the reply."""
        fault = self.fault
        end, self.trip = fault.end, -1
        if end == "stall":
            self.stall(self.opened if not self.at else self.go_on if self.at < self.length else self.finish)
        elif end in ("die", "reset", "fin"):
            self.break_off()
        elif end == "eof":
            self.over()
            self.close("failed")
            self.connection.end(keep=self.chunked)
        elif end == "error-frame":
            body = render.error(int(fault.number(500)), "InternalServerError", "Simulated error.")
            self.out += [self.event(body), self.event(b"[DONE]")]
            self.over()
            self.close("failed")
            self.connection.end(keep=self.chunked)
        elif end == "bad-json":
            self.out.append(self.event(b'{"id":"chatcmpl-1","choices":[{"index":0,]}'))
            return False
        elif end == "bad-chunk":
            self.close("failed")
            self.connection.send(b"zz\r\ndata: {}\n\n\r\n0\r\n\r\n")
            self.connection.end()
        elif end == "endless":
            self.left = int(fault.number(1 << 20) * 1024 * 1024)
            self.connection.send(self.chunk(b'data: {"id":"'))
            self.pour()
        else:
            return False
        return True

    def pour(self) -> None:
        """An endless line, as fast as the client reads."""
        while self.left > 0 and self.open and not self.connection.paused:
            self.connection.send(self.chunk(b"a" * BLOCK))
            self.left -= BLOCK
            if self.left <= 0:
                self.break_off()
