"""What pages of other origins may do: preflights, and the headers on every kind of reply. tests/acceptance/browser
drives one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gateway.app.cors import EXPOSED
from gateway.config import Cors as CorsOptions
from gateway.config import Listen
from tests.support.clients import CHAT, REQUESTS
from tests.support.harness import Stack
from tests.unit.app.asking import GONE, key
from tests.unit.server.raw import Raw

GOLDEN = Path(__file__).parents[2] / "laws" / "golden"
PAGE = "https://chat.example.com"
STRANGER = "https://other.example.com"
SECRET, ENTRY = key("browser")
PATHS = sorted(path.partition("?")[0] for path, _ in REQUESTS.values())
ASK = {"origin": PAGE, "access-control-request-method": "POST"}
# Browsers give these to a page without being told, or they are of the connection and not of the reply.
ALWAYS = {
    "x-accel-buffering",
    "cache-control",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "date",
    "allow",
    "vary",
}


@pytest.fixture(scope="module", params=[True, False], ids=["direct", "asgi"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """With keys, and one page that may call; on the server's direct writes, and on plain ASGI."""

    def plain(app: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "extensions": {}}, receive, send)

        return wrapped

    config = {"cors": {"origins": [PAGE, "http://localhost:3000"]}, "keys": ENTRY, "models": {"gone": GONE}}
    with Stack(config=config, wrap=(lambda app: app) if request.param else plain) as running:
        yield running


