"""What the tests of the dialect `sagemaker` share: requests read, a worker's stream relayed, frames unpacked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.vllm import Vllm
from gateway.core.errors import Blame, GatewayError
from gateway.core.http import Headers, Request
from gateway.core.messages import Chat, Complete
from gateway.dialects.sagemaker import SageMaker
from gateway.translation.lanes import EventLane
from tests.support.eventstream import frames
from tests.unit.dialects import asking

DIALECT = SageMaker()
VLLM = Vllm()
RAW, ENDPOINT, STREAM = "invocations", "endpoint", "endpoint_stream"
PATHS = {
    RAW: "/sagemaker/invocations",
    ENDPOINT: "/sagemaker/endpoints/ep/invocations",
    STREAM: "/sagemaker/endpoints/ep/invocations-response-stream",
}


def request(body: Any, route: str = RAW, headers: Headers | None = None, name: str = "ep") -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    params = {} if route == RAW else {"name": name}
    return Request("POST", PATHS[route], headers or [], content, b"", route, params, "req-1")


def read(body: Any, route: str = RAW, headers: Headers | None = None, name: str = "ep") -> Chat | Complete:
    op = DIALECT.read(request(body, route, headers, name))
    assert isinstance(op, (Chat, Complete))
    return op


def refusal(body: Any, route: str = RAW) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read(body, route)
    assert caught.value.blame is Blame.CLIENT
    return caught.value


def payloads(stream: bytes) -> list[bytes]:
    """The payloads of finished PayloadPart frames."""
    found = frames(stream)
    assert all(
        frame.headers
        == {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
        for frame in found
    )
    return [frame.payload for frame in found]


def lane(body: dict[str, Any], route: str) -> EventLane:
    return asking.lane(DIALECT, read({"stream": True, **body}, route))


def chunks(sent: bytes) -> list[Any]:
    return [json.loads(piece[6:]) for piece in sent.split(b"\n\n") if piece and piece != b"data: [DONE]"]
