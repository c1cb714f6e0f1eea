"""Stored responses by their ids: what OpenAI's client reads, lists and deletes, and what it is told where nothing is
stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.dialects.responses.asking import body, message, scripted
from tests.dialects.responses.test_stored import KEYS, ask, client_of, config
from tests.harness import Stack
from tests.redis.server import Server


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 2},), config()) as found:
        yield found


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with client_of(stack) as found:
        yield found


@pytest.fixture(params=["/v1", "azure"])
def sdk(stack: Stack, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    key = KEYS["one"][0]
    made: openai.OpenAI = (
        openai.OpenAI(base_url=stack.url + "/v1", api_key=key, max_retries=0)
        if request.param == "/v1"
        else openai.AzureOpenAI(azure_endpoint=stack.url, api_version="preview", api_key=key, max_retries=0)
    )
    with made as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_read_as_it_was(client: httpx.Client, stream: bool) -> None:
    first = ask(client, scripted(stream=stream, reasoning="hm", text="one", also={"instructions": "be"}))
    assert client.get(f"/v1/responses/{first['id']}").json() == first
    refused = client.get(f"/v1/responses/{first['id']}?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


def test_openais_client_reads_lists_and_deletes(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="m", input='sim:{"text": "one"}')
    second = sdk.responses.create(
        model="m", input=[{"role": "user", "content": 'sim:{"text": "two"}'}], previous_response_id=first.id
    )
    assert sdk.responses.retrieve(second.id).output_text == "two"
    items: Any = list(sdk.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == ['sim:{"text": "one"}', "one", 'sim:{"text": "two"}']
    assert len({item.id for item in items}) == 3
    assert [item.id for item in sdk.responses.input_items.list(second.id)] == [item.id for item in reversed(items)]
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        sdk.responses.cancel(second.id)
    sdk.responses.delete(second.id)
    for asked in (sdk.responses.retrieve, sdk.responses.cancel, sdk.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not found"):
            asked(second.id)
    assert sdk.responses.retrieve(first.id).output_text == "one"


def test_what_is_deleted_is_gone_with_its_items(client: httpx.Client) -> None:
    first = ask(client, scripted(text="one"))
    told = client.delete(f"/v1/responses/{first['id']}").json()
    assert told == {"id": first["id"], "object": "response", "deleted": True}
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    for asked in (body(previous_response_id=first["id"]), body(input=[reference, message("user", "a")])):
        assert client.post("/v1/responses", json=asked).status_code == 400


def test_nobody_reads_or_deletes_what_is_anothers(stack: Stack, client: httpx.Client) -> None:
    first = ask(client, scripted(text="secret"))
    with client_of(stack, "two") as other:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            assert other.request(method, f"/v1/responses/{first['id']}{path}").status_code == 404
    assert client.get(f"/v1/responses/{first['id']}").json() == first
    assert httpx.get(f"{stack.url}/v1/responses/{first['id']}").status_code == 401


def test_an_item_is_no_response(client: httpx.Client) -> None:
    item = ask(client, scripted(text="one"))["output"][0]["id"]
    assert client.get(f"/v1/responses/{item}").status_code == 404
    refused = client.post("/v1/responses", json=body(previous_response_id=item))
    assert refused.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_a_page_that_cannot_be(client: httpx.Client, query: str) -> None:
    first = ask(client, scripted(text="one"))
    refused = client.get(f"/v1/responses/{first['id']}/input_items?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_items_are_shown_in_full(client: httpx.Client) -> None:
    turns = [
        {"role": "user", "content": "a", "id": "mine"},
        {"role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
        message("user", "sim:" + json.dumps({"text": "e"})),
    ]
    first = ask(client, body(input=turns))
    page = client.get(f"/v1/responses/{first['id']}/input_items?order=asc").json()
    found = page["data"]
    types = [item["type"] for item in found]
    assert types == ["message", "message", "function_call", "function_call_output", "message"]
    text = {"type": "input_text", "text": "a"}
    assert found[0] == {"type": "message", "role": "user", "id": "mine", "content": [text]}
    assert found[1]["content"] == [{"type": "output_text", "text": "b"}]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("mine", found[-1]["id"], False)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]
)
def test_where_nothing_is_stored_it_is_not_found(method: str, path: str) -> None:
    with Stack() as stack:
        for prefix in ("/v1", "/openai/v1", "/openai"):
            refused = httpx.request(method, f"{stack.url}{prefix}/responses/resp_x{path}")
            assert refused.status_code == 404
            told = refused.json()["error"]
            assert (told["type"], told["code"], told["param"]) == ("invalid_request_error", "response_not_found", None)
            assert "nothing is stored here" in told["message"]


def test_redis_forgets_it_for_all_gateways(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        shared = {**config(where="redis"), "redis": {"addresses": [server.address], "timeout_s": 10}}
        with Stack(config=shared) as one, Stack(config=shared) as two, client_of(one) as here, client_of(two) as there:
            first = ask(here, scripted(stream=True, text="one"))
            # Written in a task of its own: only the gateway that writes waits for it.
            assert here.get(f"/v1/responses/{first['id']}").json() == first
            assert there.delete(f"/v1/responses/{first['id']}").status_code == 200
            assert here.get(f"/v1/responses/{first['id']}").status_code == 404
