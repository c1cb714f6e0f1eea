"""What a simulated worker refuses, and its smaller endpoints: hand-over of prompts, adapters, load."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.simulated import Simulated
from tests.unit.workers.speaking import CHAT, frames


@pytest.mark.parametrize(
    ("extra", "kind", "param", "part"),
    [
        ({"tools": []}, "Bad Request", "tools", "`tools` must not be an empty array"),
        ({"tool_choice": "auto"}, "Bad Request", "tool_choice", "When using `tool_choice`, `tools` must be set."),
        (
            {"stream_options": {"include_usage": True}},
            "Bad Request",
            "stream_options",
            "only be defined when `stream=True`",
        ),
        ({"stop": list("abcde")}, "Bad Request", "stop", "at most 4 items"),
        ({"temperature": 2.5}, "BadRequestError", "temperature", "temperature must be in [0, 2], got 2.5."),
        ({"n": 2, "temperature": 0}, "BadRequestError", "n", "n must be 1 when using greedy sampling, got 2."),
        ({"logprobs": True, "top_logprobs": 21}, "BadRequestError", "logprobs", "greater than max allowed: 20"),
        ({"top_logprobs": 1}, "Bad Request", "top_logprobs", "`logprobs` must be set to true"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"priority": 1}, "BadRequestError", "priority", "Priority scheduling is not enabled"),
        ({"messages": "hi"}, "Bad Request", None, "Expected `array`, got `str`"),
        ({"messages": []}, "Bad Request", "messages", "at least 1 item"),
        ({"sim_fault": "explode"}, "Bad Request", "sim_fault", "unknown fault"),
    ],
)
async def test_what_vllm_refuses(
    http: httpx.AsyncClient, extra: dict[str, Any], kind: str, param: str | None, part: str
) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, **extra})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (400, 400, kind, param)
    assert part in error["message"]


async def test_nulls_and_unknown_fields_are_ignored(http: httpx.AsyncClient) -> None:
    names = ("tools", "stop", "n", "stream", "temperature", "seed", "max_tokens", "logit_bias", "tool_choice")
    answer = await http.post("/v1/chat/completions", json={**CHAT, **dict.fromkeys(names), "guided_json": {}})
    assert answer.status_code == 200


async def test_unknown_model(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.chat.completions.create(**{**CHAT, "model": "gpt"})  # type: ignore[call-overload]
    assert caught.value.body == {
        "message": "The model `gpt` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


async def test_context(http: httpx.AsyncClient) -> None:
    long = {"prompt": "a" * 4 * 1024}
    answer = await http.post("/v1/completions", json=long)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(
        "This model's maximum context length is 1024 tokens. However, you"
    )
    body = {"prompt": "a" * 4 * 1020, "max_tokens": 100, "ignore_eos": True}
    assert (await http.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 4
    async with Simulated(max_model_len=1024, strict_context=True) as strict:
        assert (await http.post(f"{strict.url}/v1/completions", json=body)).status_code == 400


async def test_bodies_that_are_no_json(http: httpx.AsyncClient) -> None:
    for content, kind in ((b"{", "application/json"), (b"{}", "text/plain")):
        answer = await http.post("/v1/chat/completions", content=content, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


async def test_reasoning_mode() -> None:
    async with Simulated(reasoning=True) as worker, httpx.AsyncClient(base_url=worker.url) as client:
        reply = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert reply["choices"][0]["message"]["reasoning"]
        thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < thought < reply["usage"]["completion_tokens"]
        hidden = (await client.post("/v1/chat/completions", json={**CHAT, "include_reasoning": False})).json()
        assert hidden["choices"][0]["message"]["reasoning"] is None
        body = {**CHAT, "include_reasoning": False, "stream": True}
        events = frames((await client.post("/v1/chat/completions", json=body)).text)
        assert not any("reasoning" in event["choices"][0]["delta"] for event in events)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Two workers with KV connectors."""
    async with (
        Simulated(kv_transfer=True) as one,
        Simulated(kv_transfer=True) as other,
        httpx.AsyncClient(base_url=one.url) as first,
        httpx.AsyncClient(base_url=other.url) as second,
    ):
        yield first, second


