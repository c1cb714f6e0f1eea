"""The text-generation package, unmodified, against the gateway's dialect for TGI's clients at `/tgi`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from text_generation import Client
from text_generation import errors as failures

from tests.support.harness import Stack

pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")  # its own use of pydantic


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    config = {"breaker": {"failures": 10_000}, "dialects": {"tgi": {"default_model": "m"}}}
    with Stack(workers=({"itl_ms": 2},), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Client:
    return Client(stack.url + "/tgi")


def script(**members: Any) -> str:
    return "sim:" + json.dumps(members)


def test_whole(client: Client) -> None:
    reply = client.generate(script(text="Hello there"), max_new_tokens=9)
    assert reply.generated_text == "Hello there"
    assert reply.details.generated_tokens
    assert "".join(token.text for token in reply.details.tokens) == "Hello there"


def test_streamed(client: Client) -> None:
    found = list(client.generate_stream(script(text="Hello there")))
    assert "".join(event.token.text for event in found) == "Hello there"
    assert found[-1].generated_text == "Hello there"
    assert found[-1].details is not None


def test_chats(client: Client) -> None:
    turn = {"role": "user", "content": script(text="Hello there")}
    assert client.chat([turn]).choices[0].message.content == "Hello there"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("status:500", failures.GenerationError),
        ("status:400", failures.ValidationError),
        ("status:503", failures.OverloadedError),
    ],
)
def test_failures_are_its_own_exceptions(client: Client, fault: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        client.generate(script(fault=fault))
    with pytest.raises(kind):
        list(client.generate_stream(script(fault=fault)))


@pytest.mark.parametrize("fault", ["reset@3", "eof@3"])
def test_a_cut_stream_is_never_a_success(client: Client, fault: str) -> None:
    with pytest.raises((failures.IncompleteGenerationError, requests.exceptions.ChunkedEncodingError)):
        list(client.generate_stream(script(text="Hello there, how are you today?", fault=fault)))
