"""Login to the console in a real Chromium, by an identity provider of another origin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.browser.chromium import Browser
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.standins.identity import SECRET, Identity, identity
from tests.unit.features.console.logging_in import ADMIN, BLUE, LEAD, VIEWER, ask, sections

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def provider() -> Iterator[Identity]:
    with identity() as found:
        yield found


@pytest.fixture(scope="module")
def stack(provider: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Without a key of the console: people log in."""
    environ = {"CLIENT": SECRET, "SESSIONS": "s" * 32}
    with Server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        own = sections(provider.url)
        own |= {"keys_store": "redis", "redis": {"addresses": [server.address], "timeout_s": 10}}
        del own["console"]["key_env"]
        with Stack(config=own, environ=environ) as stack:
            own["console"]["oidc"]["url"] = stack.admin_url
            stack.run(stack.gateway.reload(stack.config()))
            ask(stack, BLUE)
            yield stack


@pytest.fixture
def browser(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        one.open(stack.admin_url + "/console/keys")
        one.until("!document.querySelector('#login-form').hidden")
        assert one.run("document.querySelector('#key-form').hidden"), "there is no key to type"
        one.faults.clear()  # the state was refused
        yield one


def login(browser: Browser) -> None:
    browser.click("#login")
    browser.until("location.pathname === '/console/keys' && document.querySelector('#keys-open')?.hidden === false")


def test_an_admin_logs_in_makes_a_key_and_logs_out(browser: Browser, provider: Identity) -> None:
    provider.person = ADMIN
    login(browser)
    assert browser.text("#who") == "oidc:alice, admin"
    browser.type("#new-name", "from-the-page")
    browser.type("#new-team", "blue")
    browser.click("#new-save")
    browser.until("document.querySelector('#secret').value.startsWith('dgm_')")
    browser.until("document.querySelector('#keys-table').textContent.includes('oidc:alice')")
    assert browser.faults == []
    browser.click("#forget")
    browser.until("document.title.startsWith('Logged out')")
    assert browser.run("location.pathname") == "/console/logged-out"
    assert provider.ended[-1]["id_token_hint"]
    assert "from-the-page" not in browser.text("body")
    browser.click("a")
    browser.until("document.querySelector('#tabs') && !document.querySelector('#login-form').hidden")


def test_a_logout_that_the_provider_has_no_way_for_says_so(browser: Browser, provider: Identity, stack: Stack) -> None:
    provider.person = ADMIN
    login(browser)
    end = provider.described.pop("end_session_endpoint")
    try:
        stack.run(stack.gateway.reload(stack.config()))  # what the provider said of itself is asked for again
        browser.click("#forget")
        browser.until("document.body?.textContent.includes('session may go on')")
    finally:
        provider.described["end_session_endpoint"] = end
        stack.run(stack.gateway.reload(stack.config()))


def test_a_viewer_sees_keys_and_no_way_to_change_them(browser: Browser, provider: Identity) -> None:
    provider.person = VIEWER
    login(browser)
    assert browser.text("#who") == "oidc:alice, viewer"
    browser.until("document.querySelector('#keys-table').textContent.includes('red-key')")
    assert browser.run("document.querySelector('#keys-new').hidden")
    browser.click("#keys-table button")
    assert browser.run("['edit', 'rotate', 'revoke'].every(one => document.querySelector(`#key-${one}`).hidden)")
    assert browser.faults == []


def test_a_lead_sees_its_team(browser: Browser, provider: Identity) -> None:
    provider.person = LEAD
    login(browser)
    assert browser.text("#who") == "oidc:alice, lead of blue"
    browser.until("document.querySelector('#keys-table').textContent.includes('blue-key')")
    assert "red-key" not in browser.text("#keys-table")
    assert browser.faults == []


def test_who_has_no_role_reads_why(browser: Browser, provider: Identity) -> None:
    provider.person = {}
    browser.click("#login")
    browser.until("document.body?.textContent.includes('has no role here')")
    browser.until("getComputedStyle(document.querySelector('.card')).borderStyle === 'solid'")
