"""Headers about limits: OpenAI's in every dialect, Anthropic's in its own, those of the IETF's draft by an option."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import ceil
from typing import Any

import pytest

from gateway.config import Limit
from gateway.config.sharing import Limiter
from gateway.core.http import Headers
from gateway.ratelimit.headers import Forms
from gateway.ratelimit.model import Limited, LimitState
from tests.support.clients import REQUESTS
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import DEFAULTS, ask, made

LIMITS = {"requests": 1, "tokens": 5000, "concurrency": 2}
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
FORMS = {"default": None, "ietf": ["ietf"], "none": [], "anthropic": ["anthropic"]}


@pytest.fixture(scope="module", params=FORMS)
def limited(request: pytest.FixtureRequest) -> Iterator[tuple[str, Stack, dict[str, str]]]:
    keys, entries, forms = {}, {}, FORMS[request.param]
    for name in REQUESTS:
        keys[name], entry = made(name, limits=LIMITS)
        entries.update(entry)
    limiter = {} if forms is None else {"limiter": {"headers": forms}}
    with Stack(({"itl_ms": 1},), {**DEFAULTS, "keys": entries, **limiter}) as stack:
        yield request.param, stack, keys


def about(headers: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}


def seconds(moment: str) -> float:
    assert MOMENT.match(moment)
    return datetime.fromisoformat(moment).timestamp()


@pytest.mark.parametrize("dialect", REQUESTS)
def test_each_dialect_has_the_headers_that_are_its_own(
    limited: tuple[str, Stack, dict[str, str]], dialect: str
) -> None:
    forms, stack, keys = limited
    began = time.time()
    good, bad = (ask(stack, keys[dialect], dialect) for _ in range(2))
    assert (good.status_code, bad.status_code) == (200, 429)
    again = int(bad.headers["retry-after"])
    for reply in (good, bad):
        theirs = about(reply.headers, "anthropic-ratelimit-")
        if dialect == "anthropic" and forms in ("default", "anthropic"):
            assert (theirs["requests-limit"], theirs["requests-remaining"]) == ("1", "0")
            assert theirs["tokens-limit"] == "5000"
            assert 0 < int(theirs["tokens-remaining"]) < 5000
            assert seconds(theirs["tokens-reset"]) <= time.time() + 63
            least = again if reply is bad else 0
            assert began + least <= seconds(theirs["requests-reset"]) <= time.time() + 63 + least
            assert len(theirs) == 6
        else:
            assert theirs == {}
        assert bool(about(reply.headers, "x-ratelimit-")) == (forms == "default")
        drafts = about(reply.headers, "ratelimit")
        if forms != "ietf":
            assert drafts == {}
            continue
        assert drafts["-policy"] == (
            '"requests";q=1;w=60, "tokens";q=5000;qu="tokens";w=60, "concurrency";q=2;qu="concurrent-requests"'
        )
        found = re.fullmatch(r'"requests";r=0;t=(\d+), "tokens";r=\d+;t=(\d+), "concurrency";r=[12]', drafts[""])
        assert found is not None, drafts
        assert all(0 < int(one) <= (again if reply is bad else 61) for one in found.groups())


def state(name: str, kind: str, remaining: int, reset_s: float = 9.5, **options: Any) -> LimitState:
    rule: Any = Limit(name=name, kind=kind, limit=10, **options)  # type: ignore[arg-type]
    return LimitState(rule, 10, remaining, reset_s)


def written(form: Any, states: list[LimitState], limited: Limited | None = None) -> dict[str, str]:
    headers: Headers = []
    own = {"anthropic": b"anthropic-ratelimit-"}
    Forms(Limiter(headers=(form,)), own).write("anthropic", states, limited, headers)
    return {name.decode(): value.decode() for name, value in headers}


def test_the_draft_names_each_limit_once_and_no_shadow() -> None:
    states = [
        state("minute", "requests", 5, per_s=60),
        state("minute", "requests", 3, per_s=3600),
        state("shade", "requests", 1, shadow=True),
        state("sound", "audio_seconds", 1),
        state("burst", "tokens", 4, per_s=0.5),
    ]
    assert written("ietf", states) == {
        "ratelimit-policy": '"minute";q=10;w=3600, "burst";q=10;qu="tokens"',
        "ratelimit": '"minute";r=3;t=10, "burst";r=4;t=10',
    }
    assert written("ietf", states[2:4]) == {}


@pytest.mark.parametrize("again_s", [3.2, 40.0])
def test_times_agree_with_retry_after(again_s: float) -> None:
    """Of the limit that refused: Anthropic's is when all of it is free, and the draft's when more of it is."""
    states = [state("requests", "requests", 0), state("tokens", "tokens", 5, 30.0)]
    refused = Limited(states[0].rule, "", tuple(states), again_s)
    began = time.time()
    theirs = written("anthropic", states, refused)
    assert seconds(theirs["anthropic-ratelimit-requests-reset"]) >= began + max(9.5, ceil(again_s))
    assert began + 30 <= seconds(theirs["anthropic-ratelimit-tokens-reset"]) < began + 32
    first, second = re.findall(r";t=(\d+)", written("ietf", states, refused)["ratelimit"])
    assert int(first) == min(10, ceil(again_s))
    assert int(second) == min(30, ceil(again_s))
