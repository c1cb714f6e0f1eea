"""Content codings: every text comes back, however it arrives; what is wrong, or expands beyond bounds, is refused."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Kind
from gateway.wire.codings import DECODERS, SERVED, Decoder, coding_of
from tests.support.coding import CODED, zstd
from tests.support.sampled import examples

MIB = 1 << 20


def expanded(coding: str, body: bytes, most: int = 1 << 25, block: int = 0, piece: int = 1 << 16) -> bytes:
    decoder, parts = Decoder(coding, most), []
    for start in range(0, len(body), block or len(body) or 1):
        decoder.feed(body[start : start + (block or len(body))])
        while not decoder.hungry:
            parts.append(decoder.take(piece))
            assert len(parts[-1]) <= max(4 * piece, 1 << 17)
    decoder.end()
    return b"".join(parts)


def refused(coding: str, body: bytes, most: int = 1 << 25, block: int = 0) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        expanded(coding, body, most, block)
    return caught.value


@pytest.mark.parametrize("name", CODED)
@given(text=st.binary(max_size=2000), times=st.integers(1, 40), block=st.integers(1, 300), piece=st.integers(1, 5000))
@settings(max_examples=examples(60))
def test_every_text_comes_back(name: str, text: bytes, times: int, block: int, piece: int) -> None:
    value, encode = CODED[name]
    coding = coding_of([(b"content-encoding", value.encode())])
    assert coding is not None
    assert expanded(coding, encode(text * times), block=block, piece=piece) == text * times


@pytest.mark.parametrize("name", CODED)
def test_a_large_text_comes_back(name: str) -> None:
    value, encode = CODED[name]
    coding = coding_of([(b"content-encoding", value.encode())]) or ""
    text = random.Random(name).randbytes(3 * MIB) + b"a line of a log\n" * 100_000
    body = encode(text)
    assert expanded(coding, body) == expanded(coding, body, block=65536) == text


@pytest.mark.parametrize("name", CODED)
def test_a_body_that_is_cut_or_changed_is_malformed(name: str) -> None:
    value, encode = CODED[name]
    coding = coding_of([(b"content-encoding", value.encode())]) or ""
    body = encode(random.Random(1).randbytes(5000))
    for cut in (0, 1, 2, len(body) // 2, len(body) - 1):
        error = refused(coding, body[:cut])
        assert (error.kind, error.code) == (Kind.BAD_REQUEST, "invalid_content_encoding"), cut
    for block in (0, 100):
        assert refused(coding, body + b"{}", block=block).code == "invalid_content_encoding"
        assert refused(coding, b'{"model": "m"}', block=block).code == "invalid_content_encoding"


@pytest.mark.parametrize("coding", DECODERS)
def test_a_text_beyond_the_limit_is_refused_while_it_expands(coding: str) -> None:
    """A text of a gigabyte, in a body that is small: no more than the limit and a few pieces are ever in memory."""
    text, encode = b" " * (64 * MIB), CODED[coding][1]
    body = encode(text)
    tracemalloc.start()
    try:
        error = refused(coding, body, most=8 * MIB)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.kind is Kind.TOO_LARGE
    assert held < 16 * MIB
    assert refused(coding, encode(b"abc" * 1000), most=2999).kind is Kind.TOO_LARGE
    assert expanded(coding, encode(b"abc" * 1000), most=3000) == b"abc" * 1000


@pytest.mark.parametrize("coding", DECODERS)
def test_a_text_of_many_times_its_body_is_refused_unless_it_is_short(coding: str) -> None:
    encode = CODED[coding][1]
    assert expanded(coding, encode(b" " * (4 * MIB))) == b" " * (4 * MIB)
    error = refused(coding, encode(b" " * (16 * MIB)))
    assert (error.kind, error.code) == (Kind.TOO_LARGE, "body_too_dense")
    words = " ".join(random.Random(3).choices(["the", "model", "reads", "prompts", "of", "words"], k=2 * MIB)).encode()
    assert expanded(coding, encode(words)) == words


def test_members_without_text_are_bounded() -> None:
    for coding, empty in (("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b""))):
        assert expanded(coding, empty * 1000) == b""
        assert refused(coding, empty * 2000).code == "invalid_content_encoding"


def test_one_piece_takes_a_bounded_part_of_the_input() -> None:
    """However little text it makes: a piece is what the event loop does without a break."""
    empty = b"\x00\x00\x00\xff\xff" * 200_000  # blocks of deflate that are stored, and hold nothing
    decoder = Decoder("deflate", MIB)
    decoder.feed(empty + b"\x01\x00\x00\xff\xff")
    pieces = 0
    while not decoder.hungry:
        assert decoder.take(65536) == b""
        pieces += 1
    decoder.end()
    assert pieces >= 3


def test_windows_beyond_the_standard_are_refused() -> None:
    """A decoder needs the memory that a frame asks for before it has read any of it."""
    options = {int(zstd.CompressionParameter.window_log): 27}
    body = zstd.compress(b" " * (100 * MIB), options=options)
    assert refused("zstd", body, most=1 << 30).code == "invalid_content_encoding"
    assert refused("br", CODED["br"][1](b"x")[:-1] + b"\x11\x1e").code == "invalid_content_encoding"


@pytest.mark.parametrize(
    "lines", [[], [b"identity"], [b" Identity "], [b""], [b"identity", b"identity"], [b"identity, ,"]]
)
def test_no_coding_is_none(lines: list[bytes]) -> None:
    assert coding_of([(b"content-encoding", line) for line in lines]) is None


@pytest.mark.parametrize(
    "lines",
    [[b"compress"], [b"gzip, gzip"], [b"gzip", b"br"], [b"deflate, gzip"], [b"aws-chunked"], [b"x"], [b"\xff"], [b"*"]],
)
def test_a_coding_that_is_not_served_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(GatewayError) as caught:
        coding_of([(b"content-encoding", line) for line in lines])
    assert (caught.value.kind, caught.value.code) == (Kind.MEDIA_TYPE, "unsupported_content_encoding")
    assert SERVED.decode() in caught.value.message


@pytest.mark.parametrize("line", [b"GZIP", b"gzip, identity", b"identity,\tgzip", b" gzip "])
def test_a_coding_is_read_in_any_of_its_forms(line: bytes) -> None:
    assert coding_of([(b"content-encoding", line)]) == "gzip"


def test_those_that_are_named_are_those_that_are_served() -> None:
    assert SERVED.decode().split(", ") == sorted(DECODERS)
