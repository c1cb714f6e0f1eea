"""The admin API as a table of its operations, and its OpenAPI description (version 3.1) made of that table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from gateway.auth import StoredKey
from gateway.auth.stored import Hash, KeyOptions, TeamOptions
from gateway.features.admin.batches import BatchPage, BatchView
from gateway.features.admin.teams import CreateTeam, DeletedTeam, TeamPage, TeamView

PREFIX = "/admin/v1"


class OldView(Struct):
    """A replaced secret that is still valid."""

    id: str | None
    until: datetime


class KeyView(KeyOptions, frozen=True, kw_only=True, omit_defaults=False):
    """A key without its secret. where: in the store, or in the configuration, which knows nothing of its history.
    last_used: when a request of it ended last, to some minutes; null before the first, and while Redis is away."""

    name: str
    where: Literal["store", "configuration"] = "store"
    id: str | None
    old: tuple[OldView, ...] = ()
    created: datetime | None = None
    created_by: str | None = None
    changed: datetime | None = None
    changed_by: str | None = None
    revoked: datetime | None = None
    last_used: datetime | None = None
    version: int = 0


class Shown(KeyView, frozen=True, kw_only=True, omit_defaults=False):
    """A key with its new secret, which is shown this once. Null if the caller made the secret, or the answer repeats
    one that was given before."""

    key: str | None


class Create(KeyOptions, frozen=True, kw_only=True, omit_defaults=True):
    """A new key. With `hash` (and `id`) the caller has made the secret itself, and the gateway never sees it."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    hash: Hash | None = None
    id: str | None = None


class Rotate(Struct, omit_defaults=True):
    """valid_s: seconds for which the old secret stays valid; 0: it is refused at once."""

    valid_s: Annotated[float, Meta(ge=0, le=31 * 86_400)] = 86_400
    hash: Hash | None = None
    id: str | None = None


class Page(Struct):
    """Keys by name. next: `after` of the next page; null on the last."""

    keys: list[KeyView]
    next: str | None


class Refilled(Struct):
    """keys: how many were written back."""

    keys: int


class Export(Struct):
    """Keys by name, as `put` takes them in, with the hashes of their secrets."""

    keys: list[StoredKey]
    next: str | None


class AuditLine(Struct):
    """One change. options: the names of the options that were given."""

    id: str
    at: datetime
    by: str
    what: str
    name: str
    team: str | None
    options: tuple[str, ...]


class Audit(Struct):
    """Changes, the newest first. next: `before` of the next page; null on the last. A page may be short for an admin of
    some teams."""

    changes: list[AuditLine]
    next: str | None


class EndedRequest(Struct):
    """Its client gets an error with the code `ended_by_admin`."""

    id: str


class DrainedWorker(Struct):
    """drained: it takes no new requests, of this gateway from now on, and of the others two seconds later at most."""

    address: str
    models: list[str]
    drained: bool


class _Error(Struct):
    code: str
    message: str


class Refusal(Struct):
    """code: for programs."""

    error: _Error


