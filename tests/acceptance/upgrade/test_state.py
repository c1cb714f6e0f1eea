"""What 0.1.0 wrote is read by this version, and back. This version has more in Redis, which a way back leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.upgrade.versions import LIMIT, Caller, Site, remaining, stop, used
from tests.support.commands import Serving, called
from tests.support.harness import until
from tests.support.ports import free_port
from tests.unit.auth.stored_keys import hash_of


def later(site: Site, folder: Path) -> dict[str, Any]:
    """Sections that 0.1.0 does not know."""
    return {
        "metrics": {"listen": f"127.0.0.1:{free_port()}"},
        "keys_store": "redis",
        "admins": {"root": {"hash": hash_of("root-key")}},
        "models": {name: {**one, "price": {"request": 1}} for name, one in site.sections["models"].items()},
        "spend": {"currency": "EUR", "daily": True},
        "budgets": [{"name": "month", "amount": 100}],
        "batches": {"directory": str(folder)},
    }


def batch(caller: Caller, serving: Serving) -> str:
    """Runs a batch of one line; returns the id of its output."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
    files = {"file": ("lines.jsonl", line), "purpose": (None, "batch")}
    made = caller.ask(serving, "/files", files=files).json()["id"]
    asked = {"input_file_id": made, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    id_ = caller.ask(serving, "/batches", asked).json()["id"]
    until(lambda: caller.ask(serving, f"/batches/{id_}").json()["status"] == "completed")
    output: str = caller.ask(serving, f"/batches/{id_}").json()["output_file_id"]
    return output


def spent(caller: Caller, serving: Serving) -> tuple[int, int]:
    """By the budget, and by the report."""
    shown = called("limits", "show", "--key", caller.name, "--config", str(serving.file)).stdout
    report = called("spend", "--by", "key", "--config", str(serving.file)).stdout
    return used(shown, "month"), next(int(line.split()[-1]) for line in report.splitlines() if caller.name in line)


@pytest.mark.whole
def test_state_goes_up_and_back_and_up_again(site: Site, tmp_path: Path) -> None:
    caller, of_the_store = site.caller("app", "blue"), Caller("made", "blue")
    more = later(site, tmp_path / "files")

    (serving,) = site.start("old")
    assert [remaining(caller.chat(serving)) for _ in range(5)] == [LIMIT - n for n in range(1, 6)]
    response = caller.respond(serving).json()["id"]
    stop(serving)
    assert len(site.recorded()) == 6

    (serving,) = site.start("new", **more)
    assert remaining(caller.chat(serving)) == LIMIT - 7
    response = caller.respond(serving, previous_response_id=response).json()["id"]
    headers = {"authorization": "Bearer root-key"}
    made = httpx.post(serving.admin + "/admin/v1/keys", json={"name": "made", "team": "blue"}, headers=headers)
    of_the_store.key = made.json()["key"]
    assert of_the_store.chat(serving).status_code == 200
    output = batch(caller, serving)
    lines = caller.ask(serving, f"/files/{output}/content").content
    before = remaining(caller.chat(serving))
    stop(serving)
    # Two requests, one of the batch, and one. Those of the old gateway cost nothing.
    assert spent(caller, serving) == (4, 4)

    (serving,) = site.start("old")
    assert remaining(caller.chat(serving)) == before - 1
    response = caller.respond(serving, previous_response_id=response).json()["id"]
    assert of_the_store.chat(serving).status_code == 401
    assert caller.ask(serving, f"/files/{output}/content").status_code == 404
    stop(serving)

    (serving,) = site.start("new", **more)
    assert remaining(caller.chat(serving)) == before - 3
    assert caller.ask(serving, f"/responses/{response}").json()["id"] == response
    assert caller.ask(serving, f"/files/{output}/content").content == lines
    assert of_the_store.chat(serving).status_code == 200
    stop(serving)
    assert spent(caller, serving) == (5, 5)
    ids = site.recorded()
    assert len(ids) == len(set(ids)) == 6 + 5 + 2 + 2
