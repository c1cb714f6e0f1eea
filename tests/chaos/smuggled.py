"""S2 and S4: requests that two servers could read differently, and heads without measure; direct and behind proxies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

from msgspec import Struct

from tests.chaos.house import CHAT, House, Process, chat, house, program
from tests.chaos.link import Link, connected, request
from tests.chaos.row import FULL, Findings, row
from tests.support.ports import free_port

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
INSIDE = request("POST", CHAT, {}, json.dumps(chat(1, text="smuggled")).encode()).decode()
"""A whole request. It stands where only one of two readings finds a request."""
BODY = json.dumps(chat(1))
_INSIDE = re.compile("dire[0-9]{4}")
_STATUS = re.compile(rb"HTTP/1\.1 [0-9]{3} ")
TIMES = 10 if FULL else 1
PATIENCE_S = 2.0
MEMORY_MB = 1.0
REFUSALS = (400, 404, 405, 408, 411, 413, 414, 417, 431, 501, 505)


class Case(Struct):
    """data: the bytes. fine: there is but one reading, and it is served (a chat) or answered at least."""

    name: str
    data: bytes
    fine: bool = False

    def by(self, how: str, number: int) -> bytes:
        """With a name of its own for the request inside."""
        return self.data.replace(b"smuggled", f"{how[:4]}{number % len(CASES):04d}".encode())


def framed() -> Iterator[tuple[str, str]]:
    """Headers after which the body is of doubtful length. What follows the head is the end of a chunked body, then a
    request: whoever goes by the length takes all of it for the body."""
    rest = "0\r\n\r\n" + INSIDE
    length, chunked = f"content-length: {len(rest)}\r\n", "transfer-encoding: chunked\r\n"
    yield "length, then chunked", length + chunked
    yield "chunked, then length", chunked + length
    for name, value in {
        "unknown": "xchunked",
        "twice in one": "chunked, chunked",
        "then another": "chunked, identity",
        "another": "identity",
        "gzip last": "chunked, gzip",
        "quoted": '"chunked"',
        "with a parameter": "chunked;q=0.5",
        "a vertical tab before it": "\x0bchunked",
        "a vertical tab behind it": "chunked\x0b",
        "a form feed": "\x0cchunked",
        "a comma before it": ",chunked",
        "empty": "",
        "a letter like k": "chun\u212aed",
        "folded": "\r\n chunked",
        "a bare CR": "chunked\rx: y",
        "a null byte": "chunked\x00",
    }.items():
        yield f"coding: {name}, with length", f"transfer-encoding: {value}\r\n{length}"
        yield f"coding: {name}", f"transfer-encoding: {value}\r\n"
    for name, line in {
        "a space before the colon": "transfer-encoding : chunked\r\n",
        "a tab before the colon": "transfer-encoding\t: chunked\r\n",
        "a null byte in the name": "transfer-encoding\x00: chunked\r\n",
        "a space before the name": " transfer-encoding: chunked\r\n",
        "a bare LF before it": "x: y\ntransfer-encoding: chunked\r\n",
        "a bare CR before it": "x: y\rtransfer-encoding: chunked\r\n",
        "twice": chunked + chunked,
    }.items():
        yield f"coding: {name}, with length", line + length
    for name, value in {
        "twice, apart": f"5\r\ncontent-length: {len(rest)}",
        "a list": f"5, {len(rest)}",
        "a list of equals": f"{len(rest)}, {len(rest)}",
        "a plus": f"+{len(rest)}",
        "a minus": "-1",
        "hexadecimal": f"0x{len(rest):x}",
        "an underscore": "1_0",
        "a fraction": "5.0",
        "an exponent": "1e2",
        "beyond 64 bits": str(2**64 + len(rest)),
        "empty": "",
        "a space inside": "1 0",
        "a letter": "5a",
        "other digits": "\u0665",
        "a vertical tab": f"\x0b{len(rest)}",
        "a null byte": f"{len(rest)}\x00",
    }.items():
        yield f"length: {name}", f"content-length: {value}\r\n"


def chunks() -> Iterator[tuple[str, str]]:
    """Chunked bodies of doubtful form."""
    for name, size in {
        "a plus": "+5",
        "a minus": "-5",
        "0x": "0x5",
        "a space before it": " 5",
        "an underscore": "0_5",
        "beyond 64 bits": "1" + "0" * 16 + "5",
        "none": "",
        "a letter": "5g",
        "a bare LF behind it": "5\n",
        "a bare CR in an extension": "5;a\rb",
        "a bare LF in an extension": "5;a\nb",
        "a null byte in an extension": "5;\x00",
    }.items():
        yield f"chunk: {name}", f"{size}\r\nhello\r\n0\r\n\r\n{INSIDE}"
    yield "chunk: longer than it says", f"5\r\nhello{INSIDE}\r\n0\r\n\r\n"
    yield "chunk: another end", f"5\r\nhelloXX0\r\n\r\n{INSIDE}"
    yield "chunk: a bare LF as its end", f"5\r\nhello\n0\r\n\r\n{INSIDE}"
    yield "chunk: trailers that are none", f"5\r\nhello\r\n0\r\n\x00: a\r\n\r\n{INSIDE}"


def lines() -> Iterator[tuple[str, str]]:
    """Heads of doubtful form, of requests that would otherwise be read without a key, a body or a model."""
    get, host = "GET /livez HTTP/1.1\r\n", "host: gateway\r\n"
    for name, line in {
        "HTTP/0.9": "GET /livez\r\n",
        "HTTP/2.0": "GET /livez HTTP/2.0\r\n",
        "HTTP/1.2345": "GET /livez HTTP/1.2345\r\n",
        "no version": "GET /livez HTTP/\r\n",
        "another protocol": "GET /livez ICY/1.1\r\n",
        "two spaces": "GET  /livez HTTP/1.1\r\n",
        "a tab": "GET\t/livez\tHTTP/1.1\r\n",
        "a bare CR": "GET /livez\rHTTP/1.1\r\n",
        "a null byte": "GET /liv\x00ez HTTP/1.1\r\n",
        "a space in the path": "GET /liv ez HTTP/1.1\r\n",
        "no path": "GET HTTP/1.1\r\n",
        "a space first": " GET /livez HTTP/1.1\r\n",
        "an unknown method": "GE7 /livez HTTP/1.1\r\n",
        "HTTP/2's preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT": "CONNECT gateway:80 HTTP/1.1\r\n",
    }.items():
        yield f"line: {name}", f"{line}{host}\r\n"
    for name, fields in {
        "none": "",
        "twice": host + host,
        "two": host + "host: other\r\n",
        "with a space": "host: gate way\r\n",
        "with a null byte": "host: gate\x00way\r\n",
        "before the name a space": " host: gateway\r\n",
        "behind the name a space": "host : gateway\r\n",
    }.items():
        yield f"host: {name}", f"{get}{fields}\r\n"
    for name, fields in {
        "no colon": "nonsense\r\n",
        "no name": ": a\r\n",
        "a space in the name": "a b: c\r\n",
        "a bare CR": "a: b\rc\r\n",
        "a null byte": "a: b\x00c\r\n",
        "folded": "a: b\r\n c\r\n",
        "another letter in the name": "\u00e4: b\r\n",
        "101 fields": "".join(f"a{n}: b\r\n" for n in range(100)),
        "20,000 fields": "a: b\r\n" * 20_000,
        "33 KB": f"a: {'b' * 33_000}\r\n",
        "32 MB": f"a: {'b' * 32_000_000}\r\n",
        "a name of 32 MB": "a" * 32_000_000 + ": b\r\n",
    }.items():
        yield f"field: {name}", f"{get}{host}{fields}\r\n"
    yield "a path of 32 MB", f"GET /{'a' * 32_000_000} HTTP/1.1\r\n{host}\r\n"


def cases() -> Iterator[Case]:
    """Latin-1 as far as it goes: a letter beyond it is sent as UTF-8."""

    def made(text: str) -> bytes:
        return text.encode() if any(ord(letter) > 255 for letter in text[:500]) else text.encode("latin-1")

    for name, fields in framed():
        yield Case(name, made(f"{HEAD}{fields}\r\n0\r\n\r\n{INSIDE}"))
    for name, body in chunks():
        yield Case(name, made(f"{HEAD}transfer-encoding: chunked\r\n\r\n{body}"))
    for name, text in lines():
        yield Case(name, made(text))
    # What is unusual, and has one reading.
    whole = BODY.encode()
    for name, fields, body in (
        ("zeros before a length", f"content-length: 00{len(whole)}", BODY),
        ("spaces around a length", f"content-length: \t{len(whole)} \t", BODY),
        ("a coding in capitals", "Transfer-Encoding: CHUNKED", f"{len(whole):X}\r\n{BODY}\r\n0\r\n\r\n"),
        ("an extension of a chunk", "transfer-encoding: chunked", f"{len(whole):x};a=b\r\n{BODY}\r\n0\r\n\r\n"),
        ("a trailer", "transfer-encoding: chunked", f"{len(whole):x}\r\n{BODY}\r\n0\r\nhost: other\r\n\r\n"),
        ("zeros before a chunk's size", "transfer-encoding: chunked", f"000{len(whole):x}\r\n{BODY}\r\n0\r\n\r\n"),
    ):
        yield Case(name, made(f"{HEAD}{fields}\r\n\r\n{body}"), fine=True)


CASES = list(cases())

# Every client's requests go to a gateway by one connection: what is left on it, the next client would get.
NGINX = """
daemon off; master_process off; pid nginx.pid; error_log stderr crit; worker_rlimit_nofile 4096;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    upstream gateways {{ server {gateway}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateways; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off; proxy_request_buffering off;
        }}
    }}
}}
"""
HAPROXY = """
global
    maxconn 500
