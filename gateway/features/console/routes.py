"""The console's ASGI endpoints, on the admin address: `/status.json`, and `/console` with what belongs to it.

| path | method | what | who |
|---|---|---|---|
| `/status.json`, `/console/status.json` | GET | the state, see state.py | yes |
| `/spend.json` | GET | a month's spending: `?by=team,model&month=2026-11`, see observe/spending.py | yes |
| `/console` | GET | leads to the first of `VIEWS` | no |
| `/console/live` | GET | the page, which shows the view of that name, as of all in `VIEWS`; no data | no |
| `/console/console.js` | GET | a file of the page: its CSS, JavaScript and icon; no data | no |
| `/console/views.json` | GET | which of the views there are that not every gateway has; the currency | yes |
| `/console/brief.json` | GET | the state as the page polls it, with little of each worker: see fleet.py | yes |
| `/console/workers.json` | GET | a page of workers: `?match=TEXT&skip=100&limit=100`, see fleet.py | yes |
| `/console/requests.json` | GET | requests under way, ended, refused: `?match=TEXT&limit=100`, see requests.py | yes |
| `/console/spend.json` | GET | a month of spending for the page: `?month=2026-11`, see spend.py | yes |
| `/console/budgets.json` | GET | the budgets of a key and its team: `?key=NAME&team=NAME` | yes |
| `/console/gateways.json` | GET | the other gateways, see gateways.py | of all teams |
| `/console/ways.json` | GET | the models, and how each dialect is called | yes |
| `/console/play` | POST | one request; a line of JSON for each thing that a side sent or got | no viewer |
| `/console/login`, `/console/callback` | GET | to the identity provider, and back with a session: see login.py | no |
| `/console/logout` | POST | ends the session in this browser; the address that ends it at the provider, too | no |
| `/console/logged-out` | GET | says so: `?here` where the provider's session may go on | no |
| `/console/admin/v1/...` | all | the admin API for who has the session | yes |

"Yes" is with the console's key, or a session, where there is one; a session of a team sees that team's alone.
`/status.json` and `/spend.json` have no session, because its cookie is for `/console`. The last five are there where
people log in.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from gateway.auth import Admin
from gateway.config import Console as Options
from gateway.config.kinds import zone_of
from gateway.core.errors import GatewayError
from gateway.core.http import Headers, header_value
from gateway.features import Watched
from gateway.features.console.fleet import MOST as MOST_WORKERS
from gateway.features.console.fleet import brief, page_of
from gateway.features.console.gateways import Gateways
from gateway.features.console.guard import CHANGE, KEY_HOLDER, SECURITY_HEADERS, Denied, Guard, check_role
from gateway.features.console.login import Login
from gateway.features.console.playground import LONGEST_S, MOST_BYTES, Asked, asked_for, at, play, translated, ways
from gateway.features.console.provider import Provider
from gateway.features.console.requests import MOST as MOST_REQUESTS
from gateway.features.console.requests import AllRequests, RecentRequests
from gateway.features.console.spend import Overview, budgets
from gateway.features.console.state import State, narrowed, of_all, read_state
from gateway.features.console.transcript import Transcript
from gateway.kernel import Application, Receive, Scope, Send, send_whole
from gateway.kernel.internal_request import InternalRequest
from gateway.observe.ledger import Ledger, Unavailable
from gateway.observe.log import Log
from gateway.observe.process_group import ProcessGroup
from gateway.observe.spending import Wrong, make
from gateway.ratelimit import Subject

T = TypeVar("T")

FRESH_S = 0.5
"""A state is made at most this often, however many look at it."""
MOST_PLAYING = 4
"""Requests of the playground at once."""

VIEWS = ("live", "requests", "keys", "teams", "spend", "fleet", "batches", "playground")
"""Each a tab of the page, with an address of its own."""

_PAGE_ROWS = 100
"""Requests of each kind, or workers, that one answer has unless more are asked for."""
_REPORT_S = 30.0
"""Questions of one process of a group to another. The address of a worker follows the last two."""

_PAGE = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_JSON = b"application/json"
_LINES = b"application/x-ndjson"
_HTML = b"text/html; charset=utf-8"
_ADMIN = "/console/admin/v1/"
NOBODY = Admin("", frozenset(), changes=False)
Endpoint = Callable[[Scope, Receive, Send, Admin], Awaitable[None]]
Read = Callable[[str, Admin], Awaitable[object]]
"""Answers to a query of this caller."""
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(State)


class Console:
    """look gives the gateway as it is now, registry its metrics. group: where this process is one of several that
    share an address, the state is that of all; a request of the playground runs in the process that is asked.

    recent    the layer that keeps this process's requests
    requests  those of all processes
    """

    def __init__(
        self, look: Callable[[], Watched], registry: CollectorRegistry, group: ProcessGroup | None = None
    ) -> None:
        self._look = look
        self._registry = registry
        self._group = group
        self._started = time.monotonic()
        self._playing = 0
        self._state: tuple[float, State] | None = None
        self._making = asyncio.Lock()
        self._reporting = asyncio.Lock()
        self.recent = RecentRequests()
        self.requests = AllRequests(self.recent, group)

    def endpoints(
        self, options: Options, local: bool, log: Log, gateways: Gateways | None = None
    ) -> dict[str, Application]:
        """The endpoints by path under `options`. local says that the admin address is loopback. gateways: the others,
        where they can be known."""
        login = None
        if options.enabled and options.oidc is not None:
            login = Login(options.oidc, Provider(options.oidc, log.event), VIEWS)
        guard = Guard(options.key if options.enabled else None, local, login)
        found = {"/status.json": _guarded(guard, "GET", _sent(self._whole))}
        if options.enabled:
            found["/console"] = _guarded(guard, "GET", _lead, public=True)
            for file in _PAGE.iterdir():
                kind = _KINDS[file.suffix] + ("; charset=utf-8" if file.suffix != ".svg" else "")
                served = _guarded(guard, "GET", _sent(_always(file.read_bytes()), kind.encode()), public=True)
                names = VIEWS if file.suffix == ".html" else (file.name,)
                found |= {f"/console/{name}": served for name in names}
            answers: dict[str, Read] = {
                "/console/status.json": self._whole,
                "/spend.json": self._sums(_report),  # it names keys, as /metrics does not
                "/console/views.json": self._views,
                "/console/brief.json": self._brief,
                "/console/workers.json": self._workers,
                "/console/requests.json": self._requests,
                "/console/spend.json": self._sums(_overview),
                "/console/budgets.json": self._budgets,
                "/console/ways.json": self._ways,
            }
            if gateways is not None:
                answers["/console/gateways.json"] = _others(gateways)
            found |= {path: _guarded(guard, "GET", _sent(read)) for path, read in answers.items()}
            found["/console/play"] = _guarded(guard, "POST", self._play)
        if login is not None:
            found["/console/login"] = _guarded(guard, "GET", _begin(login), public=True)
            found["/console/callback"] = _guarded(guard, "GET", _finish(login, log), public=True, led=True)
            found["/console/logout"] = _guarded(guard, "POST", _end(login), public=True)
            found["/console/logged-out"] = _guarded(guard, "GET", _ended, public=True, led=True)
            found["/console/"] = _guarded(guard, None, self._administer)
        return found

    async def state(self) -> State:
        """The state of this process now."""
        return await self._state_by(self._registry.collect())

    async def state_of_all(self) -> State:
        """The state of all processes, which is at most `FRESH_S` old, and none from before a start was over."""
        async with self._making:  # several may ask while one state is made
            if self._state is None or self._state[1].starting or time.monotonic() - self._state[0] >= FRESH_S:
                self._state = (time.monotonic(), await self._make())
            return self._state[1]

    async def _make(self) -> State:
        if self._group is None:
            return await self.state()
        others = await self._group.ask(b"state")
        whole = await self._state_by((await self._group.together(self._registry)).collect())
        return of_all(whole, [await self.state(), *_decoded(others)])

    async def _state_by(self, families: Iterable[Metric]) -> State:
        return await read_state(families, self._look(), time.monotonic() - self._started)

    async def _whole(self, query: str, admin: Admin) -> State:
        state = await self.state_of_all()
        return state if admin.teams is None else narrowed(state, admin)

    async def _brief(self, query: str, admin: Admin) -> State:
        return brief(await self._whole(query, admin))

    async def _workers(self, query: str, admin: Admin) -> object:
        asked = dict(parse_qsl(query))
        skip, limit = _number(asked, "skip", 0, 0, 1_000_000), _number(asked, "limit", _PAGE_ROWS, 1, MOST_WORKERS)
        return await page_of(await self.state_of_all(), asked.get("match", ""), skip, limit)

    def _sums(self, read: Callable[[Ledger, Watched, Mapping[str, str], Admin], Awaitable[object]]) -> Read:
        """Answers with what `read` makes of the sums and the query."""

        async def found(query: str, admin: Admin) -> object:
            watched = self._look()
            if watched.ledger is None:
                raise Denied(404, "no sums are kept: spend.daily is off")
            async with self._reporting:  # one reads a whole month at a time
                try:
                    asked = dict(parse_qsl(query))
                    return await asyncio.wait_for(read(watched.ledger, watched, asked, admin), _REPORT_S)
                except Wrong as wrong:
                    raise Denied(400, str(wrong)) from None
                except (Unavailable, TimeoutError):
                    raise Denied(503, "redis does not answer") from None

        return found

    async def _views(self, query: str, admin: Admin) -> object:
        watched = self._look()
        keys = watched.admin is not None
        batches = keys and watched.config.batches is not None
        currency = watched.config.spend.currency or ""
        who = None
        if admin is not KEY_HOLDER:
            teams = None if admin.teams is None else sorted(admin.teams)
            who = {"name": admin.name, "teams": teams, "changes": admin.changes}
        fleet = watched.config.redis is not None and admin.teams is None
        views = {"spend": watched.ledger is not None, "keys": keys, "batches": batches, "gateways": fleet}
        return {**views, "currency": currency, "who": who}

    async def _budgets(self, query: str, admin: Admin) -> object:
        watched = self._look()
        asked, limiter = dict(parse_qsl(query)), watched.limiter
        key, team = asked.get("key"), asked.get("team")
        if admin.teams is not None and not (admin.may(team) and (key is None or watched.team_of(key) == team)):
            raise Denied(404, "there is no such key or team, or none that you may see")
        if limiter is None:
            return []
        try:
            return await budgets(limiter, Subject(key, team), admin)
        except GatewayError as error:
            raise Denied(503, error.message) from None

    async def answer_state(self, question: bytes) -> bytes:
        """The answer to another process of the group."""
        return _encode(await self.state())

    async def _requests(self, query: str, admin: Admin) -> object:
        asked = dict(parse_qsl(query))
        limit = _number(asked, "limit", _PAGE_ROWS, 1, MOST_REQUESTS)
        return await self.requests.listed(asked.get("match", ""), admin.teams, limit)

    async def _ways(self, query: str, admin: Admin) -> object:
        watched = self._look()
        models, needs_key = list(watched.fleets.models), watched.config.auth == "keys"
        return {"models": models, "needs_key": needs_key, "ways": list(ways(watched.dialects()))}

    async def _administer(self, scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        """Answers as the admin API does to this caller. The key of the console opens no keys."""
        of, raw = self._look().admin, scope["raw_path"]
        if of is None or not (scope["path"].startswith(_ADMIN) and raw.startswith(_ADMIN.encode())):
            raise Denied(404, "there is nothing at this path")
        if admin is KEY_HOLDER:
            raise Denied(401, "a login is needed: the console's key opens no keys")
        cut = len("/console")
        await of(admin)({**scope, "path": scope["path"][cut:], "raw_path": raw[cut:]}, receive, send)

    async def _play(self, scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        check_role(admin, scope["method"])
        if (header_value(scope["headers"], b"content-type") or b"").partition(b";")[0].strip() != _JSON:
            raise Denied(415, "the playground takes application/json")
        if self._playing >= MOST_PLAYING:
            raise Denied(429, f"{MOST_PLAYING} requests of the playground are under way")
        self._playing += 1
        try:
            body = await _body(receive)
            if body is None:
                return
            await self._run(asked_for(body), scope, receive, send)
        finally:
            self._playing -= 1

    async def _run(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        watched, transcript, inner = self._look(), Transcript(), InternalRequest(asked.body.encode())
        found = at(asked.path, watched.dialects())
        if not asked.send:
            served = watched.runtime.models.get(asked.model)
            if found is None or served is None:
                raise Denied(400, "to translate, name a path of a dialect and a model")
            translated(asked, *found, served, watched.runtime.callers, watched.police(served.name), transcript)
            await _answer(send, 200, transcript.rest(), _LINES)
            return
        headers = [(b"content-type", _LINES), *SECURITY_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        key_header = found[0].key_header if found is not None else b"authorization"
        playing = asyncio.create_task(
            play(asked, key_header, watched.runtime, watched.application, scope.get("client"), transcript, inner)
        )
        leaving = asyncio.create_task(_departure(receive, inner))
        ending = asyncio.get_running_loop().call_later(LONGEST_S, inner.leave)
        playing.add_done_callback(lambda _: transcript.wake())
        try:
            while not playing.done():
                if lines := await transcript.take():
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
            await playing
        finally:
            ending.cancel()
            leaving.cancel()
            inner.leave()
            await asyncio.wait([playing])
        await send({"type": "http.response.body", "body": transcript.rest(), "more_body": False})


def _decoded(group: Iterable[bytes]) -> Iterator[State]:
    """The states of the group's processes. A process that ends while it answers is left out."""
    for data in group:
        with contextlib.suppress(msgspec.DecodeError):
            yield _decoder.decode(data)


