"""Takes the pictures of the console for the documents: `make screenshots`.

A gateway with simulated workers gets a minute of traffic of two teams; a real Chromium looks at its console. The pages
of spending and of keys show what was put into Redis.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import threading
import time
from datetime import UTC
from pathlib import Path
from typing import Any

import httpx

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.core.written import Moment
from gateway.observe.ledger import Ledger
from gateway.redis import connect
from tests.acceptance.browser.chromium import Browser
from tests.acceptance.browser.test_console import tab
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, GONE, key

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
SECONDS = 60
CONSOLE_KEY = "console-key-console-key"


def take() -> None:
    """Writes `docs/images/console.png`, `requests.png`, `fleet.png` and `playground.png`."""
    search, support = key("search", team="search"), key("support", team="support")
    nightly = key("nightly", team="search", limits={"requests": 5})
    workers = tuple(
        {"itl_ms": 12 + 6 * number, "output_tokens": 60, "prefill_us_per_token": 900} for number in range(3)
    )
    config = {
        "metrics": {"listen": "127.0.0.1:9090"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
        "keys": {**search[1], **support[1], **nightly[1]},
        "limits": [{"name": "requests", "kind": "requests", "limit": 100000, "per_s": "1m", "scope": ["team"]}],
    }
    IMAGES.mkdir(exist_ok=True)
    with (
        Stack(workers=workers, config=config, environ={"CONSOLE_KEY": CONSOLE_KEY}) as stack,
        tempfile.TemporaryDirectory() as folder,
        Browser(Path(folder), width=1200, height=1000) as browser,
    ):
        browser.open(stack.admin_url + "/console")
        browser.until("!document.querySelector('#key-form').hidden")
        browser.type("#key", CONSOLE_KEY)
        browser.click("#key-form button")
        stack.sims[0].fault("reset@5", 3)  # three streams that another worker goes on with
        traffic = threading.Thread(target=_traffic, args=(stack.url, [search[0], search[0], support[0]]))
        traffic.start()
        tab(browser, "requests")
        browser.until("document.querySelectorAll('#ended tbody tr').length > 8")
        for _ in range(9):
            _ask(stack.url, nightly[0])
        browser.until("document.querySelectorAll('#ended .warn').length >= 3")
        browser.until("document.querySelectorAll('#under-way tbody tr').length >= 3")
        (IMAGES / "requests.png").write_bytes(browser.picture())
        traffic.join()
        tab(browser, "live")
        (IMAGES / "console.png").write_bytes(browser.picture("#live"))
        stack.run(stack.sims[2].stop())
        tab(browser, "fleet")
        for _ in range(9):
            _ask(stack.url, support[0])
        browser.until("document.querySelectorAll('#workers .bad').length")
        (IMAGES / "fleet.png").write_bytes(browser.picture("#fleet"))
        tab(browser, "playground")
        browser.type("#client-key", search[0])
        browser.choose("#dialect", "ollama_style")
        browser.click("#send")
        browser.until("document.querySelector('#outcome').textContent.includes('whole')")
        (IMAGES / "playground.png").write_bytes(browser.picture("#playground"))
        assert [fault for fault in browser.faults if "401" not in fault] == []  # the first look has no key


def take_pages() -> None:
    """Writes `docs/images/spend.png`, `keys.png`, `teams.png` and `batches.png`: three weeks of two teams, and what the
    store has."""
    admin, entry = key("alice")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), "--appendonly", "yes") as server:
        a_day = {"name": "model-day", "amount": 2, "per": "day", "scope": ["model"]}
        config = {
            "metrics": {"listen": "127.0.0.1:9090"},
            "console": {"enabled": True},
            "auth": "open",
            "models": {"large": GONE, "m": {"price": {"request": 0.5}}},
            "spend": {"currency": "EUR", "daily": True},
            "budgets": [a_day],
            "redis": {"addresses": [server.address], "timeout_s": 10},
        }
        asyncio.run(_history(server))
        with Stack(config=config) as stack, Browser(Path(folder) / "open", width=1200, height=1000) as browser:
            for _ in range(3):
                httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30).raise_for_status()
            browser.open(stack.admin_url + "/console")
            browser.until("document.querySelectorAll('#near tbody tr, #spend-team tbody tr').length > 2")
            tab(browser, "spend")
            (IMAGES / "spend.png").write_bytes(browser.picture("#spend"))
        keyed = {**config, "auth": "keys", "keys_store": "redis", "admins": entry}
        keyed |= {"batches": {"directory": f"{folder}/batches"}, "budgets": [{**a_day, "amount": 50}]}
        keyed |= {"console": {"enabled": True, "key_env": "CONSOLE_KEY"}}
        with (
            Stack(config=keyed, environ={"CONSOLE_KEY": CONSOLE_KEY}) as stack,
            Browser(Path(folder) / "keys", width=1200, height=1000) as browser,
        ):
            api: dict[str, Any] = {
                "base_url": stack.admin_url + "/admin/v1",
                "headers": {"authorization": f"Bearer {admin}"},
            }
            secrets: dict[str, str] = {}
            with httpx.Client(**api) as client:
                for name, team, budget in (
                    ("chat", "search", "200"),
                    ("helpdesk", "support", "50"),
                    ("nightly", "search", None),
                ):
                    body = {
                        "name": name,
                        "team": team,
                        "models": ["m"],
                        "limits": {"budget": budget} if budget else None,
                    }
                    secrets[name] = client.post("/keys", json=body).raise_for_status().json()["key"]
                client.post("/keys/nightly/rotate").raise_for_status()
                search = {"name": "search", "models": ["m"], "budgets": {"team-budget": 300}}
                client.post("/teams", json={**search, "limits": {"team-concurrency": 20}}).raise_for_status()
                client.post("/teams", json={"name": "trial", "disabled": True}).raise_for_status()
            for name in ("nightly", "chat"):
                requests = [{"custom_id": str(n), "params": {**CHAT, "max_tokens": 4}} for n in range(9)]
                _batch(stack.url, secrets[name], requests)
            browser.open(stack.admin_url + "/console")
            browser.type("#key", CONSOLE_KEY)
            browser.click("#key-form button")
            browser.until("!document.querySelector('#tab-keys').hidden")
            tab(browser, "keys")
            browser.type("#admin-key", admin)
            browser.click("#admin-form button")
            browser.until("document.querySelectorAll('#keys-table tbody tr').length === 3")
            (IMAGES / "keys.png").write_bytes(browser.picture("#keys"))
            tab(browser, "teams")
            browser.until("document.querySelectorAll('#teams-entries tbody tr').length === 3")
            browser.until("document.querySelector('#teams-entries').textContent.includes('EUR')")
            (IMAGES / "teams.png").write_bytes(browser.picture("#teams"))
            tab(browser, "batches")
            browser.until("document.querySelectorAll('#batches-table tbody tr').length === 2")
            (IMAGES / "batches.png").write_bytes(browser.picture("#batches"))


def _ask(url: str, secret: str) -> None:
    """One short request, which a limit may refuse."""
    headers = {"authorization": f"Bearer {secret}"}
    httpx.post(url + "/v1/chat/completions", json={**CHAT, "max_tokens": 8}, headers=headers, timeout=30)


def _batch(url: str, secret: str, requests: list[dict[str, Any]]) -> None:
    """A batch of a key, once it has ended."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {secret}"}, timeout=30) as client:
        made = client.post("/v1/messages/batches", json={"requests": requests}).raise_for_status().json()
        until(lambda: client.get(f"/v1/messages/batches/{made['id']}").json()["processing_status"] == "ended")


