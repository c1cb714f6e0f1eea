"""Picks by what engines say that they have cached: evictions and what others sent them are known."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.fleet.blocks import MOST_BYTES, Blocks
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.simulated.server import Simulated
from tests.unit.fleet.kv_events.publishing import WORKER, ask, blocks, chat, heard, listen, publisher, send, tokenized


def test_what_others_sent_is_known(stack: Stack) -> None:
    for index in (0, 1, 0, 1):
        name = f"conversation {index}{len(stack.sims[index].entries)}"
        send(stack, index, chat(name))
        until(heard(stack, index))
        worker, picked = ask(stack, chat(name, turns=2))
        assert worker == stack.sims[index].url
        assert picked.startswith("prefix;why=prefix;matched=0.")
        assert picked.endswith(";exact")


def test_what_was_evicted_is_known() -> None:
    """The worker that was sent a conversation has lost it; another one got it from elsewhere."""
    with Stack(({**WORKER, "kv_blocks": 40}, WORKER)) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live and blocks(stack, 1).live)
        send(stack, 0, chat("mine"))
        until(heard(stack, 0))
        assert ask(stack, chat("mine"))[0] == stack.sims[0].url, "it has it"
        for index in range(4):
            send(stack, 0, chat(f"other {index}"))
        send(stack, 1, chat("mine"))
        until(heard(stack, 0))
        until(heard(stack, 1))
        assert len(blocks(stack, 0)) == 40
        worker, picked = ask(stack, chat("mine"))
        assert worker == stack.sims[1].url
        assert picked == "prefix;why=prefix;matched=1.00;exact"
        stack.run(awaited(stack.sims[1].reset))
        until(heard(stack, 1))
        assert ask(stack, chat("mine"))[1].endswith("matched=0.00")


async def awaited(call: Callable[[], None]) -> None:
    call()


def restart(stack: Stack, index: int) -> None:
    async def again() -> None:
        await stack.sims[index].stop()
        await stack.sims[index].start()

    stack.run(again(), 60)


def told(stack: Stack, event: str, index: int) -> int:
    return len([line for line in stack.events(event) if line["worker"] == stack.sims[index].url])


def wholes(stack: Stack, index: int) -> list[bool]:
    """What the log says of how much is known, each time that this changed."""
    url = stack.sims[index].url
    return [line["whole"] for line in stack.events("cache of worker known") if line["worker"] == url]


def test_an_engine_that_starts_anew_has_nothing() -> None:
    # Its ports are none that a connection could take in between.
    ports = {"kv_events_port": free_port(), "kv_replay_port": free_port()}
    with Stack(({**WORKER, **ports}, WORKER)) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live)
        starts_anew(stack)


def starts_anew(stack: Stack) -> None:
    send(stack, 0, chat("before"))
    until(heard(stack, 0))
    assert len(blocks(stack, 0))
    restart(stack, 0)
    until(lambda: told(stack, "cache of worker known", 0) == 2)
    assert told(stack, "cache of worker unknown", 0) == 1
    assert (blocks(stack, 0).whole, len(blocks(stack, 0))) == (True, 0)
    send(stack, 0, chat("after"))
    until(heard(stack, 0))
    assert len(blocks(stack, 0)) == len(stack.sims[0].engine.prefix)


def test_without_replays_what_was_missed_stays_unknown() -> None:
    with Stack((WORKER, WORKER)) as stack:
        send(stack, 0, chat("early"))
        listen(stack, replay=False)
        until(lambda: connected(stack, 0))
        assert not blocks(stack, 0).whole
        assert not len(blocks(stack, 0))
        send(stack, 0, chat("later"))
        until(heard(stack, 0))
        assert ask(stack, chat("later"))[0] == stack.sims[0].url
        # The ordinary index goes on: this gateway sent it there.
        stack.run(awaited(lambda: stack.gateway.deployment.pools["m"].policy.keep([])))
        worker, _ = ask(stack, chat("mine"))
        assert ask(stack, chat("mine", 2))[0] == worker


def connected(stack: Stack, index: int) -> bool:
    """Probes the subscription with an event that says nothing."""
    stack.run(awaited(lambda: publisher(stack, index).publish([])))
    return blocks(stack, index).live


def test_a_gateway_that_comes_late_asks_for_what_it_missed() -> None:
    with Stack((WORKER, WORKER)) as stack:
        for index in range(3):
            send(stack, 0, chat(f"early {index}"))
        listen(stack)
        until(lambda: blocks(stack, 0).live)
        assert heard(stack, 0)()
        assert blocks(stack, 0).whole
        assert ask(stack, chat("early 1"))[0] == stack.sims[0].url


def samples(stack: Stack) -> list[Sample]:
    """All of `/metrics` about caches."""
    families = text_string_to_metric_families(httpx.get(f"{stack.url}/metrics", timeout=60).text)
    return [one for family in families for one in family.samples if one.name.startswith("dragoman_cache_")]


def figures(stack: Stack, index: int | None = None) -> dict[str, float]:
    """What `/metrics` says of the caches of a worker, or of picks: name or last label -> value."""
    found = {}
    for sample in samples(stack):
        labels = sample.labels
        if labels.get("worker") == (None if index is None else stack.sims[index].url):
            last = labels.get("state") or labels.get("result") or labels.get("by")
            found[last or sample.name.removeprefix("dragoman_cache_")] = sample.value
    return found


def test_metrics_tell_what_is_known(stack: Stack) -> None:
    send(stack, 0, chat("one"))
    until(heard(stack, 0))
    found = figures(stack, 0)
    assert found.pop("blocks") == len(stack.sims[0].engine.prefix)
    assert found.pop("bytes") > 100 * len(stack.sims[0].engine.prefix)
    assert found.pop("read") == publisher(stack).published > 0
    assert found == {"connected": 1, "whole": 1, "part": 0, "silent": 0, "lost": 0, "unreadable": 0}
    assert figures(stack) == {"engine": 0, "sent": 0, "none": 0}
    ask(stack, chat("one"))
    ask(stack, chat("new"))
    assert figures(stack) == {"engine": 1, "sent": 0, "none": 1}
    stack.run(awaited(lambda: publisher(stack).send(b"\xc1")))
    until(heard(stack, 0))
    found = figures(stack, 0)
    assert (found["unreadable"], found["part"], found["whole"], found["blocks"]) == (1, 1, 0, 0)
    stack.run(stack.sims[1].stop(), 60)
    until(lambda: not blocks(stack, 1).connected)
    assert (figures(stack, 1)["connected"], figures(stack, 1)["silent"]) == (0, 1)
    stack.run(stack.gateway.reload(stack.config()), 60)
    assert samples(stack) == []


def test_batches_that_are_lost_are_counted() -> None:
    with Stack((WORKER, WORKER)) as stack:
        send(stack, 0, chat("early"))
        listen(stack, replay=False)
        until(lambda: connected(stack, 0))
        assert figures(stack, 0)["lost"] == 0, "what came before the gateway was not lost"
        publisher(stack).subscribed = False
        before = publisher(stack).published
        for name in ("one", "two"):
            send(stack, 0, chat(name))
        missed = publisher(stack).published - before
        publisher(stack).subscribed = True
        send(stack, 0, chat("three"))
        until(heard(stack, 0))
        assert missed >= 2
        assert figures(stack, 0)["lost"] == missed
        assert figures(stack, 0)["part"] == 1
        assert wholes(stack, 0) == [False]


def test_batches_that_were_dropped_are_asked_for(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher(stack), "subscribed", False)
    send(stack, 0, chat("dropped"))
    monkeypatch.undo()
    send(stack, 0, chat("heard"))
    until(heard(stack, 0))
    assert blocks(stack, 0).whole
    assert len(blocks(stack, 0)) == len(stack.sims[0].engine.prefix)
    assert blocks(stack, 0).lost == 0


def test_what_the_engine_has_forgotten_stays_unknown() -> None:
    with Stack((WORKER, WORKER)) as stack:
        send(stack, 0, chat("early"))
        publisher(stack).kept.clear()
        send(stack, 0, chat("kept"))
        listen(stack)
        until(lambda: blocks(stack, 0).live)
        assert not blocks(stack, 0).whole
        assert 0 < len(blocks(stack, 0)) < len(stack.sims[0].engine.prefix)


def test_a_reload_forgets_nothing(stack: Stack) -> None:
    for name in ("one", "two", "three"):
        send(stack, 0, chat(name))
    until(heard(stack, 0))
    known, owner = len(blocks(stack, 0)), blocks(stack, 0).owner
    while len(publisher(stack).kept) > 1:
        publisher(stack).kept.popleft()
    listen(stack)
    assert blocks(stack, 0).owner is owner
    assert (blocks(stack, 0).live, told(stack, "cache of worker unknown", 0)) == (True, 0)
    assert (blocks(stack, 0).whole, len(blocks(stack, 0))) == (True, known)
    send(stack, 0, chat("four"))
    until(heard(stack, 0))
    assert len(blocks(stack, 0)) > known
    # Without the option nothing is held, and nothing asked.
    stack.run(stack.gateway.reload(stack.config()), 60)
    assert stack.gateway.deployment.workers["m", stack.sims[0].url].blocks is None
    ask(stack, chat("four"))
    assert not [entry for sim in stack.sims for entry in sim.ledger.entries if entry.path == "/tokenize"]


def test_a_reload_without_replays_stays_connected() -> None:
    with Stack((WORKER, WORKER)) as stack:
        listen(stack, replay=False)
        until(lambda: connected(stack, 0))
        send(stack, 0, chat("one"))
        until(heard(stack, 0))
        known = len(blocks(stack, 0))
        for _ in range(2):
            listen(stack, replay=False)
        assert (blocks(stack, 0).live, len(blocks(stack, 0))) == (True, known)
        assert told(stack, "cache of worker unknown", 0) == 0


def test_a_batch_that_is_too_large_is_never_taken(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.kv_events._PATIENCE_S", 0.2)
    send(stack, 0, chat("before"))
    until(heard(stack, 0))
    stack.run(awaited(lambda: publisher(stack).send(bytes(MOST_BYTES + 1))))
    until(lambda: told(stack, "cache of worker unknown", 0) > 0, 60)
    until(lambda: connected(stack, 0) and blocks(stack, 0).lost > 0, 60)
    assert (blocks(stack, 0).whole, blocks(stack, 0).unreadable) == (False, 0)


def test_an_engine_that_repeats_nothing_is_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.kv_events._PATIENCE_S", 0.2)
    with Stack((WORKER, WORKER)) as stack:
        monkeypatch.setattr(publisher(stack), "kept", deque())
        stack.run(awaited(publisher(stack).hush))
        listen(stack)
        until(lambda: connected(stack, 0))
        send(stack, 0, chat("later"))
        until(heard(stack, 0))
        assert ask(stack, chat("later"))[0] == stack.sims[0].url


def test_the_cache_of_one_rank_is_used(stack: Stack) -> None:
    before = len(stack.events("load of worker known"))
    listen(stack, scrape_s=0.1)
    until(lambda: len(stack.events("load of worker known")) == before + 2)
    assert stack.events("cache of worker not used") == []


def test_ranks_behind_one_address_are_not_told_apart(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank publishes on a port of its own, and the worker itself chooses the rank of a request."""
    of_one = Simulated.metrics_text

    def of_two(self: Simulated) -> str:
        return f'{of_one(self)}vllm:num_requests_running{{engine="1",model_name="sim"}} 0.0\n'

    monkeypatch.setattr(Simulated, "metrics_text", of_two)
    listen(stack, scrape_s=0.1)
    until(lambda: len(stack.events("cache of worker not used")) == 2)
    assert {line["ranks"] for line in stack.events("cache of worker not used")} == {2}
    send(stack, 0, chat("one"))
    until(heard(stack, 0))
    assert not ask(stack, chat("one"))[1].endswith("exact")
    assert tokenized(stack) == 0
    assert (figures(stack, 0)["silent"], figures(stack, 0)["connected"]) == (1, 1)
    monkeypatch.undo()
    until(lambda: blocks(stack, 0).live)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.kv_events.Blocks", lambda: Blocks(20))
    with Stack((WORKER, WORKER)) as stack:
        listen(stack)
        until(lambda: blocks(stack, 0).live and blocks(stack, 1).live)
        for name in ("one", "two", "three"):
            send(stack, 0, chat(name))
        until(heard(stack, 0))
        assert len(stack.sims[0].engine.prefix) > 20
        assert figures(stack, 0)["blocks"] == 20
        assert ask(stack, chat("one"))[0] == stack.sims[0].url, "what came first is held"


