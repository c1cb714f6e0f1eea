"""A refusal states one time to come back, in its text and in each header, and says what of it is spread."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import ceil
from typing import Any

import httpx
import pytest

from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit.kinds import Wait
from gateway.ratelimit.limiter import _SLOT_SPREAD, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Limited
from gateway.ratelimit.reservation import Reservation
from gateway.ratelimit.window import Window
from tests.support.clients import DIALECTS, REQUESTS
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import DEFAULTS, OPENAI, ask, said
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.subjects import ANN, requests, tokens

PRICED = {
    "spend": {"currency": "EUR"},
    "models": {"m": {"price": {"output": 1000}}},
    "budgets": [{"name": "money", "amount": 0.1, "scope": []}],
}
FULL: dict[str, dict[str, Any]] = {
    **{
        kind: {"limits": [{"name": "only", "kind": kind, "limit": limit, "scope": []}]}
        for kind, limit in (("requests", 1), ("tokens", 100), ("concurrency", 1))
    },
    "cost": PRICED,
}
# What running requests hold may be free soon; what was counted for good counts for a window.
WINDOW = {"requests": 60, "tokens": 0, "concurrency": 0, "cost": 0}


@pytest.fixture(scope="module", params=FULL)
def full(request: pytest.FixtureRequest) -> Iterator[tuple[Stack, str]]:
    """A gateway whose one limit or budget is held by one stream."""
    held = {"model": "m", "stream": True, "max_tokens": 100, **said(text="a b c", fault="stall@1")}
    with (
        Stack(({"itl_ms": 1},), {**DEFAULTS, **FULL[request.param]}) as stack,
        httpx.stream("POST", stack.url + OPENAI, json=held, timeout=None) as reply,
    ):
        blocks = reply.iter_bytes()
        next(blocks)
        yield stack, request.param


@pytest.mark.parametrize("dialect", REQUESTS)
def test_text_and_headers_state_one_time(full: tuple[Stack, str], dialect: str) -> None:
    stack, kind = full
    for _ in range(3):
        reply = ask(stack, dialect=dialect)
        assert reply.status_code == DIALECTS[dialect].errors[Kind.LIMITED][0], reply.text
        found = re.search(r"try again in (\d+) s(?: \((\d+) s of it spread)?", reply.text)
        assert found, reply.text
        wait = int(reply.headers["retry-after"])
        assert int(found[1]) == wait == ceil(int(reply.headers["retry-after-ms"]) / 1000)
        added = int(found[2] or 0)
        # A window counts a slice and a guard longer; a slot is free after a second.
        assert wait <= WINDOW[kind] + 2 + added
        assert added <= (WINDOW[kind] or _SLOT_SPREAD)
        in_ms = reply.headers.get("x-amz-retry-after") or reply.headers["retry-after-ms"]
        assert in_ms == reply.headers["retry-after-ms"]
        if "retryDelay" in reply.text:
            delay = re.search(r'"retryDelay": ?"([0-9.]+)s"', reply.text)
            assert delay
            assert round(float(delay[1]) * 1000) == int(in_ms)


def test_the_text_says_why_a_wait_is_longer_than_its_window() -> None:
    assert Wait(60.9).text(60.0) == "try again in 61 s"
    assert Wait(59.2, 12.0).text(60.0) == "try again in 72 s (12 s of it spread the requests that wait for this)"
    owed = Wait(180.0).text(60.0)
    assert owed == "try again in 180 s (earlier requests used more than they had reserved)"
    assert "; 3 s of it spread" in Wait(180.0, 3.0).text(60.0)


async def test_clients_that_came_back_do_not_lengthen_the_waits_of_others() -> None:
    """Two clients that take turns compete with one other each, however long they go on."""
    now, found = 0.0, []
    limiter = SubjectLimiter([requests(20)], MemoryStore(clock=lambda: 10**12))
    limiter.crowds.clock = lambda: now
    for _ in range(20):
        await limiter.reserve(ANN)
    due = [0.0, 1.0]
    for _ in range(400):
        now = min(due)
        with pytest.raises(Limited) as refused:
            await limiter.reserve(ANN)
        assert refused.value.fits_s is not None
        assert refused.value.retry_after is not None
        found.append(refused.value.retry_after - refused.value.fits_s)
        due[due.index(now)] = now + refused.value.retry_after
    assert max(found) < 3 * 3.0, "three places' time"


@pytest.mark.parametrize("obeys", [True, False])
async def test_one_client_lengthens_its_waits_only_by_coming_back_too_early(obeys: bool) -> None:
    """Such a client looks like many, and many must not come back at one moment."""
    now, found = 0.0, []
    limiter = SubjectLimiter([requests(20)], MemoryStore(clock=lambda: 10**12))
    limiter.crowds.clock = lambda: now
    for _ in range(20):
        await limiter.reserve(ANN)
    for _ in range(30):
        with pytest.raises(Limited) as refused:
            await limiter.reserve(ANN)
        assert refused.value.fits_s is not None
        assert refused.value.retry_after is not None
        found.append(refused.value.retry_after - refused.value.fits_s)
        now += refused.value.retry_after if obeys else 2.0
    assert found[0] == 0
    assert max(found) <= 60.0, "a window"
    assert (max(found) == 0) == obeys


def test_a_wait_that_is_cut_for_a_client_is_explained() -> None:
    """Clients of Azure OpenAI give up where `Retry-After` is above two minutes, so it is less than the text's time."""
    limits = [{"name": "day", "kind": "requests", "limit": 1, "per_s": 86_400, "scope": []}]
    with Stack(({},), {**DEFAULTS, "limits": limits}) as stack:
        ask(stack)
        reply = ask(stack, dialect="azure_openai")
        assert reply.headers["retry-after"] == "120"
        message = json.loads(reply.text)["error"]["message"]
        assert re.search(r"try again in 8[67]\d\d\d s", message), "a day, and what is left of a slice of it"
        assert message.endswith("`Retry-After` is 120 s, the longest that this API's clients wait for")