def cors(reply: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def ask(stack: Stack, path: str, **headers: str) -> httpx.Response:
    given = {**ASK, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.options(stack.url + path, headers=given)


def test_names_on_several_lines_are_one_list(stack: Stack) -> None:
    lines = [("access-control-request-headers", name) for name in ("authorization", "content-type, x-one")]
    reply = httpx.options(stack.url + PATHS[0], headers=[*ASK.items(), *lines])
    assert cors(reply)["access-control-allow-headers"] == "authorization, content-type, x-one"


@pytest.mark.parametrize("path", [PATHS[0], "/v1/nothing"])
def test_a_preflight_is_answered_before_any_key_and_whatever_the_path(stack: Stack, path: str) -> None:
    reply = ask(stack, path, access_control_request_headers="authorization, content-type, x-stainless-lang")
    assert (reply.status_code, reply.content) == (204, b"")
    assert cors(reply) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization, content-type, x-stainless-lang",
        "access-control-max-age": "600",
    }
    assert reply.headers["vary"] == "origin"
    assert "content-length" not in reply.headers, "a 204 has none (RFC 9110 8.6)"


def test_a_preflight_of_another_origin_is_refused(stack: Stack) -> None:
    reply = ask(stack, PATHS[0], origin=STRANGER)
    assert (reply.status_code, cors(reply), reply.headers["vary"]) == (403, {}, "origin")
    assert "cors.origins" in reply.text


def test_what_is_no_preflight_is_an_ordinary_request(stack: Stack) -> None:
    path = REQUESTS["openai"][0]
    reply = httpx.options(stack.url + path, headers={"origin": PAGE, "api-key": SECRET})
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert cors(reply)["access-control-allow-origin"] == PAGE


def test_what_is_asked_for_is_only_ever_repeated_as_names(stack: Stack) -> None:
    reply = ask(stack, PATHS[0], access_control_request_headers='authorization"; <b>')
    assert "access-control-allow-headers" not in reply.headers


# What is sent, and its status.
CALLS: dict[str, tuple[int, dict[str, Any]]] = {
    "whole": (200, {"model": "m"}),
    "stream": (200, {"model": "m", "stream": True}),
    "unknown-model": (404, {"model": "nothing"}),
    "no-worker": (503, {"model": "gone"}),
    "no-key": (401, {"model": "m"}),
}


@pytest.mark.parametrize("origin", [PAGE, STRANGER, None])
def test_every_kind_of_reply_carries_the_headers_for_browsers(stack: Stack, origin: str | None) -> None:
    """One dialect for each kind of reply: the wrapper knows none."""
    for (path, body), (call, (status, changes)) in zip(sorted(REQUESTS.values(), key=str), CALLS.items(), strict=False):
        headers = {} if call == "no-key" else {"authorization": f"Bearer {SECRET}", "api-key": SECRET}
        reply = httpx.post(
            stack.url + path, json={**body, **changes}, headers={**headers, **({"origin": origin} if origin else {})}
        )
        assert reply.status_code in {status, 400 if status == 404 else status}, reply.text
        told(reply, origin)
    told(httpx.post(stack.url + "/v1/nothing", headers={"origin": origin} if origin else {}), origin)


_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%b"
LATE: dict[int, bytes] = {
    400: _HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    408: _HEAD + b"x: ",
    413: _HEAD + b"authorization: Bearer " + SECRET.encode() + b"\r\ncontent-length: 100000000\r\n\r\n",
    431: _HEAD + b"x: " + b"a" * 40_000,
}


@pytest.fixture(scope="module")
def hurried() -> Iterator[Stack]:
    """It waits no longer for a head than tests do."""
    config = {"cors": {"origins": [PAGE]}, "keys": ENTRY}
    with Stack(config=config, listen=Listen(header_timeout_s=0.2)) as running:
        yield running


@pytest.mark.parametrize(("status", "origin"), [*zip(LATE, [PAGE, STRANGER, None, PAGE], strict=True)])
def test_what_the_server_refuses_before_any_dialect_too(hurried: Stack, status: int, origin: str | None) -> None:
    with Raw(hurried) as client:
        client.send(LATE[status] % (f"origin: {origin}\r\n".encode() if origin else b""))
        found, headers, body = client.response()
    assert found == status
    told(httpx.Response(status, headers=headers, content=body), origin)


def told(reply: httpx.Response, origin: str | None) -> None:
    found = cors(reply)
    assert reply.headers["vary"] == "origin", "a cache must not give one page's reply to another"
    if origin == PAGE:
        assert found.pop("access-control-expose-headers").split(", ") == list(EXPOSED)
        assert found == {"access-control-allow-origin": PAGE, "access-control-allow-credentials": "true"}
    else:
        assert found == {}


@pytest.mark.parametrize("path", ["/livez", "/metrics"])
def test_the_gateways_own_paths_are_for_no_page(stack: Stack, path: str) -> None:
    assert cors(httpx.get(stack.url + path, headers={"origin": PAGE})) == {}
    assert cors(ask(stack, path)) == {}


def test_off_by_default() -> None:
    with Stack() as stack:
        reply = httpx.post(stack.url + "/v1/chat/completions", json={**CHAT, "model": "m"}, headers={"origin": PAGE})
        assert (reply.status_code, cors(reply), "vary" in reply.headers) == (200, {}, False)
        assert ask(stack, "/v1/chat/completions").status_code == 405


def test_every_origin_and_chosen_headers() -> None:
    config = {"cors": {"origins": ["*"], "headers": ["Authorization", "Content-Type"], "max_age": 5}}
    with Stack(config=config) as stack:
        reply = ask(stack, "/v1/chat/completions", origin=STRANGER, access_control_request_headers="x-other")
        assert cors(reply) == {
            "access-control-allow-origin": "*",
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-max-age": "5",
        }
        reply = httpx.get(stack.url + "/v1/models", headers={"origin": STRANGER})
        assert (cors(reply)["access-control-allow-origin"], "vary" in reply.headers) == ("*", False)


def test_a_reload_changes_it() -> None:
    with Stack() as one:
        one.run(one.gateway.reload(one.config({"cors": {"origins": [PAGE]}})))
        assert ask(one, "/v1/models").status_code == 204
        one.run(one.gateway.reload(one.config()))
        assert ask(one, "/v1/models").status_code == 405


def test_origins_are_taken_as_browsers_write_them() -> None:
    written = {
        "https://Chat.Example.com/": "https://chat.example.com",
        "https://a:443": "https://a",
        "http://localhost:3000": "http://localhost:3000",
        "http://[::1]:80": "http://[::1]",
        "chrome-extension://abcdef": "chrome-extension://abcdef",
        "null": "null",
    }
    assert CorsOptions(origins=tuple(written)).origins == tuple(written.values())
    for wrong in ("https://a/path", "a.example.com", "https://*.example.com", "https://a:0", ""):
        with pytest.raises(ValidationError, match="must be"):
            CorsOptions.model_validate({"origins": [wrong]})


def test_a_page_may_read_every_header_that_a_dialect_sends() -> None:
    """By the golden transcripts, which hold replies of every kind."""
    names: set[str] = set()
    for path in GOLDEN.glob("*/*.txt"):
        reply = path.read_text().split("\nclient <\n")[1].split("\n\n")[0]
        names.update(re.findall(r"^([a-z0-9-]+): ", reply, re.MULTILINE))
    assert "x-request-id" in names
    assert names - ALWAYS <= set(EXPOSED)
