"""The console in a real Chromium: `make test-browser`."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.browser.chromium import Browser
from tests.support.clients import DIALECTS
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, GONE, key

pytestmark = pytest.mark.browser

CONSOLE_KEY = "console-key-console-key"
SECRET, ENTRY = key("team-a", team="blue")
VIEWS = ("live", "requests", "teams", "fleet", "playground")
"""Those of every gateway."""
OPEN = {"metrics": {"listen": "127.0.0.1:9090"}, "console": {"enabled": True}}
KEYED = {**OPEN, "keys": ENTRY, "console": {"enabled": True, "key_env": "CONSOLE_KEY"}}
BOTH = {
    **OPEN,
    "models": {"away-with-a-long-name-as-models-have-them": GONE},
    "limits": [{"name": "few", "kind": "requests", "limit": 3, "per_s": "1h", "scope": ["model"]}],
}
# How many workers there are, as the tile says.
OF = "document.querySelector('#tiles div:last-child dd')?.textContent.endsWith(' of %d')"
# Some line of a plot leaves its base line, which is at 142 of 160.
DRAWN = """[...document.querySelectorAll('#plot-PLOT .series')]
    .some(line => [...line.getAttribute('d').matchAll(/ ([\\d.]+)/g)].some(([, y]) => parseFloat(y) < 141))"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser takes seconds to start."""
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        yield one


@pytest.fixture
def browser(shared: Browser) -> Browser:
    """With an empty page, in a window of the usual width. Each gateway has a port of its own, so nothing is kept."""
    shared.open("about:blank")
    resize(shared, 1280)
    shared.faults.clear()
    return shared


def tab(browser: Browser, name: str) -> None:
    browser.click(f"#tab-{name}")
    browser.until(f"!document.querySelector('#{name}').hidden")


def finished(browser: Browser) -> None:
    browser.until("!document.querySelector('#send').disabled && document.querySelector('#outcome').textContent")