async def _history(server: Server) -> None:
    """Sums of three weeks, as gateways keep them."""
    ledger, chance, now = Ledger("dragoman", UTC, connect(server.settings)), random.Random(1), time.time()
    for days_ago in range(21):
        for name, team, model, cost in (
            ("chat", "search", "large", 6.0),
            ("nightly", "search", "m", 1.5),
            ("helpdesk", "support", "large", 2.5),
        ):
            for _ in range(40):
                used = Usage(chance.randrange(400, 4_000), chance.randrange(50, 900), 0)
                nano = round(cost * chance.uniform(0.5, 1.3) * 10**9 / 40 * (1.6 if days_ago < 7 else 1))
                record = RequestRecord(
                    id="id", dialect="openai", model=model, key=name, team=team, attempts=1, usage=used, cost=nano
                )
                record.time = Moment(now - days_ago * 86_400)
                ledger.add(record)
    await ledger.close()


def _traffic(url: str, secrets: list[str]) -> None:
    """As many clients as `secrets`, each one request after another, for `SECONDS`; some of them pause now and then."""
    end = time.monotonic() + SECONDS

    def ask(secret: str, chance: random.Random) -> None:
        with httpx.Client(headers={"authorization": f"Bearer {secret}"}, timeout=30) as client:
            for number in itertools.count():
                if time.monotonic() > end:
                    return
                words = "word " * chance.randint(5, 200)
                body = {"model": "m", "messages": [{"role": "user", "content": words}], "stream": True}
                body |= {"max_tokens": chance.randint(10, 60)}
                client.post(url + "/v1/chat/completions", json=body).raise_for_status()
                if number % 9 == 8:
                    time.sleep(chance.random() * 2)

    threads = [
        threading.Thread(target=ask, args=(secret, random.Random(number))) for number, secret in enumerate(secrets * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    take()
    take_pages()
