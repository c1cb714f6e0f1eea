"""SageMaker: a model container's `/invocations` and `/ping`, and the endpoints that boto3's `sagemaker-runtime` calls.

Sources: the SageMaker output specification; the container contract of the SageMaker documentation; boto3 1.44.5 as
recorded client. Decisions where those are silent: docs/dialects/sagemaker.md.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.events import Delta, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.fields import Field, Policy, settle_extras
from gateway.core.http import JSON_TYPE, Headers, Request, Response, Route
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice
from gateway.core.messages import Chat, Complete, Generate, ListModels, ModelCard, Op
from gateway.core.ports import Relaying
from gateway.core.usage import Usage
from gateway.wire import awsevent, sse
from gateway.wire import openai_replies as replies
from gateway.wire import openai_requests as requests
from gateway.wire.json import check_depth, encode, members
from gateway.wire.openai_views import CHAT_MEMBERS, TEXT_MEMBERS

MODEL = "/opt/ml/model"
MAX_PROMPTS = 1024
VARIANT = (b"x-amzn-invoked-production-variant", b"AllTraffic")

_COMMON = (
    Field(
        "model",
        "consumed",
        note=f"names the pool, unless the path or a header does; `{MODEL}` is the default one",
        sample="m",
    ),
    Field("stream", "mapped", note="implied by `invocations-response-stream`", sample=True),
    Field(
        "stream_options",
        "consumed",
        note="the usage chunk comes only if it is asked for here",
        sample={"include_usage": True},
    ),
    Field("max_tokens", "mapped", sample=16),
    Field("temperature", "mapped", sample=0.5),
    Field("top_p", "mapped", sample=0.9),
    Field("top_k", "mapped", note="vLLM", sample=5),
    Field("min_p", "mapped", note="vLLM", sample=0.1),
    Field("seed", "mapped", sample=7),
    Field("frequency_penalty", "mapped", sample=0.5),
    Field("presence_penalty", "mapped", sample=0.5),
    Field("repetition_penalty", "mapped", note="vLLM", sample=1.1),
    Field("logit_bias", "mapped", sample={"42": -1.0}),
    Field("stop", "mapped", sample=["END"]),
    Field("stop_token_ids", "mapped", note="vLLM", sample=[2]),
    Field("ignore_eos", "mapped", note="vLLM", sample=False),
    Field("min_tokens", "mapped", note="vLLM", sample=1),
    Field("skip_special_tokens", "mapped", note="vLLM", sample=True),
    Field("prompt_logprobs", "mapped", note="vLLM; answered in plain replies only", sample=1),
    Field("kv_transfer_params", "mapped", note="vLLM; answered in plain replies only", sample={"k": "v"}),
    Field("structured_outputs", "mapped", note="vLLM", sample={"regex": "a+"}),
    Field("response_format", "mapped", sample={"type": "json_object"}),
    Field("n", "mapped", sample=2),
    Field("user", "mapped", sample="user-1"),
)
_DEPRECATED = "deprecated by OpenAI, unknown to the engines"

FATES: Mapping[str, Sequence[Field]] = {
    "chat": (
        Field("messages", "mapped", note="its presence means chat", sample=[{"role": "user", "content": "hi"}]),
        *_COMMON,
        Field("max_completion_tokens", "mapped", note="goes before max_tokens", sample=16),
        Field(
            "tools",
            "mapped",
            note="an empty array is dropped",
            sample=[{"type": "function", "function": {"name": "f"}}],
        ),
        Field("tool_choice", "mapped", note="without tools named as dropped, 400 if it asks for one", sample="auto"),
        Field("parallel_tool_calls", "mapped", note="named as dropped without tools", sample=False),
        Field("reasoning_effort", "mapped", sample="low"),
        Field("include_reasoning", "mapped", note="vLLM", sample=True),
        Field("chat_template_kwargs", "mapped", note="vLLM", sample={"enable_thinking": False}),
        Field("logprobs", "mapped", sample=True),
        Field("top_logprobs", "mapped", note="400 without logprobs", sample=2),
        Field("functions", "refused", note=f"{_DEPRECATED}: use tools", sample=[{"name": "f"}]),
        Field("function_call", "refused", note=f"{_DEPRECATED}: use tool_choice", sample="auto"),
    ),
    "complete": (
        Field("prompt", "mapped", note=f"its presence means text; at most {MAX_PROMPTS} in an array", sample="hi"),
        *_COMMON,
        Field("suffix", "mapped", note="vLLM answers 400 to it", sample="end"),
        Field("echo", "mapped", sample=True),
        Field("best_of", "refused", note="unless it equals n", sample=4),
        Field("logprobs", "mapped", sample=1),
    ),
}
_KNOWN = {operation: frozenset(field.name for field in fields) for operation, fields in FATES.items()}

# Headers that may name the model, the most specific first.
_HINTS = (
    b"x-amzn-sagemaker-target-model",
    b"x-amzn-sagemaker-inference-component",
    b"x-amzn-sagemaker-adapter-identifier",
)
# Headers that come back with every reply, where they are harmless there, and what AWS allows for their length.
_ECHOED = {b"x-amzn-sagemaker-custom-attributes": 1024, b"x-amzn-sagemaker-inference-id": 64}
# Headers that ask for what is not here: named to the client as dropped.
_IGNORED = {
    name.lower().encode(): name
    for name in (
        "X-Amzn-SageMaker-Session-Id",
        "X-Amzn-SageMaker-Target-Variant",
        "X-Amzn-SageMaker-Target-Container-Hostname",
        "X-Amzn-SageMaker-Enable-Explanations",
        "X-Amzn-SageMaker-Prefix-Aware-Id",
    )
}
_UUID = re.compile(r"(?:chat)?cmpl-[0-9a-f]{32}(?=-|\Z)")
_PRINTABLE = re.compile(rb"[\x20-\x7e]+\Z")

AWS_ERRORS: Mapping[Kind, tuple[int, str]] = {
    Kind.BAD_REQUEST: (400, "ValidationError"),
    Kind.UNSUPPORTED: (400, "ValidationError"),
    Kind.UNAUTHENTICATED: (403, "AccessDeniedException"),
    Kind.FORBIDDEN: (403, "AccessDeniedException"),
    Kind.NO_ROUTE: (404, "UnknownOperationException"),
    Kind.NO_METHOD: (405, "UnknownOperationException"),
    Kind.NO_MODEL: (400, "ValidationError"),
    Kind.MEDIA_TYPE: (415, "ValidationError"),
    Kind.TOO_LARGE: (413, "ValidationError"),
    Kind.CONTEXT_LENGTH: (400, "ValidationError"),
    Kind.LIMITED: (429, "ThrottlingException"),
    Kind.OVERLOADED: (503, "ServiceUnavailable"),
    Kind.NO_WORKER: (503, "ServiceUnavailable"),
    Kind.DRAINING: (503, "ServiceUnavailable"),
    Kind.TIMEOUT: (424, "ModelError"),
    Kind.UPSTREAM: (424, "ModelError"),
    Kind.TRUNCATED: (424, "ModelError"),
    Kind.CLIENT_GONE: (499, "InternalFailure"),
    Kind.INTERNAL: (500, "InternalFailure"),
}
"""Of the paths that boto3 calls: status and `x-amzn-ErrorType`. The other paths answer as OpenAI."""

# By the code of an UNAUTHENTICATED error, what AWS calls it.
SIGNATURE_ERRORS = {
    "incomplete_signature": (400, "IncompleteSignature"),
    "signature_expired": (403, "InvalidSignatureException"),
    "signature_mismatch": (403, "InvalidSignatureException"),
    "unknown_access_key": (403, "UnrecognizedClientException"),
}


class SageMaker:
    """The dialect `sagemaker`."""

    name = "sagemaker"
    prefixes: tuple[str, ...] = ("/sagemaker",)
    extras: Policy = "pass"
    routes: tuple[Route, ...] = (
        Route("POST", "/invocations", "invocations"),
        Route("GET", "/ping", "ping", open=True),
        # A container is asked at its root.
        Route("POST", "/invocations", "invocations", absolute=True),
        Route("GET", "/ping", "ping", absolute=True, open=True),
        # boto3 escapes a slash in the name; by the time of routing it is one again.
        Route("POST", "/endpoints/{name:path}/invocations", "endpoint"),
        Route("POST", "/endpoints/{name:path}/invocations-response-stream", "endpoint_stream"),
    )
    fates = FATES
    errors: Mapping[Kind, tuple[int, str, str]] = replies.ERRORS
    relaying: Mapping[str, Relaying] = {}

    # -- requests ---------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Op:
        if request.route == "ping":
            return ListModels(write=_ping)
        _accompany(request)
        # No look at the content type: boto3 sends none unless its caller gives one.
        raw = members(request)
        if ("messages" in raw) == ("prompt" in raw):
            raise GatewayError(
                Kind.BAD_REQUEST,
                "'messages' and 'prompt' exclude each other"
                if "prompt" in raw
                else "cannot find a suitable handler for this request: give 'messages' (chat) or 'prompt' (text)",
                param="prompt" if "prompt" in raw else "messages",
                code="invalid_value" if "prompt" in raw else "missing_parameter",
            )
        operation = "chat" if "messages" in raw else "complete"
        _, dropped = settle_extras(self.extras, (name for name in raw if name not in _KNOWN[operation]))
        for name in dropped:
            del raw[name]
        canonical = CHAT_MEMBERS if operation == "chat" else TEXT_MEMBERS
        extra = {name: value for name, value in raw.items() if name not in canonical}
        check_depth(extra)
        body = request.body
        if request.route == "endpoint_stream":
            raw["stream"] = Raw(b"true")
        if request.route == "endpoint_stream" or dropped:
            body = encode(raw)
        hints, ignored = _read_headers(request)
        read = requests.read_chat if operation == "chat" else requests.read_text
        op: Chat | Complete = read(body, raw, extra, (*dropped, *ignored), self.extras)
        if isinstance(op, Complete) and len(op.prompts) > MAX_PROMPTS:
            raise GatewayError(
                Kind.BAD_REQUEST, f"'prompt' must hold at most {MAX_PROMPTS} prompts", param="prompt", code="too_many"
            )
        op.hints, op.view = hints, request.route
        return op

    # -- replies ----------------------------------------------------------------------------------------------------

    def write(self, reply: Reply | Embeddings, op: Op) -> Response:
        assert isinstance(reply, Reply)
        assert isinstance(op, (Chat, Complete))
        chat = isinstance(op, Chat)
        start, extra = reply.start, reply.start.extra or {}
        body: dict[str, Any] = {
            "id": _id(start.id, chat),
            "object": "chat.completion" if chat else "text_completion",
            "created": start.created,
            "model": MODEL,
            "choices": [(_chat_choice if chat else _text_choice)(choice) for choice in reply.choices],
            "service_tier": start.tier,
            "system_fingerprint": start.fingerprint,
            "usage": _usage(reply.usage) if reply.usage is not None else None,
        }
        if chat:
            body["prompt_logprobs"] = extra.get("prompt_logprobs")
        body["kv_transfer_params"] = extra.get("kv_transfer_params")
        return Response(200, [JSON_TYPE] if op.view == "invocations" else [JSON_TYPE, VARIANT], encode(body))

    def writer(self, op: Generate) -> Writer:
        if op.view == "endpoint_stream":
            return Writer(op, _part, FRAMED_HEADERS, _exception, clean_end=True)
        headers = sse.HEADERS if op.view == "invocations" else [*sse.HEADERS, VARIANT]
        return Writer(op, _as_is, headers, replies.error_event, clean_end=False)

    # -- errors -----------------------------------------------------------------------------------------------------

    def refuse(self, error: GatewayError, request: Request | None, op: Op | None) -> Response:
        if request is not None:
            _accompany(request)
        if request is None or not _is_aws(request):
            return replies.refusal(error)
        status, type_ = _aws_error(error, request)
        body: dict[str, Any] = {"message": error.message}
        if type_ == "ModelError":
            original = error.upstream or (504 if error.kind is Kind.TIMEOUT else 502)
            side = "client" if original < 500 else "server"
            body = {
                "Message": f'Received {side} error ({original}) from primary with message "{error.message}"',
                "OriginalStatusCode": original,
                "OriginalMessage": encode(replies.error_object(error)).decode(),
                "LogStreamArn": "",
            }
        headers = [JSON_TYPE, (b"x-amzn-errortype", type_.encode())]
        if status in (429, 503):
            headers += replies.error_headers(error, status)
            if error.retry_after is not None:
                headers.append((b"x-amz-retry-after", str(max(1, round(error.retry_after * 1000))).encode()))
        return Response(status, headers, encode(body))


def _aws_error(error: GatewayError, request: Request) -> tuple[int, str]:
    """A worker's own refusal is a ModelError, whatever its kind, except that it is busy: boto3 may retry that."""
    if error.kind is Kind.UNAUTHENTICATED:
        if request.header(b"authorization") is None:
            return 403, "MissingAuthenticationTokenException"
        return SIGNATURE_ERRORS.get(error.code or "", AWS_ERRORS[error.kind])
    if error.kind is not Kind.OVERLOADED and (error.upstream is not None or error.blame is Blame.WORKER):
        return 424, "ModelError"
    return AWS_ERRORS[error.kind]


