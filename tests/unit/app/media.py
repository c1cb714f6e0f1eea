"""What tests of sound and images share: uploads as bytes, WAVE files, and workers that answer by a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from gateway.core.upload import InMemory
from gateway.wire.multipart import FormReader
from tests.support.standins.serving import Answering, serving

TRANSCRIBE = "/v1/audio/transcriptions"
EVENTS = "text/event-stream"
BOUNDARY = "a-boundary"
TYPE = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def wave(seconds: int) -> bytes:
    """A WAVE file of noise, 32 KB a second."""
    data = bytes(range(256)) * (125 * seconds)
    head = b"fmt \x10\0\0\0\x01\0\x01\0" + (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    head += b"\x02\0\x10\0data" + len(data).to_bytes(4, "little")
    return b"RIFF" + (4 + len(head) + len(data)).to_bytes(4, "little") + b"WAVE" + head + data


def part(name: str, content: bytes | str, filename: str | None = None) -> bytes:
    """One part of an upload, with the boundary before it."""
    named = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
    return head + (content if isinstance(content, bytes) else content.encode()) + b"\r\n"


def upload(*parts: bytes) -> bytes:
    """A whole body."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def sound(content: bytes = b"sound", model: str | None = "m", **texts: str) -> bytes:
    """An upload whose model stands behind the file."""
    named = {"model": model, **texts} if model is not None else texts
    return upload(part("file", content, "a.mp3"), *(part(name, text or "") for name, text in named.items()))


class Asked:
    """A request as a scripted worker got it. fields and files have the parts of an upload."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.path = handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.body = body
        self.fields: list[tuple[str, str]] = []
        self.files: dict[str, bytes] = {}
        self.names: dict[str, str] = {}
        kind = self.headers.get("content-type", "")
        if kind.startswith("multipart/"):
            content = bytearray()
            reader = FormReader(kind.encode("latin-1"), content.extend)
            reader.feed(body)
            form = reader.end(InMemory())
            self.fields = list(form.fields)
            self.files = {one.field: bytes(content[one.start : one.start + one.size]) for one in form.files}
            self.names = {one.field: one.filename for one in form.files}


Script = Callable[["Worker", Asked, BaseHTTPRequestHandler], None]


class Worker:
    """Answers by `script`, in a thread for each connection. asked: the requests that came; gone: set when a client
    ended its connection while `hold` waited."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.gone = threading.Event()
        self.url = ""

    def hold(self, handler: BaseHTTPRequestHandler, seconds: float = 20.0) -> None:
        """Waits until the client ends the connection."""
        handler.connection.settimeout(seconds)
        try:
            if handler.connection.recv(1) == b"":
                self.gone.set()
        except ConnectionError:
            self.gone.set()


def answer(
    handler: BaseHTTPRequestHandler, body: bytes, kind: str = "application/json", status: int = 200, length: bool = True
) -> None:
    """Sends a reply. Without its length the end of the connection is its end."""
    handler.send_response(status)
    handler.send_header("content-type", kind)
    if length:
        handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def begin(handler: BaseHTTPRequestHandler, kind: str, *blocks: bytes) -> None:
    """Begins a chunked reply."""
    handler.send_response(200)
    handler.send_header("content-type", kind)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for block in blocks:
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))


def end(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"0\r\n\r\n")


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Ends the connection in the middle of what was said."""
    handler.close_connection = True


@contextmanager
def scripted(script: Script) -> Iterator[Worker]:
    """A worker on a free port."""
    worker = Worker(script)

    class Handler(Answering):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self, b'{"object":"list","data":[{"id":"sim","object":"model"}]}')

        def do_POST(self) -> None:
            asked = Asked(self, self.posted())
            worker.asked.append(asked)
            worker.script(worker, asked, self)

    with serving(Handler) as worker.url:
        yield worker


def text(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    """The script of a worker that transcribes."""
    answer(handler, b'{"text":"hello there","usage":{"type":"duration","seconds":3}}')
