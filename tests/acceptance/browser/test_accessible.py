"""The console's views by axe, which looks for what keeps people with a screen reader or a keyboard out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.browser.chromium import Browser
from tests.acceptance.browser.test_console import tab
from tests.acceptance.browser.test_pages import browser, opened, shared, stack, unlocked
from tests.support.harness import Stack

__all__ = ["browser", "shared", "stack"]
pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "node" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("live", "requests", "keys", "teams", "spend", "fleet", "batches", "playground")


def found(browser: Browser) -> list[str]:
    """The rules that the page breaks as it is, in words, with the elements."""
    browser.run(AXE.read_text() + "; 0")
    answer: Any = browser.run("axe.run(document, {resultTypes: ['violations']}).then(one => JSON.stringify(one))")
    result = json.loads(answer)
    assert len(result["passes"]) > 10, "axe has looked at it"
    return [
        f"{one['impact']}: {one['help']}: {', '.join(node['html'][:120] for node in one['nodes'])}"
        for one in result["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_keeps_anybody_out(browser: Browser, stack: Stack, scheme: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        browser.open(stack.admin_url + "/console")
        browser.run("sessionStorage.clear()")
        browser.open(stack.admin_url + "/console?again")
        browser.until("!document.querySelector('#key-form').hidden")
        wrong = {"locked": found(browser)}
        opened(browser, stack)
        for view in VIEWS:
            tab(browser, view)
            wrong[f"{view}, locked"] = found(browser)
        unlocked(browser, stack)
        for view in VIEWS:
            tab(browser, view)
            wrong[view] = found(browser)
        tab(browser, "keys")
        browser.click("#keys-table tbody tr")
        wrong["one key"] = found(browser)
        tab(browser, "teams")
        browser.until("!!document.querySelector('#teams-entries tbody button')")
        browser.click("#teams-entries tbody button")
        wrong["one team"] = found(browser)
        assert {view: faults for view, faults in wrong.items() if faults} == {}
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


def test_axe_finds_what_is_wrong(browser: Browser) -> None:
    page = "<html><head><title>t</title></head><body><main><h1>h</h1><input><button></button></main></body></html>"
    browser.open(f"data:text/html,{page}")
    assert [fault.partition(": ")[0] for fault in found(browser)].count("critical") >= 2
