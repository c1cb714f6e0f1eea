"""A handshake with a worker's server that trusts nobody and sends nothing: whether it speaks TLS, and for whom its
certificate is. It explains a failure; requests never use it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

_MOST_NAMES, _LONGEST = 8, 253
_NAMES = b"\x06\x03\x55\x1d\x11"
"""The identifier of the extension subjectAltName (RFC 5280, 4.2.1.6), in DER."""
_DNS, _IP = 0x82, 0x87


async def certificate_of(address: str, limit_s: float) -> bytes | None:
    """The certificate of the server at `address`, in DER; None if it does not complete a handshake in `limit_s`."""
    url = urlsplit(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, TimeoutError, UnicodeError):
        async with asyncio.timeout(limit_s):
            port = url.port or (443 if url.scheme == "https" else 80)
            _, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
            try:
                found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(True)
                return found
            finally:
                writer.transport.abort()
    return None


def names_in(certificate: bytes) -> list[str]:
    """The host names and addresses that a certificate in DER is for, at most eight; none if it is malformed. Nobody has
    vouched for them."""
    names = []
    with suppress(IndexError, ValueError):
        for tag, value in _names(certificate):
            if tag == _DNS and len(value) <= _LONGEST and (name := value.decode("ascii")).isprintable():
                names.append(name)
            elif tag == _IP:
                names.append(str(ip_address(value)))
            if len(names) == _MOST_NAMES:
                break
    return names


def _names(certificate: bytes) -> Iterator[tuple[int, bytes]]:
    at = certificate.index(_NAMES) + len(_NAMES)
    if certificate[at] == 0x01:  # BOOLEAN: the extension is critical
        at += 3
    _, at, _ = _element(certificate, at)  # OCTET STRING
    _, at, end = _element(certificate, at)  # SEQUENCE
    while at < end:
        tag, begin, at = _element(certificate, at)
        yield tag, certificate[begin:at]


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """(tag, begin, end) of the element of DER at `at`."""
    tag, size, begin = data[at], data[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[at + 2 : begin], "big")
    return tag, begin, begin + size