def test_what_cannot_be_read_is_unknown(stack: Stack) -> None:
    send(stack, 0, chat("before"))
    until(heard(stack, 0))
    stack.run(awaited(lambda: publisher(stack).send(b"\xc1")))
    until(heard(stack, 0))
    assert (blocks(stack, 0).whole, len(blocks(stack, 0))) == (False, 0)
    assert ask(stack, chat("before"))[1].startswith("prefix;")
    stack.run(awaited(lambda: publisher(stack).send(b"\xc1")))
    until(heard(stack, 0))
    assert wholes(stack, 0) == [True, False], "once, however many batches cannot be read"


def test_an_error_of_ours_ends_no_listening(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Blocks.steps
    left = [RuntimeError("a bug")]

    def fail(self: Blocks, number: int, payload: bytes) -> Iterator[None]:
        if left:
            raise left.pop()
        return steps(self, number, payload)

    monkeypatch.setattr("gateway.fleet.kv_events._AGAIN_S", 0.01)
    monkeypatch.setattr(Blocks, "steps", fail)
    send(stack, 0, chat("one"))
    until(heard(stack, 0))
    assert not left
    assert blocks(stack, 0).whole


@pytest.mark.long
def test_the_gateway_listens_without_libzmq() -> None:
    modules = "sys, gateway.app, gateway.fleet.kv_events, gateway.cli, tests.support.simulated"
    code = f"import {modules}; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
