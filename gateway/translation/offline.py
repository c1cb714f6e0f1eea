"""Translates one request and its reply without a gateway or a worker: the output of `dragoman translate`.

The steps are those of the kernel: a dialect reads, a backend writes; a backend reads, the dialect writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Example, with_field
from gateway.core.http import JSON_TYPE, Request, Response, Route
from gateway.core.lifecycle import Detokenized, TokenCount, Tokens
from gateway.core.messages import AnsweredFromStore, Chat, Complete, ListModels, Media, Op, Question, Score
from gateway.core.ports import Ask, Backend, Capabilities, Dialect, Lane
from gateway.core.upload import Form
from gateway.translation import series, totals
from gateway.translation.ability import refuse_beyond, write_possible
from gateway.translation.lanes import lane_for
from gateway.translation.whole import ask, read_whole


class Refused(Exception):
    """The client gets an error instead of a reply: `response`, as the client sees it."""

    def __init__(self, response: Response) -> None:
        self.response = response


class Crossing(Struct):
    """One request in all of its forms.

    request   as the client sent it
    op        in canonical form
    outgoing  as the worker gets it
    more      those that follow, for the further runs of a list of seeds
    first     the request that asks the worker for the prompt's length before; None if the length is not needed
    question  reads the worker's answer if the client asked what its model does not answer
    """

    request: Request
    op: Op
    outgoing: Request
    more: Sequence[Request] = ()
    first: Request | None = None
    question: Ask[TokenCount | Tokens | Detokenized] | None = None


def send(
    dialect: Dialect,
    backend: Backend,
    body: bytes,
    can: Capabilities,
    *,
    route: str | None = None,
    stream: bool = False,
    query: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Crossing:
    """The request that the worker would get. Without `route`, takes the route that accepts `body` and declares most of
    its members.

    Raises Refused; ValueError if the dialect has no such route.
    """
    request, op = read(dialect, body, route=route, query=query, headers=headers)
    op.stream = op.stream or stream
    return cross(dialect, request, op, backend, can)


def cross(
    dialect: Dialect,
    request: Request,
    op: Op,
    backend: Backend,
    can: Capabilities,
    change: Callable[[Op], object] = lambda op: None,
) -> Crossing:
    """The request that the worker would get for one that was read. change: called with it before it is written; may
    raise GatewayError. Raises Refused."""
    op.model = op.model or can.upstream_model
    try:
        change(op)
        return _crossing(request, op, backend, can)
    except GatewayError as error:
        raise Refused(dialect.refuse(error, request, op)[0]) from None


def read(
    dialect: Dialect,
    body: bytes,
    *,
    route: str | None = None,
    query: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> tuple[Request, Op]:
    """A request as it came, and in canonical form. The route is found, and errors are raised, as by `send`."""
    return _read(dialect, _requests(dialect, body, route, query, headers))


def _crossing(request: Request, op: Op, backend: Backend, can: Capabilities) -> Crossing:
    """Raises GatewayError for what a model with these capabilities, or its backend, cannot do."""
    refuse_beyond(op, can)
    if isinstance(op, Question):
        question = ask(op, backend, can)
        return Crossing(request, op, question.request, question=question)
    parts = series.runs(op) if isinstance(op, Complete) else (op,)
    outgoing, *more = [write_possible(backend, totals.first_request(part), can) for part in parts]
    counting = totals.length_request(op, backend, can)
    return Crossing(request, op, outgoing, more, counting.request if counting is not None else None)


def _requests(
    dialect: Dialect,
    body: bytes,
    route: str | None,
    query: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    form: Form | None = None,
) -> list[Request]:
    named = any(name == JSON_TYPE[0] for name, _ in headers)
    given = [*headers] if named else [JSON_TYPE, *headers]
    asking = {example.route for examples in dialect.examples.values() for example in examples}
    offered = [one for one in dialect.routes if one.form is (form is not None)]
    found = {one.name: one for one in reversed(offered) if one.method == "POST" and one.name in asking}
    wanted = [one for one in dialect.routes if one is found.get(one.name) and route in (None, one.name)]
    if not wanted:
        raise ValueError(f"{dialect.name} has no route {route!r}; there are " + ", ".join(sorted(found)))
    unknown = {one.name: _unknown(dialect, one, body) for one in wanted}
    wanted.sort(key=lambda one: unknown[one.name])
    # A route that knows fewer members is not meant by what the best one refuses.
    wanted = [one for one in wanted if route is not None or unknown[one.name] == unknown[wanted[0].name]]
    return [
        Request("POST", one.path, list(given), body, query, one.name, _parameters(one), "translated", form=form)
        for one in wanted
    ]


def _parameters(route: Route) -> dict[str, str]:
    """The parameters of the route's path, with a sample model name."""
    return dict.fromkeys(re.findall(r"\{(\w+)", route.path), "endpoint")


