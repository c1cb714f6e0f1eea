"""A refusal before a stream begins has the form that the dialect's specification, or its recorded clients, expect.

Sources: the specification of each dialect; for the others what their own servers and clients do (docs/dialects).
"""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.wire import sse
from tests.support.clients import DIALECTS, WAYS, Way
from tests.support.raised import raised

# (dialect, route) -> the type of the answer to a request for a stream, if it is not a whole JSON document. The
# specification of `ollama_style` is the only one that writes a refusal as events: "SSE Streaming Error Responses".
EVENTS = {("ollama_style", "sse"): b"text/event-stream"}
STREAMED = {f"{way}": way for way in WAYS if way.answers(stream=True)}


def refused(way: Way, error: GatewayError) -> Response:
    body = json.dumps(way.body(model="m", stream=True)).encode()
    request = Request("POST", way.route.path, [(b"content-type", b"application/json")], body, route=way.route.name)
    return DIALECTS[way.dialect].refuse(error, request, None)[0]


@pytest.mark.parametrize("way", STREAMED.values(), ids=STREAMED)
def test_the_form_of_a_refusal(way: Way) -> None:
    wanted = EVENTS.get((way.dialect, way.route.name), b"application/json")
    for kind in Kind:
        response = refused(way, GatewayError(kind, "not this way"))
        assert (response.header(b"content-type") or b"").split(b";")[0] == wanted, kind
        assert response.status >= 400, kind
        if wanted == b"application/json":
            json.loads(response.body)
            continue
        first, last = sse.Reader().feed(response.body)
        told = json.loads(first.data)
        assert (first.event, told["message"], list(told)) == (b"error", "not this way", ["message", "type", "code"])
        assert last == sse.Frame(b"[END]")


def test_each_exception_is_a_way() -> None:
    assert {(way.dialect, way.route.name) for way in STREAMED.values()} >= EVENTS.keys()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_body_that_says_it_is_text_is_refused(way: Way) -> None:
    """A page of another origin can send it without asking. Two dialects have clients that name no type of their own."""
    body, headers = json.dumps(way.body(model="m")).encode(), [(b"content-type", b"text/plain")]
    request = Request("POST", way.route.path, headers, body, way.example.query, way.route.name)
    if way.dialect in ("sagemaker", "ollama"):
        DIALECTS[way.dialect].read(request)
    else:
        assert raised(DIALECTS[way.dialect].read, request).kind is Kind.MEDIA_TYPE
