"""multipart/form-data (RFC 7578): a client's body to the parts of an upload, and a worker's body from them.

Texts are kept, up to a bound; the bytes of files are handed on as they come, so that no upload need be in memory. The
parser is python-multipart's. It takes a millisecond for the worst megabyte, and it bounds the heads of parts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError

from gateway.core.errors import GatewayError, Kind
from gateway.core.upload import Body, File, Form, Source

MOST_PARTS = 100
"""OpenAI's API takes 16 images, and a few dozen texts."""
MOST_TEXT_BYTES = 1 << 18
"""All texts of one upload together."""
MOST_HEAD_BYTES = 4096
"""One field in a part's head."""
_MOST_HEADS = 8
_MOST_OPTIONS = 64  # of a head, by either of two rules: each costs a microsecond
_HEAD = 512
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}\Z")
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]\Z")
_OPTION = rb';[ \t]*+(?:([^\s;="]++)[ \t]*+=[ \t]*+(?:"(%b)"[ \t]*+|([^";]*+)))?+(?=;|\Z)'
_ESCAPED = re.compile(_OPTION % rb'(?:[^"\\]|\\.)*+')  # RFC 9110, 5.6.4
_LITERAL = re.compile(_OPTION % rb'[^"]*+')  # browsers: a backslash is one, and a quote is written %22
_ESCAPE = re.compile(rb'\\(["\\])')
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff/\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_NAME = 255
_LONGEST_TYPE = 1024
_BINARY = "application/octet-stream"
_PLAIN = (b"", b"7bit", b"8bit", b"binary")


class FormReader:
    """Reads one body. keep: takes the bytes of files.

    Raises GatewayError, here too: MEDIA_TYPE for another type of body, BAD_REQUEST for one that is malformed, TOO_LARGE
    for too many parts and too much text.
    """

    def __init__(self, content_type: bytes | None, keep: Callable[[bytes], object]) -> None:
        self._keep = keep
        self._fields: list[tuple[str, str]] = []
        self._files: list[File] = []
        self._text = 0
        self._at = 0  # of the next byte of a file
        self._heads: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._field = ""
        self._file: tuple[str, str] | None = None  # its name and type
        self._begin = bytearray()  # of the file, or all of the text
        self._started = 0
        self._ended = False
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._head_name,
                "on_header_value": self._head_value,
                "on_header_end": self._head_ends,
                "on_headers_finished": self._heads_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._end,
            },
            max_header_count=_MOST_HEADS,
            max_header_size=MOST_HEAD_BYTES,
        )

    def feed(self, block: bytes) -> None:
        try:
            self._parser.write(block)
        except FormParserError:
            raise _malformed() from None

    def parts(self) -> tuple[Sequence[tuple[str, str]], Sequence[File]]:
        """The texts by name and the files, once the body has ended."""
        if not self._ended:
            raise _malformed("it ends before its last boundary")
        return tuple(self._fields), tuple(self._files)

    def end(self, source: Source) -> Form:
        """The same as an upload, whose files are in `source`."""
        return Form(*self.parts(), source)

    # -- called by the parser ---------------------------------------------------------------------------------------

    def _part_begins(self) -> None:
        if len(self._fields) + len(self._files) >= MOST_PARTS:
            raise GatewayError(Kind.TOO_LARGE, f"the upload has more than {MOST_PARTS} parts", code="too_many_parts")
        self._heads = {}

    def _head_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _head_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _head_ends(self) -> None:
        name, value, self._name, self._value = self._name.lower(), self._value, b"", b""
        if name in self._heads:
            raise _malformed("a part has the same header twice")
        self._heads[name] = value

    def _heads_end(self) -> None:
        coding = self._heads.get(b"content-transfer-encoding", b"").strip().lower()
        if coding not in _PLAIN:
            raise _malformed("a part has a transfer encoding")
        head = self._heads.get(b"content-disposition", b"")
        options = _options(head)
        if _value(head) != b"form-data" or b"name" not in options:
            raise _malformed("a part has no name")
        self._field = _decoded(options[b"name"])
        if _CONTROL.search(self._field):
            raise _malformed("the name of a part has a control character")
        self._file = None
        if b"filename" in options:
            kind = self._heads.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip()
            filename = _UNFIT.sub("_", _decoded(options[b"filename"]))[-_LONGEST_NAME:] or "file"
            self._file = filename, kind if _TYPE.match(kind) else _BINARY
        self._begin = bytearray()
        self._started = self._at

    def _data(self, data: bytes, start: int, end: int) -> None:
        block = data[start:end]
        if self._file is None:
            self._text += len(block)
            if self._text > MOST_TEXT_BYTES:
                message = f"the texts of the upload have more than {MOST_TEXT_BYTES} bytes: a file needs a filename"
                raise GatewayError(Kind.TOO_LARGE, message, code="too_much_text")
            self._begin += block
            return
        self._keep(block)
        self._at += len(block)
        if len(self._begin) < _HEAD:
            self._begin += block[: _HEAD - len(self._begin)]

    def _part_ends(self) -> None:
        if self._file is None:
            self._fields.append((self._field, _decoded(bytes(self._begin))))
            return
        filename, kind = self._file
        size = self._at - self._started
        self._files.append(File(self._field, filename, kind, self._started, size, bytes(self._begin)))

    def _end(self) -> None:
        self._ended = True


