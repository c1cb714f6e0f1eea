"""Any value at any place of a worker's reply: what the client gets is strict JSON, or an error in its own form.

Nothing else may come of it: no other exception, and no reply that a client's parser refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Response
from gateway.core.lifecycle import fold
from tests.laws.conformance.cases import BACKENDS, DIALECTS, PAIRS, Case, run
from tests.support.clients import GENERATING, refusal
from tests.support.eventstream import frames
from tests.support.sampled import examples, sampled

ODD = (
    b"1e400",
    b"-1e400",
    b"1" + b"0" * 30,
    b"-9223372036854775809",
    b"18446744073709551616",
    b"9" * 5000,
    b"2147483648",
    b"1e300",
    b"NaN",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\\ud83d"',
    b"[" * 3000 + b"]" * 3000,
    b'{"a":"\xff"}',
    b"[1e400]",
    b'[{"token":7}]',
    b'[{"token":"a"}]',
    b"null",
    b"true",
    b"-1",
    b"1.5",
    b'""',
    b'"text"',
    b"[]",
    b"[null]",
    b"{}",
)
# Members that a worker may send, whether or not a scenario has them.
MORE = (
    "annotations",
    "audio",
    "prompt_logprobs",
    "kv_transfer_params",
    "logprobs",
    "token_ids",
    "created",
    "unheard_of",
)
_HOLE = "the odd value"


def strict(document: bytes) -> Any:
    """Raises AssertionError for what no strict parser reads."""

    def refused(word: str) -> None:
        raise AssertionError(word)

    def number(digits: str) -> int:
        assert len(digits) <= 20
        assert -(2**63) <= int(digits) < 2**64
        return int(digits)

    def finite(digits: str) -> float:
        assert isfinite(float(digits)), digits
        return float(digits)

    return json.loads(document.decode(), parse_constant=refused, parse_int=number, parse_float=finite)


def documents(stream: bytes) -> Iterator[bytes]:
    """The JSON documents of a stream of any wire."""
    if b":message-type" in stream:
        for frame in frames(stream):
            yield from documents(frame.payload + b"\n")
        return
    for line in stream.split(b"\n"):
        line = line.removeprefix(b"data: ")
        if line[:1] in (b"{", b'"'):
            yield line


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document, those of members that could be there among them."""
    if path:
        yield path
    if isinstance(value, dict):
        for name in {*value, *MORE}:
            yield from places(value.get(name), (*path, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from places(item, (*path, place))


def with_odd(document: bytes, path: tuple[str | int, ...], odd: bytes) -> bytes:
    value = json.loads(document)
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = _HOLE
    return json.dumps(value).encode().replace(b'"%b"' % _HOLE.encode(), odd)


def drawn(data: st.DataObject, document: bytes) -> bytes:
    """`document` with an odd value at some place."""
    path = data.draw(st.sampled_from(sorted(places(json.loads(document)), key=str)))
    return with_odd(document, path, data.draw(st.sampled_from(ODD)))


def told(case: Case, error: GatewayError) -> None:
    """The error is the worker's or the request's, and its answer is strict JSON in every header and body."""
    assert error.kind is not Kind.INTERNAL
    response = DIALECTS[case.client.dialect].refuse(error, case.client.ask(case.scenario, stream=True), case.op())[0]
    assert 400 <= response.status < 600
    strict(refusal(response))
    for name, value in response.headers:
        assert name.isascii()
        assert value.decode("ascii").isprintable()


SOME_PAIRS = sampled(PAIRS.values(), 6, lambda cases: cases[0].client.dialect)


@pytest.mark.parametrize("cases", SOME_PAIRS, ids=PAIRS)
@given(data=st.data())
def test_a_stream_with_any_value_is_strict_or_an_error(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    frames = [b"data: " + b"".join(part) + b"\n\n" for part in map(_data, case.frames) if part]
    number = data.draw(st.integers(0, len(frames) - 1))
    document = frames[number][6:-2]
    if document[:1] == b"{":
        frames[number] = b"data: " + drawn(data, document) + b"\n\n"
    out, lane, _ = run(case, frames)
    for said in documents(out):
        strict(said)
    assert lane.done is (lane.error is None)
    if lane.error is not None:
        assert lane.error.blame is not Blame.CLIENT or lane.error.upstream is not None
        told(case, lane.error)


def _data(frame: bytes) -> list[bytes]:
    """The data of one frame, whichever way it is framed."""
    lines = frame.replace(b"\xef\xbb\xbf", b"").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return [line.removeprefix(b"data:").removeprefix(b" ") for line in lines if line.startswith(b"data:")]


@pytest.mark.parametrize("cases", SOME_PAIRS, ids=PAIRS)
@given(data=st.data())
def test_a_whole_reply_with_any_value_is_strict_or_an_error(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    op, dialect, backend = case.op(stream=False), DIALECTS[case.client.dialect], BACKENDS[case.backend]
    whole = case.worker.whole(case.scenario)
    body = drawn(data, whole.body) if whole.body[:1] in (b"{", b"[") else whole.body
    response = Response(200, [*whole.headers, (b"x-prompt-tokens", b"9" * data.draw(st.sampled_from([1, 5000])))], body)
    try:
        if case.lane == "bytes":
            reply, _ = dialect.passthrough[backend.reply_wire(op)].whole(response, op)
        else:
            reply = dialect.write(fold(backend.read(response, op)), op)
    except GatewayError as error:
        told(case, error)
    else:
        strict(reply.body)


_ERRORS = (
    b'{"error":{"message":"m","type":"t","param":"p","code":"content_filter"}}',
    b'{"error":{"message":"m","http_status_code":422}}',
    b'{"error":"m","error_type":"validation"}',
    b'{"object":"error","message":"m","type":"t","param":null,"code":400}',
    b'{"detail":[{"loc":["body","n"],"msg":"m","type":"t"}]}',
)
_WAITS = (
    "1",
    "0",
    "9" * 306,
    "9" * 5000,
    "-1",
    "1e400",
    "soon",
    "",
    "\xff",
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Fri, 31 Dec 99999999999 23:59:59 GMT",
    "Wed, 21 Oct 2015 07:28:00 -9999",
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=examples(200))
@given(data=st.data())
def test_an_error_answer_with_any_value_is_told(backend: str, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([cases[0] for cases in PAIRS.values() if cases[0].backend == backend]))
    status = data.draw(st.sampled_from([200, 204, 301, 400, 401, 404, 413, 422, 424, 429, 500, 501, 503, 599]))
    body = drawn(data, data.draw(st.sampled_from(_ERRORS)))
    wait = data.draw(st.sampled_from(_WAITS)).encode("latin-1")
    error = BACKENDS[backend].fault(Response(status, [(b"retry-after", wait)], body))
    assert error.retry_after is None or 0 <= error.retry_after <= 3600
    told(case, error)


def test_every_wire_is_looked_at() -> None:
    assert {case.backend for cases in PAIRS.values() for case in cases} == set(BACKENDS)
    assert {case.client.dialect for cases in PAIRS.values() for case in cases} == set(GENERATING)
