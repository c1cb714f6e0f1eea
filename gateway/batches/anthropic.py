"""Anthropic's Message Batches: `/v1/messages/batches`.

Source: Anthropic's reference of `/v1/messages/batches`; anthropic-python 2.12 as a recorded client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.batches.api_call import Answer, ApiCall
from gateway.batches.files import Uploads, page
from gateway.batches.lines import FORMS, one_line
from gateway.batches.openai import add, find
from gateway.batches.splitting import Splitter
from gateway.batches.state import ENDED, BatchStore, Fault, Full, Seen, Spec, State, new_id
from gateway.batches.storage import Sink, Storage, aside
from gateway.config import Batches
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Route

ROUTES = (
    Route("POST", "/v1/messages/batches", "create_batch"),
    Route("GET", "/v1/messages/batches", "batches"),
    Route("GET", "/v1/messages/batches/{batch_id}", "batch"),
    Route("DELETE", "/v1/messages/batches/{batch_id}", "delete_batch"),
    Route("GET", "/v1/messages/batches/{batch_id}/results", "results"),
    Route("POST", "/v1/messages/batches/{batch_id}/cancel", "cancel_batch"),
)
ENDPOINT = "/v1/messages"

_WINDOW_S = 86_400.0
_MOST_LIST, _LIST = 1000, 20
_WRITE = 1 << 18


class MessageBatches:
    """came: called when there is a new batch."""

    def __init__(
        self,
        options: Batches,
        store: BatchStore,
        storage: Storage,
        uploads: Uploads,
        came: Callable[[], None],
    ) -> None:
        self._options = options
        self._store = store
        self._storage = storage
        self._uploads = uploads
        self._came = came

    @property
    def answers(self) -> Mapping[str, Answer]:
        return {
            "create_batch": self.create,
            "batches": self.list,
            "batch": self.show,
            "delete_batch": self.delete,
            "results": self.results,
            "cancel_batch": self.cancel,
        }

    async def create(self, call: ApiCall) -> None:
        with self._uploads.one(call, self._storage.held):
            await self._create(call)

    async def _create(self, call: ApiCall) -> None:
        principal, storage, store, options = call.principal, self._storage, self._store, self._options
        _, held = await store.room(principal.tenant)
        if held >= options.max_tenant_bytes:
            raise Full("bytes")
        await store.check_batches("anthropic", principal.tenant, options)
        id_ = new_id("msgbatch_")
        input_ = f"{id_}.input"
        file = await aside(storage.begin, input_)
        kept = False
        try:
            total = await self._receive(call, file)
            size = await aside(storage.keep, input_, file)
            kept = True
        finally:
            if not kept:
                await aside(storage.drop, input_, file)
        now = time.time()
        spec = Spec(
            id=id_,
            kind="anthropic",
            owner=principal.tenant,
            key=principal.key,
            team=principal.team,
            models=call.token_models,
            endpoint=ENDPOINT,
            input=input_,
            window="24h",
            created=now,
            ends=now + _WINDOW_S,
            bytes=size,
        )
        state = State(total=total)
        state.reach("in_progress")
        await add(store, storage, spec, state, options, self._came)
        await call.respond(shown(Seen(spec, state, None)))

    async def _receive(self, call: ApiCall, file: Sink) -> int:
        """Writes the requests to `file`, one a line. Returns how many they are."""
        options = self._options
        splitter, seen, pending = Splitter(options.max_line_bytes), set[str](), bytearray()
        async for block in call.body(options.max_file_bytes):
            pending += block
            if len(pending) >= _WRITE:
                await aside(self._take, bytes(pending), splitter, seen, file)
                pending.clear()
        await aside(self._take, bytes(pending), splitter, seen, file)
        splitter.end()
        if not seen:
            raise GatewayError(Kind.BAD_REQUEST, "requests: must have one item at least", param="requests")
        return len(seen)

    def _take(self, block: bytes, splitter: Splitter, seen: set[str], file: Sink) -> None:
        """Takes a part of the body in. It may take long, and blocks."""
        form, most = FORMS["anthropic"], self._options.max_lines
        for item in splitter.feed(block):
            asked = form.read(item, ENDPOINT)
            at = f"requests.{len(seen)}"
            if isinstance(asked, Fault):
                param = at if asked.param is None else f"{at}.{asked.param}"
                raise GatewayError(Kind.BAD_REQUEST, f"{param}: {asked.message}", param=param)
            if asked.custom_id in seen:
                raise GatewayError(Kind.BAD_REQUEST, f"{at}.custom_id: is not unique", param=f"{at}.custom_id")
            if len(seen) >= most:
                message = f"a batch may have {most} requests at most"
                raise GatewayError(Kind.TOO_LARGE, message, param="requests", code="too_many_requests")
            seen.add(asked.custom_id)
            file.write(one_line(item) + b"\n")

    async def list(self, call: ApiCall) -> None:
        most = call.asked_count("limit", _MOST_LIST, _LIST)
        before, after = call.asked("before_id"), call.asked("after_id")
        owner = call.principal.tenant
        ids = await self._store.ids(
            "anthropic", owner, most + 1, after if before is None else before, ascending=before is not None
        )
        more, ids = len(ids) > most, ids[:most]
        found = await self._store.batches(ids[::-1] if before is not None else ids)
        listed = page([shown(one) for one in found], more)
        del listed["object"]
        await call.respond(listed)

    async def show(self, call: ApiCall) -> None:
        await call.respond(shown(await find(self._store, call)))

    async def cancel(self, call: ApiCall) -> None:
        seen = await find(self._store, call)
        if seen.state.status not in ENDED:
            await self._store.cancel(seen.spec.id)
            seen = await find(self._store, call)
        await call.respond(shown(seen))

    async def delete(self, call: ApiCall) -> None:
        seen = await find(self._store, call)
        if seen.state.status not in ENDED:
            raise GatewayError(Kind.BAD_REQUEST, "a batch that has not ended cannot be deleted: cancel it first")
        results = None if seen.state.output is None else await self._store.file(seen.state.output)
        if results is not None:
            await self._store.drop_file(results)
            await aside(self._storage.remove, (results.id,))
        await self._store.drop_batch(seen.spec)
        await call.respond({"id": seen.spec.id, "type": "message_batch_deleted"})

    async def results(self, call: ApiCall) -> None:
        state = (await find(self._store, call)).state
        if state.status not in ENDED:
            raise GatewayError(Kind.BAD_REQUEST, "the batch has not ended yet: it has no results", code="not_ended")
        found = None if state.output is None else await self._store.file(state.output)
        if found is None:
            raise call.missing()
        try:
            file = await aside(self._storage.open, found.id)
        except FileNotFoundError:
            raise call.missing() from None
        with file:
            await call.respond_file(file, found.bytes, [(b"content-type", b"application/x-jsonl")])


def shown(seen: Seen) -> dict[str, Any]:
    """A batch as Anthropic's API shows it. The address of its results is relative: only the client knows by which
    address, prefix and proxy it calls, and its library puts its own base before it."""
    spec, state = seen.spec, seen.state
    ended = state.status in ENDED
    undone = state.unfinished if ended else 0
    expired = undone if state.status == "expired" else 0
    return {
        "id": spec.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress" if seen.cancel is None else "canceling",
        "request_counts": {
            "processing": 0 if ended else state.total,
            "succeeded": state.succeeded if ended else 0,
            "errored": state.failed if ended else 0,
            "canceled": undone - expired,
            "expired": expired,
        },
        "created_at": _time(spec.created),
        "expires_at": _time(spec.ends),
        "ended_at": _time(state.at[state.status]) if ended else None,
        "cancel_initiated_at": None if seen.cancel is None else _time(seen.cancel),
        "archived_at": None,
        "results_url": f"/v1/messages/batches/{spec.id}/results" if ended and state.output is not None else None,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
