"""Uploads in and out: any cut, any bytes, any names."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart.multipart import parse_options_header

from gateway.core.errors import GatewayError, Kind
from gateway.core.upload import File, Form, InMemory, seconds_of
from gateway.wire import multipart
from tests.support.sampled import examples
from tests.unit.app.media import wave

EDGE = b"-edge-"
KIND = b"multipart/form-data; boundary=-edge-"
SPECIAL = st.text(st.sampled_from('\\";= a'), min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = SPECIAL | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
BYTES = st.one_of(
    st.binary(max_size=200), st.sampled_from([b"\r\n--" + EDGE[:-1], b"\r\n--", b"--" + EDGE, b"\r\n" * 9])
)


def read(body: bytes, kind: bytes, cuts: list[int]) -> tuple[Form, bytes]:
    """What is read of `body`, which comes in pieces."""
    kept = bytearray()
    reader = multipart.FormReader(kind, kept.extend)
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        reader.feed(body[start:end])
    return reader.end(InMemory()), bytes(kept)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(NAMES, TEXTS), max_size=5),
    st.lists(st.tuples(NAMES, NAMES, BYTES), max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_what_is_written_is_read(
    texts: list[tuple[str, str]], files: list[tuple[str, str, bytes]], cuts: list[int]
) -> None:
    content, found = b"", []
    for field, name, data in files:
        found.append(File(field, name, "audio/wav", len(content), len(data)))
        content += data
    kind, body = multipart.written(texts, Form((), tuple(found), InMemory(content)))
    assert isinstance(body, bytes)
    form, kept = read(body, kind, cuts)
    assert list(form.fields) == [(name.replace('"', "%22"), value) for name, value in texts]
    assert [one.field for one in form.files] == [one[0].replace('"', "%22") for one in files]
    assert kept == content
    assert [kept[one.start : one.start + one.size] for one in form.files] == [data for _, _, data in files]


@settings(max_examples=examples(100))
@given(st.lists(st.one_of(BYTES, st.just(b"\r\n--" + EDGE + b"\r\n")), max_size=8), st.lists(st.integers(0, 999)))
def test_any_bytes_are_read_or_refused(pieces: list[bytes], cuts: list[int]) -> None:
    """However they are cut, with the same result."""
    body = b"--" + EDGE + b"\r\n" + b"".join(pieces)
    results = []
    for at in ([], cuts):
        try:
            form, kept = read(body, KIND, at)
        except GatewayError as error:
            results.append(error.code)
        else:
            results.append(str((form.fields, form.files, kept)))
    assert results[0] == results[1]


@given(st.binary(max_size=300))
def test_any_content_type_is_read_or_refused(kind: bytes) -> None:
    refused = set()
    for one in (kind, b"multipart/form-data;" + kind, b"multipart/form-data; boundary=" + kind):
        try:
            multipart.FormReader(one, len)
        except GatewayError as error:
            refused.add(error.kind)
    assert refused <= {Kind.MEDIA_TYPE, Kind.BAD_REQUEST}


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"Content-Disposition: attachment; name=a", "no name"),
        (b"Content-Disposition: form-data", "no name"),
        (b"X: y", "no name"),
        (b"Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64", "transfer encoding"),
        (b"Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b", "twice"),
        (b"\r\n".join([b"X%d: y" % number for number in range(20)]), "not valid"),
        (b"X: " + b"y" * 5000, "not valid"),
        (b"Content-Disposition: form-data; name=a" + b";" * 128, "too many options"),
        (b'Content-Disposition: form-data; name="a\tb"', "control character"),
        (b"Content-Disposition: form-data; name=a; NAME=b", "twice"),
        (b'Content-Disposition: form-data; name="a"b', "malformed"),
        (b'Content-Disposition: form-data; name="a', "malformed"),
    ],
)
def test_heads_of_parts_are_checked(head: bytes, why: str) -> None:
    with pytest.raises(GatewayError, match=why):
        read(b"--" + EDGE + b"\r\n" + head + b"\r\n\r\nx\r\n--" + EDGE + b"--\r\n", KIND, [])


@pytest.mark.parametrize(
    ("name", "seen"),
    [("../../etc/passwd", ".._.._etc_passwd"), ("", "file"), ("a" * 900, "a" * 255), (";" * 62, ";" * 62)],
)
def test_names_of_files_are_cleaned(name: str, seen: str) -> None:
    head = f'--{EDGE.decode()}\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode()
    form, _ = read(head + b"x\r\n--" + EDGE + b"--\r\n", KIND, [])
    assert form.files[0].filename == seen


@given(SPECIAL, SPECIAL, st.booleans())
def test_names_that_clients_write_are_read(field: str, name: str, escaping: bool) -> None:
    """Of clients that escape quotes and backslashes (curl, aiohttp), and of those that write %22 alone (browsers)."""

    def quoted(text: str) -> str:
        return re.sub(r'(["\\])', r"\\\1", text) if escaping else re.sub(r"\\+", r"\\", text.replace('"', "%22"))

    head = f'Content-Disposition: form-data; name="{quoted(field)}"; filename="{quoted(name)}"'
    body = b"--" + EDGE + f"\r\n{head}\r\n\r\nx\r\n--".encode() + EDGE + b"--\r\n"
    form, _ = read(body, KIND, [])
    seen = (lambda text: text) if escaping else quoted
    assert [(one.field, one.filename) for one in form.files] == [(seen(field), seen(name).replace("\\", "_"))]


@given(SPECIAL, SPECIAL)
def test_what_is_written_is_read_by_the_parser_of_workers(field: str, name: str) -> None:
    form = Form((), (File(field, name.replace("\\", "_"), "audio/wav", 0, 1),), InMemory(b"x"))
    _, body = multipart.written([], form)
    assert isinstance(body, bytes)
    head = re.search(rb"Content-Disposition: (.*)\r\n", body)
    assert head is not None
    found = parse_options_header(head[1])[1]
    seen = {b"name": field, b"filename": name.replace("\\", "_")}
    assert found == {one: text.replace('"', "%22").encode() for one, text in seen.items()}


@given(st.binary(max_size=60))
def test_seconds_of_any_head(head: bytes) -> None:
    for begin in (b"", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEfmt "):
        seconds = seconds_of(File("f", "f", "", 0, 1 << 30, begin + head))
        assert seconds >= (1 << 30) / (192_000 * 8 * 4)


def test_seconds_of_a_wave_file() -> None:
    sound = wave(7)
    assert seconds_of(File("f", "f", "", 0, len(sound), sound[:512])) == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize("at", [22, 24, 28, 32, 34], ids=["channels", "samples", "bytes", "block", "bits"])
def test_a_header_that_is_not_true_makes_no_sound_much_shorter(at: int) -> None:
    sound = bytearray(wave(7))
    for value in (b"\xff\xff", b"\0\0"):
        sound[at : at + 2] = value
        assert seconds_of(File("f", "f", "", 0, len(sound), bytes(sound[:512]))) > 5


def test_seconds_of_any_other_file_are_those_of_its_size() -> None:
    assert seconds_of(File("f", "a.mp3", "", 0, 400_000, b"ID3")) == 10
