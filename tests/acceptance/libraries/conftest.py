"""Gateways for the libraries to be driven against."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.acceptance.e2e.conftest import gateway as gateway
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import made

_NEVER_ENDS = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": 'sim:{"text": "a b c", "fault": "stall@1"}'}],
}
_KEYS: dict[str, dict[str, Any]] = {
    "good": {},
    "expired": {"expires": "2020-01-01"},
    "busy": {"limits": {"concurrency": 1}},
}
_POLL_S = 0.02


class Keyed:
    """A stack whose callers have keys: `good`, `expired`, and `busy`, which may run one request at a time."""

    def __init__(self, stack: Stack, keys: dict[str, str]) -> None:
        self.stack = stack
        self.keys = keys

    @contextmanager
    def over_the_limit(self) -> Iterator[None]:
        """The one request of `busy` is running, until another one was refused."""
        before, done = self._refused(), threading.Event()
        headers = {"authorization": f"Bearer {self.keys['busy']}"}
        with httpx.stream("POST", self.stack.url + "/v1/chat/completions", headers=headers, json=_NEVER_ENDS) as held:
            blocks = held.iter_raw()  # its end would close the stream
            next(blocks)

            def release() -> None:
                # Nobody tells of a refusal: the log is looked at.
                while self._refused() == before and not done.wait(_POLL_S):
                    pass
                held.close()

            thread = threading.Thread(target=release)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
        assert self._refused() > before, "it was over its limit"

    def _refused(self) -> int:
        self.stack.gateway.log.flush()
        return self.stack.output.getvalue().count(b'"rate_limit_exceeded"')


@pytest.fixture(scope="session")
def keyed() -> Iterator[Keyed]:
    keys: dict[str, str] = {}
    entries: dict[str, Any] = {}
    for name, options in _KEYS.items():
        keys[name], entry = made(name, **options)
        entries |= entry
    config = {
        "keys": entries,
        "breaker": {"failures": 10_000},
        "dialects": {"tgi": {"default_model": "m"}},
        # The AI SDK refers to what it had, unless it is told otherwise.
        "store": {"where": "memory"},
    }
    with Stack(({"itl_ms": 2, "max_model_len": 200_000},), config) as stack:
        yield Keyed(stack, keys)
