"""Limits of a gateway whose counters are in Redis, and the command that shows them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import KNOWN
from gateway.cli import main
from gateway.config import load
from gateway.core.errors import GatewayError, Kind
from gateway.ratelimit import HttpRateLimiter, Limits, Subject
from tests.support.clients import REQUESTS
from tests.support.harness import Stack
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.ratelimit.asking import DEFAULTS, ask, limiter_of, made, standing


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [("closed", [503, 503]), ("open", [200, 200]), ("local", [200, 429])],
    ids=lambda one: str(one),
)
def test_without_redis_each_limit_does_as_it_says(mode: str, statuses: list[int]) -> None:
    limits = [{"name": "rpm", "kind": "requests", "limit": 1, "scope": ["model"], "on_redis_failure": mode}]
    redis = {"addresses": [f"127.0.0.1:{free_port()}"]}
    with Stack(({},), {**DEFAULTS, "limits": limits, "redis": redis}) as stack:
        for dialect in REQUESTS if mode == "closed" else ("openai",):
            replies = [ask(stack, dialect=dialect) for _ in range(2)]
            own = {503: 529} if dialect == "anthropic" else {}
            assert [reply.status_code for reply in replies] == [own.get(status, status) for status in statuses]
            if mode == "closed":
                assert replies[0].headers["retry-after"] == "5"
                assert stack.records()[-1]["code"] == "limits_unavailable"
        assert httpx.get(stack.url + "/readyz").status_code == httpx.get(stack.url + "/livez").status_code == 200
        assert "dragoman_limits_strict 0.0" in httpx.get(stack.url + "/metrics").text
        stack.gateway.log.flush()
        assert [line["event"] for line in stack.output.lines() if "limits" in line["event"]] == ["limits degraded"]


def test_redis_frozen_and_back(tmp_path: Path) -> None:
    limits = [{"name": "rpm", "kind": "requests", "limit": 2, "scope": []}]
    with Server(tmp_path) as server:
        config = {"limits": limits, "redis": {"addresses": [server.address], "timeout_s": 0.3}}
        with Stack(({},), config) as stack:
            changed = asyncio.Event()
            limiter, log = limiter_of(stack), limiter_of(stack)._on_change  # notes changes beside the log

            def noted(state: str, reason: str) -> None:
                assert log is not None
                log(state, reason)
                changed.set()

            limiter._on_change = noted  # notes changes beside the log
            assert ask(stack).status_code == 200
            server.send(signal.SIGSTOP)
            try:
                assert [ask(stack).status_code for _ in range(4)] == [200, 200, 429, 429], "2 more, counted here alone"
                assert limiter.state == "degraded"
                changed.clear()
            finally:
                server.send(signal.SIGCONT)
            stack.run(changed.wait())
            assert limiter.state == "strict"
            assert ask(stack).headers["x-ratelimit-remaining-requests"] == "0"
            stack.gateway.log.flush()
            lines = [line["event"] for line in stack.output.lines() if line["event"].startswith("limits")]
            assert lines == ["limits strict", "limits degraded", "limits strict"]


def test_usage_goes_to_a_stream_and_the_command_shows_and_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, keys = made("a", team="red", limits={"requests": 5})
    with Server(tmp_path) as server:
        redis = {"addresses": [server.address], "timeout_s": 10}
        limits = [{"name": "team", "kind": "tokens", "limit": 900, "scope": ["team", "model"], "shadow": True}]
        config = {"keys": keys, "redis": redis, "limits": limits, "accounting": {"redis_stream": "usage"}}
        with Stack(({},), config) as stack:
            used = [ask(stack, key).json()["usage"]["total_tokens"] for _ in range(3)]
            text = stack.config().model_dump_json(exclude_defaults=True)
        entries = [json.loads(fields[b"record"]) for _, fields in server.command("XRANGE", "dragoman:usage", "-", "+")]
        found = list({one["id"]: one for one in entries}.values())  # a batch whose answer was late is sent again
        assert [one["usage"]["input"] + one["usage"]["output"] for one in found] == used
        assert {(one["key"], one["team"], one["status"], one["outcome"]) for one in found} == {("a", "red", 200, "ok")}
        (tmp_path / "gateway.yaml").write_text(text)
        shown = ["limits", "show", "--config", str(tmp_path / "gateway.yaml"), "--key", "a"]
        assert main(shown) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[1][:5] == ["requests", "key", "a", "3", "2"]
        assert lines[2][:8] == ["team", "(shadow)", "team", "red,", "model", "m", str(sum(used)), str(900 - sum(used))]
        assert main(shown[:-2]) == 0
        said = capsys.readouterr()
        assert said.out == "no limit applies to requests of whom nothing is known\n"
        assert said.err.splitlines() == [
            "dragoman: limit 'requests' counts by key: to see it, give --key",
            "dragoman: limit 'team' counts by team, model: to see it, give --team",
        ]
        assert main([*shown[:-2], "--team", "red"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[1].split()[:4] == ["team", "(shadow)", "team", "red,"]
        assert said.err.splitlines() == ["dragoman: limit 'requests' counts by key: to see it, give --key"]
        assert main([*shown[:-2], "--team", "blue", "--address", "10.0.0.1"]) == 0
        assert main(["limits", "reset", *shown[2:]]) == 2, "it asks first"
        assert "give --yes" in capsys.readouterr().err
        assert main(["limits", "reset", "--yes", *shown[2:]]) == 0
        assert capsys.readouterr().out.splitlines()[-2].split()[3:5] == ["0", "5"]
        assert main([*shown[:-1], "nobody"]) == 2
        assert capsys.readouterr().err == "dragoman: there is no key nobody\n"
        assert main([*shown, "--model", "small"]) == 2
        assert capsys.readouterr().err == "dragoman: there is no model small\n"
        server.kill()
        assert main(shown) == 1
        assert "unavailable" in capsys.readouterr().err


def test_only_known_callers_are_accounted_for(tmp_path: Path) -> None:
    """Strangers cannot push the records of others out of a stream that keeps so many and no more."""
    key, keys = made("a")
    with Server(tmp_path) as server:
        config = {"redis": {"addresses": [server.address], "timeout_s": 10}, "accounting": {"redis_stream": "usage"}}
        with Stack(({},), {**config, "keys": keys}) as stack:
            for path in ("/v1/models", "/nowhere", "/ping"):
                httpx.get(stack.url + path)
            assert ask(stack, "wrong").status_code == 401
            assert ask(stack, key, model="none").status_code == 404
            assert ask(stack, key).status_code == 200
        with Stack(({},), config) as stack:
            httpx.get(stack.url + "/nowhere")
            assert ask(stack).status_code == 200
        entries = [json.loads(fields[b"record"]) for _, fields in server.command("XRANGE", "dragoman:usage", "-", "+")]
    found = {one["id"]: (one["key"], one["status"]) for one in entries}
    assert list(found.values()) == [("a", 404), ("a", 200), ("anonymous", 200)]


def test_the_command_shows_what_was_used_of_a_limit_with_a_burst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, keys = made("bob")
    with Server(tmp_path) as server:
        path = tmp_path / "gateway.yaml"
        limits = [
            {"name": "paced", "kind": "requests", "limit": 60, "burst": 5},
            {"name": "teams", "kind": "requests", "limit": 9, "scope": ["team"]},
        ]
        section = {"issuer": "https://id.example", "audience": "d", "jwks_url": "https://id.example/keys"}
        config = {"keys": keys, "limits": limits, "redis": {"addresses": [server.address], "timeout_s": 10}}
        models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
        path.write_text(json.dumps({**config, "models": models, "jwt": section}))

        def run(*words: str) -> tuple[list[list[str]], list[str]]:
            sure = ["--yes"] if words[0] == "reset" else []
            assert main(["limits", words[0], *sure, "--config", str(path), *words[1:]]) == 0
            said = capsys.readouterr()
            notes = [line for line in said.err.splitlines() if line.startswith("dragoman:")]
            return [line.split()[:5] for line in said.out.splitlines()[1:]], notes

        alone = "dragoman: limit 'teams' counts by team: it does not apply to key bob, which has no team"
        whole = (["paced", "key", "bob", "0", "5"], [alone])
        assert run("show", "--key", "bob") == ([whole[0]], whole[1])
        assert run("reset", "--key", "bob") == ([whole[0]], whole[1])

        async def two() -> None:
            found = load(path, KNOWN, {})
            limiter = HttpRateLimiter(found, Limits(found)).limiter
            await limiter.start(beats=False)
            for _ in range(2):
                await limiter.reserve(Subject("jwt:alice", model="m"))
            await limiter.close()

        asyncio.run(two())
        (row,), said = run("show", "--key", "jwt:alice")
        assert row[:4] == ["paced", "key", "jwt:alice", "2"]
        assert said == ["dragoman: limit 'teams' counts by team: to see it, give --team"]
        assert run("reset", "--key", "jwt:alice")[0] == [["paced", "key", "jwt:alice", "0", "5"]]


@pytest.mark.parametrize("trouble", ["gone", "no password", "wrong password"])
def test_the_command_says_why_redis_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trouble: str
) -> None:
    with Server(tmp_path, *(["--requirepass", "canary"] if trouble != "gone" else [])) as server:
        redis: dict[str, Any] = {"addresses": [server.address], "timeout_s": 10}
        if trouble == "wrong password":
            (tmp_path / "password").write_text("canary-not")
            redis["password_file"] = "password"
        if trouble == "gone":
            server.kill()
        path = tmp_path / "gateway.yaml"
        models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
        limits = [{"name": "rpm", "kind": "requests", "limit": 6, "scope": ["model"]}]
        path.write_text(json.dumps({"models": models, "limits": limits, "redis": redis}))
        assert main(["limits", "show", "--config", str(path)]) == 1
        said = capsys.readouterr().err
    reason = {
        "gone": "ConnectionError (Connection refused)",
        "no password": "NOAUTH Authentication required.",
        "wrong password": "WRONGPASS invalid username-password pair or user is disabled.",
    }[trouble]
    assert said == f"dragoman: the limit store is unavailable: {server.address}: {reason}\n"


def test_without_redis_there_is_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}")
    assert main(["limits", "show", "--config", str(path), "--key", "a"]) == 2
    assert "without redis" in capsys.readouterr().err


@pytest.mark.parametrize("shared", [False, True], ids=["memory", "redis"])
def test_a_limit_refuses_before_what_cannot_be_written(shared: bool, tmp_path: Path) -> None:
    """A shared store is asked before the request is written for its worker; its answer counts first."""
    with contextlib.ExitStack() as stack:
        config: dict[str, Any] = {"limits": [{"name": "rpm", "kind": "requests", "limit": 1, "scope": []}]}
        if shared:
            server = stack.enter_context(Server(tmp_path))
            config["redis"] = {"addresses": [server.address], "timeout_s": 10}
        gateway = stack.enter_context(Stack(({},), {**DEFAULTS, **config}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.kernel.outgoing.Outgoing.write", _unwritable)
            assert ask(gateway).status_code == 400
            assert standing(gateway) == {"rpm": 0}, "no worker has seen it"
            patch.undo()
            assert ask(gateway).status_code == 200
            patch.setattr("gateway.kernel.outgoing.Outgoing.write", _unwritable)
            refused = ask(gateway)
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def _unwritable(*_: Any) -> None:
    raise GatewayError(Kind.BAD_REQUEST, "no worker reads this")
