"""Every row of the tables of Friendli's text completions and of Azure's chats: what real vLLM makes of it, or the
refusal that the pages of the dialects document."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.dialects.azure_inference.fields import FIELDS as AZURE
from gateway.dialects.friendli.fields import FIELDS as FRIENDLI

pytestmark = pytest.mark.engine

COMPLETE = {"prompt": "The capital of France is", "max_tokens": 6}
CHAT = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 6}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

# (field, value, what else is sent or taken away, status)
Row = tuple[str, Any, dict[str, Any], int]
FRIENDLI_ROWS: list[Row] = [
    ("prompt", "hi", {}, 200),
    ("prompt", None, {}, 400),
    ("tokens", [504, 3575], {"prompt": None}, 200),
    ("tokens", [504], {}, 400),
    ("model", "smollm2", {}, 200),
    ("model", None, {}, 200),
    ("stream", True, {}, 200),
    ("stream", True, {"num_beams": 2}, 400),
    ("timeout_microseconds", 60_000_000, {}, 200),
    ("timeout_microseconds", 1, {}, 429),
    ("max_tokens", 3, {}, 200),
    ("max_total_tokens", 8, {"tokens": [504, 3575], "prompt": None, "max_tokens": None}, 200),
    ("max_total_tokens", 8, {}, 400),
    ("max_total_tokens", 8, {"max_tokens": None}, 200),
    ("max_total_tokens", 1, {"max_tokens": None}, 400),
    ("min_tokens", 4, {}, 200),
    ("min_total_tokens", 6, {"tokens": [504, 3575], "prompt": None}, 200),
    ("min_total_tokens", 6, {}, 200),
    ("n", 2, {}, 200),
    ("n", 2, {"num_beams": 2}, 400),
    ("num_beams", 2, {}, 200),
    ("num_beams", 31, {}, 422),
    ("length_penalty", 1.5, {"num_beams": 2}, 200),
    ("length_penalty", 1.5, {}, 400),
    ("early_stopping", False, {"num_beams": 2}, 200),
    ("early_stopping", True, {"num_beams": 2}, 422),
    ("early_stopping", True, {}, 400),
    ("no_repeat_ngram", 1, {}, 200),
    ("no_repeat_ngram", 2, {}, 200),
    ("no_repeat_ngram", 2, {"num_beams": 2}, 422),
    ("encoder_no_repeat_ngram", 1, {}, 200),
    ("encoder_no_repeat_ngram", 2, {}, 422),
    ("repetition_penalty", 1.2, {}, 200),
    ("repetition_penalty", 0.5, {}, 400),
    ("encoder_repetition_penalty", 1, {}, 200),
    ("encoder_repetition_penalty", 1.2, {}, 422),
    ("frequency_penalty", 0.5, {}, 200),
    ("presence_penalty", -0.5, {}, 200),
    ("temperature", 0.3, {}, 200),
    ("temperature", 0, {}, 200),
    ("temperature", 3, {}, 422),
    ("top_k", 5, {}, 200),
    ("top_p", 0.9, {}, 200),
    ("top_p", 0, {}, 400),
    ("stop", ["."], {}, 200),
    ("stop", ["."], {"num_beams": 2}, 400),
    ("stop_tokens", [{"tokens": [30]}], {}, 200),
    ("seed", 5, {}, 200),
    ("seed", [5, 6], {"n": 2}, 200),
    ("seed", [5, 9], {"n": 2}, 200),
    ("seed", [5], {"n": 2}, 400),
    ("token_index_to_replace", [], {}, 200),
    ("token_index_to_replace", [0], {}, 422),
    ("embedding_to_replace", [], {}, 200),
    ("embedding_to_replace", [0.5], {}, 422),
    ("beam_search_type", "DETERMINISTIC", {"num_beams": 2}, 200),
    ("beam_search_type", "STOCHASTIC", {"num_beams": 2}, 422),
    ("bad_words", [" Paris"], {}, 200),
    ("bad_word_tokens", [{"tokens": [7042]}], {}, 200),
    ("bad_word_tokens", [{"tokens": [7042, 30]}], {}, 200),
    ("include_output_logits", False, {}, 200),
    ("include_output_logits", True, {}, 422),
    ("include_output_logprobs", True, {}, 200),
    ("eos_token", [30], {}, 200),
    ("response_format", {"type": "text"}, {}, 200),
    ("response_format", {"type": "json_object"}, {}, 200),
    ("response_format", {"type": "regex", "schema": "[ab]+"}, {}, 200),
    ("response_format", {"type": "json_object", "schema": "{"}, {}, 400),
    ("beam_compat_pre_normalization", True, {}, 422),
    ("beam_compat_no_post_normalization", True, {}, 422),
    ("forced_output_tokens", [1], {}, 422),
    ("soft_prompts", [0.5], {}, 422),
    ("position_ids", [0], {}, 422),
    ("generation_offset", 1, {}, 422),
]
AZURE_ROWS: list[Row] = [
    ("messages", [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], {}, 200),
    ("messages", [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}], {}, 200),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "y"}]}], {}, 200),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
        {},
        422,
    ),
    ("model", "smollm2", {}, 200),
    ("frequency_penalty", 0.5, {}, 200),
    ("frequency_penalty", 3, {}, 422),
    ("presence_penalty", -0.5, {}, 200),
    ("max_tokens", 3, {}, 200),
    ("response_format", {"type": "text"}, {}, 200),
    ("response_format", {"type": "json_object"}, {}, 200),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
        {},
        200,
    ),
    ("seed", 5, {}, 200),
    ("stop", ["."], {}, 200),
    ("stop", ".", {}, 200),
    ("stream", True, {}, 200),
    ("temperature", 0.3, {}, 200),
    ("temperature", 3, {}, 422),
    ("top_p", 0.9, {}, 200),
    ("tools", TOOLS, {}, 200),
    ("tools", [], {}, 200),
    ("tool_choice", "auto", {"tools": TOOLS}, 200),
    ("tool_choice", "none", {"tools": TOOLS}, 200),
    ("tool_choice", "required", {"tools": TOOLS}, 200),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, {"tools": TOOLS}, 200),
    ("tool_choice", "required", {}, 400),
]


def _id(row: Row) -> str:
    name, value, others, status = row
    return f"{name}={str(value)[:24]}{'+' + '+'.join(others) if others else ''}:{status}"


@pytest.mark.parametrize("row", FRIENDLI_ROWS, ids=_id)
def test_a_row_of_friendli(gateway: httpx.Client, row: Row) -> None:
    name, value, others, status = row
    body = {**COMPLETE, **others, name: value}
    response = gateway.post("/friendli/v1/completions", json=body)
    assert response.status_code == status, response.text
    if status == 422:
        assert response.json()["error"]["param"] in (name, "num_beams")
    if status == 200:
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        for answer in events or [response.text]:
            assert "error" not in json.loads(answer)  # a model may write the word


@pytest.mark.parametrize("row", AZURE_ROWS, ids=_id)
def test_a_row_of_azure(gateway: httpx.Client, row: Row) -> None:
    name, value, others, status = row
    response = gateway.post(
        "/azure/chat/completions?api-version=2024-05-01-preview", json={**CHAT, **others, name: value}
    )
    assert response.status_code == status, response.text
    if status == 422:
        assert response.json()["detail"]["loc"][:2] == ["body", name]


@pytest.mark.parametrize("mode", ["pass-through", "ignore", "error"])
def test_what_azure_does_with_extras(gateway: httpx.Client, mode: str) -> None:
    response = gateway.post(
        "/azure/chat/completions?api-version=2024-05-01-preview",
        json={**CHAT, "top_k": 3, "not_a_field": 1},
        headers={"extra-parameters": mode},
    )
    assert response.status_code == (400 if mode == "error" else 200), response.text


def test_no_row_was_forgotten() -> None:
    shown = {row[0] for row in FRIENDLI_ROWS}
    assert {field.name for field in FRIENDLI["complete"]} - shown <= {"X-Friendli-Team"}
    shown = {row[0] for row in AZURE_ROWS}
    assert {field.name for field in AZURE["chat"]} - shown <= {
        "api-version",
        "extra-parameters",
        "azureml-model-deployment",
    }
