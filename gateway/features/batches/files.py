"""OpenAI's files, as far as batches use them: the lines that clients upload, and the results that they fetch.

Source: OpenAI's reference of `/v1/files`; openai-python 3.54 as a recorded client.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Route
from gateway.core.upload import File
from gateway.features.batches.api_call import ApiCall
from gateway.features.batches.apis import Api
from gateway.features.batches.state import Full, StoredFile, made, new_id
from gateway.features.batches.storage import Sink, aside, opened
from gateway.wire.multipart import FormReader

ROUTES = (
    Route("POST", "/v1/files", "upload"),
    Route("GET", "/v1/files", "files"),
    Route("GET", "/v1/files/{file_id}", "file"),
    Route("DELETE", "/v1/files/{file_id}", "delete_file"),
    Route("GET", "/v1/files/{file_id}/content", "content"),
)

_MOST_TEXT = 1 << 18
_WRITE = 1 << 18
_PAGE = 100
_MOST_LIST = 10_000


class Files(Api):
    routes = ROUTES

    async def upload(self, call: ApiCall) -> None:
        with self._shared.uploads.one(call, self._storage.held):
            await self._check_room(call.principal.tenant)
            await self._upload(call)

    async def _check_room(self, owner: str) -> None:
        """Refuses a body before it comes, if the file cannot be kept in the end."""
        count, size = await self._store.room(owner)
        if count >= self._options.max_files:
            raise Full("files")
        if size >= self._options.max_tenant_bytes:
            raise Full("bytes")

    async def _upload(self, call: ApiCall) -> None:
        id_, storage, options = new_id("file-"), self._storage, self._options
        file = await opened(partial(storage.begin, id_), partial(storage.drop, id_))
        saved = stored = False
        try:
            fields, files = await _receive(call, file, options.max_file_bytes)
            uploaded = _checked(fields, files)
            size = await aside(storage.keep, id_, file)
            saved = True
            created = time.time()
            ends = created + min(options.keep_s, _lifetime(fields) or options.keep_s)
            call.call.confirm()
            described = StoredFile(id_, call.principal.tenant, uploaded.filename, "batch", size, created, ends)
            await self._store.add_file(described, (options.max_files, options.max_tenant_bytes))
            stored = True
        finally:
            if not saved:
                await aside(storage.drop, id_, file)
            elif not stored:
                await aside(storage.remove, (id_,))
        await call.respond(shown(described))

    async def files(self, call: ApiCall) -> None:
        most = call.asked_count("limit", _MOST_LIST, _MOST_LIST)
        purpose, after, ascending = call.asked("purpose"), call.asked("after"), call.asked("order") == "asc"
        found: list[StoredFile] = []
        while len(found) <= most:
            ids = await self._store.ids("files", call.principal, _PAGE, after, ascending=ascending)
            found += [one for one in await self._store.files(ids) if purpose in (None, one.purpose)]
            if len(ids) < _PAGE:
                break
            after = ids[-1]
        await call.respond(page([shown(one) for one in found[:most]], len(found) > most))

    async def file(self, call: ApiCall) -> None:
        await call.respond(shown(await self._find(call)))

    async def delete_file(self, call: ApiCall) -> None:
        file = await self._find(call)
        if not await self._store.drop_file(file):
            raise call.missing()
        await aside(self._storage.remove, (file.id,))
        await call.respond({"id": file.id, "object": "file", "deleted": True})

    async def content(self, call: ApiCall) -> None:
        await self._send(call, await self._find(call), b"application/octet-stream")

    async def _find(self, call: ApiCall) -> StoredFile:
        found = await self._store.file(call.id)
        if found is None or not call.principal.owns(found.owner, made(found.id)):
            raise call.missing()
        return found


async def _receive(call: ApiCall, file: Sink, most: int) -> tuple[Sequence[tuple[str, str]], Sequence[File]]:
    """Writes the bytes of the form's files to `file`, `most` at most; the rest of the form may have _MOST_TEXT."""
    pending, size = bytearray(), 0

    def add(content: bytes) -> None:
        nonlocal size
        size += len(content)
        if size > most:
            raise GatewayError(Kind.TOO_LARGE, f"the file is larger than {most} bytes", param="file")
        pending.extend(content)

    reader = FormReader(call.request.header(b"content-type"), add)
    async for block in call.body(most + _MOST_TEXT):
        reader.feed(block)
        if len(pending) >= _WRITE:
            await aside(file.write, bytes(pending))
            pending.clear()
    await aside(file.write, bytes(pending))
    return reader.parts()


def _checked(fields: Sequence[tuple[str, str]], files: Sequence[File]) -> File:
    """The one file of the form. Raises GatewayError(BAD_REQUEST)."""
    purposes = [value for name, value in fields if name == "purpose"]
    if len(files) != 1 or files[0].field != "file":
        raise GatewayError(Kind.BAD_REQUEST, "the form must hold one file, named 'file'", param="file")
    if purposes != ["batch"]:
        raise GatewayError(Kind.BAD_REQUEST, "'purpose' must be 'batch': files are for batches here", param="purpose")
    return files[0]


def _lifetime(fields: Sequence[tuple[str, str]]) -> float | None:
    """Seconds that the client wants the file to be kept."""
    given = [value for name, value in fields if name == "expires_after[seconds]"]
    if not given:
        return None
    if not given[-1].isdecimal() or not 3600 <= int(given[-1][:9]) <= 2_592_000:
        message = "'expires_after[seconds]' must be a number from 3600 to 2592000"
        raise GatewayError(Kind.BAD_REQUEST, message, param="expires_after")
    return float(given[-1])


def shown(file: StoredFile) -> dict[str, Any]:
    """A file as OpenAI's API shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "expires_at": int(file.ends),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def page(data: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """A page of a list as OpenAI's API shows it."""
    ids = [one["id"] for one in data]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }
