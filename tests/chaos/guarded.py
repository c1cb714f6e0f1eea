"""B12: guards that are away, slow, or that answer to harm, before and after workers, in every dialect."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.chaos.house import House, house
from tests.chaos.link import Answer, Link
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.clients import GENERATING, Way, usual
from tests.support.ports import free_port

TIMEOUT_S = 0.5
LATE_S = 1.0
"""On top of a guard's time-outs, on a busy machine."""
HELD, GROWTH = 1 << 20, 8 << 20
"""Bytes that one guard may have sent (`max_bytes`), and of growth beside what all of them may have sent at once: an
allocator gives that back in part, and later."""


def _answer(body: bytes, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        fields,
        len(body),
        body,
    )


HARMFUL: dict[str, bytes] = {
    "error": _answer(b"{}", b"503 Service Unavailable"),
    "redirect": _answer(b"", b"302 Found", b"location: http://127.0.0.1:1/\r\n"),
    "page": _answer(b"<html>" * 1000),
    "nothing": _answer(b""),
    "null": _answer(b"null"),
    "deep": _answer(b'{"action":"allow","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "number": _answer(b'{"action": NaN}'),
    "no text": _answer(b'{"action": "replace"}'),
    "many texts": _answer(b'{"action": "replace", "texts": [%b]}' % b",".join([b'"x"'] * 100_000)),
    "half a surrogate": _answer(b'{"action": "replace", "texts": ["\\ud800"]}'),
    "not UTF-8": _answer(b'{"action": "refuse", "reason": "\xff"}'),
    "another model": _answer(b'{"action": "allow", "model": "none"}'),
    "too large": _answer(b'{"action":"allow","x":"%b"}' % (b"x" * (2 << 20))),
    "coded": _answer(b"\x1f\x8b" * 100, fields=b"content-encoding: gzip\r\n"),
    "cut": _answer(b'{"action":"allow"}')[:-4],
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 18\r\n\r\n" + b'{"action":"allow"}',
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "long head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
}
SLOW = ("silent", "drips", "endless")
GOOD = {"allows": _answer(b'{"action":"allow"}'), "refuses": _answer(b'{"action":"refuse","reason":"by the row"}')}


class Guard:
    """A guard that answers by `mode`."""

    mode = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await reader.readexactly(length)
            answer = {**HARMFUL, **GOOD}.get(self.mode)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
            else:
                await self._slow(reader, writer)
        writer.close()

    async def _slow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "silent":
            await reader.read()  # until the gateway gives up
            return
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b" " * (65536 if self.mode == "endless" else 1)
        for _ in range(100_000):
            if writer.is_closing():
                return
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0 if self.mode == "endless" else 0.05)


@contextlib.asynccontextmanager
async def guarded(guard: Guard) -> AsyncIterator[House]:
    server = await asyncio.start_server(guard.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    model: dict[str, Any] = {"backend": "vllm", "upstream_model": "sim"}
    guards = {}
    for stage, options in {"before": {}, "after": {"before": False, "after": "windows"}}.items():
        for on_failure in ("closed", "open"):
            name = f"{stage}-{on_failure}"
            guards[name] = {**options, "url": url, "models": [name], "on_failure": on_failure, "timeout_s": TIMEOUT_S}
    guards["away"] = {"url": f"http://127.0.0.1:{free_port()}/", "models": ["away"]}
    models = {name: dict(model) for name in guards}

    async def front(found: House) -> list[str]:
        address = found.workers[0].address
        for options in models.values():
            options["workers"] = [f"http://{address}"]
        return [address]

    async with server, house({}, {"models": models, "guards": guards}, front=front) as at:
        yield at


async def _ask(at: House, way: Way, model: str, stream: bool) -> Answer:
    link = Link(at.gateways[0].address)
    try:
        body = {"model": model, **way.body("hello", stream=stream, max_tokens=8)}
        return await link.post(way.path(model), body, {})
    finally:
        link.close()


@row("B12", "guards that are away, slow, or that answer to harm, before and after workers, in every dialect")
async def hostile_guards(findings: Findings) -> None:
    """A guard that is away, silent, endless, drips, or answers in 19 broken or harmful ways, before workers and after
    them, failing closed and open, in every dialect, streamed and not; `timeout_s` is 0.5 s.

    Passes if each client gets one error in its dialect or, where the guard fails open, its reply, at most 1 s after
    the guard's time; a refusal reaches it as one; other models answer in 0.2 s (p90) meanwhile; memory grows by at
    most 8 MiB and the 1 MiB that each guard may send at once; the log names no bug.
    """
    guard = Guard()
    async with guarded(guard) as at:
        ways = [(usual(name, stream=stream), stream) for name in GENERATING for stream in (False, True)]
        guard.mode = "allows"
        for way, stream in ways:
            await _ask(at, way, "after-open", stream)
        before, wrong, late, bugs = at.gateways[0].resident(), list[Any](), list[float](), 0
        count = 0
        modes = [*HARMFUL, *SLOW]
        for number, mode in enumerate(modes):
            guard.mode = mode
            asked = ways if FULL else ways[number % 2 :: 2]
            for stage in ("before", "after"):
                for on_failure in ("closed", "open"):
                    answers = await asyncio.gather(
                        *(_ask(at, way, f"{stage}-{on_failure}", stream) for way, stream in asked)
                    )
                    for (way, stream), answer in zip(asked, answers, strict=True):
                        count += 1
                        failed = answer.status >= 400
                        if failed != (on_failure == "closed") or answer.status == 500:
                            wrong.append((mode, stage, on_failure, str(way), stream, answer.status, answer.body[:200]))
                        late.append(answer.seconds)
        findings.none("answers that are neither the error of a guard, nor, if it fails open, the reply", wrong, count)
        most = 8 * TIMEOUT_S + LATE_S  # a stream may be shown in several windows
        findings.at_most(f"s until an answer ({most:g})", max(late), most, count, ".2f", timed=True)
        refused = [await _ask(at, usual(name), "away", False) for name in GENERATING]
        alike = [one.status for one in refused if one.status not in (424, 500, 502, 503)]
        findings.none("answers of a guard that is away that are not its error", alike, len(refused))
        guard.mode = "refuses"
        said = [await _ask(at, way, f"{stage}-open", stream) for way, stream in ways for stage in ("before", "after")]
        silent = [one.body[:200] for one in said if b"by the row" not in one.body or one.status == 200]
        findings.none("refusals that do not reach the client as such", silent, len(said))
        guard.mode = "silent"
        waits = asyncio.gather(*(_ask(at, way, "before-closed", stream) for way, stream in ways))
        others = [(await _ask(at, usual("openai"), "m", False)).seconds for _ in range(20)]
        await waits
        slow = percentile(others, 0.9)
        findings.at_most("s that others wait meanwhile, p90 (0.2)", slow, 0.2, len(others), ".3f", timed=True)
        growth, most = at.gateways[0].resident() - before, len(asked) * HELD + GROWTH
        findings.at_most(f"bytes that memory grows ({most})", growth, most, count, ".0f")
        bugs = sum(line.get("event") == "bug" for line in at.gateways[0].lines())
        findings.check("bugs in the log", bugs, count, not bugs)
        failures = [line for line in at.gateways[0].lines() if line.get("event") == "guard failed"]
        said_why = {line["reason"] for line in failures if "reason" in line}
        kinds = {"timeout", "unreachable", "status", "too_large", "invalid", "model"}
        findings.check("reasons in the log", json.dumps(sorted(said_why)), len(failures), said_why <= kinds)
