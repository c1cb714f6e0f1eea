"""How batches share workers with requests that clients wait for, and what outlasts a gateway."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.features.batches.notes import read
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.features.batches.conftest import ALICE, MATE, openai_client, sections
from tests.unit.features.batches.s3 import S3
from tests.unit.features.batches.test_openai_batches import CHAT, begin, chat, ended, lines, results


def counted(stack: Stack) -> dict[str, float]:
    """What became of lines -> how many, by the metric."""
    page = httpx.get(f"{stack.url}/metrics").text
    families = [one for one in text_string_to_metric_families(page) if one.name == "dragoman_batch_lines"]
    return {
        one.labels["result"]: one.value for family in families for one in family.samples if one.name.endswith("_total")
    }


async def asked(stack: Stack, count: int, **more: Any) -> None:
    """Sends so many requests at once, and returns when each has its reply."""
    headers = {"authorization": f"Bearer {ALICE}"}
    async with httpx.AsyncClient(timeout=60) as client:
        sent = (client.post(stack.url + CHAT, headers=headers, json=chat("now", **more)) for _ in range(count))
        assert [answer.status_code for answer in await asyncio.gather(*sent)] == [200] * count


@pytest.mark.long
def test_lines_give_their_places_to_clients(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    config["spend"] = {"currency": "EUR"}
    config["models"] = {"m": {"max_in_flight": 4, "price": {"input": 1, "output": 1}}}
    with Stack(({"itl_ms": 20, "output_tokens": 250},), config) as stack:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        made = begin(stack, lines({f"c{n}": chat(f"say {n}", max_tokens=100 if n > 5 else 250) for n in range(9)}))
        until(lambda: worker.in_flight == 3)  # one place stays free
        asyncio.run(asked(stack, 4, max_tokens=2))
        assert stack.sim.ledger.completed == 4  # no line has ended: each takes five seconds
        until(lambda: counted(stack).get("yielded", 0) >= 2)
        assert ended(stack, made, seconds=60).request_counts.completed == 9
        records = [one for one in stack.records() if one.get("batch")]
        assert [one["cost"] for one in records if one["code"] == "yielded"] == [0] * int(counted(stack)["yielded"])
        paid = [one for one in records if one["outcome"] == "ok"]
        assert len(paid) == 9
        assert all(one["cost"] > 0 for one in paid)


@pytest.mark.long
def test_lines_fill_what_an_engine_is_seen_to_take(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    config["routing"] = {"scrape_s": 0.1}
    with Stack(({"itl_ms": 5, "output_tokens": 60, "slots": 32},), config) as stack:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        made = begin(stack, lines({f"c{n}": chat(f"say {n}") for n in range(3000)}))
        until(lambda: worker.reported is not None and worker.reported.running > 20, 60)  # eight at first
        until(lambda: counted(stack).get("succeeded", 0) > 200, 60)
        assert stack.sim.engine.running <= 32
        openai_client(stack).batches.cancel(made.id)
        ended(stack, made)


def noted(folder: Path) -> list[bytes]:
    """The notes of batches in a folder, or in a bucket that it is."""
    parts = [one for one in folder.rglob("*") if ".lines" in str(one.relative_to(folder)) and one.is_file()]
    return [line for one in parts for line in one.read_bytes().splitlines(keepends=True)]


def test_another_gateway_goes_on(server: Server, tmp_path: Path, stored: S3 | None) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path, stored)
    with Stack(({},), config) as first:
        first.sim.fault("stall", path=CHAT, skip=10)
        made = begin(first, lines({f"c{n}": chat(f"say {n}") for n in range(30)}))
        until(lambda: first.sim.ledger.completed == 10 and first.sim.ledger.running > 5)
        until(lambda: [*read(noted(tmp_path), 30)][-1].succeeded == 10)
    with Stack(({},), config) as second:
        done = ended(second, made)
        assert (done.status, done.request_counts.completed) == ("completed", 30)
        assert second.sim.ledger.completed == 20
        assert len(results(second, done.output_file_id)) == 30
        (resumed,) = second.events("batch resumed")
        assert (resumed["left"], resumed["repeated"]) == (20, 0)
        assert noted(tmp_path) == []
        assert not list(tmp_path.rglob("*.input"))


def test_no_line_runs_before_others_know_that_lines_may_have_run(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path)) as stack:
        stack.sim.fault("stall", path=CHAT)
        for n in range(3):
            made = begin(stack, lines({"a": chat("a")}))
            until(lambda n=n: stack.sim.ledger.running > n)  # type: ignore[misc]
            assert openai_client(stack).batches.retrieve(made.id).status == "in_progress"


def test_lines_whose_gateway_died_are_repeated_and_counted(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    with Stack(({},), config) as first:
        first.sim.fault("stall", path=CHAT)
        made = begin(first, lines({"a": chat("a"), "b": chat("b"), "c": chat("c")}))
        until(lambda: first.sim.ledger.running == 3)
        (notes,) = tmp_path.rglob("*.lines")
        dying = notes.read_bytes()
    # As if it had died: two were begun, one had its result, and the note of another was cut off.
    result = b'{"custom_id": "a", "response": {"status_code": 200, "body": {}}}'
    notes.write_bytes(dying + b"1 ok " + result + b'\n2 ok {"custom')
    with Stack(({},), config) as second:
        done = ended(second, made)
        assert (done.status, done.request_counts.completed) == ("completed", 3)
        assert second.sim.ledger.completed == 2
        assert results(second, done.output_file_id)["a"]["response"]["body"] == {}
        assert second.events("batch resumed")[0]["repeated"] == 2
        assert counted(second)["repeated"] == 2


def test_a_batch_expires(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    with Stack(({},), config) as stack:
        stack.sim.fault("stall", path=CHAT, skip=1)
        made = begin(stack, lines({"a": chat("a"), "b": chat("b")}), window="1h")
        assert made.expires_at - made.created_at == 3600
        until(lambda: stack.sim.ledger.completed == 1 and stack.sim.ledger.running == 1)
        run, _ = stack.gateway.deployment.features.services["batches"].runs[made.id]
        run.spec.ends = time.time()
        done = ended(stack, made)
        assert (done.status, done.request_counts.completed) == ("expired", 1)
        (left,) = results(stack, done.error_file_id).values()
        assert (left["response"], left["error"]["code"]) == (None, "batch_expired")


@pytest.mark.long
def test_a_limit_makes_lines_wait(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    config["limits"] = [{"name": "few", "kind": "requests", "limit": 5, "per_s": 1, "scope": ["key", "model"]}]
    with Stack(({},), config) as stack:
        done = ended(stack, begin(stack, lines({f"c{n}": chat(f"say {n}") for n in range(12)})))
        assert (done.status, done.request_counts.completed) == ("completed", 12)
        assert counted(stack)["again"] > 0


def test_a_key_that_is_gone_may_not_go_on(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    with Stack(({},), sections(server, tmp_path)) as stack:
        stack.sim.fault("stall", path=CHAT, skip=1)
        made = begin(stack, lines({"a": chat("a"), "b": chat("b")}))
        until(lambda: stack.sim.ledger.completed == 1 and stack.sim.ledger.running == 1)
        stack.run(stack.gateway.reload(stack.config({"keys": {"alice": {"disabled": True}}})))
        stack.sim.fault("")  # not before: a line that gave its place back by itself would be answered
        run, _ = stack.gateway.deployment.features.services["batches"].runs[made.id]
        stack.loop.call_soon_threadsafe(lambda: [call.give_back() for call in run.calls])
        done = ended(stack, made, MATE)
        assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)
        (refused,) = results(stack, done.error_file_id, MATE).values()
        assert refused["response"]["status_code"] == 401


@pytest.mark.long
def test_lines_wait_while_redis_is_away(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path) | {"redis": {"addresses": [server.address], "timeout_s": 2}}
    with Stack(({"itl_ms": 10, "output_tokens": 20},), config) as stack:
        made = begin(stack, lines({f"c{n}": chat(f"say {n}") for n in range(200)}))
        until(lambda: stack.sim.ledger.completed > 20)
        server.freeze()
        try:
            until(lambda: stack.events("batch left") != [])
            before = stack.sim.ledger.completed
            stack.run(stack.sim.ledger.wait(running=0))
            assert stack.sim.ledger.completed <= before + 1
        finally:
            server.thaw()
        assert ended(stack, made, seconds=60).request_counts.completed == 200


@pytest.mark.parametrize("wrong", ["", "x ok {}\n", "1 ok", "1 begun\n", "1 done {}\n"])
def test_notes_that_are_none_are_left_out(wrong: str) -> None:
    assert [*read([wrong.encode()], 3)][-1].succeeded == 0


def test_a_line_that_gave_its_place_back_is_charged_nothing(server: Server, tmp_path: Path) -> None:
    server.command("FLUSHALL")
    config = sections(server, tmp_path)
    config["spend"] = {"currency": "EUR"}
    config["models"] = {"m": {"price": {"request": 1}}}
    config["limits"] = [{"name": "few", "kind": "tokens", "limit": 1000, "per_s": 3600, "scope": ["key"]}]
    with Stack(({},), config) as stack:
        stack.sim.fault("stall", path=CHAT)
        made = begin(stack, lines({"a": chat("a", max_tokens=900)}))
        until(lambda: stack.sim.ledger.running == 1)
        openai_client(stack).batches.cancel(made.id)
        ended(stack, made)
        stack.sim.fault("")
        (record,) = [one for one in stack.records() if one.get("batch")]
        assert (record["code"], record["cost"]) == ("yielded", 0)
        asyncio.run(asked(stack, 1, max_tokens=900))
