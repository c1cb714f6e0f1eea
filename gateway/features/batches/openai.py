"""OpenAI's batches: `/v1/batches`.

Source: OpenAI's reference of `/v1/batches`; openai-python 3.54 as a recorded client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Route
from gateway.features.batches.api_call import ApiCall
from gateway.features.batches.apis import BatchApi
from gateway.features.batches.files import page
from gateway.features.batches.state import ENDED, State, StoredBatch, made, new_id
from gateway.features.batches.storage import aside

ROUTES = (
    Route("POST", "/v1/batches", "create_batch"),
    Route("GET", "/v1/batches", "batches"),
    Route("GET", "/v1/batches/{batch_id}", "batch"),
    Route("POST", "/v1/batches/{batch_id}/cancel", "cancel_batch"),
)
ENDPOINTS: Mapping[str, str] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/v1/embeddings"), "openai"),
    "/v1/responses": "responses",
}
"""A path that lines may call -> the dialect that reads them."""

_WINDOW = re.compile(r"([1-9][0-9]{0,2})(h|d)\Z")
_LONGEST_WINDOW_S = 7 * 86_400
_MOST_LIST, _LIST = 100, 20
_MOST_METADATA, _LONGEST_NAME, _LONGEST_VALUE = 16, 64, 512


class _Create(Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class OpenAIBatches(BatchApi):
    kind = "openai"
    routes = ROUTES

    async def create_batch(self, call: ApiCall) -> None:
        asked = await call.json(_Create)
        window_s = _window(asked.completion_window)
        if asked.endpoint not in ENDPOINTS or self._shared.called(asked.endpoint) is None:
            raise _wrong("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
        _check_metadata(asked.metadata)
        file = await self._store.file(asked.input_file_id[:80])
        if file is None or not call.principal.owns(file.owner, made(file.id)) or file.purpose != "batch":
            raise _wrong("input_file_id", "is not the id of a file of yours with the purpose batch")
        id_ = new_id("batch_")
        spec = self._spec(call, id_, asked.endpoint, file.id, file.bytes, asked.completion_window, window_s)
        spec.metadata = asked.metadata
        state = State()
        state.reach("validating")
        # Its own name for the file: deleting that takes nothing from the batch.
        await aside(self._storage.link, file.id, f"{id_}.input")
        await self._add(call, spec, state)

    async def batches(self, call: ApiCall) -> None:
        most = call.asked_count("limit", _MOST_LIST, _LIST)
        ids = await self._store.ids("openai", call.principal, most + 1, call.asked("after"))
        found = await self._store.batches(ids[:most])
        await call.respond(page([self.shown(one) for one in found], len(ids) > most))

    async def cancel_batch(self, call: ApiCall) -> None:
        batch = await self._find(call)
        if batch.state.status in ENDED:
            message = f"a batch that is {batch.state.status} cannot be cancelled"
            raise GatewayError(Kind.BAD_REQUEST, message, code="batch_ended")
        await self._store.cancel(batch.spec.id)
        await call.respond(self.shown(await self._find(call)))

    def shown(self, batch: StoredBatch) -> dict[str, Any]:
        """A batch as OpenAI's API shows it."""
        spec, state = batch.spec, batch.state
        at = {name: int(when) for name, when in state.at.items()}
        faults = [
            {"code": one.code, "line": one.line, "message": one.message, "param": one.param} for one in state.faults
        ]
        return {
            "id": spec.id,
            "object": "batch",
            "endpoint": spec.endpoint,
            "errors": {"object": "list", "data": faults} if faults else None,
            "input_file_id": spec.input,
            "completion_window": spec.window,
            "status": batch.status,
            "output_file_id": state.output if state.status in ENDED else None,
            "error_file_id": state.error if state.status in ENDED else None,
            "created_at": int(spec.created),
            "in_progress_at": at.get("in_progress"),
            "expires_at": int(spec.ends),
            "finalizing_at": at.get("finalizing"),
            "completed_at": at.get("completed"),
            "failed_at": at.get("failed"),
            "expired_at": at.get("expired"),
            "cancelling_at": None if batch.cancel is None else int(batch.cancel),
            "cancelled_at": at.get("cancelled"),
            "request_counts": {"total": state.total, "completed": state.succeeded, "failed": state.failed},
            "metadata": spec.metadata,
        }


def _window(text: str) -> float:
    found = _WINDOW.match(text)
    seconds = int(found[1]) * (3600 if found[2] == "h" else 86_400) if found is not None else 0
    if not 0 < seconds <= _LONGEST_WINDOW_S:
        raise _wrong("completion_window", "must be a time such as 24h or 7d, up to 7 days")
    return float(seconds)


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > _MOST_METADATA or any(
        len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE for name, value in metadata.items()
    ):
        words = f"may have {_MOST_METADATA} entries, of {_LONGEST_NAME} and {_LONGEST_VALUE} characters at most"
        raise _wrong("metadata", words)


def _wrong(param: str, why: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"'{param}' {why}", param=param)