defaults
    mode http
    retries 0
    timeout connect 1s
    timeout client 10s
    timeout server 10s
    http-reuse always
frontend front
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
    server one {gateway} pool-max-conn 1
"""


@contextlib.asynccontextmanager
async def proxied(at: House, name: str, binary: str) -> AsyncIterator[Process]:
    port = free_port()
    text = {"nginx": NGINX, "haproxy": HAPROXY}[name].format(gateway=at.gateways[0].address, port=port)
    path = at.folder / f"{name}.conf"
    path.write_text(text)
    words = ["-c", str(path), "-p", str(at.folder)] if name == "nginx" else ["-db", "-f", str(path)]
    proxy = await program(at.folder, name, binary, *words, port=port)
    try:
        await proxy.ready("/readyz")
        yield proxy
    finally:
        await proxy.stop()


def binaries(findings: Findings) -> dict[str, str]:
    """The proxies' paths; without them the row is short, and says how to get them."""
    paths = {}
    for name, package in (("nginx", "nginx-light"), ("haproxy", "haproxy")):
        path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if path is None:
            findings.check(f"{name} is here (Debian: apt-get install {package})", "no", 1, False)
        else:
            paths[name] = path
    return paths


@row("S2", "requests that two servers could read differently, and heads without measure (S4)")
async def smuggled(findings: Findings) -> None:
    """108 requests of doubtful form on a connection of their own (length and coding in every relation, chunks, request
    lines, hosts, fields), each with a request inside that only one of two readings finds; heads of 101 and 20,000
    fields and of 33 KB and 32 MB; 6 of unusual form that are fine; direct, behind nginx and behind haproxy.

    Passes if direct: each is refused once (400, 431, ...), its connection ended, nothing inside reaches a worker,
    and memory grows by at most 1 MB; what is fine is served. Behind proxies that share one connection to the
    gateway, other clients get their own answers after each case.
    """
    paths = binaries(findings)
    async with house({}, {"listen": {"header_timeout_s": 1, "body_timeout_s": 1}}, 1) as at:
        await direct(findings, at)
        for name, path in paths.items():
            async with proxied(at, name, path) as proxy:
                await behind(findings, name, proxy.address)


