"""Canonical replies as responses of the Responses API: the response object, its items, and whole bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NoReturn

from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import PartKind, Reason
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Reply, ReplyPart, TokenCount
from gateway.core.messages import Citation, Op, ServerCall
from gateway.core.usage import Usage
from gateway.dialects._shared.faults import cannot_count, in_own_words, refusal
from gateway.dialects.responses.compaction import compaction_item
from gateway.dialects.responses.fields import FIELDS
from gateway.dialects.responses.requests import Asked
from gateway.dialects.responses.stored import values_to_store
from gateway.dialects.responses.tools import Origin, as_input
from gateway.wire import clock
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.replies.writing import joined_logprobs, shown

CUT: Mapping[Reason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The worker's finish reason -> the reason why the response is incomplete."""


def response_object(
    request: Asked,
    model: str,
    created: int,
    status: str,
    items: Sequence[bytes] = (),
    usage: bytes = b"null",
    *,
    cut: str | None = None,
    error: dict[str, Any] | None = None,
) -> bytes:
    """The response as JSON text. items and usage are JSON text, too; created is in Unix seconds."""
    head = {
        "id": f"resp_{request.id}",
        "object": "response",
        "created_at": created,
        "completed_at": max(created, int(clock.seconds())) if status == "completed" else None,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": cut} if cut is not None else None,
        "model": model,
    }
    return b'%b,%b,"output":[%b],"usage":%b}' % (encode_line(head)[:-1], request.echo, b",".join(items), usage)


def close(
    request: Asked, op: Op, model: str, created: int, items: Sequence[bytes], usage: Usage | None, cut: str | None
) -> bytes:
    """The response at its end, as `response_object`. Notes in `op` what is stored of it, if anything is."""
    status = "completed" if cut is None else "incomplete"
    response = response_object(request, model, created, status, items, write_usage(usage), cut=cut)
    if request.items is not None:
        op.to_store = values_to_store(f"resp_{request.id}", request.items, response, items)
    return response


def no_summary(cut: str | None = None) -> GatewayError:
    """The error if the model wrote no summary, or one that was cut: the client would go on without its history. No
    fault of a worker."""
    message = "the model wrote no summary of the conversation"
    if cut is not None:
        message = f"the model's summary of the conversation was cut off: {cut}"
    return GatewayError(Kind.UPSTREAM, message, code="no_summary", blame=Blame.US, retryable=False)


def write_usage(usage: Usage | None) -> bytes:
    """The usage of a whole or streamed reply. Unknown counts are 0, because clients need the members."""
    usage = usage or Usage()
    return encode(
        {
            "input_tokens": usage.input or 0,
            "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
            "output_tokens": usage.output or 0,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
            "total_tokens": (usage.input or 0) + (usage.output or 0),
        }
    )


# -- items ------------------------------------------------------------------------------------------------------------


def url_citations(found: Sequence[Citation]) -> list[dict[str, Any]]:
    """The annotations of a text that name pages."""
    return [
        {
            "type": "url_citation",
            "start_index": one.start,
            "end_index": one.end,
            "url": one.page.url,
            "title": one.page.title,
        }
        for one in found
    ]


