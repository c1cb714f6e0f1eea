"""The admin API on the admin address: the routes below `/admin/v1`, each an entry of the table in openapi.py.

The description is for every caller that can reach the address. All else asks for an admin's key or token.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from gateway.auth import OPTIONS, Admin, StoredKey
from gateway.auth.key_store import Event, StoreDown
from gateway.config import Key
from gateway.core.errors import GatewayError, Kind
from gateway.features import AllBatches, Offers
from gateway.features.admin.batches import BatchPage, BatchView
from gateway.features.admin.callers import Admins
from gateway.features.admin.changes import KeyChanges, Problem
from gateway.features.admin.draining import Draining
from gateway.features.admin.openapi import (
    OPERATIONS,
    PREFIX,
    Audit,
    AuditLine,
    DrainedWorker,
    EndedRequest,
    Export,
    KeyView,
    Operation,
    Page,
    Refilled,
    Shown,
    description,
)
from gateway.features.admin.teams import DeletedTeam, TeamChanges, TeamPage, TeamView
from gateway.kernel import Application

T = TypeVar("T")
K = TypeVar("K")

_MOST_BYTES = 65_536
_MOST_PAGE, _PAGE = 500, 100
_ONCE, _ID = re.compile(r"[\x21-\x7e]{1,255}\Z"), re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_STATUS = {Kind.UNAUTHENTICATED: 401, Kind.FORBIDDEN: 403, Kind.OVERLOADED: 503}
_JSON = "application/json"
_ADMIN = "dragoman.admin"
"""In the scope of a request: its caller, where that is known."""
_encode = msgspec.json.Encoder().encode


class AdminApi:
    """The ASGI application. log: called with a level, an event and facts, at most ten times a second. offers: batches
    and requests, where their features are on."""

    def __init__(
        self,
        admins: Admins,
        changes: KeyChanges,
        teams: TeamChanges,
        draining: Draining,
        log: Callable[..., None],
        offers: Offers,
    ) -> None:
        self._admins = admins
        self._changes = changes
        self._teams = teams
        self._mirror = changes.mirror
        self._log = log
        self._draining = draining
        self._offers = offers
        routes = [Route(PREFIX + "/openapi.json", self._describe)]
        for one in OPERATIONS:
            routes.append(Route(PREFIX + one.path, self._endpoint(one), methods=[one.method]))
        for path in dict.fromkeys(route.path for route in routes):
            allowed = {method for route in routes if route.path == path for method in route.methods or ()}
            routes.append(Route(path, _OtherMethod(allowed)))
        self._router = Router(routes, redirect_slashes=False, default=_nothing)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # A task of its own: a request's first steps run outside of any, and time-outs need one.
        await asyncio.get_running_loop().create_task(self._router(scope, receive, send))

    def of(self, admin: Admin) -> Application:
        """The same application, for a caller who is known: the headers of a request are not asked."""

        async def known(scope: Any, receive: Any, send: Any) -> None:
            await self({**scope, _ADMIN: admin}, receive, send)

        return known

    def _endpoint(self, operation: Operation) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            admin = None
            try:
                admin = request.scope.get(_ADMIN) or self._admins.identify(request.scope["headers"])
                admin.check(operation.method)
                if not (self._mirror.up or (operation.remembered and self._mirror.read)):
                    raise StoreDown("away, or not read yet")
                answer = await getattr(self, operation.name)(admin, request)
                return answer if isinstance(answer, Response) else _answer(answer, operation.status)
            except Problem as problem:
                status, code, message = problem.status, problem.code, str(problem)
            except GatewayError as error:
                status, code, message = _STATUS[error.kind], error.code or error.kind.value, error.message
            except StoreDown:
                status, code, message = 503, "store_unavailable", "the store of keys cannot be reached now"
            except ClientDisconnect:
                return Response(status_code=499)
            if status in (401, 403):
                by = admin.name if admin is not None else None
                self._log("warning", "admin refused", operation=operation.name, by=by, code=code)
            return _refusal(status, code, message)

        return endpoint

    async def _describe(self, request: Request) -> Response:
        return _answer(description())

    # -- the operations, by their names in the table ----------------------------------------------------------------

    async def create(self, admin: Admin, request: Request) -> Response:
        once = request.headers.get("idempotency-key")
        if once is not None and not _ONCE.match(once):
            raise Problem(422, "invalid", "Idempotency-Key: must be up to 255 printable characters without spaces")
        key, secret, again = await self._changes.create(admin, await _body(request), once)
        return _answer(await self._shown(key, secret), 201, {"idempotent-replayed": "true"} if again else {})

    async def list(self, admin: Admin, request: Request) -> Page:
        team, revoked = request.query_params.get("team"), request.query_params.get("revoked") == "true"
        text = request.query_params.get("match", "").lower()

        def wanted(name: str, key: StoredKey | Key) -> bool:
            living = not isinstance(key, StoredKey) or revoked or key.revoked is None
            fits = admin.may(key.team) and team in (None, key.team) and living
            return fits and any(text in one.lower() for one in (name, key.id, key.team) if one)

        known: dict[str, StoredKey | Key] = {**self._mirror.keys, **self._changes.configured}
        found, more = await self._page(request, known, wanted)
        return Page([*await self._used([_view(name, key) for name, key in found])], more)

    async def export(self, admin: Admin, request: Request) -> Export:
        if not admin.all:
            raise Problem(403, "role", "an export is for admins of all keys")
        found, more = await self._page(request, self._mirror.keys, lambda name, key: True)
        return Export([replace(key, version=0) for _, key in found], more)

    async def refill(self, admin: Admin, request: Request) -> Refilled:
        if not admin.all:
            raise Problem(403, "role", "a refill is for admins of all keys")
        return Refilled(await self._mirror.refill(admin.name))

    async def _page(
        self, request: Request, keys: Mapping[str, K], wanted: Callable[[str, K], bool]
    ) -> tuple[Sequence[tuple[str, K]], str | None]:
        """Those of `keys` on one page with their names, and the last one's name if there are more."""
        count, after = _count(request), request.query_params.get("after", "")
        every = list(keys.items())

        def chosen() -> Sequence[tuple[str, K]]:
            later = (one for one in every if one[0] > after and wanted(*one))
            return nsmallest(count + 1, later, key=lambda one: one[0])

        found = await asyncio.to_thread(chosen)
        return found[:count], found[count - 1][0] if len(found) > count else None

    async def show(self, admin: Admin, request: Request) -> KeyView:
        name = _name(request)
        own = self._changes.configured.get(name)
        if own is not None and admin.may(own.team):
            (view,) = await self._used([_view(name, own)])
            return view
        return await self._viewed(await self._changes.find(admin, name))

    async def update(self, admin: Admin, request: Request) -> KeyView:
        return await self._viewed(await self._changes.update(admin, _name(request), await _body(request)))

    async def put(self, admin: Admin, request: Request) -> KeyView:
        return await self._viewed(await self._changes.put(admin, _name(request), await _body(request)))

    async def rotate(self, admin: Admin, request: Request) -> Shown:
        given = await _body(request, optional=True)
        return await self._shown(*await self._changes.rotate(admin, _name(request), given))

    async def revoke(self, admin: Admin, request: Request) -> KeyView:
        return await self._viewed(await self._changes.revoke(admin, _name(request)))

    async def _viewed(self, key: StoredKey) -> KeyView:
        (view,) = await self._used([_view(key.name, key)])
        return view

    async def _shown(self, key: StoredKey, secret: str | None) -> Shown:
        return Shown(**msgspec.structs.asdict(await self._viewed(key)), key=secret)

    async def _used(self, views: Sequence[KeyView]) -> Sequence[KeyView]:
        """The keys with their last use. An earlier key of the same name may have been used, too."""
        times = await self._mirror.used.of([view.name for view in views]) if self._mirror.up else {}
        return [replace(view, last_used=_use(view, times.get(view.name))) for view in views]

    async def teams(self, admin: Admin, request: Request) -> TeamPage:
        found, more = await self._page(request, await self._teams.views(), lambda name, team: admin.may(name))
        return TeamPage([team for _, team in found], more)

    async def team(self, admin: Admin, request: Request) -> TeamView:
        return await self._teams.view(admin, _name(request))

    async def create_team(self, admin: Admin, request: Request) -> TeamView:
        return await self._teams.create(admin, await _body(request))

    async def update_team(self, admin: Admin, request: Request) -> TeamView:
        return await self._teams.update(admin, _name(request), await _body(request))

    async def delete_team(self, admin: Admin, request: Request) -> DeletedTeam:
        return await self._teams.delete(admin, _name(request))

    async def audit(self, admin: Admin, request: Request) -> Audit:
        count, before = _count(request), request.query_params.get("before")
        if before is not None and not _is_change(before):
            raise Problem(422, "invalid", "before: must be the `next` of another page")
        found = await self._mirror.store.record(before, count)
        events = [(change.id, change.event) for change in found if admin.may(change.event.team)]
        lines = [_as(AuditLine, {"id": id_, **msgspec.structs.asdict(event)}) for id_, event in events]
        return Audit(lines, found[-1].id if len(found) == count else None)

    async def batches(self, admin: Admin, request: Request) -> BatchPage:
        query = request.query_params
        team, status, after = (query.get(name) or None for name in ("team", "status", "after"))

        def wanted(whose: str | None) -> bool:
            return admin.may(whose) and team in (None, whose)

        found, more = await self._batches().page(wanted, status, _count(request), after)
        return BatchPage([_as(BatchView, one) for one in found], more)

    async def batch(self, admin: Admin, request: Request) -> BatchView:
        found = await self._batches().batch(_name(request), admin.may)
        if found is None:
            raise Problem(404, "unknown_batch", "there is no such batch, or none that you may see")
        return _as(BatchView, found)

    async def cancel_batch(self, admin: Admin, request: Request) -> BatchView:
        before = await self.batch(admin, request)
        if before.ended:
            raise Problem(409, "batch_ended", f"the batch is {before.status}")
        await self._mirror.store.note(Event(time.time(), admin.name, "cancel", before.id, before.team))
        await self._batches().cancel(before.id, admin.name)
        return await self.batch(admin, request)

    async def end_request(self, admin: Admin, request: Request) -> EndedRequest:
        requests, id_ = self._offers.requests, _name(request)
        if requests is None:
            raise Problem(404, "no_console", "this gateway shows no requests: console.enabled is off")
        teams = [team for team in await requests.teams(id_) if admin.may(team)]
        if not teams:
            raise Problem(404, "unknown_request", "no such request is under way here, or none that you may end")
        for team in teams:
            await self._mirror.store.note(Event(time.time(), admin.name, "end", id_, team))
        await requests.end(id_, teams)
        return EndedRequest(id_)

    async def drain_worker(self, admin: Admin, request: Request) -> DrainedWorker:
        return await self._drain(admin, _name(request), True)

    async def undrain_worker(self, admin: Admin, request: Request) -> DrainedWorker:
        return await self._drain(admin, _name(request), False)

    async def _drain(self, admin: Admin, address: str, drained: bool) -> DrainedWorker:
        if not admin.all:
            raise Problem(403, "role", "workers are drained by admins of all keys")
        models = self._draining.models_of(address)
        if not models:
            raise Problem(404, "unknown_worker", "no worker has this address; /status.json has them")
        await self._mirror.store.note(Event(time.time(), admin.name, "drain" if drained else "undrain", address))
        await self._draining.drain(address, drained)
        return DrainedWorker(address, models, drained)

    def _batches(self) -> AllBatches:
        if self._offers.batches is None:
            raise Problem(404, "no_batches", "this gateway has no batches: the section batches is absent")
        return self._offers.batches