def _number(asked: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """The number in a query. Raises Denied."""
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 8 and least <= int(text) <= most):
        raise Denied(400, f"{name}: must be a number from {least} to {most}")
    return int(text)


async def _departure(receive: Receive, inner: InternalRequest) -> None:
    """Ends `inner` when the page goes."""
    while (await receive())["type"] != "http.disconnect":
        pass
    inner.leave()


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None when its client left. Raises Denied above `MOST_BYTES`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message["body"]
        if len(body) > MOST_BYTES:
            raise Denied(413, f"the playground takes at most {MOST_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _guarded(
    guard: Guard, method: str | None, endpoint: Endpoint, *, public: bool = False, led: bool = False
) -> Application:
    """`endpoint` behind `guard`; public ones hold no data and need no key. method: None for all; led: as for
    `Guard.check_origin`."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = scope["method"]
            guard.check_origin(scope["headers"], led=led)
            if method is not None and asked != method and (method, asked) != ("GET", "HEAD"):
                raise Denied(405, f"only {method} is answered here")
            admin = NOBODY if public else guard.caller(scope["headers"], asked)
            await endpoint(scope, receive, send, admin)
        except Denied as denied:
            more: Headers = [(b"allow", (method or "").encode())] if denied.status == 405 else []
            members: dict[str, object] = {"error": denied.message}
            if denied.status == 401:
                more = [(b"www-authenticate", b'Bearer realm="dragoman console"')]
                members |= guard.ways
            await _answer(send, denied.status, _encode(members) + b"\n", _JSON, more)

    return guarded


def _begin(login: Login) -> Endpoint:
    async def begin(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        try:
            led = await _in_task(login.begin(_query(scope)))
        except Denied as denied:
            await _answer(send, denied.status, _page("No login", denied.message), _HTML)
            return
        await _answer(send, 302, b"", b"text/plain", [(b"location", led.to.encode()), *led.cookies])

    return begin


def _finish(login: Login, log: Log) -> Endpoint:
    """A page leads on, and not a redirect: after one a browser would still say that it comes from the provider's."""

    async def finish(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        try:
            who, led = await _in_task(login.finish(_query(scope), scope["headers"]))
        except Denied as denied:
            log.rationed("warning", "console login refused", status=denied.status, reason=denied.message)
            await _answer(send, denied.status, _page("No login", denied.message), _HTML)
            return
        teams = None if who.teams is None else sorted(who.teams)
        log.event("info", "console login", by=who.name, teams=teams, changes=who.changes)
        page = _page("Logged in", "You are logged in.", led.to)
        await _answer(send, 200, page, _HTML, led.cookies)

    return finish


def _end(login: Login) -> Endpoint:
    async def end(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        if header_value(scope["headers"], CHANGE) is None:
            raise Denied(403, f"a change needs the header '{CHANGE.decode()}'")
        led = await _in_task(login.end(scope["headers"]))
        await _answer(send, 200, _encode({"to": led.to}), _JSON, led.cookies)

    return end


async def _ended(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
    text = "You are logged out."
    if _query(scope) == "here":
        text += " The identity provider's session may go on: then the next login asks for no password."
    await _answer(send, 200, _page("Logged out", text), _HTML)


async def _in_task(job: Coroutine[Any, Any, T]) -> T:
    """A request's first steps run outside of any task, and time-outs need one."""
    return await asyncio.get_running_loop().create_task(job)


def _page(title: str, text: str, onward: str = "") -> bytes:
    """A page that says so, and leads on to the view `onward` by itself; without one there is a link to the first."""
    meta = f'<meta http-equiv="refresh" content="0; url={onward}">' if onward else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{meta}<title>{title} · Dragoman console</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="icon.svg">'
        '<link rel="stylesheet" href="console.css"></head><body><header><h1>Dragoman</h1></header>'
        f'<div id="login-form" class="card"><h2>{title}</h2><p>{escape(text)}</p>'
        f'<p><a href="{onward or VIEWS[0]}">Go to the console</a></p></div></body></html>\n'
    ).encode()


def _query(scope: Scope) -> str:
    query: bytes = scope["query_string"]
    return query.decode("latin-1")


def _others(gateways: Gateways) -> Read:
    async def read(query: str, admin: Admin) -> object:
        if admin.teams is not None:
            raise Denied(403, "gateways are shown to those who may see all teams")
        return await _in_task(gateways.others())

    return read


async def _report(ledger: Ledger, watched: Watched, asked: Mapping[str, str], admin: Admin) -> object:
    if admin.teams is not None:
        raise Denied(403, "this report is for all teams")
    spend = watched.config.spend
    zone, by = zone_of(spend.time_zone), asked.get("by", "team,model")
    return (await make(ledger, by, asked.get("month"), spend.currency or "", zone)).json()


async def _overview(ledger: Ledger, watched: Watched, asked: Mapping[str, str], admin: Admin) -> object:
    return await Overview(asked.get("month"), watched.config.spend, admin).read(ledger, watched.limiter)


async def _lead(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
    """Leads to the first view. The path is relative: a proxy may serve it below a path of its own."""
    await _answer(send, 302, b"", b"text/plain", [(b"location", b"console/" + VIEWS[0].encode())])


def _always(content: bytes) -> Read:
    async def read(query: str, admin: Admin) -> bytes:
        return content

    return read


def _sent(read: Read, kind: bytes = _JSON) -> Endpoint:
    """Answers with what `read` returns for the query: bytes as they are, all else as JSON."""

    async def sent(scope: Scope, receive: Receive, send: Send, admin: Admin) -> None:
        found = await read(_query(scope), admin)
        await _answer(send, 200, found if isinstance(found, bytes) else _encode(found), kind)

    return sent


async def _answer(send: Send, status: int, body: bytes, kind: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *SECURITY_HEADERS, *more]
    await send_whole(send, status, headers, body)
