"""A client of the web sockets of the Responses API, by the `websockets` library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.harness import Stack

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


class Talk:
    """One web socket."""

    def __init__(self, stack: Stack, path: str = "/v1/responses", **headers: str) -> None:
        self._opening = connect(
            "ws" + stack.url.removeprefix("http") + path,
            additional_headers=headers,
            compression=None,
            max_size=None,
            proxy=None,
        )

    def __enter__(self) -> Talk:
        self.socket: ClientConnection = self._opening.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def closed(self) -> int:
        """The code by which the gateway closes it, whatever it sends before."""
        with pytest.raises(ConnectionClosed) as ended:
            for _ in iter(lambda: self.socket.recv(timeout=30), None):
                pass
        assert ended.value.rcvd is not None
        return ended.value.rcvd.code

    def create(self, **members: Any) -> None:
        self.socket.send(json.dumps({"type": "response.create", "model": "m", **members}))

    def next(self) -> dict[str, Any]:
        event = json.loads(self.socket.recv(timeout=30))
        assert isinstance(event, dict)
        return event

    def heard(self) -> list[dict[str, Any]]:
        """The events until the end of a response."""
        events = [self.next()]
        while events[-1]["type"] not in TERMINAL:
            events.append(self.next())
        return events

    def turn(self, **members: Any) -> dict[str, Any]:
        """The response of one request, whole; or the error."""
        self.create(**members)
        last = self.heard()[-1]
        return dict(last.get("response", last))


def code_of(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])
