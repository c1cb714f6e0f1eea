"""The bodies that clients of rankings were recorded to send to `/v1/rerank`, `/v2/rerank` and `/rerank`. The clients
themselves run in tests/acceptance/libraries: their packages need an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack

# By client: path and body.
RECORDED: dict[str, tuple[str, str]] = {
    "cohere ClientV2": (
        "/v2/rerank",
        '{"model":"m","query":"b","documents":["a","b"],"top_n":2,"max_tokens_per_doc":100}',
    ),
    "cohere Client": (
        "/v1/rerank",
        '{"model":"m","query":"b","documents":["a",{"text":"b"}],"top_n":2,"return_documents":true}',
    ),
    "litellm cohere": (
        "/v2/rerank",
        '{"model":"m","query":"b","documents":["a",{"text":"b"}],"top_n":2,"return_documents":true}',
    ),
    "litellm jina_ai": (
        "/v1/rerank",
        '{"model":"m","query":"b","documents":["a","b"],"top_n":2,"return_documents":true}',
    ),
    "litellm hosted_vllm": (
        "/rerank",
        '{"model":"m","query":"b","documents":["a","b"],"top_n":2,"return_documents":true}',
    ),
    "litellm huggingface": (
        "/rerank",
        '{"query":"b","texts":["a","b"],"top_n":2,"raw_scores":false,"truncate":false,"truncation_direction":"Right",'
        '"return_text":true}',
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    config = {"dialects": {"rerank": {"default_model": "m"}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as found:
        yield found


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request_is_answered(client: httpx.Client, name: str) -> None:
    path, body = RECORDED[name]
    headers = {"authorization": "Bearer K", "content-type": "application/json"}
    reply = client.post(path, content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    told: Any = reply.json()
    if name == "litellm huggingface":
        assert [(one["index"], one["text"]) for one in told] == [(1, "b"), (0, "a")]
        assert all(isinstance(one["score"], float) for one in told)
        return
    assert [one["index"] for one in told["results"]] == [1, 0]
    assert all(isinstance(one["relevance_score"], float) for one in told["results"])
    if "return_documents" in body:
        assert [one["document"]["text"] for one in told["results"]] == ["b", "a"]
    assert told["meta"]["billed_units"]["search_units"] == 1
    assert told["usage"]["total_tokens"] > 0
