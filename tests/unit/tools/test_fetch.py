"""What may be fetched, and how much of it: the address comes from a model that has read a stranger's words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from encodings.aliases import aliases
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import certifi
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import WebFetch
from gateway.core.messages import ServerCall, ServerTool
from gateway.tools import exchange, fetch
from gateway.tools.fetch import Fetch
from tests.support.harness import until
from tests.support.standins.endless import CHUNKED, ENDLESS, writing
from tests.support.standins.serving import certificate, server_tls
from tests.support.standins.web import Web, web

LOOPBACK = (ip_network("127.0.0.0/8"),)
DEFAULTS = WebFetch()
FETCH = ServerTool("fetch", "f")


@pytest.fixture
def site() -> Iterator[Web]:
    with web() as running:
        yield running


def fetched(
    url: str,
    options: WebFetch = DEFAULTS,
    tool: ServerTool = FETCH,
    allowed: Sequence[IPv4Network | IPv6Network] = LOOPBACK,
) -> ServerCall:
    call = ServerCall("1", tool, url)

    async def run() -> None:
        fetching = Fetch(options, allowed)
        await fetching.run(call)
        await fetching.close()

    asyncio.run(run())
    return call


def test_a_page(site: Web) -> None:
    call = fetched(f"{site.url}/page")
    assert call.error is None
    (page,) = call.pages
    assert (page.url, page.title, page.text) == (f"{site.url}/page", "Oslo & rain", "Weather\nIt rains today.")
    assert site.headers[0]["host"] == site.url.removeprefix("http://")
    assert not {"authorization", "cookie", "x-request-id"} & site.headers[0].keys()


PRIVATE = """127.0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255
    198.18.0.1 ::1 :: fe80::1 fe80::1%eth0 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::a00:1
    64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1:: 192.0.0.8 192.88.99.1 2002:c058:6301:: ::127.0.0.1 ::ffff:0:7f00:1
    64:ff9b:1::7f00:1 fec0::1 3fff::1 4000::1 5f00::1 100:0:0:1::1"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_no_private_address_is_reached(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its name either, nor beside a public one."""

    for found in ([address], ["93.184.215.14", address], [address, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]):

        async def look_up(host: str, port: int, found: list[str] = found) -> list[str]:
            return found

        monkeypatch.setattr(fetch, "look_up", look_up)
        assert fetched("http://name.example/", allowed=()).error == "url_not_allowed"


def test_a_public_address_may_be_reached() -> None:
    async def run() -> None:
        fetching = Fetch(WebFetch())
        assert fetching.may_reach("93.184.215.14")
        assert fetching.may_reach("2606:2800:21f:cb07:6820:80da:af6b:8b2c")
        assert fetching.may_reach("64:ff9b::5db8:d70e")
        assert fetching.may_reach("::ffff:93.184.215.14")
        await fetching.close()

    asyncio.run(run())