def _as(kind: type[T], found: object) -> T:
    """The members of `kind`, which an answer shows of a key, a change or a batch. Its times are Unix seconds."""
    return msgspec.convert(found, kind, strict=False, from_attributes=True)


def _view(name: str, key: StoredKey | Key) -> KeyView:
    """A key as a list shows it: replaced secrets only while they are valid."""
    if isinstance(key, StoredKey):
        now = time.time()
        return _as(KeyView, replace(key, old=tuple(old for old in key.old if old.until > now)))
    options = key.model_dump(mode="json", exclude_defaults=True, include={*OPTIONS, "id"})
    return msgspec.convert({"id": None, **options, "name": name, "where": "configuration"}, KeyView)


def _use(view: KeyView, moment: float | None) -> datetime | None:
    """The last use of a key, if it was one of this key."""
    if moment is None or (view.created is not None and moment < int(view.created.timestamp())):
        return None
    return datetime.fromtimestamp(moment, UTC)


def _is_change(id_: str) -> bool:
    """Whether a change may have this id: two numbers of Redis, of which nothing has 0-0."""
    return _ID.fullmatch(id_) is not None and 0 < max(int(one) for one in id_.split("-")) < 1 << 64


def _name(request: Request) -> str:
    """The name in the path. It may hold a slash, which the server leaves encoded in `path`."""
    return unquote(request.scope["raw_path"].split(b"/")[4])


