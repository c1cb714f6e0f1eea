"""OpenAI's batches by its own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.support.standins.guard import guard
from tests.unit.features.batches.conftest import ALICE, BOB, openai_client, sections
from tests.unit.features.guards.asking import config_of

CHAT = "/v1/chat/completions"


def chat(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words}], **more}


def lines(bodies: dict[str, dict[str, Any]], url: str = CHAT) -> bytes:
    made = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, body in bodies.items()]
    return b"".join(json.dumps(one).encode() + b"\n" for one in made)


def upload(stack: Stack, data: bytes, key: str = ALICE) -> str:
    return openai_client(stack, key).files.create(file=("lines.jsonl", data), purpose="batch").id


def begin(stack: Stack, data: bytes, url: Any = CHAT, key: str = ALICE, window: Any = "24h", **more: Any) -> Any:
    batches = openai_client(stack, key).batches
    file = upload(stack, data, key)
    return batches.create(input_file_id=file, endpoint=url, completion_window=window, **more)


ENDED = ("completed", "failed", "expired", "cancelled")


def ended(stack: Stack, batch: Any, key: str = ALICE, seconds: float = 20) -> Any:
    """The batch once it has ended."""
    batches = openai_client(stack, key).batches
    until(lambda: batches.retrieve(batch.id).status in ENDED, seconds)
    return batches.retrieve(batch.id)


def results(stack: Stack, file: str | None, key: str = ALICE) -> dict[str, Any]:
    assert file is not None
    text = openai_client(stack, key).files.content(file).read()
    found = [json.loads(line) for line in text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def test_a_batch_is_answered(stack: Stack) -> None:
    bodies = {f"c{n}": chat(f"say {n}") for n in range(20)}
    made = begin(stack, lines(bodies), metadata={"job": "night"})
    assert (made.status, made.endpoint, made.metadata) == ("validating", CHAT, {"job": "night"})
    done = ended(stack, made)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (20, 20, 0)
    assert done.error_file_id is None
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    found = results(stack, done.output_file_id)
    assert found.keys() == bodies.keys()
    first = found["c0"]
    assert (first["response"]["status_code"], first["error"]) == (200, None)
    assert first["response"]["body"]["choices"][0]["message"]["content"]
    records = [one for one in stack.records() if one.get("batch")]
    assert {one["batch"] for one in records} == {made.id}
    assert {(one["key"], one["team"], one["operation"]) for one in records} == {("alice", "blue", "chat")}
    # A line that a busy machine's gateway or worker put off has a record of each try.
    answered = [one["id"] for one in records if one["outcome"] == "ok"]
    assert sorted(answered) == sorted(one["response"]["request_id"] for one in found.values())
    files = openai_client(stack).files
    described = files.retrieve(done.output_file_id)
    assert (described.purpose, described.filename) == ("batch_output", f"{made.id}_output.jsonl")


@pytest.mark.parametrize(
    ("url", "body", "member"),
    [
        ("/v1/completions", {"model": "m", "prompt": "say"}, "choices"),
        ("/v1/embeddings", {"model": "m", "input": "say"}, "data"),
        ("/v1/responses", {"model": "alias", "input": "say"}, "output"),
    ],
)
def test_each_endpoint_is_called(stack: Stack, url: str, body: dict[str, Any], member: str) -> None:
    done = ended(stack, begin(stack, lines({"a": body, "b": body}, url), url))
    found = results(stack, done.output_file_id)
    assert [one["response"]["body"][member] != [] for one in found.values()] == [True, True]


def test_each_line_has_its_own_error(stack: Stack) -> None:
    wrong = {
        "model": {**chat("a"), "model": "unknown"},
        "stream": chat("a", stream=True),
        "field": {"model": "m", "messages": 5},
        "good": chat("a"),
    }
    done = ended(stack, begin(stack, lines(wrong)))
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 1, 3)
    assert results(stack, done.output_file_id).keys() == {"good"}
    found = {name: one["response"] for name, one in results(stack, done.error_file_id).items()}
    assert {name: one["status_code"] for name, one in found.items()} == {"model": 404, "stream": 400, "field": 400}
    assert found["model"]["body"]["error"]["code"] == "model_not_found"
    assert found["stream"]["body"]["error"]["param"] == "stream"


def test_a_file_with_faults_is_not_begun(stack: Stack) -> None:
    good = lines({"a": chat("x")})
    data = good + b"\n{]\n" + good + lines({"b": chat("x")}, "/v1/embeddings") + b'{"custom_id": "c", "url": 1}\n'
    data += json.dumps({"custom_id": "d", "method": "GET", "url": CHAT, "body": {}}).encode() + b"\n"
    data += json.dumps({"custom_id": "e", "method": "POST", "url": CHAT, "body": []}).encode() + b"\n"
    data += lines({"f": chat("x" * (1 << 20))})
    failed = ended(stack, begin(stack, data))
    assert failed.status == "failed"
    assert [(one.line, one.code) for one in failed.errors.data] == [
        (3, "invalid_json_line"),
        (4, "duplicate_custom_id"),
        (5, "mismatched_endpoint"),
        (6, "invalid_json_line"),
        (7, "invalid_method"),
        (8, "invalid_body"),
        (9, "request_too_large"),
    ]
    assert stack.sim.ledger.received == 0
    empty = ended(stack, begin(stack, b"\n\n"))
    assert [one.code for one in empty.errors.data] == ["empty_file"]


def test_what_is_asked_wrongly_is_refused(stack: Stack) -> None:
    batches, theirs = openai_client(stack).batches, upload(stack, lines({"a": chat("x")}), BOB)
    mine = upload(stack, lines({"a": chat("x")}))
    right = {"input_file_id": mine, "endpoint": CHAT, "completion_window": "24h"}
    for param, value in (
        ("input_file_id", theirs),
        ("input_file_id", "file-" + "0" * 28),
        ("endpoint", "/v1/moderations"),
        ("completion_window", "8d"),
        ("completion_window", "day"),
        ("metadata", {f"n{n}": "x" for n in range(17)}),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            batches.create(**{**right, param: value})  # type: ignore[arg-type]
        assert wrong.value.param == param


def test_a_list_has_pages_and_no_other_tenants_batches(stack: Stack) -> None:
    mine = [begin(stack, lines({"a": chat("x")})) for _ in range(3)]
    theirs = begin(stack, lines({"a": chat("x")}), key=BOB)
    assert [one.id for one in openai_client(stack).batches.list(limit=2)] == [one.id for one in mine[::-1]]
    assert [one.id for one in openai_client(stack, BOB).batches.list()] == [theirs.id]
    for ask in (openai_client(stack).batches.retrieve, openai_client(stack).batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(theirs.id)
    for one in mine:
        ended(stack, one)
    ended(stack, theirs, BOB)


def test_the_file_may_be_deleted_once_there_is_a_batch(stack: Stack) -> None:
    made = begin(stack, lines({"a": chat("x")}))
    openai_client(stack).files.delete(made.input_file_id)
    assert ended(stack, made).status == "completed"


def test_a_batch_is_cancelled(stack: Stack) -> None:
    stack.sim.fault("stall", path=CHAT, skip=5)
    made = begin(stack, lines({f"c{n}": chat(f"say {n}") for n in range(10)}))
    until(lambda: stack.sim.ledger.completed == 5 and stack.sim.ledger.running > 0)
    cancelling = openai_client(stack).batches.cancel(made.id)
    assert (cancelling.status, cancelling.cancelling_at is not None) == ("cancelling", True)
    done = ended(stack, made)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("cancelled", 5, 0)
    assert len(results(stack, done.output_file_id)) == 5
    codes = {one["error"]["code"] for one in results(stack, done.error_file_id).values()}
    assert codes == {"batch_cancelled"}
    assert len(results(stack, done.error_file_id)) == 5
    with pytest.raises(openai.BadRequestError):
        openai_client(stack).batches.cancel(made.id)
    stack.run(stack.sim.ledger.wait(running=0))
    left = [one for one in stack.records() if one.get("batch") and one["outcome"] == "cancelled"]
    assert {one["code"] for one in left} <= {"yielded"}


def test_a_streamed_line_is_refused_before_a_guard_is_asked(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with guard() as service, Stack(({},), {**sections(server, tmp_path), **config_of(service)}) as stack:
        made = begin(stack, lines({"stream": chat("a", stream=True), "whole": chat("b")}))
        assert ended(stack, made, seconds=60).request_counts.failed == 1
        assert len(service.asked) == 1
