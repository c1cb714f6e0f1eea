"""Anthropic's Message Batches by its own client."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest

from tests.support.harness import Stack, until
from tests.unit.features.batches.conftest import ALICE, BOB, MATE, anthropic_client


def params(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": words}], **more}


def requests(count: int) -> list[Any]:
    return [{"custom_id": f"c{n}", "params": params(f"say {n}")} for n in range(count)]


def ended(stack: Stack, batch: Any, key: str = ALICE) -> Any:
    batches = anthropic_client(stack, key).messages.batches
    until(lambda: batches.retrieve(batch.id).processing_status == "ended")
    return batches.retrieve(batch.id)


@pytest.mark.parametrize("prefix", ["", "/anthropic"])
def test_a_batch_is_answered(stack: Stack, prefix: str) -> None:
    batches = anthropic_client(stack, prefix=prefix).messages.batches
    made = batches.create(requests=requests(10))
    assert (made.type, made.processing_status, made.request_counts.processing) == ("message_batch", "in_progress", 10)
    assert made.results_url is None
    assert (made.expires_at - made.created_at).total_seconds() == 86400
    done = ended(stack, made)
    counts = done.request_counts
    assert (counts.succeeded, counts.errored, counts.canceled, counts.expired, counts.processing) == (10, 0, 0, 0, 0)
    found = {one.custom_id: one.result for one in batches.results(made.id)}
    assert found.keys() == {f"c{n}" for n in range(10)}
    assert all(one.type == "succeeded" and one.message.content[0].text for one in found.values())  # type: ignore[union-attr]
    assert {one["batch"] for one in stack.records() if one.get("batch")} == {made.id}
    assert {one["dialect"] for one in stack.records()} == {"anthropic"}
    deleted = batches.delete(made.id)
    assert (deleted.id, deleted.type) == (made.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(made.id)


def test_each_request_has_its_own_error(stack: Stack) -> None:
    wrong = [
        {"custom_id": "model", "params": params("a", model="unknown")},
        {"custom_id": "stream", "params": params("a", stream=True)},
        {"custom_id": "good", "params": params("a")},
    ]
    batches = anthropic_client(stack).messages.batches
    made = batches.create(requests=wrong)  # type: ignore[arg-type]
    done = ended(stack, made)
    assert (done.request_counts.succeeded, done.request_counts.errored) == (1, 2)
    found = {one.custom_id: one.result for one in batches.results(made.id)}
    assert {name: one.type for name, one in found.items()} == {
        "model": "errored",
        "stream": "errored",
        "good": "succeeded",
    }
    assert found["model"].error.error.type == "not_found_error"  # type: ignore[union-attr]
    assert found["stream"].error.error.type == "invalid_request_error"  # type: ignore[union-attr]


def test_a_batch_is_cancelled(stack: Stack) -> None:
    stack.sim.fault("stall", skip=3, path="/v1/chat/completions")
    batches = anthropic_client(stack).messages.batches
    made = batches.create(requests=requests(6))
    until(lambda: stack.sim.ledger.completed == 3 and stack.sim.ledger.running > 0)
    with pytest.raises(anthropic.BadRequestError):
        batches.delete(made.id)
    with pytest.raises(anthropic.AnthropicError):
        batches.results(made.id)
    cancelling = batches.cancel(made.id)
    assert (cancelling.processing_status, cancelling.cancel_initiated_at is not None) == ("canceling", True)
    counts = ended(stack, made).request_counts
    assert (counts.succeeded, counts.canceled) == (3, 3)
    assert sorted(one.result.type for one in batches.results(made.id)) == ["canceled"] * 3 + ["succeeded"] * 3


def test_a_list_has_pages_for_its_tenant(stack: Stack) -> None:
    mine = [anthropic_client(stack).messages.batches.create(requests=requests(1)) for _ in range(3)]
    names = [one.id for one in mine[::-1]]
    for one in mine:
        ended(stack, one)
    batches = anthropic_client(stack, MATE).messages.batches  # of the same team
    assert [one.id for one in batches.list(limit=2)] == names
    assert [one.id for one in batches.list(limit=2, after_id=names[0]).data] == names[1:]
    assert [one.id for one in batches.list(limit=1, before_id=names[2]).data] == names[1:2]
    assert anthropic_client(stack, BOB).messages.batches.list().data == []
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client(stack, BOB).messages.batches.retrieve(names[0])


ONE = {"custom_id": "a", "params": params("x")}


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"requests": []}, 400, "one item"),
        ({"requests": [ONE, ONE]}, 400, "requests.1.custom_id: is not unique"),
        ({"requests": [{**ONE, "custom_id": "no spaces"}]}, 400, "requests.0.custom_id"),
        ({"requests": [{**ONE, "params": 1}]}, 400, "requests.0.params"),
        ({"requests": [{"custom_id": "a"}]}, 400, "params"),
        ({"requests": [{**ONE, "params": params("x" * (1 << 20))}]}, 413, "more than"),
        ({"all": []}, 400, "must be"),
    ],
)
def test_a_wrong_body_is_refused(stack: Stack, asked: Any, status: int, words: str, tmp_path: Any) -> None:
    headers = {"x-api-key": ALICE, "anthropic-version": "2023-06-01"}
    answer = httpx.post(stack.url + "/anthropic/v1/messages/batches", headers=headers, content=json.dumps(asked))
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == "error"
    assert words in answer.json()["error"]["message"]
    assert [one for one in (tmp_path / "files").rglob("*") if one.is_file()] == []


@pytest.mark.long
def test_a_large_body_comes_to_the_disk(stack: Stack) -> None:
    many = [{"custom_id": f"c{n}", "params": params("x" * 2000)} for n in range(3000)]
    batches = anthropic_client(stack).messages.batches
    made = batches.create(requests=many)  # type: ignore[arg-type]
    assert made.request_counts.processing == 3000
    batches.cancel(made.id)
    assert ended(stack, made).request_counts.processing == 0
