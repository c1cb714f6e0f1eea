"""Server-sent events: the cases of the web platform tests, and blocks cut anywhere."""

from __future__ import annotations

import re
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Kind
from gateway.wire import sse
from gateway.wire.sse import Frame, Reader
from tests.support.raised import raised
from tests.support.sampled import examples

LONG = "x" * (2 * 1024 + 1)

# eventsource/format-*.any.js of the web platform tests: what is served, and the (type, data) that a page sees. The
# tests' server ends what it serves with an empty line, except where a case is about its absence.
WPT: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "bom": ("\ufeffdata:1\n\n\ufeffdata:2\n\ndata:3\n\n", [("", "1"), ("", "3")]),
    "bom-2": ("\ufeff\ufeffdata:1\n\ndata:2\n\ndata:3\n\n", [("", "2"), ("", "3")]),
    "comments": (
        f"data:1\r:\0\n:\r\ndata:2\n:{LONG}\rdata:3\n:data:fail\r:{LONG}\ndata:4\n\n\n",
        [("", "1\n2\n3\n4")],
    ),
    "data-before-final-empty-line": ("retry:1000\ndata:test1\n\nid:test\ndata:test2", [("", "test1")]),
    "field-data": ("data:\n\ndata\ndata\n\ndata:test\n\n", [("", ""), ("", "\n"), ("", "test")]),
    "field-event": ("event:test\ndata:x\n\ndata:x\n\n", [("test", "x"), ("", "x")]),
    "field-event-empty": ("event: \ndata:data\n\n", [("", "data")]),
    "field-id": ("id: 1\ndata:1\n\nid\ndata:2\n\n", [("", "1"), ("", "2")]),
    "field-parsing": (
        "data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\ndata:4\n"
        "\n\n",
        [("", "\0\n 2\n1\n3\n\n4")],
    ),
    "field-retry": ("retry:03000\ndata:x\n\n", [("", "x")]),
    "field-retry-bogus": ("retry:3000\nretry:1000x\ndata:x\n\n", [("", "x")]),
    "field-unknown": (
        "data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n",
        [("", "test\n\ntest")],
    ),
    "leading-space": ("data:\ttest\rdata: \ndata:test\n\n", [("", "\ttest\n\ntest")]),
    "newlines": ("data:test\r\ndata\ndata:test\r\n\r\n\n", [("", "test\n\ntest")]),
    "null-character": ("data:\0\n\n\n\n", [("", "\0")]),
    "utf-8": ("data:ok…\n\n", [("", "ok…")]),
    "only-comments": (":\n\n: ping\n\n", []),
    "no-data": ("event:x\n\nid:1\n\n", []),
    "separators-of-unicode": ("data:a\u2028b\u2029c\u0085d\x0be\x0cf\n\n", [("", "a\u2028b\u2029c\u0085d\x0be\x0cf")]),
    "crlf": ("data: a\r\n\r\ndata: b\r\n\r\n", [("", "a"), ("", "b")]),
    "cr": ("data: a\r\rdata: b\r\r", [("", "a"), ("", "b")]),
    "empty": ("", []),
    "newlines-only": ("\n\n\n\r\n\r\r", []),
}


def read(*blocks: bytes) -> list[tuple[bytes, bytes]]:
    reader = Reader()
    frames = [frame for block in blocks for frame in reader.feed(block)]
    return [(frame.event, frame.data) for frame in frames]


def by_the_book(stream: bytes) -> list[tuple[bytes, bytes]]:
    """WHATWG HTML §9.2.6 read literally, over a finished stream."""
    found: list[tuple[bytes, bytes]] = []
    data, event = b"", b""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        name, colon, value = line.partition(b":")
        if not line:
            if data:
                found.append((event, data[:-1]))
            data = event = b""
        elif not name and colon:
            continue
        elif name == b"data":
            data += value.removeprefix(b" ") + b"\n"
        elif name == b"event":
            event = value.removeprefix(b" ")
    return found


@pytest.mark.parametrize("name", WPT)
def test_web_platform_case(name: str) -> None:
    text, expected = WPT[name]
    stream = text.encode()
    wanted = [(event.encode(), data.encode()) for event, data in expected]
    assert by_the_book(stream) == wanted
    assert read(stream) == wanted
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == wanted


@pytest.mark.parametrize("name", [name for name, (text, _) in WPT.items() if len(text) < 200])
def test_web_platform_case_cut_in_two_anywhere(name: str) -> None:
    stream = WPT[name][0].encode()
    whole = read(stream)
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == whole, cut


_LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"data: ",
        b"data:  two",
        b": comment",
        b":",
        b"event: error",
        b"event",
        b"id: 7",
        b"retry: 1",
        b"\xef\xbb\xbfdata: no",
        "data: 中文 👩‍👩‍👧 \u2028".encode(),
        b"junk",
        b"",
        b"",
        b"",
    ]
)
_ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])
_STREAMS = st.builds(
    lambda bom, lines, tail: bom + b"".join(line + end for line, end in lines) + tail,
    st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb"]),
    st.lists(st.tuples(_LINES, _ENDS), max_size=24),
    st.sampled_from([b"", b"data: cut", b"\r", b"\xef"]),
)


def rechunked(stream: bytes, random: Random) -> list[bytes]:
    size = random.choice((1, 2, 3, 7, 20))
    blocks, at = [], 0
    while at < len(stream):
        step = random.randint(0, size)
        blocks.append(stream[at : at + step])
        at += step
    return blocks


@settings(max_examples=examples(400))
@given(_STREAMS, st.integers(0, 2**32))
def test_any_blocks_give_the_same_frames(stream: bytes, seed: int) -> None:
    """25 ways to cut each of 400 streams: 10,000 examples."""
    expected = by_the_book(stream)
    assert read(stream) == expected
    random = Random(seed)
    for _ in range(25):
        blocks = rechunked(stream, random)
        assert read(*blocks) == expected, blocks


@given(st.lists(st.tuples(st.binary(max_size=20), st.sampled_from([b"", b"error"])), max_size=6))
def test_what_is_written_is_read_back(frames: list[tuple[bytes, bytes]]) -> None:
    lines = [(event, re.sub(rb"[\r\n]", b"", data)) for data, event in frames]
    written = b"".join(sse.frame(data, event) for event, data in lines)
    assert b"\r" not in written
    assert read(written) == lines


def test_keepalives_between_events_are_no_events() -> None:
    stream = sse.KEEPALIVE + sse.frame(b"1") + sse.KEEPALIVE * 3 + sse.frame(b"2") + sse.KEEPALIVE
    assert read(stream) == [(b"", b"1"), (b"", b"2")]
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == [(b"", b"1"), (b"", b"2")]


def test_the_quick_way_and_the_slow_way_agree() -> None:
    reader = Reader()
    assert reader.feed(b"data: 1\n\n") == [Frame(b"1")]
    quick = reader.feed(b"data: 2\n\nevent: x\ndata: 3\n\n: c\n\ndata: 4\ndata: 5\n\n")
    assert quick == [Frame(b"2"), Frame(b"3", b"x"), Frame(b"4\n5")]
    assert reader.feed(b"data: 6\r\n\r\n") == [Frame(b"6")]
    assert reader.feed(b"data: 7\n\n") == [Frame(b"7")]


def test_frames_come_out_with_the_block_that_ends_them() -> None:
    reader = Reader()
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\ndata: 2") == [Frame(b"1")]
    assert reader.feed(b"\r") == []
    assert reader.feed(b"\r") == [Frame(b"2")]


def test_a_frame_that_never_ends_is_refused() -> None:
    reader = Reader(max_frame=64)
    assert reader.feed(b"data: " + b"x" * 50) == []
    error = raised(reader.feed, b"x" * 50)
    assert error.kind is Kind.UPSTREAM
    assert error.code == "upstream_malformed"


def test_many_frames_in_one_block_may_exceed_the_limit_of_one() -> None:
    reader = Reader(max_frame=64)
    assert len(reader.feed((b"data: " + b"x" * 40 + b"\r\n\r\n") * 10)) == 10


@pytest.mark.parametrize("before", [b"", b"data: 1\n\n"], ids=["slow", "quick"])
def test_a_long_frame_may_have_thousands_of_lines_and_no_more(before: bytes) -> None:
    lines = [b"data: 0123456789abcdef"] * 4096
    reader = Reader()
    reader.feed(before)
    assert reader.feed(b"\n".join(lines) + b"\n\n") == [Frame(b"\n".join(line[6:] for line in lines))]
    for more in (b"data: 2", b":", b"x"):
        reader = Reader()
        reader.feed(before)
        error = raised(reader.feed, b"\n".join([*lines, more]) + b"\n\n")
        assert (error.kind, error.code) == (Kind.UPSTREAM, "upstream_malformed")


def test_a_short_frame_may_have_any_number_of_lines() -> None:
    assert Reader().feed(b"data:\n" * 10_000 + b"\n") == [Frame(b"\n" * 9_999)]


@pytest.mark.parametrize(("filling", "end"), [(b"xx", b"x" * 65_536), (b"x\n", b"\n\n")])
def test_nothing_is_kept_of_a_frame_that_is_refused(filling: bytes, end: bytes) -> None:
    """The error's traceback refers to the reader: as long as that is kept, the frame would be."""
    reader = Reader(max_frame=4_000_000)
    tracemalloc.start()
    try:
        for _ in range(61):
            reader.feed(filling * 32_768)
        with pytest.raises(GatewayError) as raised:
            reader.feed(end)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raised.value.kind is Kind.UPSTREAM
    assert kept < 1_000_000
