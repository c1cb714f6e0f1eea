"""OpenAI's Responses API, streamed and whole; the count of a prompt's tokens.

Sources: OpenAI's reference; openai-python 3.54, openai-node 6.49 and 7.57, openai-agents 0.24, langchain-openai 1.7,
the AI SDK and Codex CLI 0.169 as recorded clients (docs/dialects/responses.md).
"""

from __future__ import annotations

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Route
from gateway.core.messages import AnsweredFromStore, Generate, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api
from gateway.dialects.responses import kept, replies, streams
from gateway.dialects.responses.fields import EXAMPLES, FIELDS, KNOWN
from gateway.dialects.responses.replies import NO_SOCKET, refuse
from gateway.dialects.responses.requests import Given, read_chat, read_count
from gateway.wire.json import members, require_json, settle_unknown, whole_numbers
from gateway.wire.openai.operations import name_deployment
from gateway.wire.openai.requests.constraints import CONSTRAINTS
from gateway.wire.sealed import Seal


class Responses(Api):
    """The dialect `responses`. No passthrough lane: no backend's workers speak this wire."""

    name = "responses"
    prefixes = ("", "/openai")
    routes = (
        Route("POST", "/v1/responses", "chat"),
        Route("POST", "/v1/responses/input_tokens", "count"),
        # Azure's path without a version; the one with it is that of the prefix /openai.
        Route("POST", "/openai/responses", "chat", absolute=True),
        # Codex and `client.responses.connect()` try a web socket first, and then POST.
        Route("GET", "/v1/responses", "socket"),
        Route("POST", "/v1/responses/compact", "compact"),
        # Stored responses. Azure's clients ask for them without a version, too.
        Route("GET", "/v1/responses/{response}", "stored"),
        Route("DELETE", "/v1/responses/{response}", "forget"),
        Route("GET", "/v1/responses/{response}/input_items", "asked"),
        Route("POST", "/v1/responses/{response}/cancel", "cancel"),
        Route("GET", "/openai/responses/{response}", "stored", absolute=True),
        Route("DELETE", "/openai/responses/{response}", "forget", absolute=True),
        Route("GET", "/openai/responses/{response}/input_items", "asked", absolute=True),
        Route("POST", "/openai/responses/{response}/cancel", "cancel", absolute=True),
        Route("POST", "/openai/responses/compact", "compact", absolute=True),
        # The AI SDK's `useDeploymentBasedUrls`.
        Route("POST", "/openai/deployments/{deployment}/responses", "chat", absolute=True),
        Route("POST", "/openai/v1/deployments/{deployment}/responses", "chat", absolute=True),
    )
    fields, examples = FIELDS, EXAMPLES
    refuse = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_count = staticmethod(replies.write_count)

    @whole_numbers
    def read(self, request: Request) -> Op | AnsweredFromStore:
        if request.route == "socket":
            message = "web sockets are not served here: use POST"
            raise GatewayError(Kind.NO_METHOD, message, code=NO_SOCKET)
        if request.route == "compact":
            message = "not served here: send the conversation to /v1/responses, with a compaction_trigger as last item"
            raise GatewayError(Kind.UNSUPPORTED, message)
        if request.route in kept.ROUTES:
            return kept.read(request)
        require_json(request)
        raw = members(request)
        name_deployment(request, raw)
        binding = CONSTRAINTS.get(request.route, ())
        extra, dropped = settle_unknown(raw, KNOWN[request.route], self.extras, binding=binding)
        given = Given(Seal(request.sealing, b"reasoning"), request.stored)
        if request.route == "count":
            return read_count(raw, extra, dropped, self.extras, given)
        return read_chat(raw, extra, dropped, self.extras, request.id, given)

    def writer(self, op: Generate) -> StreamWriter:
        return streams.StreamWriter(op)
