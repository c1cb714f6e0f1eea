"""Reports of a running gateway add up to its records: by the admin address and by `dragoman spend`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.cli import main
from gateway.core.money import NANO, shown
from tests.support.clients import GENERATING, usual
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.records import seconds
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, GONE, key

PRICE = {"input": 0.15, "output": 0.6, "request": 0.000_001}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture(scope="module")
def config(server: Server) -> dict[str, Any]:
    return {
        "models": {"m": {"price": PRICE}, "away": {**GONE, "price": PRICE, "fallback": ["m"]}},
        "redis": {"addresses": [server.address], "timeout_s": 5},
        "spend": {"currency": "EUR", "daily": True},
        "budgets": [{"name": "all", "amount": 1000, "scope": []}],
        "metrics": {"listen": f"127.0.0.1:{free_port()}"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
    }


SECRETS: dict[str, str] = {}
HEADERS = {"authorization": "Bearer 0123456789abcdef"}


@pytest.fixture(scope="module")
def busy(config: dict[str, Any]) -> Iterator[Stack]:
    """A gateway that has answered requests of two teams in every client API, and failed some."""
    red, one = key("one", team="red")
    blue, two = key("two", team="blue")
    SECRETS["one"] = red
    with Stack(config={**config, "keys": {**one, **two}}, environ={"CONSOLE_KEY": "0123456789abcdef"}) as stack:
        for name in GENERATING:
            way = usual(name)
            for secret in (red, blue):
                header = "x-api-key" if name == "anthropic" else "authorization"
                headers = {header: secret if header == "x-api-key" else f"Bearer {secret}"}
                body = {**way.body("hello", stream=False, max_tokens=10), "model": "m"}
                httpx.post(stack.url + way.path("m"), json=body, headers=headers, timeout=30)
        headers = {"authorization": f"Bearer {red}"}
        for more in ({"stream": True}, {"model": "away"}, {"model": "none"}, {"logit_bias": {"-1": 1}}):
            httpx.post(stack.url + "/v1/chat/completions", json={**CHAT, **more}, headers=headers, timeout=30)
        yield stack


def worth(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a report should have of them."""
    usages = [record["usage"] or {} for record in records]
    return {
        "requests": len(records),
        **{f"{name}_tokens": sum(usage.get(name) or 0 for usage in usages) for name in ("input", "cached", "output")},
        "cost": shown(sum(record.get("cost", 0) for record in records)),
    }


