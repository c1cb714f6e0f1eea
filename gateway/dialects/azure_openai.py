"""Azure OpenAI: OpenAI's bodies under Azure's paths, where the path names the deployment.

Sources: Microsoft's reference; openai-python 3.54 and openai-node 6.49 (`AzureOpenAI`), langchain-openai 1.7, the AI
SDK's azure provider, azure-ai-inference 1.0.0b9 and LiteLLM 1.106 as recorded clients (docs/dialects/azure_openai.md).
"""

from __future__ import annotations

from functools import partial

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, Tables, rows
from gateway.core.http import Request, Response, Route
from gateway.core.messages import AnsweredFromStore, Extra, Generate, ListModels, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api, Errors, listing
from gateway.dialects._shared.faults import add_header_once, unsupported
from gateway.wire.openai import media, operations
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.requests.fields import EXAMPLES
from gateway.wire.openai.requests.fields import FIELDS as OPENAI_FIELDS
from gateway.wire.openai.streams import passthrough
from gateway.wire.openai.streams.writing import OpenAIStreamWriter

_RETRIEVAL = ("data_sources", "dataSources", "enhancements")
_NOT_HERE = "Azure's own retrieval and vision: nothing behind us does it"
_REFUSED = rows("refused", _NOT_HERE, **{name: [{"type": "x"}] for name in _RETRIEVAL})
FIELDS: Tables = {
    **OPENAI_FIELDS,
    "chat": (*OPENAI_FIELDS["chat"], *_REFUSED),
    **media.FIELDS,
}

ERRORS: Errors = {
    **refusals.ERRORS,
    Kind.UNAUTHENTICATED: (401, "authentication_error", "401"),
    Kind.NO_MODEL: (404, "invalid_request_error", "DeploymentNotFound"),
}
"""OpenAI's table, with Azure's codes for an unknown key and an unknown deployment."""

# If a reply asks for a longer wait, openai-python 3 does not retry at all.
_LONGEST_WAIT_S = 120.0
# The longest request id of a client that is returned.
_MOST_ID_BYTES = 128

_error_event = partial(refusals.error_event, errors=ERRORS)


_DEPLOYED = "/deployments/{deployment}"
_BASE_PATHS = ("", _DEPLOYED, "/v1" + _DEPLOYED)


def _everywhere(path: str, name: str) -> tuple[Route, ...]:
    """The paths of one operation: without a deployment, and with one, under both of Azure's prefixes."""
    return tuple(Route("POST", base + path, name) for base in _BASE_PATHS)


class AzureOpenAI(Api):
    """The dialect `azure_openai`. `/openai/v1/...` without a deployment is OpenAI's own API, not this one."""

    name = "azure_openai"
    prefixes = ("/openai",)
    extras: ExtrasPolicy = "pass"
    routes = (
        *_everywhere("/chat/completions", "chat"),
        *_everywhere("/completions", "complete"),
        *_everywhere("/embeddings", "embed"),
        *[one for base in _BASE_PATHS for one in media.routes(base)],
        Route("GET", "/models", "models"),
        Route("GET", "/models/{model:path}", "model"),
    )
    fields, examples, errors = FIELDS, {**EXAMPLES, **media.EXAMPLES}, ERRORS
    key_header = b"api-key"
    passthrough = {"openai": passthrough.Passthrough(_error_event)}
    answered = {"models": listing(operations.write_models), "model": listing(operations.write_model)}
    write = staticmethod(operations.write)

    def read_once(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        if request.route in media.PATHS:
            self.accompany(request)
            return media.read(request, self.known[request.route], self.extras)
        return super().read_once(request)

    def read_body(self, request: Request, raw: Extra) -> Op:
        for name in _RETRIEVAL:
            if name in raw:
                raise unsupported(name, "is not supported here")
        operations.name_deployment(request, raw)
        return operations.read(request, raw, request.route, self.known[request.route], self.extras)

    def writer(self, op: Generate) -> StreamWriter:
        return OpenAIStreamWriter(op, _error_event)

    @staticmethod
    def refusal(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
        if error.kind is Kind.LIMITED and (error.retry_after or 0.0) > _LONGEST_WAIT_S and error.upstream is None:
            cut = f"`Retry-After` is {_LONGEST_WAIT_S:g} s, the longest that this API's clients wait for"
            error.message = f"{error.message}; {cut}"
        return refusals.refusal(error, ERRORS, _LONGEST_WAIT_S)

    def accompany(self, request: Request) -> None:
        """Adds the headers under which Azure's clients log the id of a request: Azure's own, and the client's."""
        add_header_once(request, b"apim-request-id", request.id.encode())
        own = request.header(b"x-ms-client-request-id")
        if own is not None and 0 < len(own) <= _MOST_ID_BYTES and own.isascii() and own.decode().isprintable():
            add_header_once(request, b"x-ms-client-request-id", own)