class Operation(NamedTuple):
    """One route. refusals: statuses beyond those that every operation may answer with. remembered: answered from
    memory, and so while Redis is away, too."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    answer: type
    status: int = 200
    body: type | None = None
    query: Mapping[str, str] = {}
    refusals: tuple[int, ...] = ()
    remembered: bool = False


_PAGES = {"limit": "Most entries of the page, 1 to 500; 100 if absent.", "after": "`next` of the page before."}
_REFUSED = {
    400: "The body is not a JSON object.",
    401: "No admin's key or token was shown, or not a valid one.",
    403: "The admin's role does not allow it.",
    404: "There is no such key, team, batch, request or worker, or none of the admin's teams.",
    409: "The name is taken, the key was revoked, there are too many, it is configured, or the batch ended.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "An option is wrong; the message names it.",
    503: "The store cannot be reached; nothing is changed, or the answer is not known.",
}
_WRITES = (400, 409, 413, 415, 422)

OPERATIONS = (
    Operation(
        "GET",
        "/keys",
        "list",
        "List keys",
        Page,
        query={
            **_PAGES,
            "match": "Only keys that have this text in their name, id or team; case does not matter.",
            "team": "Only keys of this team.",
            "revoked": "`true`: revoked keys, too.",
        },
        refusals=(422,),
        remembered=True,
    ),
    Operation("POST", "/keys", "create", "Make a key", Shown, 201, Create, refusals=_WRITES),
    Operation(
        "POST", "/keys/{name}/rotate", "rotate", "Replace a key's secret", Shown, 200, Rotate, refusals=(404, *_WRITES)
    ),
    Operation("POST", "/keys/{name}/revoke", "revoke", "Refuse a key for ever", KeyView, refusals=(404, 409)),
    Operation("GET", "/keys/{name}", "show", "Show a key", KeyView, refusals=(404,), remembered=True),
    Operation(
        "PATCH",
        "/keys/{name}",
        "update",
        "Change a key's options; null takes one away",
        KeyView,
        200,
        KeyOptions,
        refusals=(404, *_WRITES),
    ),
    Operation(
        "PUT", "/keys/{name}", "put", "Take in a key as it was exported", KeyView, 200, StoredKey, refusals=_WRITES
    ),
    Operation(
        "GET",
        "/export",
        "export",
        "Export keys with their hashes",
        Export,
        query=_PAGES,
        refusals=(422,),
        remembered=True,
    ),
    Operation("POST", "/refill", "refill", "Write keys that the store lost back to it", Refilled),
    Operation("GET", "/teams", "teams", "List teams", TeamPage, query=_PAGES, refusals=(422,), remembered=True),
    Operation("POST", "/teams", "create_team", "Make a team's entry", TeamView, 201, CreateTeam, refusals=_WRITES),
    Operation("GET", "/teams/{name}", "team", "Show a team", TeamView, refusals=(404,), remembered=True),
    Operation(
        "PATCH",
        "/teams/{name}",
        "update_team",
        "Change a team's options; null takes one away",
        TeamView,
        200,
        TeamOptions,
        refusals=(404, *_WRITES),
    ),
    Operation(
        "DELETE",
        "/teams/{name}",
        "delete_team",
        "Delete a team's entry; its keys stay",
        DeletedTeam,
        refusals=(404, 409),
    ),
    Operation(
        "GET",
        "/audit",
        "audit",
        "List changes",
        Audit,
        query={"limit": _PAGES["limit"], "before": _PAGES["after"]},
        refusals=(422,),
    ),
    Operation(
        "GET",
        "/batches",
        "batches",
        "List batches",
        BatchPage,
        query={**_PAGES, "team": "Only batches of this team.", "status": "Only batches that have this status."},
        refusals=(404, 422),
    ),
    Operation("GET", "/batches/{id}", "batch", "Show a batch", BatchView, refusals=(404,)),
    Operation("POST", "/batches/{id}/cancel", "cancel_batch", "Cancel a batch", BatchView, refusals=(404, 409)),
    Operation(
        "POST",
        "/requests/{id}/end",
        "end_request",
        "End the requests under way at this gateway that have an id",
        EndedRequest,
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/workers/{address}/drain",
        "drain_worker",
        "Send no new requests to a worker",
        DrainedWorker,
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/workers/{address}/undrain",
        "undrain_worker",
        "Send requests to a drained worker again",
        DrainedWorker,
        refusals=(404,),
    ),
)


@cache
def description() -> dict[str, Any]:
    """The OpenAPI document."""
    types = {one for operation in OPERATIONS for one in (operation.answer, operation.body) if one is not None}
    _, schemas = msgspec.json.schema_components([*types, Refusal], ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        paths.setdefault(PREFIX + one.path, {})[one.method.lower()] = _described(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman admin API", "version": version("dragoman")},
        "security": [{"admin": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(one: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", one.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in one.query.items()
    ]
    if one.name == "create":
        text = "The same request with the same value, within a day, makes no second key."
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "description": text, "schema": {"type": "string"}}
        )
    responses = {str(one.status): {"description": one.summary + ".", **_content(one.answer)}}
    for status in sorted({401, 403, 503, *one.refusals}):
        responses[str(status)] = {"description": _REFUSED[status], **_content(Refusal)}
    found: dict[str, Any] = {"operationId": one.name, "summary": one.summary, "parameters": parameters}
    if one.body is not None:
        found["requestBody"] = {"required": one.body is not Rotate, **_content(one.body)}
    return {**found, "responses": responses}


def _content(kind: type) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"content": {"application/json": {"schema": schema}}}
