"""The metrics page, read back by Prometheus's own parser."""

from __future__ import annotations

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.fleet.discovery import FoundWorker
from gateway.observe.by_key import ByKey
from gateway.observe.metrics import Metrics
from tests.support.harness import Stack, soon, until
from tests.unit.auth.stored_keys import hash_of

CHAT = "/v1/chat/completions"
PHASES = ("reading", "queued", "first_output", "streaming")


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(metrics: Metrics | str, name: str, **labels: str) -> float:
    page = metrics if isinstance(metrics, str) else metrics.page().decode()
    return samples(page)[name, tuple(sorted(labels.items()))]


def finish(metrics: Metrics, **fields: Any) -> None:
    metrics.begun("openai")
    metrics.finished(RequestRecord(id="id", dialect="openai", **fields))


def test_a_histogram_counts_into_the_right_buckets() -> None:
    metrics = Metrics()
    times = [0.0, 4.999, 5.0, 5.001, 49.9, 1000.0, 599_999.0, 600_001.0]
    for ms in times:
        finish(metrics, model="m", duration_ms=ms)
    page = metrics.page().decode()

    def below(bound: str) -> float:
        return value(page, "dragoman_request_duration_seconds_bucket", dialect="openai", model="m", le=bound)

    assert [below(bound) for bound in ("0.005", "0.01", "0.025", "0.05", "0.5", "1.0", "300.0", "600.0", "+Inf")] == [
        *(3, 4, 4, 5, 5, 6, 6, 7, 8)
    ]
    assert value(page, "dragoman_request_duration_seconds_count", dialect="openai", model="m") == len(times)
    total = value(page, "dragoman_request_duration_seconds_sum", dialect="openai", model="m")
    assert total == pytest.approx(sum(times) / 1000)
    assert "dragoman_time_to_first_token_seconds_count{" not in page, "nothing was streamed"


def test_running_goes_up_and_down() -> None:
    metrics = Metrics()
    metrics.begun("openai")
    metrics.begun("openai")
    assert value(metrics, "dragoman_requests_running", dialect="openai") == 2
    metrics.finished(RequestRecord(id="id", dialect="openai"))
    assert value(metrics, "dragoman_requests_running", dialect="openai") == 1


def test_tokens_count_by_direction_and_source() -> None:
    metrics = Metrics()
    finish(metrics, model="m", usage=Usage(3, 5))
    finish(metrics, model="m", usage=Usage(4, 6))
    finish(metrics, model="m", usage=Usage(None, 7, source="estimated"))
    finish(metrics, model="m")

    def tokens(direction: str, source: str) -> float:
        return value(metrics, "dragoman_tokens_total", model="m", direction=direction, source=source)

    assert (tokens("input", "engine"), tokens("output", "engine"), tokens("output", "estimated")) == (7, 11, 7)


def test_teams_are_counted_up_to_a_bound() -> None:
    metrics = Metrics()
    finish(metrics, model="m", usage=Usage(1, 1))
    for number in range(150):
        finish(metrics, model="m", team=f"team-{number}", usage=Usage(1, 2))
        finish(metrics, model="m", team=f"team-{number}", usage=Usage(1, 2))
    page = metrics.page().decode()
    assert value(page, "dragoman_team_requests_total", team="none", outcome="ok") == 1
    assert value(page, "dragoman_team_requests_total", team="team-0", outcome="ok") == 2
    assert value(page, "dragoman_team_tokens_total", team="team-99", direction="output") == 4
    assert value(page, "dragoman_team_requests_total", team="other", outcome="ok") == 100
    assert value(page, "dragoman_team_tokens_total", team="other", direction="input") == 100


def keyed(metrics: Metrics, key: str, times: int = 1, **fields: Any) -> None:
    for _ in range(times):
        finish(metrics, model="m", key=key, **fields)


