"""What outlives a configuration: shared over a reload, closed when nobody has it, unchanged by a reload that fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gateway.app.services import Services
from gateway.config import Redis
from gateway.core.ports import RequestRecord
from gateway.fleet.fleets import Fleets
from gateway.observe.accounting import AccountingStream, Counts
from gateway.redis import connect
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.app.asking import key

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LIMIT = [{"name": "few", "kind": "requests", "limit": 2, "per_s": 3600, "scope": ["model"]}]
(OLD_KEY, OLD), (NEW_KEY, NEW) = key("old"), key("new")
SECTIONS: dict[str, Any] = {
    "keys": OLD,
    "limits": LIMIT,
    "store": {"where": "memory", "ttl_s": 60},
    "breaker": {"quarantine_s": 60},
}
OTHER: dict[str, Any] = {
    "keys": NEW,
    "limits": [{**LIMIT[0], "limit": 5}],
    "store": {"where": "memory", "ttl_s": 5},
    "breaker": {"quarantine_s": 5, "failures": 2},
    "listen": {"max_bodies_bytes": "48MiB", "shed_lag_s": 9},
    "models": {"m": {"max_in_flight": 3}},
    "dialects": {"openai": {"prefixes": ["/new"]}},
    "metrics": {"enabled": False},
    "log": {"level": "warning"},
}


def status(stack: Stack, path: str, secret: str) -> int:
    return httpx.post(stack.url + path, json=CHAT, headers={"authorization": f"Bearer {secret}"}).status_code


def settings(stack: Stack) -> list[Any]:
    """The limits, and other settings of services, of workers and of the whole process."""
    state = stack.gateway.deployment
    services, (worker,) = state.features.services, state.workers.values()
    return [
        [rule.limit for rule in services["limits"].limiter._index.rules],  # the rules in force
        services["stored"].ttl_s,
        services["quarantine"].hold_s,
        state.runtime.body_budget.limit,
        worker.max_in_flight,
        worker.breaker.options.failures,
        len(worker.on_free),
        services["shedding"].limit_s,
    ]


@pytest.mark.parametrize(
    "halfway",
    ["app.prepared.KeyTable", "app.deployment.Keyring", "ratelimit.HttpRateLimiter.start", "fleet.health.Health.start"],
)
def test_a_reload_that_fails_halfway_changes_nothing(halfway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose certificate is gone since it was checked: no limit, worker, key or listener is another one."""

    def broken(*_: object, **__: object) -> None:
        raise OSError("halfway")

    with Stack(config=SECTIONS) as stack:
        before, services = settings(stack), stack.gateway.deployment.services
        with monkeypatch.context() as patched:
            patched.setattr(f"gateway.{halfway}", broken)
            with pytest.raises(OSError, match="halfway"):
                stack.run(stack.gateway.reload(stack.config(OTHER)))
        assert settings(stack) == before
        assert stack.gateway.deployment.services is services
        assert len(stack.gateway.host.deployments) == 1
        assert [status(stack, "/v1/chat/completions", secret) for secret in (OLD_KEY, NEW_KEY)] == [200, 401]
        assert status(stack, "/new/v1/chat/completions", OLD_KEY) == 404
        assert httpx.get(stack.url + "/metrics").status_code == 200
        assert len(stack.records()) == 3

        stack.run(stack.gateway.reload(stack.config(OTHER)))
        assert settings(stack)[:6] == [[5], 5, 5, 48 << 20, 3, 2]
        assert [status(stack, "/new/v1/chat/completions", secret) for secret in (OLD_KEY, NEW_KEY)] == [200, 200]
        assert httpx.get(stack.url + "/metrics").status_code == 401, "as at any path of the dialects"


def test_a_reload_goes_on_with_the_services_and_changes_their_settings() -> None:
    with Stack(config=SECTIONS) as stack:
        before = stack.gateway.deployment.features.services
        stack.run(stack.gateway.reload(stack.config(OTHER)))
        after = stack.gateway.deployment.features.services
        assert after is not before
        for name in ("limits", "stored", "quarantine", "caps", "shedding", "sockets"):
            assert after[name] is before[name] is not None
        assert settings(stack)[:4] == [[5], 5, 5, 48 << 20]


def test_the_deployment_in_force_looks_for_the_deaths_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quarantine stays over a reload, and asks whoever probes the workers then."""

    async def dead(fleets: Fleets, model: str, worker: Any) -> object:
        return fleets, model, worker

    monkeypatch.setattr(Fleets, "death_of", dead)
    worker: Any = object()
    with Stack(config=SECTIONS) as stack:
        for _ in range(2):
            deployment = stack.gateway.deployment
            quarantine = deployment.features.services["quarantine"]
            assert stack.run(quarantine.death_of("m", worker)) == (deployment.fleets, "m", worker)
            stack.run(stack.gateway.reload(stack.config(OTHER)))


class Service:
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_only_what_nobody_else_has_is_closed() -> None:
    shared, own = Service(), Service()
    one, other = Services(ledger=cast(Any, shared), stream=cast(Any, own)), Services(ledger=cast(Any, shared))
    await one.close([other])
    assert (own.closed, shared.closed) == (1, 0)
    await other.close([])
    assert shared.closed == 1


@pytest.mark.parametrize(
    ("sections", "stays"),
    [
        ({"limits": [{**LIMIT[0], "limit": 5}]}, (True, True)),
        ({"accounting": {"max_length": 5000}}, (False, True)),
        ({"spend": {"time_zone": "Asia/Kathmandu"}}, (True, False)),
        ({"end_users": {}}, (True, False)),
        ({"redis": {"timeout_s": 9}}, (False, False)),
    ],
)
def test_a_reload_while_redis_is_away_loses_no_record(
    tmp_path: Path, sections: dict[str, Any], stays: tuple[bool, bool]
) -> None:
    with Server(tmp_path, "--appendonly", "yes") as mortal:
        config: dict[str, Any] = {
            "redis": {"addresses": [mortal.address], "timeout_s": 10},
            "accounting": {"redis_stream": "usage"},
            "spend": {"daily": True},
        }
        with Stack(config=config) as stack:
            before = stack.gateway.deployment
            mortal.kill()
            assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
            until(lambda: bool(stack.events("usage records failing") and stack.events("sums of spending failing")))
            for _ in range(2):
                stack.run(stack.gateway.reload(stack.config(sections)))
                until(lambda: len(stack.gateway.host.deployments) == 1)
            services = stack.gateway.deployment.services
            assert (services.stream is before.services.stream, services.ledger is before.services.ledger) == stays
            mortal.start()
            stream, ledger = services.stream, services.ledger
            assert stream is not None
            assert ledger is not None
            until(lambda: stream.counts == Counts(1, 0) and not ledger._waits)  # once its sums are written
            assert mortal.command("XLEN", "dragoman:usage") == 1
            today = datetime.now(UTC).date()
            days = [today + timedelta(days=one) for one in (-1, 0, 1)]
            assert [sums.requests for sums in stack.run(ledger.report(days, ["key"])).values()] == [1]
            assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
            until(lambda: stream.counts == Counts(2, 0))


async def test_what_nobody_takes_over_is_lost_and_counted() -> None:
    """A gateway closes the newest first."""
    client = connect(Redis(addresses=(f"127.0.0.1:{free_port()}",)))
    before = AccountingStream("usage", 10, client)
    after = AccountingStream("usage", 10, client, counts=before.counts)
    before.successor = after
    before.add(RequestRecord(id="1"))
    await after.close()
    await before.close()
    assert after.counts == Counts(0, 1)
