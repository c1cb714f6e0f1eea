"""Azure AI Model Inference: chat completions and embeddings, streamed and whole, and the model's card.

Sources: "Reference: Chat Completions" of 2024-05-03 (docs/dialects/azure_inference.md); azure-ai-inference 1.0.0b9 and
@azure-rest/ai-inference 1.0.0-beta.6 as recorded clients. Decisions where those two disagree are in the same document.
"""

from __future__ import annotations

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Route
from gateway.core.messages import AnsweredFromStore, Chat, Embed, Extra, Generate, ListModels, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api
from gateway.dialects.azure_inference import replies
from gateway.dialects.azure_inference.fields import EXAMPLES, FIELDS
from gateway.dialects.azure_inference.replies import ERRORS, error_event, refuse
from gateway.dialects.azure_inference.requests import check_version, deployment_of, policy_of, read_chat, read_embed
from gateway.wire.json import encode, settle_unknown
from gateway.wire.openai.requests.constraints import CONSTRAINTS
from gateway.wire.openai.streams.writing import OpenAIStreamWriter


class AzureInference(Api):
    """The dialect `azure_inference`. `api_version` is the default for requests without one; None refuses such
    requests.

    No passthrough lane: a worker's chunks have keys, finish reasons and framing that this API does not have.
    """

    name = "azure_inference"
    prefixes = ("/azure",)
    extras: ExtrasPolicy = "error"
    api_version: str | None = None
    routes = (
        Route("POST", "/chat/completions", "chat"),
        Route("POST", "/models/chat/completions", "chat"),
        Route("POST", "/embeddings", "embed"),
        Route("POST", "/models/embeddings", "embed"),
        Route("GET", "/info", "info"),
        Route("GET", "/models/info", "info"),
    )
    fields, examples, errors = FIELDS, EXAMPLES, ERRORS
    key_header = b"api-key"
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_embeddings = staticmethod(replies.write_embeddings)

    answered = {"info": lambda request: ListModels(write=replies.info, model=deployment_of(request), one=True)}

    def read_once(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        check_version(request, self.api_version)
        return super().read_once(request)

    def read_body(self, request: Request, raw: Extra) -> Op:
        policy = policy_of(request, self.extras)
        # A client that sends this header has asked for what it does.
        binding = CONSTRAINTS[request.route] if request.header(b"extra-parameters") is None else ()
        extra, dropped = settle_unknown(raw, self.known[request.route], policy, binding=binding)
        body = encode(raw) if dropped else request.body
        op: Chat | Embed = (
            read_chat(body, raw, extra, dropped, policy)
            if request.route == "chat"
            else read_embed(body, raw, extra, dropped)
        )
        op.model = deployment_of(request) or op.model
        return op

    def writer(self, op: Generate) -> StreamWriter:
        """Writes OpenAI's chunks, as the recorded clients expect: the specification has no schema for chunks."""
        return OpenAIStreamWriter(op, error_event)
