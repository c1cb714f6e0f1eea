"""The console of a large site in a real Chromium: 5,000 keys, 200 workers, and as many requests as are kept. It fetches
and shows pages, whose rows and requests are counted here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.auth.key_store import KeyStore
from gateway.core.ports import RequestRecord
from gateway.features.console.requests import MOST
from gateway.redis import connect
from tests.acceptance.browser.chromium import Browser
from tests.acceptance.browser.test_accessible import found
from tests.acceptance.browser.test_console import CONSOLE_KEY, browser, resize, shared, tab
from tests.acceptance.browser.test_pages import ADMINS, ROOT, fits, names, quiet, unlocked
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import put, stored

__all__ = ["browser", "shared"]
pytestmark = pytest.mark.browser

KEYS, TEAMS, WORKERS = 5_000, 97, 200
PLACES = [f"127.0.{number // 100 + 1}.{number % 100 + 1}:9" for number in range(WORKERS)]
ROWS = "document.querySelectorAll('#{} tbody tr').length"
ELEMENTS = "document.querySelectorAll('*').length"


async def fill(server: Server) -> None:
    store = KeyStore("dragoman", 1_000, connect(server.settings), 10)
    for first in range(0, KEYS, 100):
        made = (stored(f"app-{number:04}", team=f"team-{number % TEAMS}") for number in range(first, first + 100))
        await asyncio.gather(*(put(store, key) for key in made))
    await store.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Server(tmp_path_factory.mktemp("valkey"), "--appendonly", "yes") as server:
        asyncio.run(fill(server))
        config: dict[str, Any] = {
            "metrics": {"listen": "127.0.0.1:9090"},
            "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
            "models": {"big": {"backend": "vllm", "workers": [f"http://{place}" for place in PLACES]}},
            "redis": {"addresses": [server.address], "timeout_s": 10},
            "keys_store": "redis",
            "admins": ADMINS,
            "spend": {"daily": True},
        }
        with Stack((), config, environ={"CONSOLE_KEY": CONSOLE_KEY}) as running:
            kept = running.service("console").recent._ended  # as if they had been served
            for number in range(MOST):
                record = RequestRecord(
                    id=f"id-{number:03}", dialect="openai", key=f"app-{number:04}", model="big", outcome="ok"
                )
                kept.append((time.time(), record))
            yield running


@pytest.fixture
def opened(browser: Browser, stack: Stack) -> Browser:
    unlocked(browser, stack, ROOT)
    browser.until(f"{ROWS.format('keys-table')} === 100")
    return browser


def asked(browser: Browser, path: str) -> int:
    """How often the page has asked for `path`."""
    script = "performance.getEntriesByType('resource').filter(one => new URL(one.name).pathname.endsWith('%s')).length"
    found: int = browser.run(script % path)
    return found


def polled(browser: Browser, times: int = 2) -> None:
    browser.until(f"""performance.getEntriesByType('resource').filter(one => one.name.endsWith('brief.json')).length
        >= {asked(browser, "brief.json") + times}""")


def turn(browser: Browser, table: str, button: str, first: str) -> None:
    browser.click(f"#{table}-pages button:{button}-of-type")
    name = {"keys": "keys-table td", "workers": "workers td:nth-child(2)"}[table]
    browser.until(f"document.querySelector('#{name}')?.textContent === '{first}'")


def search(browser: Browser, view: str, text: str, table: str, rows: int) -> None:
    browser.type(f"#{view}-match", text)
    browser.click(f"#{view}-filter button")
    browser.until(f"{ROWS.format(table)} === {rows}")


def test_of_5_000_keys_a_page_is_fetched_and_none_is_polled(opened: Browser) -> None:
    keys = "/admin/v1/keys"
    assert asked(opened, keys) == 1
    polled(opened)
    assert asked(opened, keys) == 1, "keys are read when somebody asks for them"
    assert asked(opened, "workers.json") == asked(opened, "requests.json") == 0, "of views that are not shown"
    elements = opened.run(ELEMENTS)
    turn(opened, "keys", "last", "app-0100")
    turn(opened, "keys", "last", "app-0200")
    turn(opened, "keys", "first", "app-0100")
    assert asked(opened, keys) == 4
    assert names(opened, "keys-table") == [f"app-{number:04}" for number in range(100, 200)]
    assert opened.text("#keys-pages span") == "101 to 200"
    assert opened.run(ELEMENTS) == elements, "no page adds to those before"
    search(opened, "keys", "app-499", "keys-table", 10)
    search(opened, "keys", "APP-4999", "keys-table", 1)
    opened.type("#keys-team", "team-13")
    search(opened, "keys", "", "keys-table", KEYS // TEAMS + 1)
    assert asked(opened, keys) == 7
    fits(opened)
    assert quiet(opened)


def test_the_page_of_keys_stays_while_one_of_its_keys_is_changed(opened: Browser) -> None:
    turn(opened, "keys", "last", "app-0100")
    opened.click("#keys-table tbody tr:nth-child(3) button")
    assert opened.text("#key-title") == "app-0102"
    for _ in range(2):
        opened.click("#key-revoke")
    opened.until("!document.querySelector('#keys-table').textContent.includes('app-0102')")
    assert names(opened, "keys-table")[0] == "app-0100"


def test_of_200_workers_a_page_is_fetched_while_it_is_looked_at(opened: Browser) -> None:
    tab(opened, "fleet")
    opened.until(f"{ROWS.format('workers')} === 100")
    assert opened.text("#workers-pages span") == "1 to 100 of 200"
    turn(opened, "workers", "last", PLACES[100])
    assert (opened.run(ROWS.format("workers")), opened.text("#workers-pages span")) == (100, "101 to 200 of 200")
    looked = asked(opened, "workers.json")
    opened.until(f"""performance.getEntriesByType('resource').filter(one => one.name.includes('skip=100')).length
        > {looked}""")
    assert opened.text("#workers td:nth-child(2)") == PLACES[100], "the page stays as it is polled"
    search(opened, "fleet", "127.0.2.10", "workers", 2)
    assert opened.run("document.querySelector('#workers-pages').hidden")
    search(opened, "fleet", "nothing", "workers", 0)
    assert opened.text("#workers-none") == "No worker matches."
    search(opened, "fleet", "", "workers", 100)
    fits(opened)
    tab(opened, "live")
    looked = asked(opened, "workers.json")
    polled(opened)
    assert asked(opened, "workers.json") == looked
    assert opened.run("document.querySelectorAll('#plot-workers .series').length") == 8
    assert quiet(opened)


def test_of_500_requests_more_are_shown_as_somebody_asks_for_them(opened: Browser) -> None:
    tab(opened, "requests")
    opened.until(f"{ROWS.format('ended')} === 101")
    assert names(opened, "ended")[::100] == ["id-499", "and 400 more"]
    opened.click("#requests-more")
    opened.until(f"{ROWS.format('ended')} === 201")
    for rows in (301, 401, 500):
        opened.click("#requests-more")
        opened.until(f"{ROWS.format('ended')} === {rows}")
    assert opened.run("document.querySelector('#requests-more').hidden")
    search(opened, "requests", "id-01", "ended", 10)
    search(opened, "requests", "", "ended", 101)
    resize(opened, 1280)
    assert quiet(opened)


@pytest.mark.parametrize(
    ("view", "row", "card"),
    [("keys", "#keys-table tbody tr:nth-child(3) button", "key"), ("requests", "#ended tbody button", "request")],
)
def test_the_focus_goes_to_a_card_and_back_to_its_row(opened: Browser, view: str, row: str, card: str) -> None:
    tab(opened, view)
    opened.until(f"!!document.querySelector('{row}')")
    opened.run(f"document.querySelector('{row}').focus()")
    opened.click(row)
    assert opened.run("document.activeElement.id") == f"{card}-title"
    opened.click(f"#{card}-close")
    assert opened.run(f"document.activeElement === document.querySelector('{row}')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_keeps_anybody_out(opened: Browser, scheme: str) -> None:
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    wrong = {}
    try:
        for view, table in (("keys", "keys-table"), ("fleet", "workers"), ("requests", "ended")):
            tab(opened, view)
            opened.until(f"{ROWS.format(table)} >= 100")
            wrong[view] = found(opened)
        assert wrong == {"keys": [], "fleet": [], "requests": []}
    finally:
        opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


def test_the_keyboard_turns_pages(opened: Browser) -> None:
    opened.run("document.querySelector('#keys-pages button:last-of-type').focus()")
    for first in ("app-0100", "app-0201", "app-0301"):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
        opened.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
        opened.until(f"document.querySelector('#keys-table td')?.textContent === '{first}'")
        opened.until("document.activeElement === document.querySelector('#keys-pages button:last-of-type')")
