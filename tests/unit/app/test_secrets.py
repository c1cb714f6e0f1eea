"""What holds a secret of the configuration does not show it: a repr ends in a traceback, and that in a log."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.app import KNOWN, Gateway
from gateway.auth import Principal
from gateway.config import load
from gateway.core.ports import dialect
from gateway.core.sealing import Sealing
from gateway.kernel.models import ServedModel
from gateway.observe.log import Log
from tests.support.harness import Stack, until
from tests.support.standins.serving import Answering, serving

CONFIGURED = """
keys:
  signer: {aws_access_key_id: AKIDEXAMPLE, aws_secret_env: AWS}
models:
  m:
    backend: vllm
    workers: ["http://127.0.0.1:9"]
    api_key_env: WORKER
    headers: {x-key: canary-of-a-header}
    price: {request: 1}
redis: {addresses: ["127.0.0.1:1"], password_env: REDIS}
cache_salt: {secret_env: SALT}
seal: {secret_env: SEAL}
end_users: {secret_env: USERS}
spend: {currency: EUR}
budgets: [{name: b, amount: 1}]
budget_webhook: {secret_env: HOOK, url: "http://127.0.0.1:9"}
console: {enabled: true, key_env: CONSOLE}
metrics: {listen: "127.0.0.1:9090"}
tracing: {endpoint: "http://127.0.0.1:1/v1/traces", headers: {authorization: Bearer canary-of-the-collector}}
"""
SECRETS = {
    name: f"canary-{name}-{'x' * 32}" for name in ("AWS", "WORKER", "REDIS", "SALT", "SEAL", "USERS", "HOOK", "CONSOLE")
}
WITHOUT_SECRETS = (dialect.Settings,)
"""Settings that hold no secret."""


def _settings(kind: type[object] = msgspec.Struct) -> Iterator[type[object]]:
    """All classes of settings of the gateway, by their name."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("gateway.") and one.__name__.endswith("Settings"):
            yield one
        yield from _settings(one)


async def test_nothing_that_holds_a_secret_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIGURED)
    config = load(path, KNOWN, SECRETS)
    log = Log("info", True, io.BytesIO(), "json")
    gateway = Gateway(config, log)
    state = gateway.deployment
    assert state.features.services["tracing"] is not None
    assert config.redis is not None
    assert config.tracing is not None
    model = state.runtime.models["m"]
    holders = [
        (config.keys["signer"], SECRETS["AWS"] in str(config.keys["signer"].aws_secret)),
        (config.models["m"], SECRETS["WORKER"] in str(config.models["m"].api_key)),
        (config.cache_salt, True),
        (config.seal, SECRETS["SEAL"] in str(config.seal and config.seal.secret)),
        (config.end_users, SECRETS["USERS"] == (config.end_users and config.end_users.secret)),
        (config.budget_webhook, SECRETS["HOOK"] == (config.budget_webhook and config.budget_webhook.secret)),
        (config.console, SECRETS["CONSOLE"] in str(config.console.key)),
        (config.redis, True),
        (config.redis.server, SECRETS["REDIS"] in str(config.redis.server.password)),
        (config.tracing, "canary" in str(config.tracing.headers)),
        (config, True),
        (model, "canary-of-a-header" in str(model.headers) and SECRETS["WORKER"] in str(model.headers)),
        (Principal("a", salt="canary"), True),
        (Sealing("a", b"canary"), True),
        # The canary must be found there.
        (state.keyring._table.sealing, SECRETS["SEAL"].encode() == state.keyring._table.sealing.of("signer")),
    ]
    await gateway.close()
    await asyncio.to_thread(log.close)
    assert all(holds for _, holds in holders), "else the test proves nothing"
    assert [type(one).__name__ for one, _ in holders if "canary" in f"{one!r} {one!s}"] == []
    shown = {type(one) for one, _ in holders}
    assert ServedModel in shown
    assert set(_settings()) - shown == set(WITHOUT_SECRETS), "another class of settings: does it hold a secret?"


@pytest.mark.parametrize(
    ("header", "value", "secret"),
    [
        ("x-api-key", "canary-of-a-header", "canary-of-a-header"),
        ("x-upstream-auth", "Bearer canary-of-a-header", "canary-of-a-header"),
        ("cookie", "session=canary-of-a-header; lang=en", "canary-of-a-header"),
        ("cookie", "lang=en; session=canary-of-a-header", "canary-of-a-header"),
        ("x-project", "canary-of-no-secret", None),
    ],
)
def test_a_worker_that_repeats_the_secret_of_its_header(header: str, value: str, secret: str | None) -> None:
    class Repeating(Answering):
        """As a proxy before a worker, which names the key that it does not know."""

        def repeated(self) -> bytes:
            words = f"not known: {self.headers[header].removeprefix('session=').removeprefix('Bearer ')}"
            return json.dumps({"error": {"message": words, "code": 400}}).encode()

        def do_GET(self) -> None:
            self.answer(200) if self.path == "/health" else self.answer(self.facts, self.repeated())

        def do_POST(self) -> None:
            self.answer(402 if b"unpaid" in self.posted() else 400, self.repeated())

        facts = 404

    class Refusing(Repeating):
        facts = 401

    canary = secret or value
    with serving(Repeating) as one, serving(Refusing) as other:
        models = {
            name: {"backend": "openai", "workers": [url], "headers": {header: value}, "upstream_model": "m"}
            for name, url in (("repeats", one), ("refuses", other))
        }
        with Stack(config={"models": models}) as stack:
            replies = []
            for text in ("hi", "unpaid"):
                body = {"model": "repeats", "messages": [{"role": "user", "content": text}]}
                replies.append(httpx.post(stack.url + "/v1/chat/completions", json=body, timeout=30).text)
            assert "not known" in replies[0]
            until(lambda: any("text" in line for line in stack.events("worker down")))
            until(lambda: bool(stack.events("worker answered with an error")))
            logged = stack.output.getvalue().decode()
    assert [canary in replies[0], canary in logged] == [secret is None] * 2
    assert canary not in replies[1]
