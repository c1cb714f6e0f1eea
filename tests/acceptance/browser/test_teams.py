"""The console's page of teams, in a real Chromium: `make test-browser`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.auth.stored import TeamOptions
from tests.acceptance.browser.chromium import Browser
from tests.acceptance.browser.test_console import browser, colour, resize, shared, tab
from tests.acceptance.browser.test_pages import ONE_ROW, RED, ROOT, SEARCH, fits, names, opened, quiet, stack, unlocked
from tests.support.harness import Stack, until
from tests.unit.app.asking import CHAT

__all__ = ["browser", "shared", "stack"]
pytestmark = pytest.mark.browser
LONG = "a-team-with-a-long-name-too"


def row(name: str) -> str:
    return (
        f"[...document.querySelectorAll('#teams-entries tbody tr')].find(row => row.cells[0].textContent === '{name}')"
    )


def cells(browser: Browser, name: str) -> list[str]:
    browser.until(f"!!{row(name)}")
    found: list[str] = browser.run(f"[...{row(name)}.cells].map(cell => cell.textContent)")
    return found


def api(stack: Stack, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {ROOT}"}
    answer = httpx.request(method, f"{stack.admin_url}/admin/v1{path}", json=body, headers=headers)
    return answer.raise_for_status().json()


def status(stack: Stack, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(stack.url + "/v1/chat/completions", json=CHAT, headers=headers, timeout=30).status_code


def test_teams_are_listed_with_their_keys_and_what_is_left(browser: Browser, stack: Stack) -> None:
    opened(browser, stack)
    tab(browser, "teams")
    browser.until("!document.querySelector('#teams-locked').hidden")
    unlocked(browser, stack)
    tab(browser, "teams")
    browser.until(f"{row('search')}?.cells[5].textContent.includes('EUR')")
    assert cells(browser, "search")[1:3] == ["1", "all"]
    assert cells(browser, "search")[6] == "no entry"
    assert colour(browser, "#teams-entries tbody td:nth-child(6)") in ("bad", "warn"), "little is left of the budget"
    fits(browser)
    resize(browser, 1280)
    browser.run(f"{row('search')}.querySelector('a').click()")
    browser.until("location.pathname === '/console/keys'")
    browser.until("document.querySelectorAll('#keys-table tbody tr').length === 1")
    assert names(browser, "keys-table") == ["search-app"]
    assert quiet(browser)


def test_an_entry_from_its_making_to_its_end(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    tab(browser, "teams")
    fields = {
        "name": "blue/green",
        "models": "m",
        "limits": "team-tokens=5000, team-requests=7",
        "budgets": "team-month=7.5, team-budget=3",
        "description": "Those of blue",
    }
    assert {*fields, "disabled"} - {"name"} == set(TeamOptions.__struct_fields__), "each has its field"
    for name, value in fields.items():
        browser.type(f"#team-{name}", value)
    browser.click("#team-save")
    browser.until("!document.querySelector('#team-card').hidden")
    made = api(stack, "GET", "/teams/blue%2Fgreen")
    assert (made["models"], made["limits"]) == (["m"], {"team-tokens": 5000, "team-requests": 7})
    assert (made["budgets"], made["description"]) == ({"team-month": "7.5", "team-budget": "3"}, "Those of blue")
    assert json.loads(browser.text("#team-options"))["limits"] == made["limits"]
    browser.until("document.querySelectorAll('#team-budgets-table tbody tr').length === 2")
    assert cells(browser, "blue/green")[2:4] == ["m", "team-tokens=5000, team-requests=7"]
    fits(browser)
    resize(browser, 1280)

    browser.click("#team-edit")
    assert browser.text("#team-form-title") == "Change blue/green"
    assert browser.run("document.querySelector('#team-budgets').value") == "team-month=7.5, team-budget=3"
    browser.run("document.querySelector('#team-limits').value = ''")
    browser.click("#team-disabled")
    api(stack, "PATCH", "/teams/blue%2Fgreen", {"models": None})  # by another admin, at the same time
    browser.click("#team-save")
    browser.until("document.querySelector('#team-form-title').textContent === 'Make an entry'")
    changed = api(stack, "GET", "/teams/blue%2Fgreen")
    assert (changed["limits"], changed["models"], changed["disabled"]) == ({}, None, True)
    browser.until(f"{row('blue/green')}?.cells[6].textContent === 'disabled'")
    fits(browser)
    resize(browser, 1280)
    api(stack, "PATCH", "/teams/blue%2Fgreen", {"disabled": None})  # a disabled one cannot be deleted

    browser.click("#team-delete")
    assert browser.text("#team-delete") == "Delete the entry: sure?"
    assert api(stack, "GET", "/teams/blue%2Fgreen")["where"] == "store", "one click does not delete"
    browser.click("#team-delete")
    browser.until(f"!{row('blue/green')}")
    assert quiet(browser)


def test_each_page_of_teams_is_turned_to(browser: Browser, stack: Stack) -> None:
    every = [one["name"] for one in api(stack, "GET", "/teams")["teams"]]
    unlocked(browser, stack, script=ONE_ROW)
    tab(browser, "teams")
    for number, name in enumerate(every, 1):
        browser.until(f"document.querySelector('#teams-entries td')?.textContent === '{name}'")
        assert names(browser, "teams-entries") == [name]
        assert browser.text("#teams-pages span") == f"{number} to {number}"
        if number < len(every):
            browser.click("#teams-pages button:last-of-type")
    assert len(every) > 1
    assert browser.run("document.querySelector('#teams-pages button:last-of-type').hidden")
    assert quiet(browser)


def test_a_team_of_keys_gets_an_entry_and_what_is_wrong_is_said(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    tab(browser, "teams")
    browser.until(f"!!{row('search')}")
    browser.run(f"{row('search')}.querySelector('button').click()")
    assert browser.text("#team-edit") == "Make an entry"
    browser.click("#team-edit")
    assert browser.run("document.querySelector('#team-name').value") == "search"
    browser.type("#team-limits", "hourly=3")
    browser.click("#team-save")
    browser.until("document.querySelector('#teams-wrong').textContent.includes('limits.hourly: is not a limit')")
    fits(browser)
    resize(browser, 1280)
    browser.run("document.querySelector('#team-limits').value = ''")
    browser.click("#team-disabled")
    browser.click("#team-save")
    browser.until(f"{row('search')}?.cells[6].textContent === 'disabled'")
    until(lambda: status(stack, SEARCH) == 401)
    for _ in range(2):
        browser.click("#team-delete")
    browser.until("document.querySelector('#teams-wrong').textContent.includes('the team is disabled')")
    fits(browser)
    api(stack, "PATCH", "/teams/search", {"disabled": None})
    api(stack, "DELETE", "/teams/search")


def test_what_is_the_file_s_or_of_another_is_not_changed(browser: Browser, stack: Stack) -> None:
    unlocked(browser, stack)
    tab(browser, "teams")
    browser.until(f"!!{row(LONG)}")
    browser.run(f"{row(LONG)}.querySelector('button').click()")
    assert not browser.run("document.querySelector('#team-file').hidden")
    assert browser.text("#team-text") == "Keys of a long name"
    for name in ("edit", "delete"):
        assert browser.run(f"document.querySelector('#team-{name}').hidden")
    unlocked(browser, stack, RED)
    tab(browser, "teams")
    browser.until("document.querySelector('#entries-none').textContent === 'No team is here.'")
    browser.type("#team-name", "red")
    browser.click("#team-save")
    browser.until("document.querySelector('#teams-wrong').textContent.includes('admins of all keys')")
