"""Event-stream frames: the recorded bytes, botocore's own reader as oracle, and what is no frame."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Kind
from gateway.wire.awsevent import Frame, Reader, framer

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
    frame = framer(headers)(payload)
    assert frame.hex() == recorded
    assert Reader().feed(frame) == [Frame(headers, payload)]


names = st.text(min_size=1, max_size=20)
frames = st.tuples(st.dictionaries(names, st.text(max_size=50), max_size=4), st.binary(max_size=300))


@given(st.lists(frames, max_size=4), st.data())
def test_what_is_written_is_read_by_botocore_and_by_us_cut_anywhere(
    written: list[tuple[dict[str, str], bytes]], data: st.DataObject
) -> None:
    stream = b"".join(framer(headers)(payload) for headers, payload in written)
    theirs: Any = EventStreamBuffer()
    theirs.add_data(stream)
    assert [(event.headers, event.payload) for event in theirs] == written
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, found = Reader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert [(frame.headers, frame.payload) for frame in found + reader.eof()] == written


def test_an_end_inside_a_frame_is_told_from_one_between_frames() -> None:
    frame = framer(PART)(b"x")
    for length in range(1, len(frame)):
        reader = Reader()
        assert reader.feed(frame[:length]) == []
        with pytest.raises(GatewayError) as caught:
            reader.eof()
        assert caught.value.kind is Kind.TRUNCATED
    reader = Reader()
    assert len(reader.feed(frame)) == 1
    assert reader.eof() == []


def test_every_flipped_byte_is_found() -> None:
    frame = framer(PART)(b"payload")
    for position in range(len(frame)):
        broken = bytearray(frame)
        broken[position] ^= 0x20
        with pytest.raises(GatewayError) as caught:
            Reader().feed(bytes(broken))
        assert caught.value.kind is Kind.UPSTREAM


def _raw(total: int, headers_length: int, rest: bytes) -> bytes:
    """A frame with right checksums around whatever lengths and headers."""
    from zlib import crc32

    lengths = total.to_bytes(4, "big") + headers_length.to_bytes(4, "big")
    front = lengths + crc32(lengths).to_bytes(4, "big") + rest
    return front + crc32(front).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (_raw(15, 0, b""), "length"),
        (_raw(16, 1, b""), "length"),
        (_raw(1 << 31, 0, b""), "length"),
        (_raw(1 << 20, 1 << 18, b""), "length"),
        (_raw(19, 3, b"\x01a\x00"), "not text"),
        (_raw(18, 2, b"\x05a"), "not whole"),
        (_raw(21, 5, b"\x01a\x07\x00\x09"), "not text"),
        (_raw(22, 6, b"\x01a\x07\x00\x01\xff"), "not whole"),
    ],
)
def test_frames_that_cannot_be(frame: bytes, why: str) -> None:
    with pytest.raises(GatewayError) as caught:
        Reader().feed(frame)
    assert why in caught.value.message
