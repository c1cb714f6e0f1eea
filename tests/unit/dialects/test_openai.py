"""The dialect `openai`: what is its own. Bodies, chunks and the passthrough lane are tested in tests/unit/wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Start
from gateway.core.http import Request
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice, ReplyPart
from gateway.core.messages import AnsweredFromStore, Chat, Complete, Embed, ListModels, ModelCard, Op
from gateway.core.ports import Dialect, Settings
from gateway.core.usage import Usage
from gateway.dialects import create
from gateway.dialects.openai import OpenAI
from gateway.wire.openai.operations import write_model
from gateway.wire.openai.replies.refusals import ERRORS

DIALECT = OpenAI()
VLLM = Vllm()
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "complete": {"prompt": "hi"},
    "embed": {"input": "hi"},
}


def request(body: Any, route: str = "chat", **params: str) -> Request:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", "/v1/x", [(b"content-type", b"application/json")], data, b"", route, params)


def read(route: str = "chat", dialect: Dialect = DIALECT, **members: Any) -> Op:
    op = dialect.read(request({**BODIES[route], **members}, route))
    assert not isinstance(op, (ListModels, AnsweredFromStore))
    return op


def test_one_model_is_asked_for_by_its_name() -> None:
    assert DIALECT.read(request(b"", "model", model="org/name")) == ListModels(write=write_model, model="org/name")


@pytest.mark.parametrize("operation", ["chat", "complete"])
@pytest.mark.parametrize(("given", "key"), [("notebook", "notebook"), ("", ""), (7, None), ({}, None), ([1e300], None)])
def test_a_cache_key_is_a_text(operation: str, given: Any, key: str | None) -> None:
    assert read(operation, prompt_cache_key=given).cache_key == key


@pytest.mark.parametrize("part", [ReplyPart("text", "a"), ReplyPart("tool", "{}", "c1", "f")])
@pytest.mark.parametrize("usage", [Usage(1, 2), Usage(1, 2, 3, 4)])
def test_a_reply_has_no_null_for_an_object_or_a_list(part: ReplyPart, usage: Usage) -> None:
    """OpenAI's description lets clients expect an object, or no such member."""
    reply = Reply(Start("r", "w", 1), [ReplyChoice(0, [part])], usage)
    found = json.loads(DIALECT.write(reply, read()).body)
    message = found["choices"][0]["message"]
    objects = {"annotations", "function_call", "audio", "tool_calls", "system_fingerprint", "service_tier"}
    assert not [name for name, value in {**found, **message}.items() if name in objects and value is None]
    assert None not in found["usage"].values()


@pytest.mark.parametrize("operation", BODIES)
def test_unknown_fields_under_each_policy(operation: str) -> None:
    op = read(operation, zz={"deep": 1.5})
    assert isinstance(op, (Chat, Complete, Embed))
    assert (op.extra, op.dropped) == ({"zz": Raw(b'{"deep": 1.5}')}, ())
    assert op.raw is not None
    assert "zz" in op.raw
    op = read(operation, create("openai", Settings(extras="drop")), zz=1)
    assert isinstance(op, (Chat, Complete, Embed))
    assert (op.extra, op.dropped) == ({}, ("zz",))
    assert op.raw is not None
    assert "zz" not in op.raw
    with pytest.raises(GatewayError) as caught:
        read(operation, create("openai", Settings(extras="error")), zz=1)
    assert (caught.value.param, caught.value.code) == ("zz", "unknown_parameter")


def test_what_is_canonical_does_not_travel_twice() -> None:
    op = read("complete", response_format={"type": "json_object"}, top_k=5, zz=1)
    assert isinstance(op, Complete)
    assert list(op.extra) == ["zz"]


# -- replies --------------------------------------------------------------------------------------------------------

REPLY = Reply(
    Start("x", "sim", 7, "fp", "default", {"kv": Raw(b"1")}), [ReplyChoice(0, [ReplyPart("text", "a")])], Usage(1, 2)
)