def test_plots_tables_and_tiles_show_what_goes_on(browser: Browser) -> None:
    with Stack(workers=({}, {}), config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until(OF % 2)
        assert browser.text("#condition") == "ready"
        with httpx.Client() as client:
            for _ in range(20):
                body = {**CHAT, "stream": True, "max_tokens": 8}
                assert client.post(stack.url + "/v1/chat/completions", json=body).status_code == 200
        for plot in ("requests", "tokens", "first"):
            browser.until(DRAWN.replace("PLOT", plot))
        browser.until("document.querySelectorAll('#plot-workers .series').length === 2")
        browser.until("document.querySelector('#tiles div:last-child dd').textContent === '2 of 2'")
        tab(browser, "teams")
        browser.until("document.querySelector('#teams tbody tr').textContent.startsWith('none20')")
        stack.run(stack.gateway.drain())
        browser.until("document.querySelector('#condition').textContent === 'draining'")
    browser.until("document.querySelector('#condition').textContent.startsWith('no answer')")
    assert [fault for fault in browser.faults if "ERR_CONNECTION" not in fault] == []


# -- what it looks like -----------------------------------------------------------------------------------------------

# The boxes of what a selector finds, without those that are hidden.
BOXES = """[...document.querySelectorAll(%s)].map(one => one.getBoundingClientRect()).filter(box => box.width)
    .map(({left, top, right, bottom}) => [left, top, right, bottom].map(Math.round))"""
# What leaves its window to the right, or is cut by its own box although it holds words that must be whole, as ids need
# not be.
WIDE = """[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 80))"""
CUT = """[...document.querySelectorAll(
        'th:not(.name), dd, figcaption, caption, button:not(.id), h1, h2, h3, td.number')]
    .filter(one => one.getBoundingClientRect().width && one.scrollWidth > one.clientWidth + 1)
    .map(one => one.outerHTML.slice(0, 80))"""
# Words over two lines that hold no space: broken ones.
BROKEN = """[...document.querySelectorAll('th, td, dt, dd, .legend span, label, button, a, .pill')].filter(one => {
    const range = document.createRange(); range.selectNodeContents(one);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    return one.children.length === 0 && lines.size > 1 && !one.textContent.trim().includes(' '); })
    .map(one => one.outerHTML.slice(0, 80))"""


def resize(browser: Browser, width: int) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.until(f"innerWidth === {width}")


def boxes(browser: Browser, selector: str) -> list[list[int]]:
    found: list[list[int]] = browser.run(BOXES % json.dumps(selector))
    return found


def grid(browser: Browser, selector: str) -> list[int]:
    """How many stand in each row. All of them are equally wide, but for rounding."""
    found = boxes(browser, selector)
    widths = [right - left for left, _, right, _ in found]
    assert max(widths) - min(widths) <= 1, (selector, widths)
    return list(Counter(top for _, top, _, _ in found).values())


def colour(browser: Browser, selector: str, of: str = "color") -> str:
    """Which of the page's own words for colours an element has: good, warn or bad."""
    script = """((one, of) => { const probe = document.createElement('i'), shown = getComputedStyle(one)[of];
        document.body.append(probe);
        const found = ['good', 'warn', 'bad'].find(name => { probe.className = name;
            return getComputedStyle(probe).color === shown; });
        probe.remove(); return found ?? shown; })(document.querySelector(%s), %s)"""
    found: str = browser.run(script % (json.dumps(selector), json.dumps(of)))
    return found


def some_traffic(stack: Stack) -> None:
    """Requests that succeed, that a limit refuses, that no worker answers, and that are wrong."""
    with httpx.Client() as client:
        for body, times in (
            ({**CHAT, "stream": True, "max_tokens": 8}, 3),
            (CHAT, 4),
            ({**CHAT, "model": "away-with-a-long-name-as-models-have-them"}, 2),
            ({**CHAT, "max_tokens": "many"}, 1),
        ):
            for _ in range(times):
                client.post(stack.url + "/v1/chat/completions", json=body)


def test_it_fits_every_window_and_no_word_is_broken(browser: Browser) -> None:
    with Stack(workers=({}, {}, {}), config=BOTH) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until(OF % 4)
        some_traffic(stack)
        tab(browser, "requests")
        browser.until("!!document.querySelector('#limits tbody tr')")
        browser.choose("#model", "m")
        browser.click("#send")
        finished(browser)
        for width, plots, tiles, panes in (
            (1440, [4], [6], [2, 2]),
            (1024, [2, 2], [3, 3], [2, 2]),
            (760, [2, 2], [3, 3], [2, 2]),
            (390, [1] * 4, [2] * 3, [1] * 4),
        ):
            resize(browser, width)
            for name in VIEWS:
                tab(browser, name)
                assert browser.run("document.documentElement.scrollWidth") == width, name
                for wrong in (WIDE, CUT, BROKEN):
                    assert browser.run(wrong) == [], (width, name)
            assert grid(browser, ".wire > div") == panes, width
            tab(browser, "live")
            assert grid(browser, ".plots figure") == plots, width
            assert grid(browser, "#tiles > div") == tiles, width
        resize(browser, 1440)
        tab(browser, "playground")
        client_request, client_reply = (boxes(browser, f"#client-{one}")[0] for one in ("request", "reply"))
        worker_request, worker_reply = (boxes(browser, f"#worker-{one}")[0] for one in ("request", "reply"))
        for request, reply in ((client_request, client_reply), (worker_request, worker_reply)):
            assert (request[1], request[3]) == (reply[1], reply[3]), "a reply faces its request"
            assert request[2] < reply[0]
        assert client_request[3] < worker_request[1]


def test_colours_mean_something(browser: Browser) -> None:
    with Stack(config=BOTH) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until(OF % 2)
        name = "away-with-a-long-name-as-models-have-them"
        browser.until(f"document.querySelector('#condition').textContent === '{name} has no worker'")
        assert colour(browser, "#condition") == "warn"
        tile = "#tiles div:last-child dd"
        assert (browser.text(tile), colour(browser, tile)) == ("1 of 2", "bad")
        some_traffic(stack)
        browser.until("!!document.querySelector('#plot-requests .refused')")
        for outcome, name in (("ok", "good"), ("refused", "warn"), ("failed", "bad")):
            assert colour(browser, f"#plot-requests .{outcome}", "stroke") == name
        tab(browser, "requests")
        browser.until("document.querySelectorAll('#errors tbody tr').length === 3")
        rows = browser.run("[...document.querySelectorAll('#errors tbody tr')].map(row => row.cells[0].textContent)")
        assert rows == ["400", "429", "503"]
        assert [colour(browser, f"#errors tr:nth-child({row}) td") for row in (1, 2, 3)] == ["warn", "warn", "bad"]
        assert browser.text("#limits tbody tr td") == "few"
        assert int(browser.text("#limits tbody tr td:nth-child(2)")) >= 1
        tab(browser, "fleet")
        browser.until("document.querySelectorAll('#workers tbody tr').length === 2")
        assert {one: colour(browser, f"#workers td.{one}") for one in ("good", "bad")} == {"good": "good", "bad": "bad"}
        assert socket.gethostname() in browser.text("#about")
        stack.run(stack.sim.stop())
        httpx.post(stack.url + "/v1/chat/completions", json=CHAT)
        browser.until("document.querySelector('#condition').textContent === 'no worker is ready'")
        assert colour(browser, "#condition") == "bad"


def test_a_model_that_has_lost_a_worker_makes_the_badge_amber(browser: Browser) -> None:
    with Stack(workers=({}, {}, {}), config=OPEN) as stack:
        browser.open(stack.admin_url + "/console/fleet")
        browser.until("document.querySelectorAll('#workers .good').length === 3")
        assert browser.text("#condition") == "ready"
        stack.run(stack.sims[2].stop())
        with httpx.Client() as client:
            for _ in range(12):  # the worker is asked by one of them
                client.post(stack.url + "/v1/chat/completions", json=CHAT)
        browser.until("document.querySelector('#condition').textContent === 'm has lost 1 of 3 workers'")
        assert colour(browser, "#condition") == "warn"
        # The badge and the table are fetched by requests of their own; the row that is not ready comes first.
        browser.until("!!document.querySelector('#workers tbody tr:first-child .bad')")
        first = browser.run("[...document.querySelector('#workers tbody tr').cells].map(cell => cell.textContent)")
        assert first[1:4] == [
            stack.sims[2].url.removeprefix("http://"),
            "down",
            "refused; the worker refuses connections: nothing listens at its port",
        ]


def test_a_gateway_that_refuses_most_is_not_shown_as_well(browser: Browser) -> None:
    with Stack(config={**OPEN, "limits": BOTH["limits"]}) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("document.querySelector('#condition').textContent === 'ready'")
        assert colour(browser, "#condition") == "good"
        with httpx.Client() as client:
            for _ in range(12):
                client.post(stack.url + "/v1/chat/completions", json=CHAT)
        browser.until("document.querySelector('#condition').textContent === 'most requests are refused'")
        assert colour(browser, "#condition") == "warn"


def test_axes_fit_what_is_drawn(browser: Browser) -> None:
    """At any height of the data: at least half of the plot is used, no label stands twice, and time has its own."""
    with Stack(config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("document.querySelector('#condition').textContent === 'ready'")
        found = browser.run("""(async () => { const { Plot } = await import('/console/plot.js'), found = [];
            for (const most of [0, 0.004, 0.03, 0.9, 1, 3, 7, 12, 61, 102, 260, 999, 1234, 54321, 7e6])
            for (const span of [60, 119, 300]) {
                const at = document.querySelector('#plot-requests'); at.replaceChildren();
                new Plot(at, '').draw([0, span / 2, span], span, [{ name: 'one', values: [0, most, most / 2] }]);
                const words = name => [...at.querySelectorAll(name)].map(one => one.textContent);
                const heights = [...at.querySelector('.series').getAttribute('d').matchAll(/ ([\\d.]+)/g)];
                const lines = [...at.querySelectorAll('.grid')].map(one => Number(one.getAttribute('y1')));
                found.push([most, span, words('.y'), words('.x'), Math.min(...heights.map(([, y]) => Number(y))),
                    Math.min(...lines)]);
            } return found; })()""")
        assert len(found) == 45
        for most, span, up, along, highest, top in found:
            assert 3 <= len(up) <= 6, (most, up)
            assert len(set(up)) == len(up), (most, up)
            assert len(set(along)) == len(along) >= 3, (span, along)
            assert along[0] == "now"
            assert top - 0.6 <= highest, "within the plot"
            assert most == 0 or highest <= (142 + top) / 2 + 0.6, (most, up, "half of it is used")


# -- requests ---------------------------------------------------------------------------------------------------------


def cells(browser: Browser, table: str) -> list[list[str]]:
    found: list[list[str]] = browser.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def test_requests_are_shown_found_and_opened(browser: Browser) -> None:
    url = "/v1/chat/completions"
    with Stack(workers=({"itl_ms": 20, "output_tokens": 100_000},), config={**OPEN, "limits": BOTH["limits"]}) as stack:
        browser.open(stack.admin_url + "/console/requests")
        browser.until("document.querySelector('#requests-none').textContent.startsWith('No request is under way')")
        assert not browser.run("document.querySelector('#refused-none').hidden")
        with httpx.Client(base_url=stack.url) as client:
            for number in range(4):
                client.post(url, json={**CHAT, "max_tokens": 2}, headers={"x-request-id": f"id-{number}"})
            body = {**CHAT, "model": "alias", "stream": True}
            with client.stream("POST", url, json=body, headers={"x-request-id": "other"}) as refused:
                refused.read()
        browser.until("document.querySelectorAll('#ended tbody tr').length === 5")
        rows = cells(browser, "ended")
        assert [row[0] for row in rows] == ["other", "id-3", "id-2", "id-1", "id-0"], "the newest first"
        assert [row[5] for row in rows] == ["refused 429", "refused 429", "ok 200", "ok 200", "ok 200"]
        assert (rows[0][10], rows[4][3], rows[4][4]) == ("limit few", "m", stack.sim.url.removeprefix("http://"))
        ((name, _, limit, count),) = cells(browser, "refusals")
        assert (name, limit, count) == ("anonymous", "few", "2")
        browser.type("#requests-match", "ID-")
        browser.click("#requests-filter button")
        browser.until("document.querySelectorAll('#ended tbody tr').length === 4")
        browser.click("#ended tbody button")
        shown = json.loads(browser.text("#request-facts"))
        assert (shown["id"], shown["limit"], shown["status"]) == ("id-3", "few", 429)
        assert browser.run("document.querySelector('#request-end').hidden"), "it has ended, and there is no admin API"
        browser.click("#request-close")
        assert browser.run("document.querySelector('#request-card').hidden")
    assert [fault for fault in browser.faults if "ERR_CONNECTION" not in fault] == []


def test_one_under_way_is_shown_as_it_goes_on(browser: Browser) -> None:
    with Stack(workers=({"itl_ms": 20, "output_tokens": 100_000},), config=OPEN) as stack:
        browser.open(stack.admin_url + "/console/requests")
        body, headers = {**CHAT, "stream": True}, {"x-request-id": "long"}
        with httpx.stream("POST", stack.url + "/v1/chat/completions", json=body, headers=headers, timeout=60) as reply:
            pieces = reply.iter_bytes()
            next(pieces)
            browser.until("document.querySelector('#under-way tbody tr')?.cells[5].textContent === 'streaming'")
            (first,) = cells(browser, "under-way")
            assert (first[0], first[3]) == ("long", "m")
            browser.run("document.querySelector('#under-way button').focus()")
            browser.until(f"document.querySelector('#under-way tbody tr').cells[9].textContent !== '{first[9]}'")
            assert browser.run("document.activeElement.textContent") == "long", "the focus stays where it was"
        browser.until("document.querySelector('#ended tbody tr')?.cells[5].textContent.startsWith('cancelled')")
        assert cells(browser, "under-way") == []


# -- tabs -------------------------------------------------------------------------------------------------------------


def viewed(browser: Browser) -> tuple[str, list[str], list[str]]:
    """The address's last part, the views that are shown, and the tabs that the Tab key leads to."""
    found: tuple[str, list[str], list[str]] = tuple(
        browser.run("""[location.pathname.split('/').pop(),
            [...document.querySelectorAll('[role=tabpanel]')].filter(one => one.clientWidth).map(one => one.id),
            [...document.querySelectorAll('[role=tab][tabindex="0"][aria-selected=true]')].map(one => one.id)]""")
    )
    return found


def at_view(name: str) -> tuple[str, list[str], list[str]]:
    return name, [name], [f"tab-{name}"]


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_the_other_gateways_are_shown_with_what_they_see_otherwise(browser: Browser, tmp_path: Path) -> None:
    seen = "document.querySelector('#gateways tbody')?.textContent"
    with Server(tmp_path) as server:
        redis = {"redis": {"addresses": [server.address], "timeout_s": 10}}
        with Stack(config={**OPEN, **redis}) as one:
            more = {"models": {"m": {"backend": "vllm", "workers": [one.sim.url, "http://127.0.0.1:9"]}}}
            with Stack((), {**OPEN, **redis, **more}) as two:
                browser.open(two.admin_url + "/console/fleet")
                browser.until(f"{seen}.includes('ready')")
                cells = browser.run("[...document.querySelectorAll('#gateways tbody td')].map(one => one.textContent)")
                assert cells[0] == f"{socket.gethostname()}:9090"
                assert (cells[1], cells[3:6]) == ("ready", ["0", "0", "1"])
                browser.open(one.admin_url + "/console/fleet")
                browser.until(f"{seen}.includes('127.0.0.1:9: down (refused)')")
                for width in (1440, 390):
                    resize(browser, width)
                    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.faults == []


def test_each_view_has_an_address_that_can_be_shared(browser: Browser) -> None:
    with Stack(config=OPEN) as stack:
        for name in VIEWS:
            browser.open(f"{stack.admin_url}/console/{name}")
            browser.until("!document.querySelector('#main').hidden")
            assert viewed(browser) == at_view(name)
            assert browser.run("document.title").lower() == f"{name} · dragoman console"
        browser.open(stack.admin_url + "/console/spend")  # this gateway keeps no sums
        browser.until("location.pathname === '/console/live'")
        assert viewed(browser) == at_view("live")
    assert browser.faults == []


def test_back_leads_to_the_view_before(browser: Browser) -> None:
    with Stack(config=OPEN) as stack:
        browser.open(stack.admin_url + "/console")
        browser.until("!document.querySelector('#main').hidden")
        for name in ("fleet", "fleet", "teams"):
            tab(browser, name)
        for way, name in (("back", "fleet"), ("back", "live"), ("forward", "fleet")):
            browser.run(f"history.{way}()")
            browser.until(f"!document.querySelector('#{name}').hidden")
            assert viewed(browser) == at_view(name)
        browser.open(browser.run("location.href"))
        browser.until("!document.querySelector('#main').hidden")
        assert viewed(browser) == at_view("fleet"), "kept by a reload"


def test_the_keyboard_leads_through_the_tabs(browser: Browser) -> None:
    """As https://www.w3.org/WAI/ARIA/apg/patterns/tabs/ has it: tabs that are not there are left out."""
    with Stack(config=OPEN) as stack:
        browser.open(stack.admin_url + "/console/live")
        browser.until("!document.querySelector('#main').hidden")
        browser.run("document.querySelector('#tab-live').focus()")
        for key, name in (
            ("ArrowRight", "requests"),
            ("ArrowRight", "teams"),
            ("End", "playground"),
            ("ArrowRight", "live"),
            ("ArrowLeft", "playground"),
            ("Home", "live"),
        ):
            press(browser, key)
            assert viewed(browser) == at_view(name), key
            assert browser.run("document.activeElement.id") == f"tab-{name}"
        press(browser, "Tab")
        assert browser.run("document.activeElement.id") == "live", "behind the tabs comes what they show"
        for name in VIEWS:
            panel = f"document.querySelector('#{name}')"
            assert browser.run(f"[{panel}.getAttribute('role'), {panel}.getAttribute('aria-labelledby')]") == [
                "tabpanel",
                f"tab-{name}",
            ]


# -- keys -------------------------------------------------------------------------------------------------------------


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
        browser.until(OF % 1)
        browser.open(stack.admin_url + "/console?again")
        browser.until(OF % 1)
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
        tab(browser, "playground")
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
        browser.until("!document.querySelector('#key-form').hidden")
        browser.type("#key", CONSOLE_KEY)
        browser.click("#key-form button")
        browser.until("document.querySelector('#dialect').options.length")
        browser.click("#send")
        finished(browser)
        assert browser.text("#outcome").startswith("status 401")
        tab(browser, "playground")
        browser.type("#client-key", SECRET)
        browser.click("#send")
        browser.until("document.querySelector('#client-reply').textContent.split('data: ').length > 3")
        assert SECRET not in browser.text("#client-request")
        shown = set()
        for name in DIALECTS:
            browser.choose("#dialect", name)
            browser.run("document.querySelector('#stop').click()")
            finished(browser)
            browser.click("#translate")
            finished(browser)
            shown |= {line for line in browser.text("#client-request").splitlines() if "(your key)" in line}
        assert shown == {
            "authorization: Bearer (your key)",
            "x-api-key: (your key)",
            "api-key: (your key)",
            "x-goog-api-key: (your key)",
        }
        browser.choose("#dialect", "openai")
        browser.click("#send")
        browser.until("document.querySelector('#client-reply').textContent.split('data: ').length > 3")
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