def by_key(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """(key, team, the third label if there is one) -> its value."""
    return {
        tuple(
            value
            for _, value in sorted(
                labels, key=lambda label: ("key", "team").index(label[0]) if label[0] in ("key", "team") else 2
            )
        ): count
        for (metric, labels), count in samples(metrics.page().decode()).items()
        if metric == f"dragoman_key_{name}_total"
    }


def test_keys_have_series_where_asked_alone() -> None:
    metrics = Metrics()
    keyed(metrics, "k")
    assert not by_key(metrics, "requests")
    metrics.configure(genai=False, top_keys=2)
    keyed(metrics, "k")
    assert by_key(metrics, "requests") == {("k", "none", "ok"): 1}
    metrics.configure(genai=False)
    assert not by_key(metrics, "requests")


def test_keys_are_counted_up_to_a_bound() -> None:
    metrics = Metrics(top_keys=2)
    finish(metrics, outcome="refused", status=401)
    used: dict[str, Any] = {"usage": Usage(10, 3), "cost": 7}
    for number in range(50):
        keyed(metrics, f"k{number}", team="t", **used)
        keyed(metrics, f"k{number}", team="t", outcome="refused", limit="l")
        keyed(metrics, f"k{number}", team="t", outcome="refused")
    rows = {("k0", "t"): 1, ("k1", "t"): 1, ("other", "other"): 48}
    requests = {(*row, outcome): n * times for row, n in rows.items() for outcome, times in (("ok", 1), ("refused", 2))}
    assert by_key(metrics, "requests") == requests | {("none", "none", "refused"): 1}
    refusals = {(*row, reason): n for row, n in rows.items() for reason in ("limit", "request")}
    assert by_key(metrics, "refusals") == refusals | {("none", "none", "request"): 1}
    tokens = {(*row, way): n * count for row, n in rows.items() for way, count in (("input", 10), ("output", 3))}
    assert by_key(metrics, "tokens") == tokens | {("none", "none", "input"): 0, ("none", "none", "output"): 0}
    assert by_key(metrics, "cost_nano") == {row: n * 7 for row, n in rows.items()}


@pytest.mark.parametrize("name", ["other", "none"])
def test_a_key_may_have_any_name(name: str) -> None:
    metrics = Metrics(top_keys=1)
    keyed(metrics, name, team=name)
    keyed(metrics, "late")
    finish(metrics)
    assert sum(by_key(metrics, "requests").values()) == 3, "no series is shown twice"


def test_no_sum_over_keys_falls_while_they_take_places() -> None:
    """Whatever keys are used and whenever an hour passes: what a series shows grows, or the series ends, and nothing
    that is counted from then on is missing."""
    draw, now = random.Random(3), 0.0
    one = ByKey(3, False, lambda: now)
    seen: dict[tuple[str, str], float] = {}
    for _ in range(40):
        weights = [draw.random() ** 4 for _ in range(12)]
        for key in draw.choices(range(12), weights, k=60):
            one.add(RequestRecord(id="id", dialect="openai", key=f"k{key}"))
        shown = {(s.labels["key"], s.labels["team"]): s.value for s in next(one.collect()).samples}
        assert len(shown) <= 4
        grown = sum(value - seen.get(row, 0) for row, value in shown.items())
        assert grown == 60
        assert all(value >= seen.get(row, 0) for row, value in shown.items())
        if draw.random() < 0.5:
            now += 3600
        one.turn()
        seen = {(s.labels["key"], s.labels["team"]): s.value for s in next(one.collect()).samples}


def test_keys_that_are_used_more_take_places() -> None:
    now = 0.0

    def hour(one: ByKey, **requests: int) -> set[str]:
        nonlocal now
        for key, times in requests.items():
            for _ in range(times):
                one.add(RequestRecord(id="id", dialect="openai", key=key))
        now += 3600
        one.turn()
        for key in requests:
            one.add(RequestRecord(id="id", dialect="openai", key=key))
        return {sample.labels["key"] for sample in next(one.collect()).samples}

    def fresh(settled: bool) -> ByKey:
        one = ByKey(2, settled, lambda: now)
        assert hour(one, a=5, b=5) == {"a", "b"}
        return one

    assert hour(fresh(False), a=5, b=5, c=8) == {"a", "b", "other"}, "not twice as many"
    one = fresh(False)
    assert hour(one, a=5, b=50, c=11, d=99) == {"b", "d", "other"}
    one.most = 1
    assert hour(one, b=1, d=9) == {"d", "other"}
    assert hour(fresh(True), a=1, b=1, c=99) == {"a", "b", "other"}, "another process shows the same series"


ALIASED = {
    "models": {"m": {"aliases": ["gpt", "gpt-*", "gpt-4*"]}},
    "keys": {"k": {"hash": hash_of("secret"), "aliases": {"own": "m"}}},
}


def test_the_alias_that_was_used_is_in_log_and_metric() -> None:
    with Stack(config=ALIASED) as stack, httpx.Client(base_url=stack.url, headers={"api-key": "secret"}) as client:
        names = ["m", "gpt", "gpt-3", "gpt-5", "gpt-4o", "own", "gpt-sk-proj-0123456789abcdef"]
        for name in names:
            assert client.post(CHAT, json=chat(model=name)).status_code == 200
        records = {one.get("alias") for one in stack.records()}
        assert records == {None, "gpt", "gpt-3", "gpt-5", "gpt-4o", "own", "***"}
        assert all(one["asked"] is None for one in stack.records())
        page = client.get("/metrics").text
    shown = {
        labels: count for (name, labels), count in samples(page).items() if name == "dragoman_alias_requests_total"
    }
    assert shown == {
        (("alias", alias), ("model", "m")): count
        for alias, count in (("gpt", 1), ("gpt-*", 2), ("gpt-4*", 1), ("other", 2))
    }


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def test_a_clients_words_never_become_labels() -> None:
    config = {"dialects": {"openai": {"extras": "drop"}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:

        def flood(number: int) -> None:
            path = "/v1/chat/completions"
            client.post(path, json=chat(model=f"model-{number}"))
            client.post(path, json=chat(user=f"user-{number}", **{f"field-{number}": 1}))
            client.get(f"/path-{number}")
            client.get(f"/v1/models/{number}")
            client.request(f"METHOD{'X' * (number % 3)}", path)
            client.post(path, content=json.dumps(chat()), headers={"x-request-id": f"id-{number}", "user-agent": "u"})

        for number in range(3):
            flood(number)
        before = {name for name, _ in samples(client.get("/metrics").text)}
        size = len(samples(client.get("/metrics").text))
        for number in range(3, 30):
            flood(number)
        page = client.get("/metrics").text
        assert len(samples(page)) == size
        assert {name for name, _ in samples(page)} == before
        ended = {"dialect": "openai", "operation": "chat", "outcome": "ok", "status": "200", "model": "m"}
        assert value(page, "dragoman_requests_total", **ended) == 60
        assert value(page, "dragoman_dropped_fields_total", dialect="openai") == 30
        assert value(page, "dragoman_requests_running", dialect="openai") == 0


def test_workers_that_are_gone_are_gone_from_the_page() -> None:
    with Stack(({}, {})) as stack:
        first, second = (sim.url for sim in stack.sims)
        page = httpx.get(stack.url + "/metrics").text
        assert value(page, "dragoman_worker_ready", model="m", worker=first) == 1
        assert value(page, "dragoman_worker_ready", model="m", worker=second) == 1
        stack.run(stack.gateway.reload(stack.config({"models": {"m": {"workers": [second]}}})))
        # Its last probe has to end first.
        until(lambda: first not in httpx.get(stack.url + "/metrics").text)
        page = httpx.get(stack.url + "/metrics").text
        assert value(page, "dragoman_worker_ready", model="m", worker=second) == 1


@pytest.mark.parametrize("way", ["leaves", "reload"])
def test_a_worker_that_is_gone_does_not_come_back_when_its_last_request_breaks(way: str) -> None:
    config = {"breaker": {"failures": 1}, "retry": {"attempts": 2, "min_per_second": 100}}
    slow, quick = {"output_tokens": 10_000, "itl_ms": 20}, {"output_tokens": 2}
    with Stack((slow, quick, quick), config) as stack, ThreadPoolExecutor(1) as pool:
        first, *others = (sim.url for sim in stack.sims)
        fleets = stack.gateway.deployment.fleets
        worker = fleets.workers["m", first]
        stack.run(fleets._join("m", [FoundWorker(first)]))  # as discovery calls it
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        asked = pool.submit(httpx.post, stack.url + CHAT, json=body, timeout=60)
        until(lambda: stack.sims[0].ledger.running == 1)
        if way == "leaves":
            stack.run(fleets._join("m", [FoundWorker(other) for other in others]))  # as a look-up does
        else:
            stack.run(stack.gateway.reload(stack.config({**config, "models": {"m": {"workers": others}}})))
        until(lambda: first not in httpx.get(stack.url + "/metrics").text)
        stack.sims[0].die()
        assert asked.result().status_code == 200
        assert stack.record()["attempts"] == 2
        assert worker.breaker.ejected
        assert stack.run(stack.gateway.host.death_of("m", worker)) is not None
        assert first not in httpx.get(stack.url + "/metrics").text


def test_it_can_be_turned_off() -> None:
    with Stack(config={"metrics": {"enabled": False}}) as stack:
        assert httpx.get(stack.url + "/metrics").status_code == 404


def test_added_time_is_what_was_not_spent_with_workers() -> None:
    metrics = Metrics()
    finish(metrics, model="m", duration_ms=100.0, upstream_ms=98.5, attempts=1)
    finish(metrics, model="m", duration_ms=100.0, upstream_ms=40.0, attempts=2)
    finish(metrics, model="m", duration_ms=1.0)
    page = metrics.page().decode()
    labels = {"dialect": "openai", "model": "m"}
    assert value(page, "dragoman_added_seconds_count", **labels) == 2, "one was never sent"
    assert value(page, "dragoman_added_seconds_sum", **labels) == pytest.approx(0.0615)
    assert value(page, "dragoman_added_seconds_bucket", **labels, le="0.0025") == 1


def test_those_who_left_are_counted_by_what_they_waited_for() -> None:
    metrics = Metrics()
    for phase in ("reading", "queued", "queued", "first_output", "streaming"):
        finish(metrics, model="m", outcome="cancelled", phase=phase)
    finish(metrics, model="m")
    page = metrics.page().decode()
    found = {phase: value(page, "dragoman_cancelled_requests_total", model="m", phase=phase) for phase in PHASES}
    assert found == {"reading": 1, "queued": 2, "first_output": 1, "streaming": 1}


def test_a_request_that_is_left_tells_where() -> None:
    def saying(**plan: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": "sim:" + json.dumps(plan)}]

    async def leave_all(stack: Stack) -> None:
        async with httpx.AsyncClient(base_url=stack.url) as client:
            metrics, state = stack.gateway.metrics, stack.gateway.deployment

            def ask(name: str, **members: Any) -> asyncio.Task[Any]:
                headers = {"x-request-id": name}
                return asyncio.create_task(client.post(CHAT, json=chat(**members), headers=headers))

            async def leave(task: asyncio.Task[Any]) -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            silent = ask("first_output", messages=saying(text="a b", fault="stall"))
            await stack.sim.ledger.wait(running=1)
            queued = ask("queued")
            await soon(lambda: state.pools["m"].waiting == 1)
            await leave(queued)
            await soon(lambda: state.pools["m"].waiting == 0)
            await leave(silent)
            streaming = ask("streaming", messages=saying(text="a b c d", fault="stall@3"), stream=True)
            await soon(lambda: sum(metrics.gaps["m"].counts) > 0)
            await leave(streaming)
            await state.runtime.active.empty(20)

    with Stack(({"itl_ms": 5},), config={"models": {"m": {"max_in_flight": 1}}}) as stack:
        stack.run(leave_all(stack))
        assert {record["id"]: record["phase"] for record in stack.records()} == {
            name: name for name in ("queued", "first_output", "streaming")
        }
        (queued,) = (record for record in stack.records() if record["id"] == "queued")
        assert queued["queue_ms"] > 0
        assert queued["upstream_ms"] == 0
        assert value(stack.gateway.metrics, "dragoman_queue_wait_seconds_count", model="m") == 1


def test_streams_tell_of_gaps_and_connections_of_their_use() -> None:
    with Stack(({"itl_ms": 5},)) as stack, httpx.Client(base_url=stack.url) as client:
        for _ in range(3):
            client.post(CHAT, json=chat(stream=True, max_tokens=5, ignore_eos=True))
        stack.records()
        page = client.get("/metrics").text
        whole = sum(stack.gateway.metrics.gaps["m"].counts)
        assert 0 < whole <= 3 * 6
        assert value(page, "dragoman_inter_token_latency_seconds_count", model="m") == whole
        opened = value(page, "dragoman_upstream_connections_opened_total", model="m")
        reused = value(page, "dragoman_upstream_connections_reused_total", model="m")
        assert opened + reused == 3
        assert opened >= 1
        assert value(page, "dragoman_upstream_connections", model="m", state="busy") == 0
        assert value(page, "dragoman_connections") == 1
        (worker,) = stack.gateway.deployment.pools["m"].workers
        for state in ("closed", "open", "half_open"):
            shown = value(page, "dragoman_worker_breaker", model="m", worker=worker.address, state=state)
            assert shown == (state == "closed")
        assert value(page, "dragoman_worker_in_flight", model="m", worker=worker.address) == 0
        assert value(page, "dragoman_retry_budget") == 10


def test_numbers_outlive_a_reload() -> None:
    with Stack(({"itl_ms": 5},)) as stack, httpx.Client(base_url=stack.url) as client:
        client.post(CHAT, json=chat(stream=True, max_tokens=5, ignore_eos=True))
        stack.records()
        names = ("dragoman_inter_token_latency_seconds_count", "dragoman_upstream_connections_opened_total")
        before = [value(client.get("/metrics").text, name, model="m") for name in names]
        stack.run(stack.gateway.reload(stack.config({"metrics": {"genai": True}})))
        client.post(CHAT, json=chat(stream=True, max_tokens=5, ignore_eos=True))
        stack.records()
        page = client.get("/metrics").text
        after = [value(page, name, model="m") for name in names]
        assert all(one > other > 0 for one, other in zip(after, before, strict=True))
        labels = {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": "dragoman",
            "gen_ai_request_model": "m",
        }
        assert value(page, "gen_ai_server_time_to_first_token_seconds_count", **labels) == 1