def test_the_address_that_was_checked_is_the_one_that_is_reached(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means another host at the second look-up gains nothing: there is none."""
    asked: list[str] = []

    async def look_up(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    monkeypatch.setattr(fetch, "look_up", look_up)
    port = site.url.rpartition(":")[2]
    assert fetched(f"http://nowhere.invalid:{port}/page").error is None
    assert asked == ["nowhere.invalid"]
    assert site.headers[0]["host"] == f"nowhere.invalid:{port}"


@pytest.mark.parametrize(
    ("host", "error"), [("pages.example", None), ("other.example", "url_not_accessible"), ("127.0.0.1", None)]
)
def test_a_page_by_https_is_that_of_its_name(
    host: str, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to an address, and still the certificate must be that of the URL's host, by whose name it is
    asked for."""
    files = certificate(tmp_path, "pages.example")
    theirs = server_tls(files)
    named: list[str | None] = []
    theirs.sni_callback = lambda _, name, __: named.append(name)

    async def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(fetch, "look_up", look_up)
    monkeypatch.setattr(certifi, "where", lambda: str(files[0]))
    with web(theirs) as site:
        port = site.url.rpartition(":")[2]
        site.answers["/to"] = (302, "/page", b"")
        call = fetched(f"https://{host}:{port}/to")
    assert call.error == error
    assert [page.title for page in call.pages] == ([] if error else ["Oslo & rain"])
    assert site.asked == ([] if error else ["/to", "/page"])
    assert set(named) == {None if host == "127.0.0.1" else host}


def test_each_redirect_is_checked(site: Web) -> None:
    inside = f"http://10.0.0.1/{'x' * 8}"
    site.answers |= {"/to": (302, "/page", b""), "/in": (302, inside, b""), "/on": (302, "/on", b"")}
    site.answers["/file"] = (301, "file:///etc/passwd", b"")
    call = fetched(f"{site.url}/to")
    assert call.pages[0].title == "Oslo & rain"
    assert fetched(f"{site.url}/in").error == "url_not_allowed"
    assert fetched(f"{site.url}/file").error == "invalid_tool_input"
    assert fetched(f"{site.url}/on").error == "url_not_accessible"
    assert site.asked.count("/on") == 6


def test_no_more_is_read_than_is_allowed(site: Web) -> None:
    site.answers["/long"] = (200, "text/plain", b"word " * 1_000_000)
    (page,) = fetched(f"{site.url}/long", WebFetch(max_bytes=10_000, max_text=500)).pages
    assert page.text == ("word " * 100)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("image/png", "unsupported_content_type"),
        ("application/pdf", "unsupported_content_type"),
        ("", "unsupported_content_type"),
        ("application/json", None),
        ("application/rss+xml", None),
        ("text/plain; charset=nonsense", None),
        ("text/plain; charset=iso-8859-1", None),
    ],
)
def test_only_texts_are_read(site: Web, kind: str, error: str | None) -> None:
    site.answers["/it"] = (200, kind, b"caf\xe9")
    assert fetched(f"{site.url}/it").error == error


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://x.example/", "invalid_tool_input"),
        ("file:///etc/passwd", "invalid_tool_input"),
        ("http://user:pass@x.example/", "invalid_tool_input"),
        ("nonsense", "invalid_tool_input"),
        ("http://", "invalid_tool_input"),
        ("http://[::1", "invalid_tool_input"),
        ("http://x.example/" + "a" * 3000, "url_too_long"),
        ("http://127.0.0.1:1/", "url_not_accessible"),
        ("http://name.invalid/", "url_not_accessible"),
    ],
)
def test_what_cannot_be_fetched_says_why(url: str, error: str) -> None:
    assert fetched(url).error == error


def test_the_clients_domains_count(site: Web) -> None:
    for tool, error in (
        (ServerTool("fetch", "f", allowed=("example.com",)), "url_not_allowed"),
        (ServerTool("fetch", "f", blocked=("127.0.0.1",)), "url_not_allowed"),
        (ServerTool("fetch", "f", allowed=("127.0.0.1",)), None),
    ):
        assert fetched(f"{site.url}/page", tool=tool).error == error


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "localhost", "127.0.0.1."])
def test_a_blocked_address_is_blocked_by_every_name(site: Web, host: str) -> None:
    port = site.url.rpartition(":")[2]
    tool = ServerTool("fetch", "f", blocked=("127.0.0.1",))
    assert fetched(f"http://{host}:{port}/page", tool=tool).error == "url_not_allowed"
    assert site.asked == []


def test_a_host_with_percent_signs_is_refused(site: Web) -> None:
    assert fetched("http://exam%64ple.com/").error == "invalid_tool_input"


def test_a_slow_page_is_given_up(site: Web) -> None:
    site.held.clear()
    assert fetched(f"{site.url}/page", WebFetch(timeout_s=0.3)).error == "url_not_accessible"


WRONG = {"invalid_tool_input", "url_not_allowed", "url_not_accessible", "url_too_long"}
CHARSETS = (*sorted(set(aliases.values())), "utf-8-sig", "nothing", "")


@pytest.mark.parametrize("charset", CHARSETS)
def test_any_charset_is_read_in_time_that_grows_with_the_page(site: Web, charset: str) -> None:
    """Some of Python's take a second for 60 KB of the worst text, or raise, or make text that is no JSON."""
    worst = b"-" + b"ab9" * 60_000 + b"\\ud800 +2AA- \xed\xa0\x80"
    site.answers["/odd"] = (200, f"text/plain; charset={charset}", worst)
    begun = time.process_time()
    call = fetched(f"{site.url}/odd")
    assert call.error is None
    assert time.process_time() - begun < 2
    msgspec.json.encode(call.pages)


@pytest.mark.parametrize(
    ("charset", "body"),
    [("windows-1252", b"\x80"), ("EUC-JP", b"\xc6\xfc"), ("gb18030", b"\xd6\xd0"), ("utf-16", b"\xff\xfe\xac\x20")],
)
def test_the_charset_of_a_page_is_used(site: Web, charset: str, body: bytes) -> None:
    site.answers["/odd"] = (200, f"text/plain; charset={charset}", body)
    (page,) = fetched(f"{site.url}/odd").pages
    assert page.text == body.decode(charset)