CHOICE = {"index": 0, "logprobs": None, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_a_whole_chat() -> None:
    found = json.loads(DIALECT.write(REPLY, Chat(model="m", messages=())).body)
    head = {"id": "x", "object": "chat.completion", "created": 7, "model": "m"}
    message = {"role": "assistant", "content": "a", "refusal": None}
    more = {"system_fingerprint": "fp", "service_tier": "default", "kv": 1}
    assert found == {**head, "choices": [{**CHOICE, "message": message}], "usage": USAGE, **more}


def test_a_whole_completion() -> None:
    bare = Reply(Start("x", "sim", 7), REPLY.choices)
    found = json.loads(DIALECT.write(bare, Complete(model="m", prompts=("a",))).body)
    head = {"id": "x", "object": "text_completion", "created": 7, "model": "m"}
    assert found == {**head, "choices": [{**CHOICE, "text": "a"}]}


def test_embeddings() -> None:
    vectors = Embeddings("sim", (Raw(b"[0.5]"), Raw(b'"AAA="')), Usage(3, 0))
    found = json.loads(DIALECT.write(vectors, Embed(model="m", inputs=("a", "b"))).body)
    data = [
        {"object": "embedding", "index": 0, "embedding": [0.5]},
        {"object": "embedding", "index": 1, "embedding": "AAA="},
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert found == {"object": "list", "data": data, "model": "m", "usage": usage}
    uncounted = DIALECT.write(Embeddings("sim", vectors.vectors), Embed(model="m", inputs=("a", "b")))
    assert set(json.loads(uncounted.body)["usage"].values()) == {0}, "a client needs the object"


def test_a_completion_of_several_prompts_has_several_choices() -> None:
    """The passthrough lane knows how many ends to wait for."""
    lane = DIALECT.passthrough["openai"].lane(Complete(model="m", prompts=("a", "b"), n=2, stream=True))
    ended = [b'data: {"choices":[{"index":%d,"text":"x","finish_reason":"stop"}]}\n\n' % index for index in range(4)]
    out = lane.feed(b"".join(ended) + b"data: [DONE]\n\n")
    assert lane.done
    assert out.count(b'"finish_reason"') == 4


def test_models() -> None:
    cards = [ModelCard("m", 7, True, 4096), ModelCard("alias", 7, False, None, "m")]
    listing, one_of_them = DIALECT.read(request(b"", "models")), DIALECT.read(request(b"", "model", model="m"))
    assert isinstance(listing, ListModels)
    assert isinstance(one_of_them, ListModels)
    listed = json.loads(listing.write(cards).body)
    assert listed["object"] == "list"
    assert listed["data"] == [
        {"id": "m", "object": "model", "created": 7, "owned_by": "dragoman", "max_model_len": 4096},
        {"id": "alias", "object": "model", "created": 7, "owned_by": "dragoman", "root": "m"},
    ]
    assert json.loads(one_of_them.write(cards[:1]).body) == listed["data"][0]


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_an_error_has_its_four_members(kind: Kind) -> None:
    response = DIALECT.refuse(GatewayError(kind, "what", param="n"), None, None)[0]
    status, type_, code = ERRORS[kind]
    assert response.status == status
    assert json.loads(response.body) == {"error": {"message": "what", "type": type_, "param": "n", "code": code}}
    coded = json.loads(DIALECT.refuse(GatewayError(kind, "what", code="finer"), None, None)[0].body)["error"]
    assert (coded["code"], coded["param"]) == ("finer", None)


@pytest.mark.parametrize(
    ("kind", "upstream", "status"),
    [
        (Kind.BAD_REQUEST, 422, 422),
        (Kind.BAD_REQUEST, 400, 400),
        (Kind.UPSTREAM, 404, 502),
        (Kind.OVERLOADED, 429, 503),
        (Kind.UPSTREAM, 500, 502),
    ],
)
def test_a_workers_status_is_kept_where_the_fault_is_the_clients(kind: Kind, upstream: int, status: int) -> None:
    assert DIALECT.refuse(GatewayError(kind, "x", upstream=upstream), None, None)[0].status == status
