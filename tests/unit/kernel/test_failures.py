"""The consequences of a worker's failure: the next worker, a fallback, the client's error, the worker's state."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.failures import MEANINGS, TRANSIENT, Cause, cause_of
from gateway.wire.openai.replies.views import fault
from tests.support.clients import WAYS, usual
from tests.support.harness import Stack, until
from tests.support.sampled import sampled
from tests.unit.kernel.test_other_models import ask, fleet

DIALECTS = sorted({way.dialect for way in WAYS})
ACCOUNT = (301, 401, 402, 403, 404, 405, 407, 410, 418, 451)
PASSING = (408, 409, 423, 424, 425, 429, 498, 500, 502, 503, 504, 520, 529)
ROOT = Path(__file__).parents[3]


def drawn(statuses: Sequence[int]) -> list[Any]:
    """(dialect, status): some of each dialect."""
    return sampled([(name, status) for name in DIALECTS for status in statuses], 6, lambda case: case[0])


EACH, EACH_OF_THE_ACCOUNT = drawn((*ACCOUNT, *PASSING)), drawn(ACCOUNT)


@pytest.fixture(scope="module")
def siblings() -> Iterator[dict[int, Stack]]:
    """Made when a status is asked for: a pool of two workers, of which one answers with that status only."""
    found: dict[int, Stack] = {}
    yield found
    for stack in found.values():
        stack.__exit__()


def pool_of_two(found: dict[int, Stack], status: int) -> Stack:
    if status not in found:
        more: dict[str, Any] = {"models": {"m": {"policy": "round_robin"}}}
        more |= {"retry": {"min_per_second": 1000}, "breaker": {"failures": 1000}}
        found[status] = Stack(({"fault": f"status:{status}"}, {}), more).__enter__()
    return found[status]


@pytest.mark.parametrize(("dialect", "status"), EACH)
def test_a_sibling_answers(siblings: dict[int, Stack], dialect: str, status: int) -> None:
    stack, way = pool_of_two(siblings, status), usual(dialect)
    for _ in range(2):  # in turns: one of them meets the bad worker, unless that rests
        reply = ask(stack, way, "m", not way.answers(stream=False))
        assert reply.status_code == 200, reply.text


@pytest.fixture(scope="module")
def falling() -> Iterator[Stack]:
    options = {"fallback": ["m"]}
    models = {f"s{status}": {"worker": f"status:{status}", **options} for status in (*ACCOUNT, *PASSING)}
    models |= {f"alone{status}": {"worker": f"status:{status}"} for status in ACCOUNT}
    with fleet({"breaker": {"failures": 1000}}, **models) as stack:
        yield stack


@pytest.mark.parametrize(("dialect", "status"), EACH)
def test_a_fallback_answers(falling: Stack, dialect: str, status: int) -> None:
    way = usual(dialect)
    reply = ask(falling, way, f"s{status}", not way.answers(stream=False))
    assert reply.status_code == 200, reply.text
    word = "account" if status in ACCOUNT else reply.headers["x-dragoman-routed"]
    assert reply.headers["x-dragoman-routed"] == word
    assert word == "account" or word in TRANSIENT


@pytest.mark.parametrize(("dialect", "status"), EACH_OF_THE_ACCOUNT)
def test_a_client_learns_nothing_of_the_account(falling: Stack, dialect: str, status: int) -> None:
    way = usual(dialect)
    reply = ask(falling, way, f"alone{status}", not way.answers(stream=False))
    if dialect == "rerank" and status in (404, 405):
        assert reply.status_code == 400, "a worker without that path does not rank"
    else:
        assert reply.status_code in (424, 500, 502), "a failure behind the gateway, in the dialect's own status"
    assert not re.search(rf"(?<![\w-]){status}(?![\w-])", reply.text)


@pytest.mark.parametrize("status", ACCOUNT)
def test_the_worker_is_marked_and_the_log_has_its_words(falling: Stack, status: int) -> None:
    name = f"alone{status}"

    def lines() -> list[dict[str, Any]]:
        ask(falling, usual("openai"), name)  # again, if it fell to the log's ration of such lines
        return [line for line in falling.events("worker answered with an error") if line.get("model") == name]

    until(lambda: bool(lines()))
    (worker,) = falling.gateway.deployment.pools[name].workers
    cause = cause_of(status, None)
    assert worker.trouble is cause
    assert cause is not None
    last = lines()[-1]
    assert (last["status"], last["worker"], last["reason"]) == (status, worker.address, cause.value)
    assert last["text"]


def test_the_retry_budget_is_for_failures_that_pass() -> None:
    """A refused key costs an engine nothing, so the next worker is asked whatever the budget has."""
    more: dict[str, Any] = {"models": {"m": {"policy": "round_robin"}}, "breaker": {"failures": 1000}}
    more["retry"] = {"budget": 0, "min_per_second": 0}
    served = {}
    for status in (401, 500):
        with Stack(({"fault": f"status:{status}"}, {}), more) as stack:
            served[status] = sorted({ask(stack, usual("openai"), "m").status_code for _ in range(4)})
    assert served == {401: [200], 500: [200, 502]}


def test_a_path_that_is_missing_never_opens_a_breaker() -> None:
    for status, opens in ((404, False), (405, False), (403, False), (401, True), (500, True)):
        more = {"breaker": {"failures": 2}, "models": {"m": {"policy": "round_robin"}}, "retry": {"attempts": 1}}
        with Stack(({"fault": f"status:{status}"}, {"fault": f"status:{status}"}), more) as stack:
            for _ in range(12):
                ask(stack, usual("openai"), "m")
            ejected = any(worker.breaker.ejected for worker in stack.gateway.deployment.pools["m"].workers)
            assert ejected is opens, status


@pytest.mark.parametrize("fault", ["status:500", "status:401", "reset"])
def test_the_last_worker_is_left_out_where_a_fallback_can_answer(fault: str) -> None:
    with fleet(
        {"breaker": {"failures": 2}}, one={"worker": fault, "fallback": ["m"]}, alone={"worker": fault}
    ) as stack:
        for model, asked in (("one", 2), ("alone", 6)):
            bad = stack.sims[1 if model == "one" else 2]
            for _ in range(6):
                reply = ask(stack, usual("openai"), model)
                assert (reply.status_code == 200) is (model == "one")
            assert len([entry for entry in bad.ledger.entries if entry.method == "POST"]) == asked


def test_the_record_has_the_reason_of_each_failed_attempt(siblings: dict[int, Stack], falling: Stack) -> None:
    for status in (401, 403, 500):
        stack, cause = pool_of_two(siblings, status), cause_of(status, None)
        assert cause is not None
        for _ in range(4):
            ask(stack, usual("openai"), "m")
            record = stack.record()
            assert record.get("reasons", []) == [cause.value] * (record["attempts"] - 1)
        assert any("reasons" in one for one in stack.records())
    ask(falling, usual("openai"), "s402")
    assert (falling.record()["outcome"], falling.record()["reasons"]) == ("ok", ["no_credit"])
    ask(falling, usual("openai"), "alone402")
    assert (falling.record()["outcome"], falling.record()["reasons"]) == ("failed", ["no_credit"])


def test_the_record_of_a_stream_that_broke_has_the_reason() -> None:
    with Stack(({"fault": "fin@2"},)) as stack:
        for stream in (True, False):
            with contextlib.suppress(httpx.RemoteProtocolError):
                ask(stack, usual("openai"), "m", stream)
            assert stack.record()["reasons"][0] == "broke_off"


def test_the_record_has_the_reasons_for_which_no_worker_is_ready() -> None:
    with fleet(gone={"worker": "away"}, lost={"worker": "away", "fallback": ["m"]}) as stack:
        assert ask(stack, usual("openai"), "gone").status_code == 503
        assert (stack.record()["attempts"], stack.record()["reasons"]) == (0, ["refused"])
        assert ask(stack, usual("openai"), "lost").status_code == 200
        assert (stack.record()["routed"], stack.record()["reasons"]) == ("unavailable", ["refused"])
        assert ask(stack, usual("openai"), "m").status_code == 200
        assert "reasons" not in stack.record()


BODIES: Sequence[tuple[int, Any, Cause]] = [
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to "
          "access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}, Cause.NO_CREDIT),
    (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
                      "status": "INVALID_ARGUMENT"}}], Cause.KEY_REFUSED),
    (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***x. You can "
          "obtain an API key from https://console.x.ai."}, Cause.KEY_REFUSED),
    (429, {"error": {"message": "You exceeded your current quota, please check your plan and billing details.",
                     "type": "insufficient_quota", "code": "insufficient_quota"}}, Cause.NO_CREDIT),
    (429, [{"error": {"code": 429, "message": "You exceeded your current quota, please check your plan and billing "
           "details. Please retry in 23.5s.", "status": "RESOURCE_EXHAUSTED"}}], Cause.OVERLOADED),
    (400, {"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}},
     Cause.NO_CREDIT),
    (403, {"error": {"message": "Insufficient credits. Add more using https://openrouter.ai/settings/credits",
                     "code": 403}}, Cause.NO_CREDIT),
    (404, {"object": "error", "message": "The model `x` does not exist.", "code": 404}, Cause.UNKNOWN_MODEL),
    (404, {"error": {"message": "model \"x\" not found, try pulling it first", "type": "api_error"}},
     Cause.UNKNOWN_MODEL),
    (404, {"detail": "Not Found"}, Cause.WRONG_PATH),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "cause"), BODIES)
def test_what_providers_answer(status: int, body: Any, cause: Cause) -> None:
    error = fault(status, json.dumps(body).encode())
    assert error.cause is cause
    assert (error.detail or "")[:5] in json.dumps(body, ensure_ascii=False).replace("\\", "")
    assert not set(re.findall(r"\w{6,}", error.message)) & {"credit", "Billing", "billing", "quota", "access"}


@pytest.mark.parametrize(
    "text", ["messages.0: 'Your credit balance is too low' is not an object", "max_tokens: API key not valid", "no", ""]
)
@pytest.mark.parametrize("status", [400, 413, 422, 501])
def test_what_a_client_quotes_is_its_own_fault(status: int, text: str) -> None:
    error = fault(status, json.dumps({"error": {"message": text}}).encode())
    assert (error.why, error.detail) == (None, None)


@pytest.mark.parametrize(
    "body", [b"<html>upstream \x1b[2J timed out\n</html>", b"plain\0text" * 1000, b"\xff\xfe", b"[]", b""]
)
@pytest.mark.parametrize("status", [400, 404, 500])
def test_words_that_are_no_json_go_to_the_log_in_one_bounded_line(status: int, body: bytes) -> None:
    error = fault(status, body)
    assert len(error.detail or "") <= 500
    assert (error.detail or "").isprintable()
    assert body == b"" or error.detail
    assert "upstream" not in error.message


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \| (yes|no) \| (\w+) \|$", page, re.MULTILINE)
    shown = {cause: tuple(rest) for causes, *rest in rows for cause in re.findall(r"`(\w+)`", causes)}
    effects = {"counts": "counts", "rests": "rests", "marks": "marked"}
    assert shown == {
        cause.value: (meaning.word, "yes" if meaning.budget else "no", effects[meaning.on_worker])
        for cause, meaning in MEANINGS.items()
    }
