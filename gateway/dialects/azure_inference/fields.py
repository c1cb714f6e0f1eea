"""The field table: the handling of each field of a request to Azure AI Model Inference."""

from __future__ import annotations

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row
from gateway.wire.openai.requests.fields import TOOLS, mapped

_VERSION = "query: YYYY-MM-DD or YYYY-MM-DD-preview; required unless `default_api_version` is configured"
_EXTRAS = "header: pass-through, ignore (also drop) or error, which is the default"
_DEPLOYMENT = "header, percent-encoded UTF-8; names the pool"
_MODEL = model_row("names the pool; the header azureml-model-deployment comes first")
_AROUND = (
    Field("api-version", "consumed", "2024-05-01", _VERSION, where="query", probe="soon"),
    Field("extra-parameters", "consumed", "ignore", _EXTRAS, where="header", probe="loud"),
    Field("azureml-model-deployment", "consumed", "other", _DEPLOYMENT, where="header", names_model=True),
)

FIELDS: Tables = {
    "chat": (
        *_AROUND,
        *mapped("messages"),
        *mapped("frequency_penalty", note="0 is sent when absent"),
        *mapped("max_tokens"),
        _MODEL,
        *mapped("presence_penalty", note="0 is sent when absent"),
        *mapped("response_format", note="type text is not sent"),
        *mapped("seed"),
        *mapped("stop", note="sent as an array"),
        *mapped("stream"),
        *mapped("temperature", note="1 is sent when absent"),
        *TOOLS[:2],
        *mapped("top_p", note="1 is sent when absent"),
    ),
    "embed": (
        *_AROUND,
        Field("input", "mapped", ["hi"]),
        _MODEL,
        Field("dimensions", "mapped", 8),
        Field("encoding_format", "mapped", "float", "float and base64; 422 to others"),
        Field("input_type", "refused", "query", "422, unless it is text, which is what a worker assumes"),
    ),
}
QUERY = b"api-version=2024-05-01-preview"
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, QUERY, ends=b"data: [DONE]"),),
    "embed": (Example("embed", {"input": [WORDS]}, QUERY, streams="never"),),
}
