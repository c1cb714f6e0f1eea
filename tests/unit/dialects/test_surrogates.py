"""A lone surrogate is no character: a body that holds one is refused, and told so, wherever it stands."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import GatewayError, Kind
from tests.laws.fidelity.matrix import asking
from tests.support.clients import DIALECTS, WAYS, Way, refusal

LONE = ["\\ud83d", "\\uDE00", "a\\ud800\\u0041", "\\\\\\ud83d", "\\ud83d\\ud83d\\ude00", "\\ude00\\ud83d"]
WHOLE = ["\\ud83d\\ude00", "\\\\ud83d", "\\\\\\ud83d\\ude00"]


def bodies(way: Way, text: str) -> dict[str, bytes]:
    """Bodies with `text`, JSON inside of a string, by the top-level member that holds it."""
    own = asking(way.example, way.example.body).body[:-1]
    texts = {
        "metadata": b'{"k":"%b"}',
        "user": b'"%b"',
        "stop": b'["a","%b"]',
        "tools": b'[{"type":"function","function":{"name":"f","description":"%b"}}]',
        "never_heard_of": b'"%b"',
    }
    return {name: b'%b,"%b":%b}' % (own, name.encode(), form % text.encode()) for name, form in texts.items()}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("text", LONE)
def test_it_is_told_where_it_stands(way: Way, text: str) -> None:
    dialect, request = DIALECTS[way.dialect], asking(way.example, way.example.body)
    for name, body in bodies(way, text).items():
        request.body = body
        with pytest.raises(GatewayError) as caught:
            dialect.read(request)
        error = caught.value
        assert (error.kind, error.code, error.param) == (Kind.BAD_REQUEST, "invalid_json", name)
        assert f"'{name}' holds a lone surrogate" in error.message
        response, code = dialect.refuse(error, request, None)
        assert (response.status // 100, code) == (4, "invalid_json")
        assert b"lone surrogate" in response.body
        json.loads(refusal(response))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pairs_and_escaped_backslashes_are_none(way: Way) -> None:
    dialect, request = DIALECTS[way.dialect], asking(way.example, way.example.body)
    for body in (body for text in WHOLE for body in bodies(way, text).values()):
        request.body = body
        code: str | None = None
        try:
            dialect.read(request)
        except GatewayError as error:
            code = error.code
        assert code != "invalid_json", body


def test_it_is_told_where_no_member_can_be_named() -> None:
    way = next(way for way in WAYS if way.operation == "chat")
    request = asking(way.example, way.example.body)
    for body in (b'{"a\\ud800":1}', b'{"a":"\\ud800"'):
        request.body = body
        with pytest.raises(GatewayError, match="the request body holds a lone surrogate") as caught:
            DIALECTS[way.dialect].read(request)
        assert caught.value.param is None
