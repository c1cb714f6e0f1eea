"""Both versions beside each other on one Redis, as in a roll-out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

import httpx
import pytest

from tests.acceptance.upgrade.versions import (
    CLIENTS,
    LIMIT,
    PLACES,
    TOKENS,
    Caller,
    Earlier,
    Site,
    earlier,
    remaining,
    used,
)
from tests.support.commands import CLEAN, Serving, called
from tests.support.harness import Stack, until

NAMES = ("counted", "measured", "places", "keeper", "alone")


class Beside(NamedTuple):
    site: Site
    old: Serving
    new: Serving

    def turns(self, count: int) -> Iterator[Serving]:
        """One version, and then the other."""
        return islice(cycle((self.old, self.new)), count)

    def caller(self, name: str) -> Caller:
        return self.site.callers[name]


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, worker: Stack) -> Iterator[Beside]:
    with Site(tmp_path_factory.mktemp("beside"), worker) as site:
        for name in NAMES:
            site.caller(name, None if name == "alone" else "blue")
        yield Beside(site, *site.start("old", "new"))


def test_a_limit_on_requests_is_one(beside: Beside) -> None:
    caller = beside.caller("counted")
    left = [remaining(caller.chat(one)) for one in beside.turns(6)]
    assert left == [LIMIT - n for n in range(1, 7)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        rest = list(pool.map(caller.chat, beside.turns(LIMIT)))
    assert sum(one.status_code == 200 for one in rest) == LIMIT - 6
    assert [caller.chat(one).status_code for one in (beside.old, beside.new)] == [429, 429]


def test_a_limit_on_tokens_is_one(beside: Beside) -> None:
    caller = beside.caller("measured")
    answers = [caller.chat(one) for one in beside.turns(6)]
    total = sum(one.json()["usage"]["total_tokens"] for one in answers)
    asked = ("limits", "show", "--key", caller.name, "--config")

    def seen() -> list[int]:
        """The tokens that each version reports."""
        shown = earlier(*asked, str(beside.old.file)), called(*asked, str(beside.new.file)).stdout
        return [used(table, "tokens") for table in shown]

    until(lambda: seen() == [total] * 2)
    assert 0 < total < TOKENS


def admitted(caller: Caller, serving: Serving) -> bool:
    return caller.chat(serving).status_code == 200


def test_places_are_shared_and_come_back(beside: Beside) -> None:
    caller = beside.caller("places")
    body = {"model": "slow", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"authorization": f"Bearer {caller.key}"}
    with httpx.Client(headers=headers, timeout=60) as client, ExitStack() as open_:
        for one in beside.turns(PLACES):
            stream = open_.enter_context(client.stream("POST", one.url + "/v1/chat/completions", json=body))
            assert stream.status_code == 200
        assert [caller.chat(one).status_code for one in (beside.old, beside.new)] == [429, 429]
    # The end of a stream frees its place a moment later.
    for one in (beside.old, beside.new):
        until(partial(admitted, caller, one))


def stored(caller: Caller, serving: Serving, name: str) -> bool:
    return caller.ask(serving, f"/responses/{name}").status_code == 200


def test_responses_of_a_team_belong_to_both(beside: Beside) -> None:
    caller = beside.caller("keeper")
    for first, second in ((beside.old, beside.new), (beside.new, beside.old)):
        made = caller.respond(first).json()["id"]
        until(partial(stored, caller, second, made))  # Redis has it a moment after the client
        assert caller.respond(second, previous_response_id=made).status_code == 200
        assert caller.ask(second, f"/responses/{made}").json()["id"] == made
        assert caller.ask(second, f"/responses/{made}", method="DELETE").status_code == 200
        assert caller.ask(first, f"/responses/{made}").status_code == 404
        assert caller.respond(first, previous_response_id=made).status_code in (400, 404)


def test_what_clients_keep_goes_to_both(beside: Beside, worker: Stack) -> None:
    """A summary of either version is read by the other; encrypted reasoning is left out, and the request goes on."""
    caller = beside.caller("keeper")
    thought = {"role": "user", "content": 'sim:{"reasoning": "because", "text": "so"}'}
    for first, second in ((beside.old, beside.new), (beside.new, beside.old)):
        made = caller.respond(first, input=[thought], include=["reasoning.encrypted_content"], store=False).json()
        reasoning = next(one for one in made["output"] if one["type"] == "reasoning")
        kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
        made = caller.respond(first, input=[thought, {"type": "compaction_trigger"}], store=False).json()
        summary = next(one for one in made["output"] if one["type"] == "compaction")
        asked = [thought, kept, summary, {"role": "user", "content": "go on"}]
        assert caller.respond(second, input=asked, store=False).status_code == 200
        sent = worker.sim.entries[-1].body.decode()
        assert "Summary of the conversation so far" in sent
        assert "because" not in "".join(str(one) for one in json.loads(sent)["messages"] if one["role"] == "assistant")


def ready(serving: Serving, model: str) -> bool:
    """Whether a worker of the model is."""
    lines = httpx.get(serving.url + "/metrics", timeout=60).text.splitlines()
    found = [one for one in lines if one.startswith("dragoman_worker_ready{") and f'"{model}"' in one]
    return any(float(one.split()[-1]) == 1 for one in found)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "model"), [(Earlier, "of-old"), (Serving, "of-new")], ids=["old", "new"])
def test_workers_that_join_are_found_by_both(beside: Beside, kind: type[Serving], model: str) -> None:
    caller, place = beside.caller("keeper"), f"redis://{beside.site.server.address}"
    words = ("-m", "gateway.cli", "worker", "simulated", "--port", "0", "--model", model, "--register", place)
    joined = subprocess.Popen([kind.python, *words], cwd=kind.folder, env=CLEAN)
    try:
        for one in (beside.old, beside.new):
            until(partial(ready, one, model))
            assert caller.chat(one, model=model).status_code == 200
    finally:
        joined.terminate()
        joined.wait(60)


def test_responses_of_a_key_alone_are_found_by_the_newer(beside: Beside) -> None:
    caller = beside.caller("alone")
    for first, second, status in ((beside.old, beside.new, {200}), (beside.new, beside.old, {400, 404})):
        made = caller.respond(first).json()["id"]
        assert caller.respond(second, previous_response_id=made).status_code in status
