"""Laws 12 and 13: what a store would have to hold, and reasoning that comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import httpx
import pytest
import yaml

from gateway.auth import new_key
from gateway.core.messages import Thinking
from tests.support.harness import Stack
from tests.unit.dialects.responses.asking import body, message, read, scripted
from tests.unit.dialects.responses.posted import THOUGHT, post, streamed


@pytest.mark.parametrize("store", [None, True, False])
def test_law_12_nothing_is_stored_and_the_reply_says_so(client: httpx.Client, store: bool | None) -> None:
    reply = client.post("/v1/responses", json=scripted(text="a", also={} if store is None else {"store": store}))
    assert reply.json()["store"] is False
    assert ("store" in reply.headers.get("x-dragoman-dropped", "")) == (store is True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("background", True),
        ("prompt", {"id": "p"}),
    ],
)
def test_law_12_what_would_need_a_store_is_refused_by_its_name(client: httpx.Client, name: str, value: Any) -> None:
    refused = client.post("/v1/responses", json=body(**{name: value}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert refused.json()["error"]["code"] == "unsupported_parameter"
    assert client.post("/v1/responses", json=body(**{name: None})).status_code == 200


def test_law_12_a_reference_to_a_message_is_never_silently_lost(client: httpx.Client) -> None:
    items = [message("user", "a"), {"type": "item_reference", "id": "msg_1"}, message("user", "b")]
    refused = client.post("/v1/responses", json=body(input=items))
    assert refused.status_code == 400
    assert "`store: false`" in refused.json()["error"]["message"]
    items[1]["id"] = "rs_1"
    reply = client.post("/v1/responses", json=body(input=items))
    assert reply.status_code == 200
    assert "input[].item_reference" in reply.headers["x-dragoman-dropped"]


SUMMED = {**THOUGHT, "summary": [{"type": "summary_text", "text": "hm"}]}
SHORT = [{"type": "summary_text", "text": "short"}]

REASONING: dict[str, dict[str, Any]] = {
    "plain": {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": None},
    "a summary": SUMMED,
    "both": {**THOUGHT, "summary": SHORT, "content": [{"type": "text", "text": "hm"}]},
    "sealed elsewhere": {**THOUGHT, "encrypted_content": "gAAAAA=="},
    "sealed elsewhere, with a summary": {**SUMMED, "encrypted_content": "gAAAAA=="},
    "nothing": THOUGHT,
    "without an id": {"type": "reasoning", "summary": []},
}


@pytest.mark.parametrize("name", REASONING)
def test_law_13_reasoning_never_fails_a_request(name: str) -> None:
    op = read(input=[message("user", "a"), REASONING[name], message("assistant", "b"), message("user", "c")])
    thoughts = [part.text for part in op.messages[1].parts if isinstance(part, Thinking)]
    assert thoughts == ([] if name in ("sealed elsewhere", "nothing", "without an id") else ["hm"])
    assert ("input[].reasoning.encrypted_content" in op.dropped) == (name == "sealed elsewhere")


@pytest.mark.parametrize("also", [{}, {"reasoning": {"summary": "auto"}}], ids=["text", "summary"])
def test_law_13_reasoning_of_ours_comes_back_to_the_model(also: dict[str, Any]) -> None:
    key, other = new_key("x"), new_key("x")
    keys = {name: yaml.safe_load(text)["x"] for name, (_, text) in zip("ab", (key, other), strict=True)}
    include = {"include": ["reasoning.encrypted_content"], **also}
    with Stack(config={"auth": "keys", "keys": keys}) as stack, httpx.Client(base_url=stack.url) as client:
        client.headers["authorization"] = f"Bearer {key[0]}"
        first = streamed(client, include, reasoning="hm", text="a")[-1]["response"]["output"][0]
        whole = post(client, scripted(also=include, reasoning="hm", text="a"))["output"][0]
        assert first["encrypted_content"] == whole["encrypted_content"]
        assert "encrypted_content" not in post(client, scripted(also=also, reasoning="hm", text="a"))["output"][0]
        # As Codex sends it back.
        thought = {**first, "content": None, "summary": []}
        items = [message("user", "a"), thought, message("assistant", "b"), message("user", "c")]
        for caller, heard in ((key, "hm"), (other, None)):
            headers = {"authorization": f"Bearer {caller[0]}"}
            reply = client.post("/v1/responses", json=body(input=items), headers=headers)
            assert reply.status_code == 200
            named = "input[].reasoning.encrypted_content" in reply.headers.get("x-dragoman-dropped", "")
            assert named == (heard is None)
            told = json.loads(stack.sim.entries[-1].body)
            assert told["messages"][1].get("reasoning_content") == heard


@pytest.mark.long
def test_law_13_reasoning_opens_for_its_tenant_on_every_gateway_by_any_header() -> None:
    """Two gateways with one configuration: the issue's callers by `ocp-apim-subscription-key`, and by `api-key` beside
    an Authorization header that is empty or equal."""
    made = {name: new_key(name) for name in ("a", "a2", "b")}
    keys = {name: {**yaml.safe_load(text)[name], "team": name[0]} for name, (_, text) in made.items()}
    include = {"include": ["reasoning.encrypted_content"]}
    forms: tuple[Callable[[str], dict[str, str]], ...] = (
        lambda key: {"authorization": f"Bearer {key}"},
        lambda key: {"ocp-apim-subscription-key": key},
        lambda key: {"api-key": key, "authorization": ""},
        lambda key: {"api-key": key, "authorization": "Bearer"},
        lambda key: {"x-api-key": key, "authorization": f"Bearer {key}"},
    )
    config = {"auth": "keys", "keys": keys}
    with Stack(config=config) as one, Stack(config=config) as other:
        for name, form in product(made, forms):
            headers = form(made[name][0])
            with httpx.Client(base_url=one.url, headers=headers) as client:
                thought = post(client, scripted(also=include, reasoning="hm", text="a"))["output"][0]
            items = [message("user", "a"), {**thought, "content": None, "summary": []}, message("user", "c")]
            for reader, reads in product(made, forms):
                reply = httpx.post(other.url + "/v1/responses", json=body(input=items), headers=reads(made[reader][0]))
                assert reply.status_code == 200
                named = "input[].reasoning.encrypted_content" in reply.headers.get("x-dragoman-dropped", "")
                assert named == (keys[name]["team"] != keys[reader]["team"])