def _count(request: Request) -> int:
    text = request.query_params.get("limit", str(_PAGE))
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= _MOST_PAGE:
        raise Problem(422, "invalid", f"limit: must be a number from 1 to {_MOST_PAGE}")
    return int(text)


async def _body(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """The members of the request's JSON object. Raises Problem, ClientDisconnect."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise Problem(413, "too_large", f"a request has at most {_MOST_BYTES} bytes")
    if optional and not body:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
        raise Problem(415, "media_type", f"the body must be {_JSON}")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "invalid", "the body must be a JSON object") from None


def _answer(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = _encode(content)
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, _JSON)


def _refusal(status: int, code: str, message: str) -> Response:
    more = {401: {"www-authenticate": 'Bearer realm="dragoman admin"'}, 503: {"retry-after": "1"}}.get(status, {})
    return _answer({"error": {"code": code, "message": message}}, status, more)


class _OtherMethod:
    """Answers at a path that has other methods. As a class it is for every method: Starlette's own answer is text."""

    def __init__(self, allowed: set[str]) -> None:
        self._allow = ", ".join(sorted(allowed))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = _refusal(405, "method", f"this path has {self._allow}")
        answer.headers["allow"] = self._allow
        await answer(scope, receive, send)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    answer = _refusal(404, "unknown_path", f"there is nothing at this path; see {PREFIX}/openapi.json")
    await answer(scope, receive, send)
