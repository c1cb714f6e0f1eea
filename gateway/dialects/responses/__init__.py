"""OpenAI's Responses API, streamed and whole; the count of a prompt's tokens.

Sources: OpenAI's reference; openai-python 3.54, openai-node 6.49 and 7.57, openai-agents 0.24, langchain-openai 1.7,
the AI SDK and Codex CLI 0.169 as recorded clients (docs/dialects/responses.md).
"""

from __future__ import annotations

from gateway.core.http import Request, Route
from gateway.core.messages import Extra, Op
from gateway.dialects._shared.api import Api
from gateway.dialects.responses import replies, streams
from gateway.dialects.responses.conversation import Given
from gateway.dialects.responses.fields import EXAMPLES, FIELDS
from gateway.dialects.responses.messages import Messages, take_envelope
from gateway.dialects.responses.replies import refuse, refuse_socket
from gateway.dialects.responses.requests import only_read, read_chat, read_compaction, read_count
from gateway.dialects.responses.stored import ROUTES, read_stored
from gateway.wire.openai.operations import name_deployment
from gateway.wire.sealed import Seal


def _everywhere(method: str, path: str, name: str) -> tuple[Route, ...]:
    """The paths of one operation. Azure's clients leave out the version."""
    return Route(method, f"/v1/responses{path}", name), Route(method, f"/openai/responses{path}", name, absolute=True)


class Responses(Api):
    """The dialect `responses`. No passthrough lane: no backend's workers speak this wire."""

    name = "responses"
    prefixes = ("", "/openai")
    routes = (
        *_everywhere("POST", "", "chat"),
        *_everywhere("POST", "/compact", "compact"),
        *_everywhere("GET", "/{response}", "stored"),
        *_everywhere("DELETE", "/{response}", "forget"),
        *_everywhere("GET", "/{response}/input_items", "asked"),
        *_everywhere("POST", "/{response}/cancel", "cancel"),
        Route("POST", "/v1/responses/input_tokens", "count"),
        # Codex and `client.responses.connect()`. Without a web socket they use POST.
        Route("GET", "/v1/responses", "socket", socket=True),
        Route("GET", "/openai/responses", "socket", absolute=True, socket=True),
        # The AI SDK's `useDeploymentBasedUrls`.
        Route("POST", "/openai/deployments/{deployment}/responses", "chat", absolute=True),
        Route("POST", "/openai/v1/deployments/{deployment}/responses", "chat", absolute=True),
    )
    fields, examples = FIELDS, EXAMPLES
    answered = {"socket": refuse_socket, **dict.fromkeys(ROUTES, read_stored)}
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_count = staticmethod(replies.write_count)
    writer = staticmethod(streams.writer)
    socket = Messages()

    def read_body(self, request: Request, raw: Extra) -> Op:
        generate = not request.message or take_envelope(raw)
        name_deployment(request, raw)
        extra, dropped = self.settle(raw, "count" if request.route == "count" else "chat")
        given = Given(Seal(request.sealing, b"reasoning"), request.stored, self.runs, request.lasts, request.message)
        if request.route == "count":
            return read_count(raw, extra, dropped, self.extras, given)
        if request.route == "compact":
            return read_compaction(raw, extra, dropped, self.extras, request.id, given)
        op = read_chat(raw, extra, dropped, self.extras, request.id, given)
        return op if generate else only_read(op)
