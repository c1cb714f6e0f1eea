"""Event-stream frames: the recorded bytes, and botocore's own reader as oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.awsevent import framer
from tests.support.eventstream import frames

PART = {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
EXCEPTION = {
    ":exception-type": "ModelStreamError",
    ":content-type": "application/json",
    ":message-type": "exception",
}
# As boto3 1.44.5 was seen to accept them.
RECORDED = [
    (
        PART,
        b"data: [DONE]\n\n",
        "00000077000000593c670ae60b3a6576656e742d7479706507000b5061796c6f6164506172740d3a636f6e74656e742d74797065070018"
        "6170706c69636174696f6e2f6f637465742d73747265616d0d3a6d6573736167652d747970650700056576656e74646174613a205b444f"
        "4e455d0a0a23f4e4aa",
    ),
    (
        EXCEPTION,
        b'{"Message":"boom","ErrorCode":"StreamBroken"}',
        "0000009b0000005e4f27b59b0f3a657863657074696f6e2d747970650700104d6f64656c53747265616d4572726f720d3a636f6e74656e"
        "742d747970650700106170706c69636174696f6e2f6a736f6e0d3a6d6573736167652d74797065070009657863657074696f6e7b224d65"
        "7373616765223a22626f6f6d222c224572726f72436f6465223a2253747265616d42726f6b656e227def94b034",
    ),
]


@pytest.mark.parametrize(("headers", "payload", "recorded"), RECORDED)
def test_the_recorded_frames(headers: dict[str, str], payload: bytes, recorded: str) -> None:
    assert framer(headers)(payload).hex() == recorded


names = st.text(min_size=1, max_size=20)


@given(st.dictionaries(names, st.text(max_size=50), max_size=4), st.lists(st.binary(max_size=300), max_size=4))
def test_botocore_reads_what_is_written(headers: dict[str, str], payloads: list[bytes]) -> None:
    frame = framer(headers)
    assert frames(b"".join(map(frame, payloads))) == [(headers, payload) for payload in payloads]


def test_more_lengths_than_are_kept() -> None:
    frame = framer(PART)
    assert [len(one.payload) for one in frames(b"".join(frame(b"x" * size) for size in range(1030)))] == [*range(1030)]


def test_an_end_inside_a_frame_is_found() -> None:
    frame = framer(PART)(b"x")
    for length in range(1, len(frame)):
        with pytest.raises(AssertionError):
            frames(frame[:length])
