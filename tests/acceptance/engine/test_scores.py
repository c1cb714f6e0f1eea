"""Tokens of the shared engine, and rankings and scores of one that embeds: what the gateway says is what vLLM says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.engine.conftest import CONTEXT, Engine
from tests.support.harness import Stack
from tests.support.redis_server import Server

pytestmark = pytest.mark.engine

TEXTS = ["Hi there", "Grüezi, 你好 👩‍🚀", " two  spaces\n", "<|im_start|>user"]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say yes."}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
QUERY, DOCUMENTS = "which animal purrs", ["a dog barks", "a cat purrs", "the stock market fell"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_the_engines_and_lead_back(gateway: httpx.Client, engine: httpx.Client, text: str) -> None:
    asked = {"model": "smollm2", "prompt": text, "return_token_strs": True}
    told = gateway.post("/tokenize", json=asked).json()
    assert told == engine.post("/tokenize", json=asked).json()
    back = gateway.post("/detokenize", json={"model": "smollm2", "tokens": told["tokens"]})
    assert back.json() == {"prompt": text}


@pytest.mark.parametrize("members", [{}, {"tools": [TOOL]}])
def test_a_chat_has_the_tokens_that_its_prompt_counts(
    gateway: httpx.Client, engine: httpx.Client, members: dict[str, Any]
) -> None:
    asked = {"model": "smollm2", "messages": TALK, **members}
    told = gateway.post("/tokenize", json=asked).json()
    assert told == engine.post("/tokenize", json=asked).json()
    chat = gateway.post("/v1/chat/completions", json={**asked, "max_tokens": 1}).json()
    assert told["count"] == chat["usage"]["prompt_tokens"]
    shorter = gateway.post("/tokenize", json={**asked, "add_generation_prompt": False}).json()
    assert shorter["count"] < told["count"]


def test_a_prompt_longer_than_the_context_is_still_tokenized(gateway: httpx.Client) -> None:
    told = gateway.post("/tokenize", json={"model": "smollm2", "prompt": "one " * 2 * CONTEXT}).json()
    assert told["count"] > told["max_model_len"] == CONTEXT


def test_a_model_that_generates_ranks_nothing(gateway: httpx.Client) -> None:
    """It says so of itself: it is not asked."""
    reply = gateway.post("/v2/rerank", json={"model": "smollm2", "query": QUERY, "documents": DOCUMENTS})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "beyond_model")


@pytest.fixture(scope="module")
def ranker(start: Callable[..., Engine], redis: Server) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """(a gateway, straight to its engine). The same small model makes vectors, which vLLM compares."""
    engine = start("--runner", "pooling", "--convert", "embed", "--served-model-name", "ranker")
    engine.ready()
    config = {
        "models": {"ranker": {"backend": "vllm", "discover": {"redis": True}}},
        "redis": {"addresses": [redis.address], "timeout_s": 10},
        "health": {"timeout_s": 10, "interval_s": 10},
    }
    with Stack(workers=(), config=config) as stack:
        end = time.monotonic() + 60
        while not stack.gateway.deployment.fleets.ready:
            assert time.monotonic() < end, stack.output.lines()
            time.sleep(0.05)
        with (
            httpx.Client(base_url=stack.url, timeout=120) as gateway,
            httpx.Client(base_url=engine.url, timeout=120) as straight,
        ):
            yield gateway, straight
    engine.stop()


@pytest.mark.whole  # it starts an engine of its own
def test_a_ranking_is_the_engines(ranker: tuple[httpx.Client, httpx.Client]) -> None:
    gateway, engine = ranker
    asked = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    truth = engine.post("/v1/rerank", json=asked).json()
    wanted = [(one["index"], one["relevance_score"]) for one in truth["results"]]
    assert wanted[0][0] == 1, "the cat"
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        told = gateway.post(path, json={**asked, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]})
        results = told.json()["results"]
        assert [one["index"] for one in results] == [index for index, _ in wanted]
        assert [one["relevance_score"] for one in results] == pytest.approx([score for _, score in wanted], abs=1e-3)
        assert told.json()["usage"] == truth["usage"]


@pytest.mark.whole  # the same engine
def test_scores_are_the_engines(ranker: tuple[httpx.Client, httpx.Client]) -> None:
    gateway, engine = ranker
    for queries in (QUERY, [QUERY, "what barks", "money"]):
        asked = {"model": "ranker", "queries": queries, "documents": DOCUMENTS}
        truth = [one["score"] for one in engine.post("/v1/score", json=asked).json()["data"]]
        told = [one["score"] for one in gateway.post("/score", json=asked).json()["data"]]
        assert told == pytest.approx(truth, abs=1e-3)


@pytest.mark.whole  # the same engine
@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"max_tokens_per_doc": 2, "top_n": 1, "use_activation": False, "user": "u", "instruction": "find it"}, 200),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left", "cache_salt": "s"}, 200),
        ({"documents": ["one " * 2 * CONTEXT]}, 400),
        ({"documents": ["one " * 2 * CONTEXT], "truncate_prompt_tokens": -1}, 200),
    ],
)
def test_members_of_vllm_are_taken(
    ranker: tuple[httpx.Client, httpx.Client], members: dict[str, Any], status: int
) -> None:
    reply = ranker[0].post("/v2/rerank", json={"model": "ranker", "query": QUERY, "documents": DOCUMENTS, **members})
    assert reply.status_code == status, reply.text
    if status == 200:
        assert len(reply.json()["results"]) == members.get("top_n", len(members.get("documents", DOCUMENTS)))
    else:
        assert reply.json()["error"]["code"] == "context_length_exceeded"
