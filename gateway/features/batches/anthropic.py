"""Anthropic's Message Batches: `/v1/messages/batches`.

Source: Anthropic's reference of `/v1/messages/batches`; anthropic-python 2.12 as a recorded client.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Route
from gateway.features.batches.api_call import ApiCall
from gateway.features.batches.apis import BatchApi
from gateway.features.batches.files import page
from gateway.features.batches.lines import FORMS, one_line
from gateway.features.batches.splitting import Splitter
from gateway.features.batches.state import ENDED, Fault, State, StoredBatch, new_id
from gateway.features.batches.storage import Sink, aside, opened
from gateway.moments import iso

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


class MessageBatches(BatchApi):
    kind = "anthropic"
    routes = ROUTES

    async def create_batch(self, call: ApiCall) -> None:
        with self._shared.uploads.one(call, self._storage.held):
            await self._create(call)

    async def _create(self, call: ApiCall) -> None:
        storage, store, options, owner = self._storage, self._store, self._options, call.principal.tenant
        await store.check_batches(self.kind, owner, options)
        id_ = new_id("msgbatch_")
        input_ = f"{id_}.input"
        file = await opened(partial(storage.begin, input_), partial(storage.drop, input_))
        saved = False
        try:
            total = await self._receive(call, file)
            size = await aside(storage.keep, input_, file)
            saved = True
        finally:
            if not saved:
                await aside(storage.drop, input_, file)
        spec = self._spec(call, id_, ENDPOINT, input_, size, "24h", _WINDOW_S)
        state = State(total=total)
        state.reach("in_progress")
        await self._add(call, spec, state)

    async def _receive(self, call: ApiCall, file: Sink) -> int:
        """Writes the requests to `file`, one a line. Returns how many they are."""
        options = self._options
        splitter, ids, pending = Splitter(options.max_line_bytes), set[str](), bytearray()
        async for block in call.body(options.max_file_bytes):
            pending += block
            if len(pending) >= _WRITE:
                await aside(self._take, bytes(pending), splitter, ids, file)
                pending.clear()
        await aside(self._take, bytes(pending), splitter, ids, file)
        splitter.end()
        if not ids:
            raise GatewayError(Kind.BAD_REQUEST, "requests: must have one item at least", param="requests")
        return len(ids)

    def _take(self, block: bytes, splitter: Splitter, ids: set[str], file: Sink) -> None:
        """Takes a part of the body in. It may take long, and blocks."""
        form, most = FORMS["anthropic"], self._options.max_lines
        for item in splitter.feed(block):
            asked = form.read(item, ENDPOINT)
            at = f"requests.{len(ids)}"
            if isinstance(asked, Fault):
                param = at if asked.param is None else f"{at}.{asked.param}"
                raise GatewayError(Kind.BAD_REQUEST, f"{param}: {asked.message}", param=param)
            if asked.custom_id in ids:
                raise GatewayError(Kind.BAD_REQUEST, f"{at}.custom_id: is not unique", param=f"{at}.custom_id")
            if len(ids) >= most:
                message = f"a batch may have {most} requests at most"
                raise GatewayError(Kind.TOO_LARGE, message, param="requests", code="too_many_requests")
            ids.add(asked.custom_id)
            file.write(one_line(item) + b"\n")

    async def batches(self, call: ApiCall) -> None:
        most = call.asked_count("limit", _MOST_LIST, _LIST)
        before, after = call.asked("before_id"), call.asked("after_id")
        ids = await self._store.ids(
            "anthropic", call.principal, most + 1, after if before is None else before, ascending=before is not None
        )
        more, ids = len(ids) > most, ids[:most]
        found = await self._store.batches(ids[::-1] if before is not None else ids)
        listed = page([self.shown(one) for one in found], more)
        del listed["object"]
        await call.respond(listed)

    async def cancel_batch(self, call: ApiCall) -> None:
        batch = await self._find(call)
        if batch.state.status not in ENDED:
            await self._store.cancel(batch.spec.id)
            batch = await self._find(call)
        await call.respond(self.shown(batch))

    async def delete_batch(self, call: ApiCall) -> None:
        batch = await self._find(call)
        if batch.state.status not in ENDED:
            raise GatewayError(Kind.BAD_REQUEST, "a batch that has not ended cannot be deleted: cancel it first")
        results = None if batch.state.output is None else await self._store.file(batch.state.output)
        if results is not None:
            await self._store.drop_file(results)
            await aside(self._storage.remove, (results.id,))
        await self._store.drop_batch(batch.spec)
        await call.respond({"id": batch.spec.id, "type": "message_batch_deleted"})

    async def results(self, call: ApiCall) -> None:
        state = (await self._find(call)).state
        if state.status not in ENDED:
            raise GatewayError(Kind.BAD_REQUEST, "the batch has not ended yet: it has no results", code="not_ended")
        found = None if state.output is None else await self._store.file(state.output)
        await self._send(call, found, b"application/x-jsonl")

    def shown(self, batch: StoredBatch) -> dict[str, Any]:
        """A batch as Anthropic's API shows it. The address of its results is relative: only the client knows by which
        address, prefix and proxy it calls, and its library puts its own base before it."""
        spec, state = batch.spec, batch.state
        ended = state.status in ENDED
        undone = state.unfinished if ended else 0
        expired = undone if state.status == "expired" else 0
        return {
            "id": spec.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress" if batch.cancel is None else "canceling",
            "request_counts": {
                "processing": 0 if ended else state.total,
                "succeeded": state.succeeded if ended else 0,
                "errored": state.failed if ended else 0,
                "canceled": undone - expired,
                "expired": expired,
            },
            "created_at": iso(spec.created),
            "expires_at": iso(spec.ends),
            "ended_at": iso(state.at[state.status]) if ended else None,
            "cancel_initiated_at": None if batch.cancel is None else iso(batch.cancel),
            "archived_at": None,
            "results_url": f"/v1/messages/batches/{spec.id}/results" if ended and state.output is not None else None,
        }
