"""Bodies in content codings, for tests."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable

import brotli
import httpx

from tests.support.harness import Stack

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd


def _raw_deflate(text: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(text) + made.flush()


CODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in members": ("gzip", lambda text: gzip.compress(text[:7]) + gzip.compress(b"") + gzip.compress(text[7:])),
    "x-gzip": ("X-Gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without its header": ("deflate", _raw_deflate),
    "zstd": ("zstd", zstd.compress),
    "zstd in frames": ("zstd", lambda text: zstd.compress(text[:7]) + zstd.compress(text[7:])),
    "br": ("br", lambda text: brotli.compress(text, quality=4)),
}
"""Name -> (value of content-encoding, what makes the body)."""


def post(stack: Stack, path: str, body: bytes, coding: str, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", "content-encoding": coding, **headers}
    return httpx.post(stack.url + path, content=body, headers=sent, timeout=60)