async def kv_of(first: httpx.AsyncClient, **members: Any) -> Any:
    body = {**CHAT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}, **members}
    return await first.post("/v1/chat/completions", json=body)


async def test_a_computed_prompt_is_read_by_another_worker(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    first, second = pair
    places = (await kv_of(first)).json()["kv_transfer_params"]
    assert places["do_remote_prefill"] is True
    assert places["remote_port"] == first.base_url.port
    body = {**CHAT, "kv_transfer_params": places}
    plain = (await first.post("/v1/chat/completions", json=CHAT)).json()
    read = (await second.post("/v1/chat/completions", json=body)).json()
    assert read["choices"] == plain["choices"]
    assert read["kv_transfer_params"] is None
    again = await second.post("/v1/chat/completions", json=body)
    assert again.status_code == 400
    assert "read before" in again.json()["error"]["message"]


@pytest.mark.parametrize("members", [{"max_tokens": 2}, {"stream": True}, {"n": 2}, {"kv_transfer_params": {"x": 1}}])
async def test_wrong_first_steps_are_refused(
    pair: tuple[httpx.AsyncClient, httpx.AsyncClient], members: dict[str, Any]
) -> None:
    assert (await kv_of(pair[0], **members)).status_code == 400


async def test_wrong_second_steps_are_refused(pair: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    first, second = pair
    places = (await kv_of(first)).json()["kv_transfer_params"]
    other = {"messages": [{"role": "user", "content": "Something else."}]}
    for client, members, changed, said in (
        (first, {}, {}, "own"),
        (second, other, {}, "another prompt"),
        (second, {}, {"remote_host": None}, "remote_host"),
        (second, {}, {"do_remote_decode": True}, "exactly one"),
    ):
        body = {**CHAT, **members, "kv_transfer_params": {**places, **changed}}
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]


async def test_without_a_connector_nothing_is_handed_over(http: httpx.AsyncClient) -> None:
    """As in vLLM, which warns in its log alone."""
    assert (await kv_of(http)).json()["kv_transfer_params"] is None


async def test_adapters_are_loaded_and_unloaded(http: httpx.AsyncClient) -> None:
    async def change(action: str, name: str = "sql") -> httpx.Response:
        return await http.post(f"/v1/{action}_lora_adapter", json={"lora_name": name, "lora_path": "/a"})

    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).status_code == 404
    assert (await change("load")).text == "Success: LoRA adapter 'sql' added successfully."
    assert (await change("load")).status_code == 400
    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).json()["model"] == "sql"
    (card,) = [one for one in (await http.get("/v1/models")).json()["data"] if one["id"] == "sql"]
    assert (card["parent"], card["max_model_len"]) == ("sim", None)
    assert (await change("unload")).status_code == 200
    assert (await change("unload")).status_code == 400
    assert (await http.post("/v1/chat/completions", json={**CHAT, "model": "sql"})).status_code == 404


async def test_plain_replies_tell_the_load_to_who_asks(http: httpx.AsyncClient) -> None:
    """As `entrypoints/serve/utils/orca_metrics.py` has it; a format that it does not know is ignored."""

    async def told(form: str, stream: bool = False) -> str | None:
        headers = {"endpoint-load-metrics-format": form}
        reply = await http.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=headers)
        said: str | None = reply.headers.get("endpoint-load-metrics")
        return said

    text = await told("TEXT")
    assert text is not None
    assert re.fullmatch(r"TEXT named_metrics.kv_cache_usage_perc=\S+, named_metrics.num_requests_waiting=0.0", text)
    said = await told("json")
    assert said is not None
    assert json.loads(said.removeprefix("JSON "))["named_metrics"]["num_requests_waiting"] == 0.0
    assert await told("xml") is None
    assert await told("TEXT", stream=True) is None
