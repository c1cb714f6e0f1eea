"""Small HTTP servers, each on a free port and in threads of its own, and certificates for them."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

T = TypeVar("T")


class Answering(BaseHTTPRequestHandler):
    """Reads whole requests and answers them whole. It logs nothing: tests look at what was asked."""

    def log_message(self, *_: object) -> None: ...

    def posted(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def named(self) -> dict[str, str]:
        """The headers, by their names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left, or trusts no certificate of ours, is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves by `handler` until the block ends. Yields the origin, which is one of https with `tls`."""
    with _Listener(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def elsewhere(serving: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Runs a server in a loop and a thread of its own."""
    there: list[T] = []
    up = threading.Event()
    ends: list[Callable[[], object]] = []

    async def run() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(over.set))
        async with serving() as found:
            there.append(found)
            up.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    up.wait(30)
    try:
        yield there[0]
    finally:
        ends[0]()
        thread.join()


def certificate(
    folder: Path, *names: str, address: str = "127.0.0.1", days: int = 1, critical: bool = False
) -> tuple[Path, Path]:
    """cert.pem and key.pem in `folder`: a certificate for `address` and `names`, signed by itself, and its key. days:
    until it expires, or since it has, if below 0."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dragoman")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=100))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    hosts = [x509.IPAddress(ipaddress.ip_address(address)), *map(x509.DNSName, names)]
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=critical)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return files


def server_tls(files: tuple[Path, Path]) -> ssl.SSLContext:
    """What a server with this certificate and key speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context
