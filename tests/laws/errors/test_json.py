"""JSON that must be taken, that must be refused, and that parsers disagree about."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.laws.errors.asking import CHAT, body, in_time
from tests.support.harness import Stack

WHERE = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "metadata": {"k": %b}}'
DEEP = 100_000

# As in JSONTestSuite: y must be taken, n must be refused, i is ours to decide (but never a 5xx).
YES = {
    "object": b"{}",
    "empty-key": b'{"": 0}',
    "nested": b"[[[]]]",
    "escapes": rb'"\"\\\/\b\f\n\r\t\u0041"',
    "surrogate-pair": rb'"\ud834\udd1e"',
    "nul-escape": rb'"\u0000"',
    "utf-8": "\u20ac\U0001d11e\u2028".join('""').encode(),
    "del": b'"\x7f"',
    "minus-zero": b"-0",
    "exponent": b"1E+2",
    "small": b"1e-400",
    "fraction": b"0.1e1",
    "literals": b"[true, false, null]",
    "spaces": b" [\t\r\n1 ] ",
}

NO = {
    "duplicate": b'{"a": 1, "a": 2}',
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "leading-zero": b"012",
    "plus": b"+1",
    "bare-fraction": b".5",
    "no-fraction": b"1.",
    "no-exponent": b"1e",
    "hex": b"0x1",
    "single-quotes": b"'a'",
    "bare-key": b"{a: 1}",
    "trailing-comma": b"[1,]",
    "trailing-comma-object": b'{"a": 1,}',
    "comment": b"1 /* a */",
    "unclosed": b"[1",
    "unopened": b"1]",
    "colon-in-array": b'["a": 1]',
    "raw-newline": b'"a\nb"',
    "raw-nul": b'"a\0b"',
    "bad-escape": rb'"\x41"',
    "short-escape": rb'"\u00"',
    "not-utf-8": b'"\xff"',
    "overlong": b'"\xc0\xaf"',
    "utf-8-surrogate": b'"\xed\xa0\x80"',
    "literal-case": b"True",
    "two-values": b"1 2",
    "form-feed": b"\x0c1",
    "no-break-space": b"\xc2\xa01",
}

MAYBE = {
    "lone-surrogate": rb'"\ud800"',
    "reversed-surrogates": rb'"\udd1e\ud834"',
    "huge": b"1e400",
    "5k-digits": b"1" * 5000,
    "5k-fraction": b"0." + b"1" * 5000,
    "deep-array": b"[" * DEEP + b"]" * DEEP,
    "deep-object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "bom": b"\xef\xbb\xbf1",
}


def ask(client: httpx.Client, content: bytes, path: str = CHAT) -> httpx.Response:
    return client.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("name", YES)
def test_json_that_must_be_taken(client: httpx.Client, name: str) -> None:
    assert ask(client, WHERE % YES[name]).status_code == 200


@pytest.mark.parametrize("name", NO)
@pytest.mark.parametrize("inside", [True, False])
def test_json_that_must_be_refused(client: httpx.Client, stack: Stack, name: str, inside: bool) -> None:
    before = stack.sim.ledger.received
    reply = ask(client, WHERE % NO[name] if inside else NO[name])
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] in ("invalid_json", "invalid_value", "duplicate_member")
    assert stack.sim.ledger.received == before
    in_time(reply)


@pytest.mark.parametrize("name", MAYBE)
@pytest.mark.parametrize("where", ["metadata", "unknown", "temperature", "model", "messages", "tools", "top", "key"])
def test_json_at_our_discretion_is_never_our_fault(client: httpx.Client, name: str, where: str) -> None:
    value = MAYBE[name]
    content = {
        "metadata": WHERE % value,
        "unknown": WHERE.replace(b'"metadata": {"k": %b}', b'"unheard_of": %b') % value,
        "temperature": WHERE.replace(b'"metadata": {"k": %b}', b'"temperature": %b') % value,
        "model": b'{"messages": [{"role": "user", "content": "hi"}], "model": %b}' % value,
        "messages": b'{"model": "m", "messages": [{"role": "user", "content": %b}]}' % value,
        "tools": WHERE.replace(
            b'"metadata": {"k": %b}',
            b'"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %b}}}]',
        )
        % value,
        "top": value,
        "key": WHERE.replace(b'"metadata": {"k": %b}', b"%b: 1") % (value if value.startswith(b'"') else b'"k"'),
    }[where]
    reply = ask(client, content)
    assert reply.status_code < 500, reply.text[:300]
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]
        assert len(reply.content) < 1000
    in_time(reply)


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": "m", "model": "other", "messages": []}',
        b'{"model": "other", "messages": [{"role": "user", "content": "hi"}], "model": "m"}',
        b'{"Model": "m", "messages": []}',
        b'{"model": "m", "MODEL": "other", "messages": []}',
        b'{"model": "m", " model": "other", "messages": []}',
        rb'{"model": "m", "mod\u0065l": "other", "messages": []}',
        rb'{"mod\u0065l": "m", "mod\u0065l": "other", "messages": []}',
    ],
)
def test_an_ambiguous_model_reaches_no_worker(client: httpx.Client, stack: Stack, content: bytes) -> None:
    before = stack.sim.ledger.received
    reply = ask(client, content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "ambiguous_model")
    assert stack.sim.ledger.received == before


def test_the_word_model_elsewhere_is_no_ambiguity(client: httpx.Client) -> None:
    members = {"metadata": {"model": "x"}, "user": '"model"', "x": [{"model": 1}, {"model": 2}]}
    assert client.post(CHAT, json=body(**members)).status_code == 200


def test_the_worker_sees_the_model_that_was_authorised(client: httpx.Client, stack: Stack) -> None:
    client.post(CHAT, json=body(model="alias"))
    assert json.loads(stack.sim.entries[-1].body)["model"] == "sim"
