"""Streamed replies: one server-sent event a token, and the faults that come between tokens."""

from __future__ import annotations

import time

from tests.support.simulated import render
from tests.support.simulated.faults import BEFORE, CROWDED, HEADERS, crowded
from tests.support.simulated.http import head
from tests.support.simulated.jobs import BLOCK, Exchange

BURST = 256
_SSE = b"content-type: text/event-stream; charset=utf-8\r\n"


class Streamed(Exchange):
    """A streamed reply: one event a token, in one HTTP chunk each."""

    stream: render.Stream
    at = length = 0

    def begin(self) -> None:
        stream, forms = self.stream, self.fault.forms
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
        """After a token: its fault, the end of the stream, or nothing."""
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
        """Send everything as fast as the client reads, in bursts, so that other connections get a turn."""
        if not self.open or self.quiet or self.connection.paused:
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
        """The moment of the fault is here. True if it ended or took over the reply."""
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
        elif end in CROWDED:
            self.out.append(self.event(crowded(fault, "delta")))
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