def _ping(cards: Sequence[ModelCard]) -> Response:
    """Is there a model that can answer?"""
    return Response(200 if any(card.ready for card in cards) else 503)


def _is_aws(request: Request) -> bool:
    """Is this a path of boto3's, or, where nothing is served, one that looks like it?"""
    return request.route.startswith("endpoint") or (not request.route and "/endpoints/" in request.path)


def _accompany(request: Request) -> None:
    """Sets the headers that every reply to `request` carries."""
    request.reply = [
        (name, value)
        for name, value in request.headers
        if name in _ECHOED and len(value) <= _ECHOED[name] and _PRINTABLE.match(value)
    ]
    if _is_aws(request):
        request.reply.append((b"x-amzn-requestid", request.id.encode()))


def _read_headers(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names that may be the model's, names of headers that nothing is done about)."""
    found = {name: value for name, value in request.headers if name.startswith(b"x-amzn-sagemaker-")}
    hints = [found[name].decode("latin-1") for name in _HINTS if name in found]
    if "name" in request.params:
        hints.append(request.params["name"])
    return tuple(hints), tuple(_IGNORED[name] for name in found if name in _IGNORED)


# -- whole replies --------------------------------------------------------------------------------------------------


def _id(said: str, chat: bool) -> str:
    """The worker's id. What it has behind a UUID (the number of the attempt) is dropped: the UUID is our request id."""
    prefix = "chatcmpl-" if chat else "cmpl-"
    if not said.startswith(prefix):
        return prefix + (said or uuid.uuid4().hex)
    found = _UUID.match(said)
    return found[0] if found else said


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input or 0,
        "completion_tokens": usage.output or 0,
        "total_tokens": (usage.input or 0) + (usage.output or 0),
        "prompt_tokens_details": {"cached_tokens": usage.cached} if usage.cached is not None else None,
    }


