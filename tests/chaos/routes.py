"""S1: no route without a decision, and no way around a key.

Requests are raw bytes on a socket: what an HTTP library would tidy up is what an attacker sends.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import yaml
from msgspec import Struct

from gateway.app.routes import route_table
from gateway.auth import new_key
from tests.chaos.link import Answer, Link, request
from tests.chaos.row import Findings, percentile, row
from tests.support.clients import QUERY
from tests.support.clients import WAYS as CLIENTS
from tests.support.harness import Stack

# What everybody may ask, by somebody's decision: whatever else there is needs a key.
OPEN = {"GET /ping", "GET /sagemaker/ping", "GET /livez", "GET /readyz", "GET /metrics"}
# Claude Code asks these at its start, without its key; the answer is always the same.
OPEN |= {f"HEAD {path}" for path in ("/api/hello", "/anthropic", "/anthropic/", "/anthropic/api/hello")}
# Ollama's clients ask at their start whether somebody is there, and of which version.
OPEN |= {f"GET {prefix}{path}" for prefix in ("", "/ollama") for path in ("/", "/api/version")} | {"GET /ollama"}
OPEN |= {f"GET /tgi{path}" for path in ("", "/", "/health", "/ping")}
HEADERS = {
    "authorization": "Bearer {}",
    "authorization ": "Bearer: {}",
    "api-key": "{}",
    "x-api-key": "{}",
}
SIGNED = (
    "AWS4-HMAC-SHA256 Credential={}/20260101/eu-west-1/sagemaker/aws4_request, SignedHeaders=host;x-amz-date,"
    " Signature=" + "0" * 64
)
# One body and one query for all: each route takes of them what it knows.
BODY = json.dumps({"model": "secret-model", **{name: value for way in CLIENTS for name, value in way.body().items()}})


class Way(Struct):
    """One way to send a request: its target and its Host made from the path, and headers of its own."""

    name: str
    target: str = "{path}"
    host: str = "gateway"
    headers: dict[str, str] = {}
    method: str = ""


WAYS = (
    Way("plain"),
    Way("doubled slash", "/{path}"),
    Way("dot segment", "/.{path}"),
    Way("up from an open path", "/livez/..{path}"),
    Way("encoded up", "/livez/%2e%2e{path}"),
    Way("trailing slash", "{path}/"),
    Way("path parameter", "{path};/livez"),
    Way("query that looks like a path", "{path}?/../../livez"),
    Way("upper case", "{upper}"),
    Way("encoded letter", "{encoded}"),
    Way("null byte", "{path}%00/livez"),
    Way("Host with a path", host="gateway/livez"),
    Way("Host that is an open path", host="/livez#"),
    Way(
        "rewriting headers",
        headers={"x-original-url": "/livez", "x-rewrite-url": "/livez", "x-forwarded-prefix": "/livez"},
    ),
    Way(
        "forwarded as ourselves",
        headers={"x-forwarded-for": "127.0.0.1", "x-forwarded-host": "localhost", "forwarded": "for=127.0.0.1"},
    ),
    Way("overridden method", headers={"x-http-method-override": "GET", "x-method-override": "OPTIONS"}),
    Way("HEAD", method="HEAD"),
    Way("OPTIONS", method="OPTIONS"),
)


def credentials() -> tuple[dict[str, str], dict[str, Any]]:
    """(state -> what is shown for a key, the section `keys`)"""
    states, entries = {"none": "", "empty": " "}, {}
    options_of: dict[str, dict[str, Any]] = {
        "good": {},
        "expired": {"expires": "2020-01-01"},
        "disabled": {"disabled": True},
        "other dialects": {"dialects": ["nothing"]},
        "other models": {"models": ["m"]},
    }
    for name, options in options_of.items():
        states[name], entry = new_key(name.replace(" ", "-"))
        entries[name.replace(" ", "-")] = {**next(iter(yaml.safe_load(entry).values())), **options}
    states["unknown"], _ = new_key("nobody")
    states["cut short"] = states["good"][:-1]
    states["another secret"] = states["good"][:15] + ("A" if states["good"][15] != "A" else "B") + states["good"][16:]
    states["its hash"] = entries["good"]["hash"]
    return states, entries


ONE_IN = 1
"""One attack in so many is made."""
BAD = ("none", "empty", "unknown", "cut short", "another secret", "its hash", "expired", "disabled", "other dialects")


def targets(way: Way, path: str) -> str:
    path = re.sub(r"\{[a-z]+(:path)?\}", "secret-model", path)
    encoded = path[:-1] + f"%{ord(path[-1]):02x}"
    path, encoded = f"{path}?{QUERY}", f"{encoded}?{QUERY}"
    return way.target.format(path=path, upper=path.upper(), encoded=encoded)


class Attack(Struct):
    """One request with a credential that must not do."""

    route: str
    state: str
    way: str
    data: bytes


def shown(state: str, secret: str) -> Iterator[dict[str, str]]:
    if state == "none":
        yield {}
        yield {"authorization": SIGNED.format("AKIDUNKNOWN")}
        return
    for name, form in HEADERS.items():
        yield {name.strip(): form.format(secret).rstrip()}


def attacks(routes: Sequence[str], states: dict[str, str]) -> Iterator[Attack]:
    for route in routes:
        method, path = route.split(" ")
        for way in WAYS:
            for state in BAD:
                for headers in shown(state, states[state]):
                    sent = {**way.headers, **headers}
                    body = BODY.encode() if method == "POST" and not way.method else b""
                    data = request(way.method or method, targets(way, path), sent, body, way.host)
                    yield Attack(route, state, way.name, data)


@row("S1", "every route, credential, key header, and trick of path and Host")
async def no_way_around(findings: Findings) -> None:
    """Every route of the route table x 9 wrong credentials x 4 headers for a key, and a forged signature x 18 ways of
    writing path, Host, method and rewriting headers, as raw bytes.

    Passes if no success, no model's name in a reply, no worker reached; each is refused before its body arrived,
    p99 ≤ 5 ms; a route that is missing in the table of decisions fails the row.
    """
    states, entries = credentials()
    entries["other-dialects"]["dialects"] = ["ollama_style"]
    config = {
        "keys": entries,
        "models": {"secret-model": {"backend": "vllm", "upstream_model": "sim", "workers": ["http://127.0.0.1:9"]}},
    }
    with Stack(({},), config) as stack:
        routes = [f"{line.method} {line.path}" for line in route_table(stack.gateway.deployment.config)]
        closed = [route for route in routes if route not in OPEN]
        gone = OPEN.difference(routes)
        findings.check("decisions about no route", sorted(gone) or 0, len(OPEN), not gone)
        address = stack.url.removeprefix("http://")
        before = stack.sim.ledger.received
        opened, times, loud = [], [], []
        link, count = Link(address), 0
        for attack in islice(attacks(closed, states), None, None, ONE_IN):
            if attack.state == "other dialects" and attack.route.split(" ")[1].startswith("/ollama"):
                continue
            count += 1
            answer = await answered(link, attack.data)
            if attack.way == "plain":
                times.append(answer.seconds * 1000)
            if 200 <= answer.status < 400 and not is_open(answer):
                opened.append(f"{attack.route} [{attack.state}, {attack.way}]: {answer.status}")
            if b"secret-model" in answer.body and answer.status < 400:
                loud.append(attack.route)
        findings.none("answers of success without a key", opened, count)
        findings.none("models told without a key", loud, count)
        reached = stack.sim.ledger.received - before
        findings.none("requests that reached a worker", reached, count)
        slow = percentile(times, 0.99)
        findings.at_most("ms to a refusal, p99, at most 5", slow, 5, len(times), ".2f", timed=True)
        findings.check("refusals before the body came", *await bodies_unread(address, closed))
        served = 0
        for route in routes:
            method, path = route.split(" ")
            headers = {"api-key": states["good"]} if route not in OPEN else {}
            body = BODY.encode() if method == "POST" else b""
            answer = await answered(link, request(method, targets(WAYS[0], path), headers, body))
            # What nobody may do here (Ollama's own management of models) is a 403 that others than strangers see.
            stranger = await answered(link, request(method, targets(WAYS[0], path), {"api-key": "nobody"}, body))
            told = answer.status != 403 or stranger.status == 401
            # Of a path that leads nowhere the message names the path; what is not stored is named by its id.
            nothing = answer.status == 404 and b"nothing is stored" not in answer.body
            served += told and not nothing and answer.status not in (401, 405)
        findings.check("routes that do answer who may ask", served, len(routes), served == len(routes))
        link.close()


def is_open(answer: Answer) -> bool:
    """What everybody may know: that we live, are ready, and our figures. A trick may well lead there."""
    return answer.body in (b"alive\n", b"ready\n", b"") and answer.status == 200


async def answered(link: Link, data: bytes) -> Answer:
    """A connection that the server has closed meanwhile is opened anew."""
    try:
        return await link.send(data)
    except (OSError, asyncio.IncompleteReadError):
        return await link.send(data)


async def bodies_unread(address: str, routes: Sequence[str]) -> tuple[int, int, bool]:
    """How many of the POST routes refuse upon the head alone, while the body is still to come."""
    count, asked = 0, 0
    for route in routes:
        method, path = route.split(" ")
        if method != "POST":
            continue
        asked += 1
        link = Link(address)
        head = request("POST", targets(WAYS[0], path), {"api-key": "nobody"}, BODY.encode())[: -len(BODY)]
        async with asyncio.timeout(60):
            count += (await link.send(head)).status in (401, 403)
        link.close()
    return count, asked, count == asked