def _boundary(content_type: bytes | None) -> bytes:
    head = (content_type or b"")[:_LONGEST_TYPE]
    if _value(head) != b"multipart/form-data":
        raise GatewayError(Kind.MEDIA_TYPE, "the content type must be multipart/form-data")
    boundary = _options(head).get(b"boundary", b"")
    if not _BOUNDARY.match(boundary):
        raise _malformed("its content type names no boundary")
    return boundary


def _value(head: bytes) -> bytes:
    """The value of a header without its options, in lower case."""
    return head.partition(b";")[0].strip(b" \t").lower()


def _options(head: bytes) -> dict[bytes, bytes]:
    """A header's options, by lower-case names; `filename*` and its like have no meaning here (RFC 7578, 4.2).

    Some clients escape quotes and backslashes, others escape neither: what is malformed by the rules of the former is
    read by those of the latter. Raises GatewayError if it is malformed by both, or names an option twice.
    """
    begin, left = len(head.partition(b";")[0]), 2 * _MOST_OPTIONS
    for form in (_ESCAPED, _LITERAL):
        options: dict[bytes, bytes] = {}
        at = begin
        while (found := form.match(head, at)) is not None:
            at, left = found.end(), left - 1
            if not left:
                raise _malformed("a header has too many options")
            name, quoted, plain = found.groups()
            if name is None or b"*" in name:
                continue
            if name.lower() in options:
                raise _malformed("an option of a header is there twice")
            text = plain.strip(b" \t") if quoted is None else quoted
            options[name.lower()] = text if quoted is None or form is _LITERAL else _ESCAPE.sub(rb"\1", text)
        if at == len(head):
            return options
    raise _malformed("an option of a header is malformed")


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _malformed("a text of it is not UTF-8") from None


def _malformed(why: str = "") -> GatewayError:
    message = "the request body is not valid multipart/form-data" + (f": {why}" if why else "")
    return GatewayError(Kind.BAD_REQUEST, message, code="invalid_multipart")


def written(fields: Iterable[tuple[str, str]], form: Form) -> tuple[bytes, bytes | Body]:
    """(the content type, the body) of an upload with these texts and the files of `form`. The texts come first, so that
    a worker knows what is asked of it before it has read a file."""
    boundary = secrets.token_hex(16).encode()  # in no file, but by chance
    head = bytearray()
    for name, value in fields:
        head += b"--%b\r\nContent-Disposition: form-data; name=%b\r\n\r\n" % (boundary, _quoted(name))
        head += value.encode() + b"\r\n"
    pieces: list[bytes | tuple[int, int]] = []
    for file in form.files:
        options = [b"name=" + _quoted(file.field), b"filename=" + _quoted(file.filename)]
        if file.field.endswith("\\"):
            options.reverse()  # python-multipart, which vLLM reads with, splits nothing behind \\"
        head += b"--%b\r\nContent-Disposition: form-data; %b\r\nContent-Type: %b\r\n\r\n" % (
            boundary,
            b"; ".join(options),
            file.content_type.encode(),
        )
        pieces += (bytes(head), (file.start, file.size))
        head = bytearray(b"\r\n")
    head += b"--%b--\r\n" % boundary
    pieces.append(bytes(head))
    whole = form.source.whole
    kind = b"multipart/form-data; boundary=" + boundary
    if whole is None:
        return kind, Body(tuple(pieces), form.source)
    found = [one if isinstance(one, bytes) else whole[one[0] : one[0] + one[1]] for one in pieces]
    return kind, b"".join(found)


def _quoted(name: str) -> bytes:
    """As browsers write it (WHATWG HTML, "multipart/form-data encoding algorithm"), and with backslashes escaped, as
    httpx does: readers by RFC 9110 take one before the closing quote for an escape."""
    escaped = name.replace("\\", "\\\\").replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
    return b'"%b"' % escaped.encode()
