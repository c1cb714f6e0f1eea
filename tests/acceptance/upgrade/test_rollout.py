"""Two gateways of one version give way to two of the other, one after the other, with traffic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.acceptance.upgrade.versions import CLIENTS, Caller, Site, Version, remaining, stop
from tests.support.commands import Serving
from tests.support.harness import Stack

LIMIT = 10_000


@pytest.fixture
def site(tmp_path: Path, worker: Stack) -> Iterator[Site]:
    with Site(tmp_path, worker, LIMIT, notice_s=2) as site:
        yield site


class Balancer:
    """Gateways in turn. `gateways` is replaced while it is in use."""

    def __init__(self, gateways: list[Serving]) -> None:
        self.gateways = gateways
        self._turns = count()

    def next(self) -> Serving:
        gateways = self.gateways
        return gateways[next(self._turns) % len(gateways)]


def converse(caller: Caller, balancer: Balancer, over: threading.Event) -> int:
    """Turns of one conversation, and streams, until it is over. Returns how many requests were answered whole; another
    answer is an error."""
    sent, last = 0, None
    while not over.is_set():
        turn = caller.respond(balancer.next(), model="slow", **({"previous_response_id": last} if last else {}))
        assert turn.status_code == 200, turn.text
        last = turn.json()["id"]
        stream = caller.chat(balancer.next(), model="slow", stream=True)
        assert (stream.status_code, stream.text[-14:]) == (200, "data: [DONE]\n\n"), stream.text
        sent += 2
    return sent


@pytest.mark.whole
@pytest.mark.parametrize(("before", "after"), [("old", "new"), ("new", "old")], ids=["up", "back"])
def test_no_request_is_lost_and_none_counts_twice(site: Site, before: Version, after: Version) -> None:
    caller, over = site.caller("app", "blue"), threading.Event()
    balancer = Balancer(site.start(before, before))
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(converse, caller, balancer, over) for _ in range(CLIENTS)]
        try:
            for _ in range(2):
                first, *others = balancer.gateways
                balancer.gateways = [*others, *site.start(after)]
                stop(first)
        finally:
            over.set()
        sent = sum(one.result() for one in clients)
    assert sent > 4 * CLIENTS
    assert remaining(caller.chat(balancer.next())) == LIMIT - sent - 1
    for one in balancer.gateways:
        stop(one)
    ids = site.recorded()
    assert len(ids) == len(set(ids)) == sent + 1
    assert site.server.command("KEYS", "*:running:*") == []
