"""Compressed requests through a whole gateway: every path of every dialect, uploads, files, limits and the budget."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.auth import new_key
from gateway.wire.codings import Decoder
from tests.laws.conformance.cases import DIALECTS
from tests.support.clients import MEDIA, WAYS, Way
from tests.support.coding import CODED, post
from tests.support.harness import Stack, until
from tests.support.sampled import of_dialect, sampled
from tests.unit.app.media import TRANSCRIBE, TYPE, Worker, sound

MIB = 1 << 20
CHAT = "/v1/chat/completions"
LONG = ({"max_model_len": 1 << 20},)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(LONG, {"dialects": {name: {"default_model": "m"} for name in DIALECTS}}) as running:
        yield running


def asked(stack: Stack) -> list[Any]:
    """All that the worker was asked by POST."""
    return [json.loads(entry.body) for entry in stack.sim.ledger.entries if entry.method == "POST"]


@pytest.mark.parametrize("way", sampled(WAYS, 4, of_dialect), ids=str)
def test_the_worker_gets_the_same_from_every_coding(stack: Stack, way: Way) -> None:
    text = json.dumps(way.body("a text of some words " * 20, model="m")).encode()
    plain = post(stack, way.path("m"), text, "identity")
    before = len(asked(stack))
    for value, encode in CODED.values():
        reply = post(stack, way.path("m"), encode(text), value)
        assert (reply.status_code, reply.headers["content-type"]) == (plain.status_code, plain.headers["content-type"])
    assert plain.status_code == (400 if way.operation in MEDIA else 200), plain.text
    bodies = [{**body, "seed": None} for body in asked(stack)[before:]]  # one dialect draws its seeds
    assert all(body == bodies[0] for body in bodies)


@pytest.mark.parametrize("way", sampled(WAYS, 4, of_dialect), ids=str)
def test_a_coding_that_is_not_served_is_refused_in_the_callers_dialect(stack: Stack, way: Way) -> None:
    """With the header that names those that are served; nothing of the body is read."""
    for coding in ("compress", "gzip, gzip"):
        reply = post(stack, way.path("m"), b"no json", coding)
        assert reply.headers["accept-encoding"] == "br, deflate, gzip, zstd"
        assert reply.status_code in (400, 415), reply.text
        assert "br, deflate, gzip, zstd" in reply.text
        record = stack.record()
        assert (record["dialect"], record["status"]) == (way.dialect, reply.status_code)
    plain = post(stack, way.path("m"), b"no json", "identity")
    assert "accept-encoding" not in plain.headers


@pytest.mark.parametrize("name", CODED)
def test_a_large_text_is_expanded_in_threads_and_forgotten(stack: Stack, name: str) -> None:
    value, encode = CODED[name]
    words = " ".join(f"{at:x} word" for at in range(120_000))
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": 2}).encode()
    assert len(text) > MIB
    reply = post(stack, CHAT, encode(text), value)
    assert reply.status_code == 200, reply.text
    assert asked(stack)[-1]["messages"][0]["content"] == words
    stack.record()
    until(lambda: stack.gateway.deployment.runtime.body_budget.reserved == 0)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "m"}', 400, "invalid_content_encoding"),
        (gzip.compress(b"x" * 1000)[:-5], 400, "invalid_content_encoding"),
        (20 * MIB, 413, "body_too_dense"),
        (100 * MIB, 413, "body_too_dense"),
        (gzip.compress(b"no json"), 400, "invalid_json"),
        (b"", 400, "invalid_content_encoding"),
    ],
    ids=["plain", "cut", "dense", "bomb", "no json", "empty"],
)
def test_what_is_wrong_with_a_body_is_told(stack: Stack, body: bytes | int, status: int, code: str) -> None:
    """body: as sent, or how many spaces it holds."""
    reply = post(stack, CHAT, body if isinstance(body, bytes) else gzip.compress(b" " * body), "gzip")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    stack.record()
    until(lambda: stack.gateway.deployment.runtime.body_budget.reserved == 0)


def lines(count: int) -> bytes:
    """A chat whose text has little that repeats."""
    content = " ".join(f"{at * 7919:x}" for at in range(count))
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


def test_a_text_beyond_the_bounds_of_bodies_is_refused() -> None:
    """One that is too large by itself, and one for which the others leave no room; what it held is free again."""
    listen = {"max_body_bytes": 600_000, "max_bodies_bytes": 600_000}
    with Stack(LONG, {"listen": listen}) as stack:
        budget = stack.gateway.deployment.runtime.body_budget
        for coding in ("gzip", "zstd", "br"):
            large = CODED[coding][1](lines(120_000))
            assert len(large) < 600_000 < len(lines(120_000))
            assert post(stack, CHAT, large, coding).status_code == 413
        assert post(stack, CHAT, gzip.compress(lines(20_000)), "gzip").status_code == 200
        stack.record()
        assert budget.take(500_000, "another")
        reply = post(stack, CHAT, gzip.compress(lines(60_000)), "gzip")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_room_for_body")
        stack.record()
        assert budget.reserved == 500_000


def test_limits_come_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is over a limit of requests has no long body expanded, and a stranger none at all."""
    expanded: list[int] = []
    whole = Decoder.take

    def take(decoder: Decoder, size: int) -> bytes:
        expanded.append(size)
        return whole(decoder, size)

    monkeypatch.setattr(Decoder, "take", take)
    secret, entry = new_key("k")
    keys = yaml.safe_load(entry)
    keys["k"]["limits"] = {"requests": 1}
    with Stack(LONG, {"keys": keys}) as stack:
        body = gzip.compress(lines(100_000))
        assert post(stack, CHAT, body, "gzip").status_code == 401
        assert post(stack, CHAT, body, "gzip", authorization="Bearer x").status_code == 401
        assert expanded == []
        assert post(stack, CHAT, body, "gzip", authorization=f"Bearer {secret}").status_code == 200
        assert expanded
        expanded.clear()
        assert post(stack, CHAT, body, "gzip", authorization=f"Bearer {secret}").status_code == 429
        assert expanded == []


@pytest.mark.parametrize("name", CODED)
def test_uploads_alike(hearing: tuple[Stack, Worker], name: str) -> None:
    stack, worker = hearing
    value, encode = CODED[name]
    content = bytes(range(256)) * 2000
    for sent in (sound(b"short"), sound(content)):
        reply = post(stack, TRANSCRIBE, encode(sent), value, **TYPE)
        assert reply.status_code == 200, reply.text
    assert worker.asked[-1].files["file"] == content
    assert "content-encoding" not in worker.asked[-1].headers
    stack.record()
    runtime = stack.gateway.deployment.runtime
    until(lambda: runtime.body_budget.reserved == runtime.budgets.uploads.reserved == 0)


def test_wrong_uploads_alike(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    before = len(worker.asked)
    for body, coding, status, code in (
        (sound(b"x"), "compress", 415, "unsupported_content_encoding"),
        (sound(b"x"), "gzip", 400, "invalid_content_encoding"),
        (gzip.compress(sound(b"x"))[:-9], "gzip", 400, "invalid_content_encoding"),
        (gzip.compress(sound(bytes(8 * MIB))), "gzip", 413, None),
    ):
        reply = post(stack, TRANSCRIBE, body, coding, **TYPE)
        assert reply.status_code == status, reply.text
        assert code in (None, reply.json()["error"]["code"])
        assert ("accept-encoding" in reply.headers) == (status == 415)
    assert len(worker.asked) == before
    until(lambda: stack.gateway.deployment.runtime.budgets.uploads.reserved == 0)
