"""What outlives a configuration: shared over a reload, closed when nobody has it, unchanged by a reload that fails."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.app.deployment import Deployment
from gateway.app.services import Services
from tests.harness import Stack

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LIMIT = [{"name": "few", "kind": "requests", "limit": 2, "per_s": 3600, "scope": ["model"]}]
SECTIONS: dict[str, Any] = {
    "limits": LIMIT,
    "store": {"where": "memory", "ttl_s": 60},
    "breaker": {"quarantine_s": 60},
}
OTHER: dict[str, Any] = {
    "limits": [{**LIMIT[0], "limit": 5}],
    "store": {"where": "memory", "ttl_s": 5},
    "breaker": {"quarantine_s": 5},
    "listen": {"max_bodies_bytes": "48MiB"},
}


def settings(stack: Stack) -> list[Any]:
    state = stack.gateway.deployment
    services = state.services
    assert services.limiting is not None
    assert services.quarantine is not None
    response_store: Any = services.response_store
    return [
        [rule.limit for rule in services.limiting.limiter._index.rules],
        response_store.ttl_s,
        services.quarantine.hold_s,
        services.quarantine.death_of == state.fleets.death_of,
        state.runtime.body_budget.limit,
    ]


def test_a_reload_that_fails_at_its_start_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(state: Deployment) -> None:
        raise OSError("a listener of a new service")

    with Stack(config=SECTIONS) as stack:
        before = settings(stack)
        monkeypatch.setattr(Deployment, "start", broken)
        with pytest.raises(OSError, match="a listener"):
            stack.run(stack.gateway.reload(stack.config(OTHER)))
        assert settings(stack) == before
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200


def test_a_reload_goes_on_with_the_services_and_changes_their_settings() -> None:
    with Stack(config=SECTIONS) as stack:
        before = stack.gateway.deployment.services
        stack.run(stack.gateway.reload(stack.config(OTHER)))
        after = stack.gateway.deployment.services
        assert after is not before
        assert (after.limiting, after.response_store, after.quarantine) == (
            before.limiting,
            before.response_store,
            before.quarantine,
        )
        assert settings(stack) == [[5], 5, 5, True, 48 << 20]


class Service:
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_only_what_nobody_else_has_is_closed() -> None:
    shared, own = Service(), Service()
    one, other = Services.__new__(Services), Services.__new__(Services)
    for services, limiting in ((one, shared), (other, shared)):
        services.__dict__.update(dict.fromkeys(Services.CLOSABLE))
        services.__dict__["limiting"] = limiting
    one.__dict__["stream"] = own
    await one.close([other])
    assert (own.closed, shared.closed) == (1, 0)
    await other.close([])
    assert shared.closed == 1