async def test_white_space_behind_a_value_is_not_a_part_of_it() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"HTTP/1.1 302 Found\r\nLocation: /a \t\r\nContent-Length: 0 \r\n\r\n")
    answer = exchange.Answer(reader, asyncio.Lock())
    await answer.head()
    assert answer.headers == {"location": "/a", "content-length": "0"}
    answer.close()


HOSTS = (
    "a.example",
    "[",
    "[::1]",
    "[::1",
    "127.0.0.1",
    "a" * 70,
    "\u2100",
    "xn--a",
    "a..b",
    "@",
    "u:p@h",
    ":99999",
    "%",
    "",
)
ADDRESSES = st.text(max_size=40) | st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("http://", "https://", "//", "/", "http:", "file://", "")),
    st.sampled_from(HOSTS) | st.text(max_size=10),
    st.sampled_from(("", ":80", ":x", ":99999")),
    st.text(max_size=20),
)


@given(url=ADDRESSES, to=ADDRESSES)
def test_whatever_an_address_is(url: str, to: str) -> None:
    """Asked for, or a redirect's: the call has a page, or a word for what went wrong."""

    async def run(asked: str) -> ServerCall:
        fetching = Fetch(WebFetch(), LOOPBACK)
        await fetching.close()
        moved = exchange.Answer(asyncio.StreamReader(), asyncio.Lock())
        moved.status, moved.headers = 302, {"location": to.encode("utf-8", "replace").decode("latin-1")}

        @asynccontextmanager
        async def get(*_: object) -> AsyncIterator[exchange.Answer]:
            yield moved

        fetching._exchanges.get = get  # type: ignore[method-assign,assignment]
        call = ServerCall("1", ServerTool("fetch", "f", allowed=("a.example", "127.0.0.1")), asked)
        await fetching.run(call)
        await fetching.close()
        return call

    for asked in (url, "http://127.0.0.1/"):
        assert asyncio.run(run(asked)).error in WRONG


# -- servers that mean harm -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ENDLESS)
def test_what_is_around_a_page_has_a_bound(attack: str) -> None:
    with writing(*ENDLESS[attack]) as (origin, sent):
        call = fetched(f"{origin}/", WebFetch(timeout_s=60))
        assert call.error == "url_not_accessible"
        until(lambda: bool(sent))
    assert sent[0] < 8 << 20, "what the kernel holds comes on top"


def test_a_page_in_small_chunks_is_read(site: Web) -> None:
    """As servers send that flush each line."""
    lines = b"".join(b"%x\r\nline %05d\n\r\n" % (11, number) for number in range(40_000))
    with writing(CHUNKED + lines + b"0\r\n\r\n", b"\r\n") as (origin, _):
        (page,) = fetched(f"{origin}/", WebFetch(max_text=1_000_000)).pages
    assert page.text.splitlines()[-1] == "line 39999"


def test_hostile_pages_are_parsed_in_turns() -> None:
    """The event loop goes round between the pieces of all pages together."""
    most = 0

    async def run(origin: str) -> list[ServerCall]:
        nonlocal most
        fetching = Fetch(WebFetch(timeout_s=60), LOOPBACK)
        calls = [ServerCall(str(number), FETCH, f"{origin}/") for number in range(30)]
        fed = 0
        feed = exchange.Answer._more  # counts what is read

        async def more(self: exchange.Answer) -> bool:
            nonlocal fed
            going_on = await feed(self)
            fed += 1
            return going_on

        async def look() -> None:
            nonlocal most, fed
            while True:
                most, fed = max(most, fed), 0
                await asyncio.sleep(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange.Answer, "_more", more)
            looking = asyncio.create_task(look())
            await asyncio.gather(*(fetching.run(call) for call in calls))
            looking.cancel()
        return calls

    with writing(*ENDLESS["chunks of one byte"]) as (origin, _):
        calls = asyncio.run(run(origin))
    assert {call.error for call in calls} == {"url_not_accessible"}
    assert 1 <= most <= 2


def test_a_page_is_made_text_beside_the_loop(site: Web) -> None:
    """By what the gateway runs other long steps with, and not for longer than ordinary pages take."""
    site.answers["/marks"] = (200, "text/html", b"<p>word" + b"<b>" * 300_000)
    stepped: list[str] = []

    async def aside(step: Any, *given: Any) -> Any:
        stepped.append(step.__name__)
        return step(*given)

    async def run() -> ServerCall:
        call = ServerCall("1", FETCH, f"{site.url}/marks")
        await Fetch(DEFAULTS, LOOPBACK, aside).run(call)
        return call

    assert asyncio.run(run()).pages[0].text == "word"
    assert stepped == ["_read"]
