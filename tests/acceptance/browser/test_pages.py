"""The console's pages of keys and of spending, in a real Chromium: `make test-browser`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth.stored import KeyOptions, OwnLimits
from tests.acceptance.browser.chromium import Browser
from tests.acceptance.browser.test_console import BROKEN, CONSOLE_KEY, CUT, WIDE, browser, colour, resize, shared, tab
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, key

__all__ = ["browser", "shared"]
pytestmark = pytest.mark.browser

ROOT, ADMINS = key("root")
SEARCH, ONE = key("search-app", team="search")
LONG, TWO = key("an-application-with-a-long-name-as-teams-give-them", team="a-team-with-a-long-name-too")
RED, TEAM_ADMIN = key("red-lead")
TEAM_ADMIN["red-lead"] = {name: value for name, value in TEAM_ADMIN["red-lead"].items() if name != "team"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    files = tmp_path_factory.mktemp("files")
    with Server(tmp_path_factory.mktemp("valkey"), "--appendonly", "yes") as server:
        config: dict[str, Any] = {
            "metrics": {"listen": "127.0.0.1:9090"},
            "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
            "models": {"m": {"price": {"request": 1, "output": 0.123456789}}},
            "spend": {"currency": "EUR", "daily": True},
            "budgets": [{"name": "team-month", "amount": 5.5, "scope": ["team"]}],
            "redis": {"addresses": [server.address], "timeout_s": 10},
            "keys": {**ONE, **TWO},
            "teams": {"a-team-with-a-long-name-too": {"description": "Keys of a long name"}},
            "keys_store": "redis",
            "batches": {"directory": str(files / "batches")},
            "prompt_log": {"directory": str(files / "prompts")},
            "admins": {"root": ADMINS["root"], "red-lead": {**TEAM_ADMIN["red-lead"], "teams": ["red"]}},
        }
        with Stack(config=config, environ={"CONSOLE_KEY": CONSOLE_KEY}) as running:
            for secret, times in ((SEARCH, 4), (LONG, 7)):
                for _ in range(times):  # the budget refuses two
                    assert status(running, secret) in (200, 429)
            # Sums are written behind the replies, and the page looks at them once a minute.
            until(lambda: report(running)["total"]["requests"] == 9, 60)
            yield running


def report(stack: Stack) -> Any:
    headers = {"authorization": f"Bearer {CONSOLE_KEY}"}
    return httpx.get(stack.admin_url + "/spend.json?by=team", headers=headers).json()


def status(stack: Stack, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30).status_code


def opened(browser: Browser, stack: Stack) -> None:
    browser.open(stack.admin_url + "/console")
    browser.run("sessionStorage.clear()")
    browser.open(stack.admin_url + "/console?again")
    browser.until("!document.querySelector('#key-form').hidden")
    browser.type("#key", CONSOLE_KEY)
    browser.click("#key-form button")
    browser.until("!document.querySelector('#tab-spend').hidden && !document.querySelector('#tab-keys').hidden")


def unlocked(browser: Browser, stack: Stack, secret: str = ROOT, script: str = "0") -> None:
    """script: is run before the key is given."""
    opened(browser, stack)
    browser.run(script)
    tab(browser, "keys")
    browser.type("#admin-key", secret)
    browser.click("#admin-form button")
    browser.until("!document.querySelector('#keys-open').hidden")


ROW = "[...document.querySelectorAll('#keys-table tbody tr')].find(row => row.cells[0].textContent === 'chat/one')"


def names(browser: Browser, table: str) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.cells[0].textContent)"
    )
    return found


def quiet(browser: Browser) -> bool:
    """Nothing was reported but refusals of keys that were wrong or absent."""
    return [fault for fault in browser.faults if "401" not in fault] == []


def fits(browser: Browser) -> None:
    for width in (1440, 1024, 760, 390):
        resize(browser, width)
        assert browser.run("document.documentElement.scrollWidth") == width
        for wrong in (WIDE, CUT, BROKEN):
            assert browser.run(wrong) == [], width


def test_spending_is_shown_by_all_that_is_summed_up(browser: Browser, stack: Stack) -> None:
    opened(browser, stack)
    tab(browser, "spend")
    browser.until("document.querySelectorAll('#spend-team tbody tr').length === 2")
    assert names(browser, "spend-team") == ["a-team-with-a-long-name-too", "search"]
    assert names(browser, "spend-key")[1] == "search-app"
    assert names(browser, "spend-model") == ["m"]
    assert len(names(browser, "spend-day")) == 1
    titles = browser.run("[...document.querySelectorAll('#spend-team tbody tr')].map(row => row.cells[4].title)")
    assert titles == [f"{row['cost']} EUR" for row in report(stack)["rows"]], "to the last nano"
    assert "for 9 requests" in browser.text("#spent")
    assert names(browser, "near") == ["a-team-with-a-long-name-too", "search"]
    assert colour(browser, "#near tbody tr td:nth-child(3)") == "warn"
    assert set(names(browser, "movers")) >= {"m", "search"}
    assert colour(browser, "#movers tbody tr td:nth-child(4)") == "warn"
    fits(browser)
    browser.run("document.querySelector('#month').value = '2020-01'; document.querySelector('#month').onchange()")
    browser.until("document.querySelector('#spent').textContent.includes('for 0 requests')")
    assert browser.run("document.querySelector('#spend-team').parentElement.hidden")
    assert quiet(browser)


LABELS = """
    window.labels = [];
    const button = document.querySelector("#secret-copy");
    new MutationObserver(() => window.labels.push(button.textContent)).observe(button, {childList: true});
