"""The simulated worker ranks and scores on vLLM's wire."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.simulated import Simulated


async def test_they_are_answered_as_vllm_answers_them() -> None:
    async with Simulated() as sim, httpx.AsyncClient(base_url=sim.url) as http:
        await asked_of(http)


async def asked_of(http: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"query": "which animal purrs", "documents": ["a dog barks", "the animal which purrs", "x"]}
    whole = (await http.post("/v1/rerank", json=asked)).json()
    order = [(one["index"], one["relevance_score"]) for one in whole["results"]]
    assert [score for _, score in order] == sorted((score for _, score in order), reverse=True)
    assert order[0][0] == 1
    assert whole["results"][0]["document"] == {"text": asked["documents"][1], "multi_modal": None}
    assert whole["usage"]["prompt_tokens"] == whole["usage"]["total_tokens"] > 0
    assert len((await http.post("/rerank", json={**asked, "top_n": 1})).json()["results"]) == 1
    pairs = {"text_1": asked["query"], "text_2": asked["documents"]}
    scores = (await http.post("/score", json=pairs)).json()["data"]
    assert [(one["index"], one["score"]) for one in scores] == sorted(order)
    raw = (await http.post("/v2/rerank", json={**asked, "use_activation": False})).json()["results"]
    assert any(not 0 <= one["relevance_score"] <= 1 for one in raw)
    refused: list[dict[str, Any]] = [{"documents": [{"text": "a"}]}, {"documents": []}, {"query": None}, {"top_n": -1}]
    for wrong in refused:
        assert (await http.post("/v1/rerank", json={**asked, **wrong})).status_code == 400, wrong
    assert (await http.post("/v1/score", json={"text_1": ["a", "b"], "text_2": ["a"]})).status_code == 400
    assert (await http.post("/v1/rerank", json={**asked, "model": "nobody"})).status_code == 404
