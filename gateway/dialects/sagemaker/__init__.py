"""SageMaker: a model container's `/invocations` and `/ping`, and the endpoints that boto3's `sagemaker-runtime` calls.

Sources: the SageMaker output specification; the container contract of the SageMaker documentation; boto3 1.44.5 as
recorded client. Decisions that those leave open: docs/dialects/sagemaker.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Response, Route
from gateway.core.messages import Chat, Complete, Extra, ModelCard, Op
from gateway.dialects._shared.api import Api, listing
from gateway.dialects.sagemaker.errors import refuse
from gateway.dialects.sagemaker.fields import EXAMPLES, FIELDS, MAX_PROMPTS
from gateway.dialects.sagemaker.headers import accompany, read_headers
from gateway.dialects.sagemaker.replies import ChunkWriter, write
from gateway.wire.json import bad_value, check_depth, encode, missing
from gateway.wire.openai.requests import reading as requests
from gateway.wire.openai.requests.views import CHAT_MEMBERS, TEXT_MEMBERS


def _ping(cards: Sequence[ModelCard]) -> Response:
    """Whether a model can answer."""
    return Response(200 if any(card.ready for card in cards) else 503)


class SageMaker(Api):
    name = "sagemaker"
    prefixes = ("/sagemaker",)
    extras: ExtrasPolicy = "pass"
    routes = (
        Route("POST", "/invocations", "invocations"),
        Route("GET", "/ping", "ping", open=True),
        # Clients of a container call paths at its root.
        Route("POST", "/invocations", "invocations", absolute=True),
        Route("GET", "/ping", "ping", absolute=True, open=True),
        # boto3 escapes a slash in the name. The path is decoded before routing.
        Route("POST", "/endpoints/{name:path}/invocations", "endpoint"),
        Route("POST", "/endpoints/{name:path}/invocations-response-stream", "endpoint_stream"),
    )
    fields, examples = FIELDS, EXAMPLES
    answered = {"ping": listing(_ping)}
    any_type = True  # boto3 sends none unless its caller sets one
    accompany = staticmethod(accompany)
    refusal = staticmethod(refuse)
    write_reply = staticmethod(write)
    writer = staticmethod(ChunkWriter)

    def read_body(self, request: Request, raw: Extra) -> Op:
        if ("messages" in raw) == ("prompt" in raw):
            if "prompt" in raw:
                raise bad_value("prompt", "'messages' and 'prompt' exclude each other")
            message = "cannot find a suitable handler for this request: give 'messages' (chat) or 'prompt' (text)"
            raise missing("messages", message)
        operation = "chat" if "messages" in raw else "complete"
        _, dropped = self.settle(raw, operation)
        canonical = CHAT_MEMBERS if operation == "chat" else TEXT_MEMBERS
        extra = {name: value for name, value in raw.items() if name not in canonical}
        check_depth(extra)
        if request.route == "endpoint_stream":
            raw["stream"] = Raw(b"true")
        body = encode(raw) if request.route == "endpoint_stream" or dropped else request.body
        hints, ignored = read_headers(request)
        read = requests.read_chat if operation == "chat" else requests.read_text
        op: Chat | Complete = read(body, raw, extra, (*dropped, *ignored), self.extras)
        if isinstance(op, Complete) and len(op.prompts) > MAX_PROMPTS:
            message = f"'prompt' must hold at most {MAX_PROMPTS} prompts"
            raise GatewayError(Kind.BAD_REQUEST, message, param="prompt", code="too_many")
        op.model_hints, op.view = hints, request.route
        return op