"""
"""Keeps what the button has said: a slow look may miss it."""


def test_a_key_from_its_making_to_its_end(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    browser.type("#new-name", "chat/one")
    browser.type("#new-team", "blue")
    browser.type("#new-models", "m")
    browser.type("#new-budget", "200")
    browser.click("#keys-new button")
    browser.until("!document.querySelector('#secret-card').hidden")
    secret = browser.run("document.querySelector('#secret').value")
    assert secret.startswith("dgm_")
    assert status(stack, secret) == 200
    browser.run(LABELS)
    browser.click("#secret-copy")
    browser.until("window.labels.includes('Copied')")
    fits(browser)
    resize(browser, 1280)
    browser.click("#secret-stored")
    assert secret not in browser.run("document.documentElement.outerHTML + document.querySelector('#secret').value")
    browser.until(f"!!{ROW}")  # among the keys of the configuration
    assert browser.run(f"{ROW}.cells[3].textContent") == "200.00 EUR"

    browser.run(f"{ROW}.querySelector('button').click()")
    browser.until("!document.querySelector('#key-card').hidden")
    shown = json.loads(browser.text("#key-options"))
    assert (shown["team"], shown["models"], shown["created_by"]) == ("blue", ["m"], "root")
    fits(browser)
    resize(browser, 1280)
    browser.choose("#key-valid", "3600")
    browser.click("#key-rotate")
    browser.until("!document.querySelector('#secret-card').hidden")
    newer = browser.run("document.querySelector('#secret').value")
    assert newer != secret
    assert [status(stack, one) for one in (secret, newer)] == [200, 200]
    browser.click("#secret-stored")
    browser.until("document.querySelector('#keys-table .warn')?.textContent === 'rotating'")

    browser.run(f"{ROW}.querySelector('button').click()")
    browser.click("#key-revoke")
    assert browser.text("#key-revoke") == "Revoke for ever: sure?"
    assert status(stack, newer) == 200, "one click does not revoke"
    browser.click("#key-revoke")
    browser.until(f"!{ROW}")
    assert [status(stack, one) for one in (secret, newer)] == [401, 401]
    browser.click("#keys-revoked")
    browser.click("#keys-filter button")
    browser.until("document.querySelector('#keys-table .bad')?.textContent === 'revoked'")
    assert quiet(browser)


FIELDS = {
    "team": "green",
    "models": "m",
    "dialects": "openai, anthropic",
    "aliases": "small=m",
    "expires": "2031-05-06",
    "log_prompts_until": "2030-01-02",
    "priority": "-3",
    "budget": "7.5",
    "requests": "60",
    "tokens": "9000",
    "concurrency": "4",
    "streams": "3",
    "connections": "2",
}


def test_all_that_the_api_can_change_of_a_key_is_changed(browser: Browser, stack: Stack) -> None:
    def api(method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {ROOT}"}
        answer = httpx.request(method, f"{stack.admin_url}/admin/v1{path}", json=body, headers=headers)
        return answer.raise_for_status().json()

    api("POST", "/keys", {"name": "changing", "team": "blue", "models": ["m"]})
    unlocked(browser, stack)
    row = ROW.replace("chat/one", "changing")
    browser.until(f"!!{row}")
    browser.run(f"{row}.querySelector('button').click()")
    browser.click("#key-edit")
    assert browser.text("#keys-new-title") == "Change changing"
    assert browser.run("[...document.querySelectorAll('#new-team, #new-models')].map(one => one.value)") == [
        "blue",
        "m",
    ]
    fits(browser)
    for name, value in FIELDS.items():
        browser.type(f"#new-{name}", value)
    browser.click("#new-disabled")
    api("PATCH", "/keys/changing", {"models": None})  # by another admin, at the same time
    browser.click("#new-save")
    browser.until("document.querySelector('#keys-new-title').textContent === 'Make a key'")
    found = api("GET", "/keys/changing")
    options = {
        name: found[name] for name in ("team", "models", "dialects", "aliases", "priority", "disabled", "limits")
    }
    limits = {name: int(FIELDS[name]) for name in ("requests", "tokens", "concurrency", "streams", "connections")}
    assert options == {
        "team": "green",
        "models": None,
        "dialects": ["openai", "anthropic"],
        "aliases": {"small": "m"},
        "priority": -3,
        "disabled": True,
        "limits": {**limits, "budget": "7.5"},
    }
    assert found["expires"].startswith("2031-05-07"), "at the end of the day"
    assert found["log_prompts_until"].startswith("2030-01-03")
    fields = [name for name in KeyOptions.__struct_fields__ if name not in ("limits", "disabled")]
    assert {*fields, *OwnLimits.__struct_fields__} == FIELDS.keys(), "each has its field"

    browser.until("document.querySelectorAll('#key-budgets tbody tr').length >= 1")
    browser.until("!document.querySelector('#key-edit').disabled")
    browser.click("#key-edit")
    for name in FIELDS:
        browser.run(f"document.querySelector('#new-{name}').value = ''")
    browser.click("#new-disabled")
    browser.click("#new-save")
    browser.until("document.querySelector('#keys-new-title').textContent === 'Make a key'")
    found = api("GET", "/keys/changing")
    assert not any(found[name] for name in (*options, "expires", "log_prompts_until"))
    assert quiet(browser)


def test_a_key_of_the_configuration_is_shown_with_its_budget_and_not_changed(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    row = ROW.replace("chat/one", "an-application-with-a-long-name-as-teams-give-them")
    browser.until(f"!!{row}")
    browser.run(f"{row}.querySelector('button').click()")
    browser.until("document.querySelectorAll('#key-budgets tbody tr').length === 1")
    cells = browser.run("[...document.querySelector('#key-budgets tbody tr').cells].map(cell => cell.textContent)")
    assert (cells[0], cells[1], cells[4]) == ("team-month", "a month", "5.50 EUR")
    spent, left = (float(one.removesuffix(" EUR")) for one in cells[2:4])
    assert spent >= 5
    assert left == pytest.approx(max(0, 5.5 - spent), abs=0.01)
    assert colour(browser, "#key-budgets tbody td:nth-child(4)") == ("bad" if spent >= 5.5 else "warn")
    assert not browser.run("document.querySelector('#key-file').hidden")
    for name in ("edit", "rotate", "revoke"):
        assert browser.run(f"document.querySelector('#key-{name}').hidden")
    fits(browser)


def test_an_admin_ends_a_request_and_drains_a_worker(browser: Browser, stack: Stack) -> None:
    opened(browser, stack)
    tab(browser, "fleet")
    browser.until("!document.querySelector('#fleet-locked').hidden")
    browser.click("#fleet-locked a")
    browser.until("location.pathname === '/console/keys'")
    browser.type("#admin-key", ROOT)
    browser.click("#admin-form button")
    browser.until("!document.querySelector('#keys-open').hidden")
    tab(browser, "requests")
    (worker,) = stack.gateway.deployment.pools["m"].workers
    stack.sim.fault("stall", 1)
    made = httpx.post(
        stack.admin_url + "/admin/v1/keys", json={"name": "ending"}, headers={"authorization": f"Bearer {ROOT}"}
    ).json()
    headers, failed = {"authorization": f"Bearer {made['key']}", "x-request-id": "ending"}, []

    def ask() -> None:
        reply = httpx.post(stack.url + "/v1/messages", json={**CHAT, "max_tokens": 4}, headers=headers, timeout=60)
        failed.append(reply)

    asking = threading.Thread(target=ask)
    asking.start()
    browser.until("document.querySelectorAll('#under-way tbody tr').length === 1")
    browser.click("#under-way tbody button")
    browser.click("#request-end")
    assert browser.text("#request-end") == "End it: sure?"
    assert not failed, "one click does not end it"
    browser.click("#request-end")
    asking.join(60)
    assert failed[0].status_code == 403
    browser.until("document.querySelector('#ended tbody tr')?.cells[10].textContent.includes('ended_by_admin')")
    assert browser.run("document.querySelector('#request-end').hidden")

    tab(browser, "fleet")
    button = "#workers tbody button"
    browser.until(f"document.querySelector('{button}')?.textContent === 'Drain'")
    browser.click(button)
    assert browser.text(button) == "Drain: sure?"
    fits(browser)
    seen = [worker.draining]
    for text in ("Undrain", "Drain"):
        browser.click(button)
        browser.until(f"document.querySelector('{button}').textContent === '{text}'")
        seen.append(worker.draining)
    assert seen == [False, True, False], "one click does not drain, and one undrains"
    assert quiet(browser)


def test_what_the_api_refuses_is_said_and_changes_nothing(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    browser.type("#new-name", "wrong")
    browser.type("#new-models", "nowhere")
    browser.click("#keys-new button")
    browser.until("document.querySelector('#keys-wrong').textContent.includes('is not a model')")
    assert browser.run("document.querySelector('#secret-card').hidden")
    assert browser.run("document.querySelector('#new-name').value") == "wrong"


def test_many_keys_come_in_pages(browser: Browser, stack: Stack) -> None:
    headers = {"authorization": f"Bearer {ROOT}"}
    with httpx.Client(base_url=stack.admin_url + "/admin/v1", headers=headers) as api:
        for number in range(210):
            assert api.post("/keys", json={"name": f"p{number:03}", "team": "red"}).status_code == 201
    unlocked(browser, stack, RED)
    browser.until("document.querySelectorAll('#keys-table tbody tr').length === 100")
    for button, first, count in (("last", 100, 100), ("last", 200, 10), ("first", 100, 100), ("first", 0, 100)):
        browser.click(f"#keys-pages button:{button}-of-type")
        browser.until(f"document.querySelector('#keys-table td')?.textContent === 'p{first:03}'")
        assert names(browser, "keys-table") == [f"p{first + number:03}" for number in range(count)]
        assert browser.text("#keys-pages span") == f"{first + 1} to {first + count}"
    browser.type("#keys-match", "P20")
    browser.click("#keys-filter button")
    browser.until("document.querySelectorAll('#keys-table tbody tr').length === 10")
    assert browser.run("document.querySelector('#keys-pages').hidden")


ONE_ROW = """
    window.whole = window.fetch;
    window.fetch = (address, options) => window.whole(String(address).replace("limit=100", "limit=1"), options);