def content_part(kind: PartKind, text: str, logprobs: Raw, cited: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The one part of a message or of reasoning. cited: the annotations of a text."""
    match kind:
        case "thinking":
            return {"type": "reasoning_text", "text": text}
        case "refusal":
            return {"type": "refusal", "refusal": text}
        case "text":
            return {"type": "output_text", "text": text, "annotations": list(cited), "logprobs": logprobs}
        case "tool":
            raise TypeError("a call has no parts")


def begun_item(request: Asked, kind: PartKind, index: int, call_id: str | None, name: str | None) -> dict[str, Any]:
    """The item `index` of a response at its beginning, without content."""
    suffix, status = f"{request.id}_{index}", "in_progress"
    match kind:
        case "thinking":
            return {"type": "reasoning", "id": f"rs_{suffix}", "status": status, "summary": []}
        case "text" | "refusal":
            return {"type": "message", "id": f"msg_{suffix}", "status": status, "role": "assistant", "content": []}
        case "tool":
            origin = request.tools.origin_of(name or "") or Origin(name or "")
            item = {
                "type": "custom_tool_call" if origin.custom else "function_call",
                "id": f"{'ctc' if origin.custom else 'fc'}_{suffix}",
                "status": status,
                "call_id": call_id,
                "name": origin.name,
            }
            if origin.namespace is not None:
                item["namespace"] = origin.namespace
            item["input" if origin.custom else "arguments"] = ""
            return item


def whole_item(
    request: Asked,
    item: dict[str, Any],
    kind: PartKind,
    text: str,
    logprobs: Raw,
    status: str,
    cited: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A begun item with its content."""
    whole = {**item, "status": status}
    if kind == "tool":
        if item["type"] == "custom_tool_call":
            whole["input"] = as_input(text)
        else:
            whole["arguments"] = text or ("{}" if status == "completed" else "")
    elif kind == "thinking" and request.summary:
        whole["summary"] = [{"type": "summary_text", "text": text}]
    else:
        whole["content"] = [content_part(kind, text, logprobs, cited)]
    if kind == "thinking" and request.seal is not None:
        whole["encrypted_content"] = request.seal.close(text)
    return whole


def search_item(call: ServerCall, status: str | None = None) -> dict[str, Any]:
    """The item of a search of the web, or of a page that was opened. status: None for its last one."""
    action: dict[str, Any] = {"type": "open_page", "url": call.asked}
    if call.tool.kind == "search":
        sources = [{"type": "url", "url": page.url} for page in call.pages]
        action = {"type": "search", "query": call.asked, "queries": [call.asked] if call.asked else []}
        action |= {"sources": sources} if sources else {}
    status = status or ("completed" if call.error is None else "failed")
    return {"type": "web_search_call", "id": f"ws_{call.id}", "status": status, "action": action}


# -- whole ------------------------------------------------------------------------------------------------------------


def write(reply: Reply, op: Op) -> Response:
    request, choice = op.facts(Asked), reply.choices[0]
    cut = CUT.get(choice.reason)
    summary = ""
    if request.compacts:
        summary = (choice.text() or "").strip()
    if request.beside is not None:
        return _compacted(request, request.beside, reply, summary, cut)

    def is_item(part: ReplyPart) -> bool:
        return part.kind == "tool" or bool(part.text and not (request.compacts and part.kind == "text"))

    last = next(filter(is_item, reversed(choice.parts)), None)
    items: list[bytes] = []
    for parts, call in choice.segments():
        for part in parts:
            if is_item(part):
                status = "incomplete" if cut is not None and part is last else "completed"
                items.append(encode_line(_item(request, len(items), part, status)))
        if call is not None:
            items.append(encode_line(search_item(call)))
    if request.compacts and not summary and cut is None:
        raise no_summary()
    if summary and cut is None:
        items.append(encode_line(compaction_item(request.id, len(items), summary)))
    body = close(request, op, shown(op, reply.start.model), reply.start.created, items, reply.usage, cut)
    return Response(200, [JSON_TYPE], body)


def _item(request: Asked, index: int, part: ReplyPart, status: str) -> dict[str, Any]:
    begun = begun_item(request, part.kind, index, part.call_id, part.name)
    cited, logprobs = url_citations(part.citations), joined_logprobs(part.logprobs)
    return whole_item(request, begun, part.kind, part.text, logprobs, status, cited)


def _compacted(request: Asked, beside: Sequence[bytes], reply: Reply, summary: str, cut: str | None) -> Response:
    """The conversation in short: the items beside the summary, and the summary. It has no status, so that a summary
    that was cut off is an error."""
    if cut is not None or not summary:
        raise no_summary(cut)
    item = encode_line(compaction_item(request.id, len(beside), summary))
    head = {"id": f"resp_{request.id}", "object": "response.compaction", "created_at": reply.start.created}
    values = encode_line(head)[:-1], b",".join([*beside, item]), write_usage(reply.usage)
    return Response(200, [JSON_TYPE], b'%b,"output":[%b],"usage":%b}' % values)


def write_count(reply: TokenCount) -> Response:
    return Response(200, [JSON_TYPE], encode({"object": "response.input_tokens", "input_tokens": reply.tokens}))


# -- errors -----------------------------------------------------------------------------------------------------------

_NO_SOCKET = "websocket_unsupported"
"""The code of the reply to a web socket request. The client then uses POST."""
_NO_DEPLOYMENT = "DeploymentNotFound"
"""Azure's code for a model that the path names."""


def refuse_socket(request: Request) -> NoReturn:
    raise GatewayError(Kind.NO_METHOD, "no web socket can be had here now: use POST", code=_NO_SOCKET)


def error_object(error: GatewayError, request: Request | None = None, op: Op | None = None) -> dict[str, Any]:
    """{message, type, param, code}, a field by the name that the caller knows."""
    _, type_, code = refusals.ERRORS[error.kind]
    # Items and messages have different indices.
    canonical = "messages" if error.param is not None and error.param.startswith("messages.") else error.param
    message, param = in_own_words(error, canonical, FIELDS, request, op)
    return {"message": message, "type": type_, "param": param, "code": error.code or code}


_CODEX_CODES: Mapping[Kind, str] = {
    Kind.LIMITED: "rate_limit_exceeded",
    Kind.CONTEXT_LENGTH: "context_length_exceeded",
    Kind.OVERLOADED: "server_is_overloaded",
}
"""The codes of `response.failed` by which Codex waits, compacts or gives up. `error` has the finer ones of this
gateway."""


def write_failure(error: GatewayError, members: Mapping[str, Any]) -> dict[str, Any]:
    """The member `error` of a failed response; members: its `error_object`. Codex reads the wait in the text."""
    message = members["message"]
    if error.kind is Kind.LIMITED and error.retry_after is not None:
        message += f" Please try again in {max(1, ceil(error.retry_after))}s."
    return {"code": _CODEX_CODES.get(error.kind, members["code"]), "message": message}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """The answer, and its code. A worker's own 4xx keeps its status. If no worker can count tokens, the
    status is 404."""
    members = error_object(error, request, op)
    if error.kind is Kind.NO_MODEL and request is not None and request.params.get("deployment"):
        members["code"] = _NO_DEPLOYMENT
    status = refusals.status_of(error)
    if error.code == _NO_SOCKET:
        status = 426
    elif error.param is None and cannot_count(error, request):
        status = 404
    return refusal(error, status, {"error": members}), members["code"]
