"""Requests of the dialect `sagemaker`."""

from __future__ import annotations

import json

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.messages import Chat, Complete, ListModels, ModelCard, Text
from gateway.core.ports import Capabilities, Settings
from gateway.dialects import create
from gateway.dialects.sagemaker.fields import MODEL
from tests.unit.dialects.asking import HI
from tests.unit.dialects.sagemaker.exchange import DIALECT, ENDPOINT, RAW, STREAM, VLLM, read, refusal, request


def test_messages_mean_chat_and_a_prompt_means_text() -> None:
    chat = read({"messages": HI, "prompt": None, "temperature": 0.5})
    assert isinstance(chat, Chat)
    assert chat.messages[0].parts == (Text("hi"),)
    assert chat.sampling.temperature == 0.5
    text = read({"prompt": ["a", "b"], "messages": None})
    assert isinstance(text, Complete)
    assert text.prompts == ("a", "b")
    both = refusal({"messages": HI, "prompt": "x"})
    assert (both.kind, both.param) == (Kind.BAD_REQUEST, "prompt")
    for body in ({}, {"inputs": "x"}, {"messages": None, "prompt": None}):
        neither = refusal(body)
        assert (neither.kind, neither.param) == (Kind.BAD_REQUEST, "messages")


def test_bad_bodies() -> None:
    assert refusal(b"").kind is Kind.BAD_REQUEST
    assert refusal(b"a,b\n1,2\n").kind is Kind.BAD_REQUEST
    assert refusal({"prompt": []}).param == "prompt"
    assert refusal({"prompt": ["x"] * 1025}).param == "prompt"
    assert len(read({"prompt": ["x"] * 1024}).prompts) == 1024  # type: ignore[union-attr]  # the prompt says which
    assert refusal({"messages": HI, "stream_options": {"include_usage": True}}).param == "stream_options"
    assert refusal({"messages": HI, "functions": [{"name": "f"}]}).kind is Kind.UNSUPPORTED


def test_the_stream_field_decides_except_where_the_path_does() -> None:
    for route in (RAW, ENDPOINT):
        assert not read({"messages": HI}, route).stream
        assert not read({"messages": HI, "stream": None}, route).stream
        assert read({"messages": HI, "stream": True}, route).stream
    for value in (None, False, True):
        op = read({"messages": HI, "stream": value, "stream_options": {"include_usage": True}}, STREAM)
        assert op.stream
        assert op.include_usage
        sent = json.loads(VLLM.write(op, Capabilities("sim")).body)
        assert (sent["stream"], sent["model"]) == (True, "sim")


def test_the_worker_sees_the_members_that_were_sent() -> None:
    body = {"messages": HI, "model": MODEL, "top_k": 5, "guided_regex": "a+", "new_in_vllm": {"a": [1]}, "seed": None}
    sent = json.loads(VLLM.write(read(body), Capabilities("sim")).body)
    assert sent == {
        "messages": HI,
        "model": "sim",
        "top_k": 5,
        "guided_regex": "a+",
        "structured_outputs": {"regex": "a+"},
        "new_in_vllm": {"a": [1]},
    }
    strict = create("sagemaker", Settings(extras="error"))
    with pytest.raises(GatewayError) as caught:
        strict.read(request(body))
    assert caught.value.param == "guided_regex"
    dropping = create("sagemaker", Settings(extras="drop")).read(request(body))
    assert isinstance(dropping, Chat)
    assert dropping.dropped == ("new_in_vllm",)
    del sent["new_in_vllm"]
    assert json.loads(VLLM.write(dropping, Capabilities("sim")).body) == sent


def test_ping_is_about_readiness() -> None:
    op = DIALECT.read(Request("GET", "/ping", route="ping"))
    assert isinstance(op, ListModels)
    ready, not_ready = (ModelCard("m", 1, state) for state in (True, False))
    assert op.write([not_ready, ready]).status == 200
    assert op.write([not_ready]).status == 503
    assert op.write([]).status == 503