def report(stack: Stack, query: str = "") -> dict[str, Any]:
    reply = httpx.get(f"{stack.admin_url}/spend.json{query}", headers=HEADERS, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def test_the_report_adds_up_to_the_records(busy: Stack) -> None:
    served = [record for record in busy.records() if record["attempts"]]
    assert len(served) > 2 * len(GENERATING)
    expected = worth(served)
    until(lambda: report(busy)["total"] == expected)
    found = report(busy, "?by=team,model")
    for row in found["rows"]:
        assert (
            row.items()
            >= worth([one for one in served if (one["team"], one["model"]) == (row["team"], row["model"])]).items()
        )
    assert {row["team"] for row in found["rows"]} == {"red", "blue"}
    assert found["currency"] == "EUR"


def test_the_command_has_the_same(
    busy: Stack, config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = worth([record for record in busy.records() if record["attempts"]])
    until(lambda: report(busy)["total"] == expected)
    models = {"m": {"backend": "vllm", **config["models"]["m"], "workers": ["http://127.0.0.1:9"]}}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"models": models, "redis": config["redis"], "spend": config["spend"]}))
    month = report(busy)["from"][:7]
    for by in ("team", "day,key,model"):
        assert main(["spend", "--config", str(file), "--by", by, "--month", month, "--csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert sum(round(float(row["cost"]) * NANO) for row in rows) == round(float(expected["cost"]) * NANO)
        assert sum(int(row["output_tokens"]) for row in rows) == expected["output_tokens"]
    assert main(["spend", "--config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == expected
    assert main(["spend", "--config", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[-1] == expected["cost"]
    assert main(["spend", "--config", str(file), "--by", "user"]) == 2


@pytest.mark.parametrize(("query", "status"), [("?by=user", 400), ("?month=soon", 400), ("?month=2999-01", 400)])
def test_a_wrong_question_is_refused(busy: Stack, query: str, status: int) -> None:
    assert httpx.get(f"{busy.admin_url}/spend.json{query}", headers=HEADERS).status_code == status


@pytest.mark.long
def test_sums_that_are_lost_are_rebuilt_from_the_log(
    busy: Stack, config: dict[str, Any], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = worth(served := [record for record in busy.records() if record["attempts"]])
    until(lambda: report(busy)["total"] == expected)
    rows = report(busy, "?by=day,key,team,model")["rows"]
    (budget,) = server.command("KEYS", "*:cmonth*:all:*")
    server.command("FLUSHALL")
    headers = {"authorization": f"Bearer {SECRETS['one']}"}
    httpx.post(busy.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30)
    until(lambda: report(busy)["total"]["requests"] == 1)
    models = {"m": {"backend": "vllm", **config["models"]["m"], "workers": ["http://127.0.0.1:9"]}}
    file, log = tmp_path / "gateway.yaml", tmp_path / "log"
    shared = {name: config[name] for name in ("redis", "spend", "budgets")}
    file.write_text(yaml.safe_dump({"models": models, **shared}))
    lines = busy.output.getvalue().splitlines(keepends=True)
    more = tmp_path / "more"
    more.write_bytes(b"".join(lines[::2]))
    assert json.loads(lines[-1])["time"].endswith("Z")
    for place, line in enumerate(lines[::4]):  # as up to 0.9
        old = {**json.loads(line), "team": None} | json.loads(line)
        lines[4 * place] = json.dumps(old | {"time": seconds(old["time"])}).encode() + b"\n"
    odd = (
        '"time": 1e300',
        '"time": "soon"',
        '"time": 1795000000000',
        '"time": 1, "cost": 9e18',
        '"time": 1, "usage": {"input": -1}',
    )
    wrong = "".join(f'{{"event": "request", "id": "a", "dialect": "openai", "attempts": 1, {one}}}\n' for one in odd)
    log.write_bytes(b"".join(lines[1::2]) + wrong.encode() + b'not JSON\n{"event": "request", "id": 5}\n{"time": 1')
    for _ in range(2):  # a second time changes nothing
        assert main(["spend", "--config", str(file), "--rebuild", str(log)]) == 2, "it asks first"
        assert "give --yes" in capsys.readouterr().err
        assert main(["spend", "--yes", "--config", str(file), "--rebuild", str(log), str(more)]) == 0
        assert capsys.readouterr().out == f"{len(served) + 1} records that a worker was picked for\n"
        assert report(busy)["total"] == worth([*served, busy.record()])
        assert shown(int(server.command("HGET", budget, "u"))) == report(busy)["total"]["cost"]
    assert len(report(busy, "?by=day,key,team,model")["rows"]) == len(rows)
    httpx.post(busy.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30)
    until(lambda: report(busy)["total"] == worth([one for one in busy.records() if one["attempts"]]))
    assert main(["spend", "--yes", "--config", str(file), "--rebuild", str(tmp_path / "none")]) == 2
    assert main(["spend", "--yes", "--config", str(file), "--rebuild", str(log), str(log)]) == 2
    assert "named twice" in capsys.readouterr().err


def test_nobody_reads_it_without_the_key_or_where_clients_call(busy: Stack) -> None:
    assert httpx.get(f"{busy.admin_url}/spend.json").status_code == 401
    assert httpx.get(f"{busy.url}/spend.json", headers=HEADERS).status_code == 401  # as any path without a client's key


def test_without_sums_there_is_no_report() -> None:
    metrics = {"listen": f"127.0.0.1:{free_port()}"}
    with Stack(config={"metrics": metrics, "console": {"enabled": True}}) as stack:
        reply = httpx.get(f"{stack.admin_url}/spend.json")
        assert (reply.status_code, reply.json()) == (404, {"error": "no sums are kept: spend.daily is off"})


def test_without_the_console_nothing_names_keys() -> None:
    with Stack(config={"metrics": {"listen": f"127.0.0.1:{free_port()}"}}) as stack:
        assert httpx.get(f"{stack.admin_url}/spend.json").status_code == 404
