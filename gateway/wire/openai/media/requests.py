"""Requests for text of sound, for sound and for images: a client's into the canonical form, and a worker's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras, validate
from gateway.core.http import JSON_TYPE, Request
from gateway.core.messages import NOT_DONE, Extra, Media, Work
from gateway.core.ports import Capabilities
from gateway.core.upload import Form, seconds_of
from gateway.wire import multipart
from gateway.wire.json import (
    bad_value,
    check_depth,
    encode,
    members,
    missing,
    refuse_other_models,
    require_json,
    settle_unknown,
    text_of,
    typed,
)
from gateway.wire.openai.media.fields import FORMS, MANY, PATHS
from gateway.wire.openai.requests.bounds import RANGES
from gateway.wire.openai.requests.unsupported import beyond, unsupported

MOST_IMAGES = 100
"""OpenAI's API takes 10."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_Count = Annotated[int, Meta(ge=1, le=MOST_IMAGES)]


class _SpeechIn(Struct):
    input: str
    model: str | None = None
    user: str | None = None
    stream_format: str | None = None


class _ImageIn(Struct):
    prompt: str
    model: str | None = None
    user: str | None = None
    n: _Count | None = None
    stream: bool | None = None
    output_compression: int | None = None
    partial_images: int | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None


_speech = msgspec.json.Decoder(_SpeechIn)
_image = msgspec.json.Decoder(_ImageIn)


def read(request: Request, known: frozenset[str], policy: ExtrasPolicy) -> Media:
    """The request for the operation that its route names. known: the names in the table of that operation; `policy`
    applies to others. A deployment in the path takes the place of the model.

    Raises GatewayError (MEDIA_TYPE, BAD_REQUEST)."""
    work = cast("Work", request.route)
    op = _of_form(request, work, known, policy) if work in FORMS else _of_json(request, work, known, policy)
    deployment = request.params.get("deployment", "").strip()
    if deployment:
        op.model = deployment
    return op


def _of_json(request: Request, work: Work, known: frozenset[str], policy: ExtrasPolicy) -> Media:
    require_json(request)
    raw = members(request)
    unnamed, dropped = settle_unknown(raw, known, policy)
    body = encode(raw)
    found = typed(body, _speech) if work == "speak" else typed(body, _image)
    extra: Extra = {name: value for name, value in raw.items() if name != "model"}
    check_depth(extra)
    if isinstance(found, _SpeechIn):
        words, n, stream = found.input, 1, found.stream_format == "sse"
    else:
        words, n, stream = found.prompt, found.n or 1, bool(found.stream)
    return Media(
        model=found.model,
        stream=stream,
        user=found.user,
        end_user=text_of(extra, "safety_identifier"),
        extra=extra,
        dropped=dropped,
        work=work,
        words=words,
        n=n,
        unnamed=tuple(unnamed),
    )


def _of_form(request: Request, work: Work, known: frozenset[str], policy: ExtrasPolicy) -> Media:
    form = request.form
    if form is None:
        raise GatewayError(Kind.MEDIA_TYPE, "the content type must be multipart/form-data")
    _check_files(form, work)
    names = [name for name, _ in form.fields]
    refuse_other_models([_bare(name) for name in names])
    for name, count in Counter(names).items():
        bare = _bare(name)
        if bare in known and bare not in MANY and (count > 1 or name != bare):
            message = f"'{bare}' must be one text" if count == 1 else f"'{bare}' is given twice"
            raise GatewayError(Kind.BAD_REQUEST, message, param=bare, code=_twice(bare))
    unnamed, left_out = sort_extras(policy, dict.fromkeys(name for name in names if _bare(name) not in known))
    fields = tuple(
        (name, value) for name, value in form.fields if name not in ("model", "stream") and name not in left_out
    )
    given = dict(fields)
    if work == "edit" and "prompt" not in given:
        raise missing("prompt")
    _check_numbers(given)
    stream = _FLAGS.get(next(iter(form.values("stream")), "").strip().lower())
    if stream is None:
        raise bad_value("stream", "'stream' must be true or false")
    return Media(
        model=next(iter(form.values("model")), None),
        stream=stream and work != "vary",
        user=given.get("user"),
        end_user=given.get("safety_identifier"),
        dropped=left_out,
        work=work,
        words=given.get("prompt", ""),
        n=int(given.get("n") or 1) if work in ("edit", "vary") else 1,
        fields=fields,
        form=form,
        audio_s=seconds_of(form.files[0]) if work in ("transcribe", "translate") else None,
        unnamed=unnamed,
    )


def _bare(name: str) -> str:
    """The name of a text of an upload that may be one of a list or an object: `name[]`, `name[member]`."""
    return name.partition("[")[0]


def _twice(name: str) -> str:
    return "ambiguous_model" if name == "model" else "invalid_value"


def _check_files(form: Form, work: Work) -> None:
    """Raises GatewayError(BAD_REQUEST) if a file that is needed is absent or empty, or there is one of another name."""
    needed, *_ = allowed = FORMS[work]
    found = [file.field.removesuffix("[]") for file in form.files]
    if needed not in found:
        if any(_bare(name) == needed for name, _ in form.fields):
            raise bad_value(needed, f"'{needed}' must be a file: its part needs a filename")
        raise missing(needed)
    for file, name in zip(form.files, found, strict=True):
        if name not in allowed:
            raise bad_value(file.field, f"'{file.field}' must not be a file")
        if not file.size:
            raise bad_value(file.field, f"'{file.field}' is an empty file")
    if len(allowed) == 1 and len(found) > 1:
        raise bad_value(needed, f"'{needed}' must be one file")


def _check_numbers(given: dict[str, str]) -> None:
    """Raises GatewayError(BAD_REQUEST) for a number out of the bounds that JSON bodies have."""
    numbers = {}
    for name in [*RANGES, "n"]:
        if given.get(name):
            try:
                numbers[name] = msgspec.json.decode(given[name])
            except (msgspec.DecodeError, RecursionError):
                raise bad_value(name, f"'{name}' must be a number") from None
    validate(numbers, RANGES)
    n = numbers.get("n", 1)
    if type(n) is not int or not 1 <= n <= MOST_IMAGES:
        raise bad_value("n", f"'n' must be an integer from 1 to {MOST_IMAGES}")


def written(
    op: Media, can: Capabilities, backend: str, *, refused: Container[str] = (), idle: Container[str] = ()
) -> Request:
    """The worker's request. refused, idle: texts of an upload that its engine would accept and not read; the latter are
    left out and named in `dropped`. Raises GatewayError(UNSUPPORTED) for the former."""
    path = PATHS[op.work]
    if op.form is None:
        return Request("POST", path, [JSON_TYPE], encode({**op.extra, "model": can.upstream_model}))
    fields = [("model", can.upstream_model)]
    dropped = []
    for name, value in op.fields:
        bare = _bare(name)
        if bare in refused:
            raise unsupported(bare, backend)
        if bare in idle:
            dropped.append(bare)
        else:
            fields.append((name, value))
    if op.stream:
        fields.append(("stream", "true"))
    kind, content = multipart.written(fields, op.form)
    request = Request("POST", path, [(b"content-type", kind)], dropped=tuple(dict.fromkeys(dropped)))
    if isinstance(content, bytes):
        request.body = content
    else:
        request.upload = content
    return request


def unable(op: Media, backend: str) -> GatewayError:
    """The refusal of what no worker of `backend` does."""
    return beyond(backend, NOT_DONE[op.work])
