"""S5 and S10: requests that want the gateway to call somewhere else, and bodies that unpack to more than they are."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from tests.chaos.house import CHAT, House, Process, house
from tests.chaos.link import Link, request
from tests.chaos.odd import counted, plain
from tests.chaos.row import Findings, row
from tests.support.clients import WAYS, Way

CPU_MS = 100.0
PATHS = {b"/health", b"/version", b"/metrics", b"/v1/models", b"/tokenize", b"/detokenize"}
"""What a gateway asks a worker of vLLM by itself, or counts a prompt's tokens by."""
PATHS |= {CHAT.encode(), b"/v1/completions", b"/v1/embeddings", b"/v1/rerank"}


def forms(port: int) -> list[str]:
    """Ways to write the canary's address, or what only a server behind a firewall can reach."""
    hosts = (
        *("127.0.0.1", "localhost", "LOCALHOST.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1"),
        *("0177.0.0.1", "017700000001", "0.0.0.0", "0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]"),
        *("127.0.0.1.nip.io", "127.0.0.1%00.example", "example.com@127.0.0.1", "127.0.0.1#@example.com"),
        *("\uff11\uff12\uff17.\uff10.\uff10.\uff11", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021"),
    )
    found = [f"http://{host}:{port}/" for host in hosts]
    found += [f"{scheme}://127.0.0.1:{port}/" for scheme in ("https", "ftp", "gopher", "redis", "ws", "unix", "dict")]
    here = f"127.0.0.1:{port}"
    found += [here, f"//{here}/", f"\\\\{here}\\", f"http:\\\\{here}", f"http:/{here}", f"http:{here}", f"///{here}"]
    found += [f"http://{here}/../../x", f"/../../http://{here}", f"http://{here}\r\nhost: x", f"http://{here}?x", " "]
    found += ["http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://metadata.google.internal/"]
    return [*found, "file:///etc/passwd", "file://localhost/etc/passwd", "data:text/plain,x", f"jar:http://{here}!/x"]


MEMBERS = (
    *("api_base", "base_url", "api_url", "url", "endpoint", "host", "proxy", "proxies", "callback", "webhook_url"),
    *("azure_endpoint", "custom_llm_provider", "aws_bedrock_runtime_endpoint", "vertex_location", "model_list"),
    *("litellm_params", "fallbacks", "extra_body", "extra_headers", "kv_transfer_params", "mm_processor_kwargs"),
)
HEADERS = (
    *("x-forwarded-host", "x-forwarded-server", "x-original-host", "x-host", "x-original-url", "x-rewrite-url"),
    *("x-upstream", "x-target-url", "x-base-url", "api-base", "destination", "forwarded", "referer", "origin"),
    *("x-portkey-custom-host", "x-portkey-config", "helicone-target-url", "x-envoy-original-dst-host", "location"),
)


class Stray(Struct):
    name: str
    data: bytes


def strays(way: Way, url: str) -> Iterator[Stray]:
    """Every place of a request that could name an address, with this one."""
    path, body = way.path("m"), way.body(model="m", stream=False)
    plain_ = json.dumps(body).encode()
    sent: dict[str, Any] = dict.fromkeys(MEMBERS, url) | {"extra_body": {"api_base": url, "url": [url]}}
    yield Stray("members", request("POST", path, {}, json.dumps({**sent, **body}).encode()))
    yield Stray("model", request("POST", path, {}, json.dumps(way.body(model=url, stream=False)).encode()))
    for model in (url, f"m/../{url}", f"m@{url}", f"m\r\nhost: {url}", f"../../../{url}"):
        yield Stray("model in the path", request("POST", way.path(quote(model, safe="")), {}, plain_))
    yield Stray("query", request("POST", f"{path}{'&' if '?' in path else '?'}api_base={quote(url)}", {}, plain_))
    if "\r" not in url and url.isascii():
        yield Stray("headers", request("POST", path, dict.fromkeys(HEADERS, url), plain_))
        yield Stray("host", request("POST", path, {}, plain_, url))
        if " " not in url:
            yield Stray("target", request("POST", url.rstrip("/") + path, {}, plain_))
    messages = [{"role": "user", "content": [{"type": kind, kind: {"url": url}} for kind in ("image_url", "file_url")]}]
    shaped: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": url}}}
    }
    for members in ({"messages": messages}, shaped):
        if way.field(next(iter(members))) is not None:
            yield Stray("inside", request("POST", path, {}, json.dumps({**body, **members}).encode()))


class Seen(Struct):
    """What reached the canary and the worker."""

    canary: list[bytes] = []
    targets: set[bytes] = set()
    hosts: set[bytes] = set()
    requests: int = 0


@row("S5", "requests that want another server asked, or that unpack to more than they are (S10, S11)")
async def strayed(findings: Findings) -> None:
    """Addresses of a canary in 49 spellings, those of metadata services among them, in every place of a request that
    could name one (members such as `api_base`, model names, paths, queries, headers, Host, targets, images,
    schemas), on every route of every dialect, a quarter of the spellings each; a worker that redirects to the
    canary. Packed bodies of 100 MB in 8 codings, and lengths of 1 GB and 1 TB.

    Passes if the gateway never connects to the canary; the worker sees no path and no host that is not of the
    configuration; no bug. Packed and endless bodies get a 415 or 413 for at most 100 ms of CPU.
    """
    seen = Seen([], set(), set())

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.canary.append(await reader.read(100))
        writer.close()

    async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A worker that sends everybody who asks with GET to the canary, and every other chat."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head[1:] if line)
                await reader.readexactly(int(fields.get(b"content-length", 0)))
                method, target, _ = head[0].split(b" ")
                seen.targets.add(target)
                seen.hosts.add(fields[b"host"])
                seen.requests += method == b"POST"
                if method == b"GET" or seen.requests % 2:
                    there = f"http://127.0.0.1:{port}{target.decode()}"
                    writer.write(f"HTTP/1.1 307 Away\r\nlocation: {there}\r\ncontent-length: 0\r\n\r\n".encode())
                else:
                    writer.write(counted(plain()))
        writer.close()

    canary = await asyncio.start_server(listening, "127.0.0.1", 0)
    port = canary.sockets[0].getsockname()[1]
    worker = await asyncio.start_server(redirecting, "127.0.0.1", 0, limit=1 << 20)
    address = f"127.0.0.1:{worker.sockets[0].getsockname()[1]}"

    async def front(at: House) -> list[str]:
        return [address]

    with contextlib.closing(await called(port)):
        pass
    control, seen.canary[:] = len(seen.canary), []
    config = {"retry": {"attempts": 1}, "breaker": {"failures": 10_000}, "health": {"interval_s": 1}}
    async with house({}, config, 1, (), front=front) as at:
        gateway = at.gateways[0]
        statuses = await asked(gateway, port)
        n = len(statuses)
        findings.check("connections to the canary, as a control", control, 1, control == 1)
        findings.none("connections of the gateway to it", len(seen.canary), n)
        strange = sorted(seen.targets - PATHS)
        findings.none("paths at the worker that no configuration names", strange, seen.requests)
        others = sorted(seen.hosts - {address.encode()})
        findings.none("other hosts that it was called by", others, seen.requests)
        bugs = [line for line in gateway.lines() if line.get("event") in ("bug", "library")]
        findings.none("lines of the log that tell of a bug", bugs, n)
        await bombs(findings, gateway)
    canary.close()
    worker.close()


async def called(port: int) -> asyncio.Transport:
    """A connection to the canary that it has noticed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    await reader.read()
    return writer.transport  # type: ignore[return-value]


async def asked(gateway: Process, port: int) -> list[int]:
    link, statuses = Link(gateway.address), []
    urls = forms(port)
    for number, way in enumerate(WAYS):
        # Each form in some of the ways, each way with some of the forms: what is read of them is the same code.
        for url in urls[number % 4 :: 4]:
            for stray in strays(way, url):
                try:
                    statuses.append((await link.send(stray.data)).status)
                except (OSError, asyncio.IncompleteReadError, ValueError):
                    link.close()
                    statuses.append((await link.send(stray.data)).status)
    link.close()
    return statuses


async def bombs(findings: Findings, gateway: Process) -> None:
    """Bodies that say that they are packed, or larger than they are."""
    big = b"{" + b" " * 100_000_000
    packed = {"gzip": gzip.compress(big, 1), "deflate": zlib.compress(big, 1), "br": b"\xcf\xff\xff\x7f" * 25_000}
    packed |= {"zstd": b"\x28\xb5\x2f\xfd" + b"\0" * 100_000, "gzip, gzip": gzip.compress(gzip.compress(big, 1))}
    packed |= {"x-gzip": packed["gzip"], "GZIP": packed["gzip"], "identity, gzip": packed["gzip"]}
    slow, wrong, n = [], [], 0
    link = Link(gateway.address)
    for coding, body in packed.items():
        for way in WAYS:
            data = request("POST", way.path("m"), {"content-encoding": coding, "connection": "close"}, body)
            before = gateway.cpu_s()
            status = (await link.send(data)).status
            n += 1
            if status not in (413, 415, 422, 424, 400):
                wrong.append(f"{way}, {coding}: {status}")
            if (took_ms := 1000 * (gateway.cpu_s() - before)) > CPU_MS:
                slow.append(f"{way}, {coding}: {took_ms:.0f}")
    for length in (10**9, 2**40):
        head = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {length}\r\n\r\n".encode()
        status, n = (await Link(gateway.address).send(head)).status, n + 1
        if status != 413:
            wrong.append(f"{length} bytes: {status}")
    link.close()
    findings.none("packed or endless bodies: answers other than 413 and 415", wrong, n)
    findings.none(f"and those that take more than {CPU_MS:g} ms of CPU", slow, n)