def _stop(sequence: str | int | None) -> str | None:
    """vLLM names a stop token by its id; the specification has text."""
    return None if sequence is None else str(sequence)


def _chat_choice(choice: ReplyChoice) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text() or "",
        "refusal": choice.text("refusal"),
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in choice.calls
        ],
    }
    thinking = choice.text("thinking")
    if thinking is not None:
        message["reasoning_content"] = thinking
    return {
        "index": choice.index,
        "message": message,
        "logprobs": {"content": replies.join_logprobs(choice.logprobs)} if choice.logprobs else None,
        "finish_reason": choice.reason,
        "stop_reason": _stop(choice.stop_sequence),
    }


def _text_choice(choice: ReplyChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text() or "",
        "logprobs": replies.text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
        "finish_reason": choice.reason,
        "stop_reason": _stop(choice.stop_sequence),
        "prompt_logprobs": (choice.extra or {}).get("prompt_logprobs"),
    }


# -- streams --------------------------------------------------------------------------------------------------------

FRAMED_HEADERS: Headers = [
    (b"content-type", awsevent.MEDIA_TYPE),
    (b"x-amzn-sagemaker-content-type", b"text/event-stream"),
    VARIANT,
    *sse.HEADERS[1:],
]
_part = awsevent.framer(
    {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
)


def _framed_exception(type_: str) -> Callable[[bytes], bytes]:
    return awsevent.framer(
        {":exception-type": type_, ":content-type": "application/json", ":message-type": "exception"}
    )


_model_stream_error = _framed_exception("ModelStreamError")
_internal_stream_failure = _framed_exception("InternalStreamFailure")


def _exception(error: GatewayError) -> bytes:
    if error.kind is Kind.TIMEOUT:
        return _model_stream_error(encode({"Message": error.message, "ErrorCode": "ModelInvocationTimeExceeded"}))
    if error.upstream is not None or error.blame is Blame.WORKER:
        return _model_stream_error(encode({"Message": error.message, "ErrorCode": "StreamBroken"}))
    return _internal_stream_failure(encode({"Message": error.message}))


def _as_is(chunk: bytes) -> bytes:
    return chunk


class _Open:
    """An open part: the bytes before and after its text in a chunk, up to the logprobs."""

    __slots__ = ("after", "before", "ordinary")

    def __init__(self, before: bytes, after: bytes, end: bytes) -> None:
        self.before = before
        self.after = after
        self.ordinary = after + b',"logprobs":null,"finish_reason":null,"stop_reason":null}]' + end


class Writer:
    """Canonical events to chunks, each given to `frame`; `refuse` writes the last words of a stream that failed.

    What is the same in every chunk of a part is written once. Implements core.ports.StreamWriter.
    """

    held = 0

    def __init__(
        self,
        op: Generate,
        frame: Callable[[bytes], bytes],
        headers: Headers,
        refuse: Callable[[GatewayError], bytes],
        *,
        clean_end: bool,
    ) -> None:
        self.headers = headers
        self.clean_end = clean_end
        self._frame = frame
        self._refuse = refuse
        self._chat = isinstance(op, Chat)
        self._n = op.n
        self._include_usage = op.include_usage
        self._head = b""
        self._end = b"}\n\n" if self._chat else b',"usage":null}\n\n'
        self._open: dict[tuple[int, int], _Open] = {}
        self._calls: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        # A choice's last text, which its end goes into: (chunk up to the logprobs, logprobs).
        self._held: dict[int, tuple[bytes, bytes]] = {}

    def write(self, event: Event) -> bytes:
        if type(event) is Delta:
            part = self._open[event.choice, event.index]
            if event.logprobs is None and not event.last:
                return self._frame(part.before + encode(event.text) + part.ordinary)
            return self._special(event, part)
        if isinstance(event, PartStart):
            return self._part(event)
        if isinstance(event, Finish):
            return self._finish(event)
        if isinstance(event, Start):
            return self._start(event)
        if isinstance(event, UsageReport):
            return self._usage(event.usage) if self._include_usage else b""
        if isinstance(event, Failed):
            held = [self._chunk(chunk, logprobs) for chunk, logprobs in self._held.values()]
            return b"".join(held) + self._refuse(event.error)
        return b"" if isinstance(event, PartEnd) else self._frame(sse.DONE)

    def keepalive(self) -> bytes:
        """A blank line between events, in a frame of its own where there are frames: every SSE parser passes over it,
        and boto3's read timeout, 60 s by default, starts anew."""
        return self._frame(sse.KEEPALIVE)

    def _chunk(self, up_to_logprobs: bytes, logprobs: bytes, reason: bytes = b"null", stop: bytes = b"null") -> bytes:
        return self._frame(
            b'%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b}]%b'
            % (up_to_logprobs, logprobs, reason, stop, self._end)
        )

    def _start(self, event: Start) -> bytes:
        head = {
            "id": _id(event.id, self._chat),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": event.created,
            "model": MODEL,
        }
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        if not self._chat:
            return b""
        role = b'%b{"index":%d,"delta":{"role":"assistant","content":""}'
        return b"".join(self._chunk(role % (self._head, choice), b"null") for choice in range(self._n))

    def _part(self, event: PartStart) -> bytes:
        before = b'%b{"index":%d,' % (self._head, event.choice)
        out = b""
        if not self._chat:
            before, after = before + b'"text":', b""
        elif event.kind == "tool":
            position = self._calls.get(event.choice, 0)
            self._calls[event.choice] = position + 1
            call = {
                "index": position,
                "id": event.call_id,
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            out = self._chunk(before + b'"delta":{"tool_calls":[' + encode(call) + b"]}", b"null")
            before, after = before + b'"delta":{"tool_calls":[{"index":%d,"function":{"arguments":' % position, b"}}]}"
        else:
            name = {"text": b"content", "thinking": b"reasoning_content"}.get(event.kind, b"refusal")
            before, after = before + b'"delta":{"%b":' % name, b"}"
        self._open[event.choice, event.index] = _Open(before, after, self._end)
        return out

    def _special(self, event: Delta, part: _Open) -> bytes:
        """A text with logprobs, or the last one of its choice."""
        chunk = part.before + encode(event.text) + part.after
        logprobs = b"null"
        if event.logprobs is not None and self._chat:
            logprobs = b'{"content":' + bytes(event.logprobs) + b"}"
        elif event.logprobs is not None:
            offset = self._offsets.get(event.choice, 0)
            self._offsets[event.choice] = offset + len(event.text)
            logprobs = encode(replies.text_logprobs((event.logprobs,), offset))
        if not event.last:
            return self._chunk(chunk, logprobs)
        self._held[event.choice] = (chunk, logprobs)
        return b""

    def _finish(self, event: Finish) -> bytes:
        chunk, logprobs = self._held.pop(event.choice, (b"", b"null"))
        if not chunk:
            empty = b'"delta":{"content":""}' if self._chat else b'"text":""'
            chunk = b'%b{"index":%d,%b' % (self._head, event.choice, empty)
        return self._chunk(chunk, logprobs, encode(event.reason), encode(_stop(event.stop_sequence)))

    def _usage(self, usage: Usage) -> bytes:
        return self._frame(self._head + b'],"usage":' + encode(_usage(usage)) + b"}\n\n")