def _unknown(dialect: Dialect, route: Route, body: bytes) -> int:
    """The number of members of `body` that the route does not declare. A route with several operations counts by the
    best one."""
    try:
        names = msgspec.json.decode(body, type=dict[str, Raw]).keys()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0
    read = [name for name, examples in dialect.examples.items() if any(one.route == route.name for one in examples)]
    return min(len(names - {field.name for field in dialect.fields[operation]}) for operation in read)


def _read(dialect: Dialect, requests: Iterable[Request]) -> tuple[Request, Op]:
    """The first request that the dialect accepts. Raises Refused with the error of the first route if there is none."""
    refusal: Response | None = None
    for request in requests:
        try:
            op = dialect.read(request)
        except GatewayError as error:
            refusal = refusal or dialect.refuse(error, request, None)[0]
            continue
        if not isinstance(op, (ListModels, AnsweredFromStore)):
            return request, op
    if refusal is None:
        raise ValueError("the gateway answers this request itself: no worker is asked")
    raise Refused(refusal)


def reply(dialect: Dialect, backend: Backend, crossing: Crossing, answer: Response) -> bytes:
    """The bytes that the client would get for a worker's answer: a whole body, or a whole stream.

    Raises Refused. Its response's body begins with the bytes that were streamed before the error, if any.
    """
    request, op = crossing.request, crossing.op
    try:
        if isinstance(op, Question):
            assert crossing.question is not None
            return dialect.write(crossing.question.read(answer), op).body
        if answer.status != 200:
            raise backend.fault(answer, op)
        if op.stream and isinstance(op, (Chat, Complete)):
            return _streamed(lane_for(dialect, backend, op), answer.body)
        passthrough = dialect.passthrough.get(backend.reply_wire(op))
        if isinstance(op, Media):
            assert passthrough is not None  # this operation's dialects have it
            lane = passthrough.media_lane(op, answer.headers)
            return passthrough.media_whole(answer, op)[0].body if lane is None else _streamed(lane, answer.body)
        if passthrough is not None and not isinstance(op, Score):
            return passthrough.whole(answer, op)[0].body
        return dialect.write(read_whole(backend, answer, op), op).body
    except GatewayError as error:
        raise Refused(dialect.refuse(error, request, op)[0]) from None


def _streamed(lane: Lane, stream: bytes) -> bytes:
    out = lane.feed(stream)
    if not lane.done and lane.error is None:
        out += lane.eof()
    if lane.error is None:
        return out
    if not out:
        raise lane.error
    raise Refused(Response(200, [], out + lane.fail(lane.error)))


# -- what a configuration cannot carry ------------------------------------------------------------------------------


def holes(dialect: Dialect, backend: Backend, can: Capabilities) -> dict[str, str]:
    """Each operation of `dialect` that workers of `backend` with these features cannot fully serve -> the refused
    fields, or a sentence that the whole operation is refused."""
    found = {}
    for operation, fields in dialect.fields.items():
        example = dialect.examples[operation][0]
        message = _refusal(dialect, backend, can, example, example.body)
        if message is not None:
            found[operation] = f"cannot be served: {message}"
            continue
        lost = [
            field.name
            for field in fields
            if field.sample is not None
            and field.where == "body"
            and field.handling in ("mapped", "renamed", "emulated")
            and _refusal(dialect, backend, can, example, with_field(example.body, field, field.sample)) is not None
        ]
        if lost:
            found[operation] = f"refused there: {', '.join(lost)}"
    return found


def _refusal(
    dialect: Dialect, backend: Backend, can: Capabilities, example: Example, body: Mapping[str, Any]
) -> str | None:
    """The reason why the worker does not get `body`. None if it gets it, or if the dialect itself refuses it, because
    then the field has no meaning alone."""
    try:
        text, form = msgspec.json.encode(body), example.form(body)
        request, op = _read(dialect, _requests(dialect, text, example.route, example.query, [], form))
    except Refused:
        return None
    try:
        _crossing(request, op, backend, can)
    except GatewayError as error:
        return error.message if error.kind in (Kind.UNSUPPORTED, Kind.BAD_REQUEST) else None
    return None