"""
"""Pages of tables have one row."""
WHOLE = "window.fetch = window.whole"


def test_batches_are_listed_and_cancelled_by_their_admins(browser: Browser, stack: Stack) -> None:
    (worker,) = stack.gateway.deployment.pools["m"].workers
    worker.learns, worker.max_in_flight, worker.in_flight = False, 1, 1  # nothing is idle
    made = []
    for team, lines in (("east", 2), ("west", 3)):
        headers = {"authorization": f"Bearer {ROOT}"}
        key = {"name": f"of-{team}", "team": team}
        secret = httpx.post(stack.admin_url + "/admin/v1/keys", json=key, headers=headers).json()["key"]
        headers = {"authorization": f"Bearer {secret}"}
        requests = [{"custom_id": str(n), "params": {**CHAT, "max_tokens": 4}} for n in range(lines)]
        answer = httpx.post(stack.url + "/v1/messages/batches", json={"requests": requests}, headers=headers)
        made.append(answer.json()["id"])
    opened(browser, stack)
    browser.until("!document.querySelector('#batches-locked').hidden")
    unlocked(browser, stack)
    browser.until("document.querySelectorAll('#batches-table tbody tr').length === 2")
    assert names(browser, "batches-table") == made[::-1]
    row = "#batches-table tbody tr:last-child"
    browser.until(f"document.querySelector('{row}').textContent.includes('in progress')")
    assert "0 of 2" in browser.text(row)
    browser.run(ONE_ROW)
    browser.click("#batches-filter button")
    browser.until("document.querySelectorAll('#batches-table tbody tr').length === 1")
    for button, number, shown in (("last", 2, made[0]), ("first", 1, made[1]), ("last", 2, made[0])):
        browser.click(f"#batches-pages button:{button}-of-type")
        browser.until(f"document.querySelector('#batches-table td').textContent === '{shown}'")
        assert browser.text("#batches-pages span") == f"{number} to {number}"
        assert browser.run(f"document.querySelector('#batches-pages button:{button}-of-type').hidden")
    browser.click(f"{row} button")
    browser.until(f"document.querySelector('{row} button').textContent === 'Cancel: sure?'")
    browser.click(f"{row} button")
    browser.until(f"document.querySelector('{row}').textContent.includes('cancelled')")
    browser.run(WHOLE)
    browser.choose("#batches-status", "cancelled")
    browser.click("#batches-filter button")
    browser.until("document.querySelectorAll('#batches-table tbody tr').length === 1")
    assert names(browser, "batches-table") == [made[0]]
    assert browser.run(f"document.querySelector('{row} button').hidden")
    assert quiet(browser)
    browser.click("#admin-forget")
    browser.until("!document.querySelector('#batches-locked').hidden")
    assert made[0] not in browser.text("#batches")
    worker.max_in_flight, worker.in_flight = None, 0


def test_an_admins_key_is_asked_for_and_kept_nowhere(browser: Browser, stack: Stack) -> None:
    opened(browser, stack)
    tab(browser, "keys")
    browser.type("#admin-key", "dgm_wrong")
    browser.click("#admin-form button")
    browser.until("document.querySelector('#keys-wrong').textContent")
    assert browser.text("#keys-wrong") == "the key is not that of an admin"
    assert browser.run("document.querySelector('#keys-open').hidden")
    browser.type("#admin-key", CONSOLE_KEY)  # the console's key opens no keys
    browser.click("#admin-form button")
    browser.until("!document.querySelector('#admin-form button').disabled")
    assert browser.run("document.querySelector('#keys-open').hidden")
    browser.type("#admin-key", ROOT)
    browser.click("#admin-form button")
    browser.until("!document.querySelector('#keys-open').hidden")
    assert ROOT not in browser.run("JSON.stringify({...sessionStorage, ...localStorage}) + document.cookie")
    assert ROOT not in browser.run("document.documentElement.outerHTML")
    browser.click("#admin-forget")
    assert browser.run("document.querySelectorAll('#keys-table tbody tr').length") >= 0
    assert browser.run("document.querySelector('#keys-open').hidden")
    assert quiet(browser)


def test_a_gateway_without_them_shows_neither(browser: Browser, tmp_path: Path) -> None:
    with Stack(config={"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True}}) as plain:
        browser.open(plain.admin_url + "/console")
        browser.until("document.querySelector('#dialect').options.length")
        for name in ("spend", "keys"):
            assert browser.run(
                f"document.querySelector('#{name}').hidden && document.querySelector('#tab-{name}').hidden"
            )
    assert browser.faults == []
