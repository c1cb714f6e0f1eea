"""Where the gateway stores responses: what a client refers to is what it would have sent, and only its own; and stored
responses by their ids: what OpenAI's client reads, lists and deletes, and what it is told where nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from gateway.auth import new_key
from gateway.core.errors import GatewayError
from gateway.dialects.responses.stored import with_past
from gateway.features.stored import MemoryResponseStore
from gateway.kernel import asking, reading
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.dialects.responses.asking import body, frames, message, scripted

KEYS = {name: new_key(name) for name in ("one", "two")}


def config(**store: Any) -> dict[str, Any]:
    keys = {name: {"hash": entry.split("hash: ")[1].split()[0]} for name, (_, entry) in KEYS.items()}
    return {"auth": "keys", "keys": keys, "store": {"where": "memory", **store}}


def client_of(stack: Stack, name: str = "one") -> httpx.Client:
    return httpx.Client(base_url=stack.url, headers={"authorization": f"Bearer {KEYS[name][0]}"})


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 20},), config()) as found:
        yield found


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with client_of(stack) as found:
        yield found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """Gateways that store in one Redis."""
    with Server(tmp_path) as server:
        shared = {**config(where="redis"), "redis": {"addresses": [server.address], "timeout_s": 10}}
        with Stack(config=shared) as one, Stack(config=shared) as other:
            yield one, other


def ask(client: httpx.Client, asked: dict[str, Any]) -> Any:
    reply = client.post("/v1/responses", json=asked)
    assert reply.status_code == 200, reply.text
    return frames(reply.text)[-1]["response"] if asked.get("stream") else reply.json()


def told(stack: Stack) -> list[tuple[str, Any]]:
    """The roles and texts that the worker got last."""
    last = stack.sim.entries[-1]
    return [(one["role"], one["content"]) for one in json.loads(last.body)["messages"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_previous_response_stands_for_all_before_it(stack: Stack, client: httpx.Client, stream: bool) -> None:
    first = ask(client, scripted(stream=stream, text="one", also={"instructions": "be"}))
    assert first["store"] is True
    said = "sim:" + json.dumps({"text": "two"})
    second = ask(client, body(input=[message("user", said)], previous_response_id=first["id"], stream=stream))
    assert second["previous_response_id"] == first["id"]
    # Instructions are not carried over.
    assert told(stack)[1:] == [("assistant", "one"), ("user", said)]
    ask(client, body(input="three", previous_response_id=second["id"], stream=stream))
    assert told(stack)[1:] == [("assistant", "one"), ("user", said), ("assistant", "two"), ("user", "three")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_reference_is_the_item(stack: Stack, client: httpx.Client, stream: bool) -> None:
    """As the AI SDK sends its second turn."""
    first = ask(client, scripted(stream=stream, reasoning="hm", text="one"))
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    ask(client, body(input=[message("user", "a"), *references, message("user", "b")], stream=stream))
    assert told(stack) == [("user", "a"), ("assistant", "one"), ("user", "b")]
    counted = client.post("/v1/responses/input_tokens", json=body(previous_response_id=first["id"]))
    assert counted.json()["input_tokens"] > 0


def test_what_is_not_to_be_stored_is_not(client: httpx.Client) -> None:
    first = ask(client, scripted(text="one", also={"store": False}))
    assert first["store"] is False
    refused = client.post("/v1/responses", json=body(previous_response_id=first["id"]))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert refused.json()["error"]["param"] == "previous_response_id"
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    refused = client.post("/v1/responses", json=body(input=[message("user", "a"), reference]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "item_not_found")
    assert client.post("/v1/responses", json=body(conversation="c")).status_code == 400
    gone = {"type": "item_reference", "id": "rs_1"}
    assert client.post("/v1/responses", json=body(input=[gone, message("user", "a")])).status_code == 200


def test_nobody_refers_to_what_is_anothers(stack: Stack, client: httpx.Client) -> None:
    first = ask(client, scripted(text="secret"))
    with client_of(stack, "two") as other:
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        for asked in (body(previous_response_id=first["id"]), body(input=[message("user", "a"), reference])):
            assert other.post("/v1/responses", json=asked).status_code == 400


def test_an_item_is_referred_to_once(client: httpx.Client) -> None:
    """As OpenAI has it. A body of a megabyte could else stand for terabytes."""
    first = ask(client, scripted(text="one"))
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    refused = client.post("/v1/responses", json=body(input=[reference, message("user", "a"), reference]))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.2")
    assert "Duplicate item found" in refused.json()["error"]["message"]


def test_what_is_referred_to_counts_as_the_body_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stack(config={**config(), "listen": {"max_body_bytes": 40_000}}) as stack, client_of(stack) as client:
        long = ask(client, body(input=[message("user", "a")] * 300))
        stepped: list[str] = []

        async def offload(step: Any, *given: Any, share: Any = None) -> Any:
            stepped.append(getattr(step, "__name__", "routing"))
            return step(*given)

        for module in (asking, reading):
            monkeypatch.setattr(module, "offload", offload)
        ask(client, body(input=[message("user", "b")] * 10, previous_response_id=long["id"]))
        assert {"read", "write"} <= set(stepped), "a short body may refer to a long history"
        longer = ask(client, body(input=[message("user", "c")] * 250, previous_response_id=long["id"]))
        refused = client.post("/v1/responses", json=body(previous_response_id=longer["id"]))
        assert refused.status_code == 413
        assert "40000 bytes" in refused.json()["error"]["message"]


def test_what_is_referred_to_has_room_and_passes_limits_before_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [{"name": "few", "kind": "requests", "limit": 3}]
    fetched: list[str] = []
    fetch = MemoryResponseStore.get

    async def get(self: MemoryResponseStore, owner: str, names: Any) -> Any:
        fetched.append(owner)
        return await fetch(self, owner, names)

    monkeypatch.setattr(MemoryResponseStore, "get", get)
    listen = {"max_body_bytes": 200_000, "max_bodies_bytes": 200_000}
    long_context, options = {"max_model_len": 1 << 20}, {**config(), "listen": listen, "limits": limits}
    with Stack((long_context,), options) as stack, client_of(stack) as client:
        long = ask(client, body(input="a " * 60_000))
        refers = body(previous_response_id=long["id"])
        budget = stack.gateway.deployment.runtime.body_budget
        assert budget.take(100_000, "another caller")
        refused = client.post("/v1/responses", json=refers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_room_for_body")
        assert refused.headers["retry-after"]
        assert fetched == []
        budget.release(100_000, "another caller")
        ask(client, refers)
        assert (len(fetched), budget.reserved) == (1, 0)
        assert client.post("/v1/responses", json=refers).status_code == 429, "what found no room counts too"
        assert (len(fetched), budget.reserved) == (1, 0)


def test_what_is_referred_to_holds_no_more_values_than_a_body() -> None:
    """A chain of responses could else grow without end."""
    stored = [
        json.dumps({"input": [{"role": "user"}] * count, "response": {"output": []}}).encode()
        for count in (30_000, 40_000)
    ]
    assert len(with_past("a", "resp_1", {"resp_1": stored[0]})) == 30_001
    with pytest.raises(GatewayError) as caught:
        with_past("a", "resp_1", {"resp_1": stored[1]})
    assert caught.value.code == "too_many_values"


def test_a_reply_that_failed_is_not_stored(client: httpx.Client) -> None:
    asked = scripted(stream=True, text="Hello there, how are you?", fault="eof@3")
    failed = frames(client.post("/v1/responses", json=asked).text)[-1]
    assert failed["type"] == "response.failed"
    assert client.post("/v1/responses", json=body(previous_response_id=failed["response"]["id"])).status_code == 400


def test_one_id_of_several_requests_is_no_confusion(client: httpx.Client) -> None:
    client.headers["x-request-id"] = "same"
    ids = {ask(client, scripted(text="one"))["id"] for _ in range(2)}
    assert len(ids) == 2


def test_it_stays_over_a_reload(client: httpx.Client, stack: Stack) -> None:
    first = ask(client, scripted(text="one"))
    stack.run(stack.gateway.reload(stack.gateway.deployment.config))
    ask(client, body(previous_response_id=first["id"]))
    assert ("assistant", "one") in told(stack)


def test_two_gateways_share_what_is_in_redis(two: tuple[Stack, Stack]) -> None:
    with client_of(two[0]) as client:
        first = ask(client, scripted(stream=True, text="one"))
        ask(client, body(input="more", previous_response_id=first["id"]))
    with client_of(two[1]) as client:
        ask(client, body(input="more", previous_response_id=first["id"]))
        assert ("assistant", "one") in told(two[1])


def test_redis_forgets_it_for_all_gateways(two: tuple[Stack, Stack]) -> None:
    with client_of(two[0]) as here, client_of(two[1]) as there:
        first = ask(here, scripted(stream=True, text="one"))
        # Written in a task of its own: only the gateway that writes waits for it.
        assert here.get(f"/v1/responses/{first['id']}").json() == first
        assert there.delete(f"/v1/responses/{first['id']}").status_code == 200
        assert here.get(f"/v1/responses/{first['id']}").status_code == 404


# -- by their ids ------------------------------------------------------------------------------------------------------

BY_ID = [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]
"""Requests about one stored response."""


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
    assert second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError, match="not found"):
        sdk.responses.create(model="m", input="more", previous_response_id="resp_none")
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
        for method, path in BY_ID:
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
    assert found[0] == {"type": "message", "role": "user", "id": "mine", "status": "completed", "content": [text]}
    assert found[1]["content"] == [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("mine", found[-1]["id"], False)


@pytest.mark.parametrize(("method", "path"), BY_ID)
def test_where_nothing_is_stored_it_is_not_found(method: str, path: str) -> None:
    with Stack() as stack:
        for prefix in ("/v1", "/openai/v1", "/openai"):
            refused = httpx.request(method, f"{stack.url}{prefix}/responses/resp_x{path}")
            assert refused.status_code == 404
            told = refused.json()["error"]
            assert (told["type"], told["code"], told["param"]) == ("invalid_request_error", "response_not_found", None)
            assert "nothing is stored here" in told["message"]


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_a_response_is_a_keys_and_no_later_one_of_its_name_has_it(where: str, tmp_path: Path) -> None:
    """What an earlier version kept by the name alone is there for the key that had it then, and for none after it."""
    with Server(tmp_path) as server:
        redis = {"redis": {"addresses": [server.address], "timeout_s": 10}} if where == "redis" else {}
        with Stack(({},), {**config(where=where), **redis}) as stack:
            with client_of(stack) as client:
                made = client.post("/v1/responses", json=body(input="hi")).json()["id"]
                found = client.get(f"/v1/responses/{made}")
                assert found.status_code == 200
            store = stack.gateway.deployment.runtime.response_store
            assert store is not None
            kept = stack.run(store.get([_owner(stack, "one")], [made]))[made]
            assert kept is not None

            async def before() -> None:
                store.put("key one", {"resp_before": kept.replace(made.encode(), b"resp_before")})

            stack.run(before())
            with client_of(stack) as client:
                assert client.get("/v1/responses/resp_before").status_code == (200 if where == "redis" else 404)
                going_on = client.post("/v1/responses", json=body(input="and", previous_response_id=made))
                assert going_on.status_code == 200
                deleted = client.delete("/v1/responses/resp_before")
                assert deleted.status_code == (200 if where == "redis" else 404)
                assert client.get("/v1/responses/resp_before").status_code == 404
            stack.sections["keys"] = {"one": stack.sections["keys"]["two"]}
            stack.run(stack.gateway.reload(stack.config()))
            with client_of(stack, "two") as client:
                assert client.get(f"/v1/responses/{made}").status_code == 404
                assert client.delete(f"/v1/responses/{made}").status_code == 404
                assert (
                    client.post("/v1/responses", json=body(input="and", previous_response_id=made)).status_code == 400
                )


def test_a_young_key_has_nothing_by_its_name_alone(stack: Stack) -> None:
    """What is in the store may be as old as `ttl_s`: an earlier key of the name may have left it."""
    runtime = stack.gateway.deployment.runtime
    store = runtime.response_store
    assert store is not None
    now = time.time()
    for since, owners in ((now - 10, 1), (now - store.ttl_s - 10, 2), (0.0, 2)):
        who = replace(stack.gateway.deployment.keyring.identify(bearer("one")).principal, since=since)
        call = type("Call", (), {"principal": who, "runtime": runtime})()
        assert len(reading.owners(call)) == owners


def bearer(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + KEYS[name][0].encode())]


def _owner(stack: Stack, name: str) -> str:
    return stack.gateway.deployment.keyring.identify(bearer(name)).principal.tenant