async def test_a_wait_is_long_only_for_tokens_that_are_used(make: Make) -> None:
    """What running requests hold of a token limit may be free soon, and at the latest when it leaves the window."""
    limiter = await make(tokens(100, reserve="maximum"))
    running, spent = await limiter.reserve(ANN, Cost(60)), await limiter.reserve(ANN, Cost(30))
    limiter.settle(spent, Usage(10, 20))
    await limiter.flush()

    async def refused(tokens: int) -> Limited:
        with pytest.raises(Limited) as caught:
            await limiter.reserve(ANN, Cost(tokens))
        return caught.value

    held, used = await refused(40), await refused(80)
    assert held.fits_s == 1.0
    assert re.search(
        r"; running or expected requests hold what is missing, for \d+ s at most; try again in \d s", held.message
    )
    assert (used.fits_s or 0) > 50, "too much was used for it to fit before"
    assert "running requests" not in used.message
    limiter.settle(running, Usage(10, 50))
    await limiter.flush()
    late = await refused(40)
    assert (late.fits_s or 0) > 50
    assert "running requests" not in late.message


@pytest.mark.parametrize("outcome", ["unserved", "unknown", "at least"])
def test_each_end_of_a_request_ends_what_it_holds(outcome: str) -> None:
    now = 10**12
    store = MemoryStore(clock=lambda: now)
    limiter = SubjectLimiter([tokens(100, reserve="maximum")], store)
    made = limiter.begin(ANN, Cost(60))
    assert isinstance(made, Reservation)
    match outcome:
        case "unserved":
            limiter.settle(made, None, "unserved")
        case "unknown":
            limiter.settle(made, None)
        case _:
            limiter.settle(made, Usage(1, 1), at_least=True)
    (window,) = [counter for group in store._groups.values() for counter, _ in group.values()]  # its only counter
    assert isinstance(window, Window)
    assert sum(window.held.values()) == 0
    assert window.used == (0 if outcome == "unserved" else 60)


def test_what_a_gateway_held_that_died_is_forgotten_with_its_slice() -> None:
    now = 10**12
    store = MemoryStore(clock=lambda: now)
    limiter = SubjectLimiter([tokens(100, reserve="maximum")], store)
    limiter.begin(ANN, Cost(60))
    now += 62 * 10**9
    limiter.begin(ANN, Cost(60))
    (window,) = [counter for group in store._groups.values() for counter, _ in group.values()]  # its only counter
    assert isinstance(window, Window)
    assert sum(window.held.values()) == 60
