"""The console in a real Chromium: `make test-browser`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.asking import CHAT, key
from tests.browser.chromium import Browser
from tests.clients import DIALECTS
from tests.harness import Stack

pytestmark = pytest.mark.browser

CONSOLE_KEY = "console-key-console-key"
SECRET, ENTRY = key("team-a", team="blue")
OPEN = {"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True}}
KEYED = {**OPEN, "keys": ENTRY, "console": {"enabled": True, "key_env": "CONSOLE_KEY"}}
SLOW = {"itl_ms": 20, "output_tokens": 40}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as one:
        yield one


def finished(browser: Browser) -> None:
    browser.until("!document.querySelector('#send').disabled && document.querySelector('#outcome').textContent")


def test_plots_tables_and_tiles_show_what_goes_on(browser: Browser) -> None:
    with Stack(workers=({}, {}), config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("document.querySelectorAll('#workers tbody tr').length === 2")
        assert browser.text("#condition") == "ready"
        with httpx.Client() as client:
            for _ in range(20):
                body = {**CHAT, "stream": True, "max_tokens": 8}
                assert client.post(stack.url + "/v1/chat/completions", json=body).status_code == 200
        for plot in ("requests", "tokens", "first", "teams"):
            browser.until(
                f"[...document.querySelectorAll('#plot-{plot} .series')].some(one => one.getTotalLength() > 0)"
            )
            browser.until(
                f"[...document.querySelectorAll('#plot-{plot} b')].some(one => parseFloat(one.textContent) > 0)"
            )
        browser.until("document.querySelectorAll('#plot-workers .series').length === 2")
        assert browser.text("#tiles div:last-child dd") == "2 of 2"
        assert browser.text("#teams tbody tr").startswith("none20")
        stack.run(stack.gateway.drain())
        browser.until("document.querySelector('#condition').textContent === 'draining'")
    browser.until("document.querySelector('#condition').textContent.startsWith('no answer')")
    assert [fault for fault in browser.faults if "ERR_CONNECTION" not in fault] == []


def test_the_key_opens_it_and_stays_in_the_tab(browser: Browser) -> None:
    with Stack(config=KEYED, environ={"CONSOLE_KEY": CONSOLE_KEY}) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("!document.querySelector('#key-form').hidden")
        assert browser.run("document.querySelector('#main').hidden")
        browser.type("#key", "a wrong one")
        browser.click("#key-form button")
        browser.until("document.querySelector('#key-wrong').textContent")
        browser.type("#key", CONSOLE_KEY)
        browser.click("#key-form button")
        browser.until("document.querySelectorAll('#workers tbody tr').length === 1")
        browser.open(stack.admin_url + "/console?again")
        browser.until("document.querySelectorAll('#workers tbody tr').length === 1")
        assert browser.run("localStorage.length") == 0
        assert browser.run("document.cookie") == ""
        assert CONSOLE_KEY not in browser.run("document.documentElement.outerHTML")
        browser.click("#forget")
        browser.until("!document.querySelector('#key-form').hidden")
        assert browser.run("sessionStorage.length") == 0


def test_the_playground_speaks_every_dialect_and_shows_both_sides(browser: Browser) -> None:
    marker = "Is this <b>red</b>?"
    with Stack(config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("document.querySelector('#dialect').options.length")
        names = browser.run("[...document.querySelector('#dialect').options].map(one => one.value)")
        assert sorted(names) == sorted(DIALECTS)
        browser.type("#prompt", marker)
        for name in names:
            browser.choose("#dialect", name)
            browser.run("document.querySelector('#outcome').textContent = ''")
            browser.click("#send")
            finished(browser)
            assert browser.text("#outcome").startswith("status 200, whole after"), (name, browser.text("#client-reply"))
            path = browser.run("document.querySelector('#path').value")
            assert browser.text("#client-request").startswith(f"POST {path}\n")
            assert marker in browser.text("#client-request")
            assert f"to {stack.sim.url}" in browser.text("#worker-request")
            assert marker in browser.text("#worker-request")
            assert browser.text("#worker-reply").startswith("200, after")
            assert len(browser.text("#client-reply").splitlines()) > 2
        browser.click("#translate")
        browser.until("document.querySelector('#outcome').textContent === 'translated, not sent'")
        assert marker in browser.text("#worker-request")
        assert browser.text("#worker-reply") == ""
    assert browser.run("document.querySelectorAll('pre *').length") == 0, "what came is text, never markup"


def test_replies_are_shown_as_they_stream_and_can_be_stopped(browser: Browser) -> None:
    with Stack(
        workers=({"itl_ms": 50, "output_tokens": 2000},), config=KEYED, environ={"CONSOLE_KEY": CONSOLE_KEY}
    ) as stack:
        browser.open(stack.admin_url + "/console")
        browser.type("#key", CONSOLE_KEY)
        browser.click("#key-form button")
        browser.until("document.querySelector('#dialect').options.length")
        browser.click("#send")
        finished(browser)
        assert browser.text("#outcome").startswith("status 401")
        browser.type("#client-key", SECRET)
        browser.click("#send")
        browser.until("document.querySelector('#client-reply').textContent.split('data: ').length > 3")
        assert SECRET not in browser.text("#client-request")
        browser.click("#stop")
        stack.run(stack.sim.ledger.wait(aborted=1))
        browser.until("document.querySelector('#outcome').textContent.startsWith('stopped')")


def test_its_policy_lets_nothing_else_run(browser: Browser) -> None:
    with Stack(config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("document.querySelector('#condition').textContent === 'ready'")
        assert browser.faults == []
        refused = browser.run(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
        )
        assert refused == "TypeError"
        assert browser.run("fetch('https://example.com/').then(() => '', error => error.name)") == "TypeError"
