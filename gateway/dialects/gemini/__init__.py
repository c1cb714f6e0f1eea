"""Gemini: Google's API for its models, as the Gemini API and Vertex AI have it: chats, counts, embeddings, models.

Sources: Google's reference and `googleapis` protos; google-genai 3.6 and 2.19 (Python), @google/genai 2.32 and 1.30
(Node), Gemini CLI 0.61 as recorded clients (docs/dialects/gemini.md).
"""

from __future__ import annotations

from gateway.core.http import HeaderTest, Request, Route
from gateway.core.messages import Extra, Op
from gateway.dialects._shared.api import Api
from gateway.dialects.gemini import models, replies
from gateway.dialects.gemini.errors import ERRORS, refuse
from gateway.dialects.gemini.fields import EXAMPLES, FIELDS
from gateway.dialects.gemini.requests import read

# Method of a model -> the name of its route.
_METHODS = {
    "generateContent": "generate",
    "streamGenerateContent": "stream",
    "countTokens": "count",
    "embedContent": "embed",
}
_GEMINI, _VERTEX = {**_METHODS, "batchEmbedContents": "embed_many"}, {**_METHODS, "predict": "predict"}
_BASE_PATHS = {
    "/v1beta": _GEMINI,
    "/v1": _GEMINI,
    **{
        f"{version}/{parent}": _VERTEX
        for version in ("/v1beta1", "/v1")
        # `p/locations/l/publishers/google` and `google`.
        for parent in ("projects/{place:path}", "publishers/{place:path}")
    },
}
# OpenAI's list of models is at the same path.
_OURS = HeaderTest(b"x-goog-api-client")


class Gemini(Api):
    """The dialect `gemini`. No passthrough lane: no backend's workers speak this wire."""

    name = "gemini"
    prefixes = ("", "/gemini")
    routes = (
        *(
            Route("POST", f"{base}/models/{{model:path}}:{method}", name)
            for base, methods in _BASE_PATHS.items()
            for method, name in methods.items()
        ),
        *(
            Route("GET", f"{base}/models{path}", name, when=_OURS if base == "/v1" else None)
            for base in _BASE_PATHS
            for path, name in (("", "models"), ("/{model:path}", "model"))
        ),
    )
    fields, examples, errors = FIELDS, EXAMPLES, ERRORS
    key_header = b"x-goog-api-key"
    key_query = b"key"
    lone_errors = True  # `@google/genai` reads what has come as one document
    answered = dict.fromkeys(("models", "model"), models.read_list)
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_embeddings = staticmethod(replies.write_embeddings)
    write_count = staticmethod(replies.write_count)
    writer = staticmethod(replies.StreamWriter)

    def read_body(self, request: Request, raw: Extra) -> Op:
        return read(request, raw, self)
