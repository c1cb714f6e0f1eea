"""A conversation in short, whose summary a real engine writes."""

from __future__ import annotations

import httpx
import pytest

from gateway.dialects.responses.compaction import read_summary

pytestmark = pytest.mark.engine

QUESTION = {"role": "user", "content": "My name is Ada, and I live in Paris."}
TALK = [QUESTION, {"role": "assistant", "content": "Nice to meet you, Ada."}]
ASKED = {"model": "smollm2", "input": TALK, "temperature": 0}
# The small model does not end by itself everywhere.
SENTENCE = {"stop": ["."]}


def test_a_summary_by_the_engine_stands_for_the_conversation(gateway: httpx.Client) -> None:
    reply = gateway.post("/v1/responses/compact", json={**ASKED, **SENTENCE})
    assert reply.status_code == 200, reply.text
    short = reply.json()
    asked, made = short["output"]
    assert asked["content"] == [{"type": "input_text", "text": QUESTION["content"]}]
    summary = read_summary(made["encrypted_content"], "output[1]")
    assert short["usage"]["output_tokens"] > 0

    more = {"role": "user", "content": "Where do I live?"}
    again = gateway.post(
        "/v1/responses", json={"model": "smollm2", "input": [asked, made, more], "max_output_tokens": 8}
    )
    assert again.status_code == 200, again.text
    told = again.json()["usage"]["input_tokens"]
    alone = gateway.post("/v1/responses", json={"model": "smollm2", "input": [asked, more], "max_output_tokens": 8})
    assert told > alone.json()["usage"]["input_tokens"], summary


def test_a_summary_that_the_engine_cut_is_an_error(gateway: httpx.Client) -> None:
    reply = gateway.post("/v1/responses/compact", json={**ASKED, "max_output_tokens": 2})
    assert reply.status_code == 502, reply.text
    assert reply.json()["error"]["code"] == "no_summary"