def inside(at: dict[str, Any]) -> list[str]:
    """The cases whose inner request is among these entries of a ledger."""
    texts = [found[0] for entry in at.values() if (found := _INSIDE.search(entry["body"]))]
    return [CASES[int(text[-4:])].name for text in texts]


async def direct(findings: Findings, at: House) -> None:
    gateway = at.gateways[0]
    for case in CASES[:5]:  # what the first of a kind needs once is no connection's own
        await said(gateway.address, case.data)
    wrong, open_, grown, n = [], [], [], 0
    for number, case in enumerate(CASES * TIMES):
        before = gateway.resident()
        data, ended = await said(gateway.address, case.by("dire", number))
        n += 1
        status = int(data.split()[1]) if data.startswith(b"HTTP/1.1 ") else 0
        if (status != 200) if case.fine else (status not in REFUSALS or len(_STATUS.findall(data)) != 1):
            wrong.append(f"{case.name}: {data[:60]!r}")
        if not case.fine and not ended:
            open_.append(case.name)
        more = (gateway.resident() - before) / 1e6
        if more > MEMORY_MB:
            grown.append(f"{case.name}: {more:.1f}")
    findings.none("direct: answers other than one refusal", wrong, n)
    entries = await at.admits()
    findings.none("direct: requests inside of others that a worker saw", inside(entries), n)
    findings.none("direct: connections that are kept after a refusal", open_, n)
    findings.none(f"direct: cases that cost more than {MEMORY_MB:g} MB of memory", grown, n)


async def said(address: str, data: bytes, patience_s: float = PATIENCE_S) -> tuple[bytes, bool]:
    """What is answered to these bytes, and whether the connection was ended within that time."""
    reader, writer = await connected(address)
    answer, ended = b"", False
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(data), 1 << 18):
            writer.write(data[at : at + (1 << 18)])
            await writer.drain()
    try:
        async with asyncio.timeout(patience_s):
            while not ended:
                block = await reader.read(65536)
                answer, ended = answer + block, not block
                if answer.startswith(b"HTTP/1.1 200 ") and b"\r\n\r\n" in answer:
                    break
    except ConnectionError:
        ended = True
    except TimeoutError:
        pass
    writer.transport.abort()
    return answer, ended


async def behind(findings: Findings, name: str, address: str) -> None:
    """After each case another client asks, twice: it must get its own answer. What the proxy itself takes for two
    requests are two."""
    wrong, n = [], 0
    for number, case in enumerate(CASES * TIMES):
        await said(address, case.by(name, number), PATIENCE_S / 4)
        for turn in range(2):
            id_ = f"{name}-{number}-{turn}"
            link = Link(address)
            n += 1
            try:
                answer = await link.post(CHAT, chat(1, text=id_), {"x-request-id": id_})
                if answer.status != 200 or answer.headers.get("x-request-id") != id_:
                    wrong.append(f"{case.name}: {answer.status}, {answer.headers.get('x-request-id')}")
            except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
                wrong.append(f"{case.name}: {error!r}")
            link.close()
    findings.none(f"behind {name}: other clients' answers that are not their own", wrong, n)
