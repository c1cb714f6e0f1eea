"""What is streamed has no character at which a reader of lines splits, but for the line feeds of the wire itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.ports import StreamWriter
from gateway.core.usage import Usage
from gateway.wire.json import encode, one_line
from tests.laws.fidelity.matrix import asking
from tests.support.clients import DIALECTS, MEDIA, WAYS, Way

# All at which `str.splitlines` splits.
SEPARATORS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
TEXT = "a" + "b".join(SEPARATORS) + "é"
STREAMED = [way for way in WAYS if way.answers(stream=True) and way.operation not in MEDIA]  # these are not written


def writer(way: Way) -> StreamWriter:
    dialect = DIALECTS[way.dialect]
    op = dialect.read(asking(way.example, way.body(stream=True)))
    return dialect.writer(op)  # type: ignore[arg-type]


def events(way: Way, text: str, *, fails: bool) -> Iterator[Event]:
    logprobs = json.dumps([{"token": text, "logprob": -1.0, "bytes": None, "top_logprobs": []}], ensure_ascii=False)
    yield Start("id" + text, text, 1, fingerprint=text)
    yield PartStart(0, 0, "text")
    yield Delta(0, 0, text, (1,))
    yield Delta(0, 0, text, (2,), Raw(logprobs.encode()))
    yield PartEnd(0, 0)
    if way.operation == "chat":
        for index, kind in ((1, "thinking"), (2, "refusal")):
            yield PartStart(0, index, kind)  # type: ignore[arg-type]
            yield Delta(0, index, text)
            yield PartEnd(0, index)
        yield PartStart(0, 3, "tool", "c" + text, text)
        yield Delta(0, 3, encode({"a": text}).decode())
        yield PartEnd(0, 3)
    if fails:
        yield Failed(GatewayError(Kind.UPSTREAM, text))
        return
    yield Finish(0, "stop", "stop", stop_sequence=text)
    yield UsageReport(Usage(1, 2))
    yield End()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", STREAMED, ids=str)
def test_no_line_is_split(way: Way, fails: bool) -> None:
    found = writer(way)
    stream = b"".join(found.write(event) for event in events(way, TEXT, fails=fails))
    assert stream.count(b"u2028") > 2
    for separator in SEPARATORS[1:]:
        if ord(separator) >= 0x80:  # a frame of boto3's has lengths, which may hold any byte
            assert separator.encode() not in stream, hex(ord(separator))
    if b":message-type" not in stream:
        assert stream.decode().splitlines() == stream.decode().split("\n")[:-1]


@given(st.text(alphabet=st.sampled_from('aé\u2028\u2029\x85"\\\n\u20a8\u0428'), max_size=30))
def test_what_is_escaped_means_the_same(text: str) -> None:
    told = one_line(encode(text))
    assert json.loads(told) == text
    assert len(told.decode().splitlines()) <= 1
