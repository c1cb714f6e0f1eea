"""The field table: the handling of each field of a request to Azure AI Model Inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.fields import WORDS, Example, Examples, Field, body_members
from gateway.dialects._shared.rows import model_row
from gateway.wire.openai.requests.fields import TOOLS, mapped

_MODEL = model_row("names the pool; the header azureml-model-deployment comes first")
_DEPLOYMENT = Field(
    "azureml-model-deployment",
    "consumed",
    note="header, percent-encoded UTF-8; names the pool",
    sample="other",
    where="header",
    names_model=True,
)
_VERSION = Field(
    "api-version",
    "consumed",
    note="query: YYYY-MM-DD or YYYY-MM-DD-preview; required unless `default_api_version` is configured",
    sample="2024-05-01",
    where="query",
    probe="soon",
)
_EXTRAS = Field(
    "extra-parameters",
    "consumed",
    note="header: pass-through, ignore (also drop) or error, which is the default",
    sample="ignore",
    where="header",
    probe="loud",
)

FIELDS: Mapping[str, Sequence[Field]] = {
    "chat": (
        _VERSION,
        _EXTRAS,
        _DEPLOYMENT,
        *mapped("messages", note="role developer becomes system"),
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
        _VERSION,
        _EXTRAS,
        _DEPLOYMENT,
        Field("input", "mapped", sample=["hi"]),
        _MODEL,
        Field("dimensions", "mapped", sample=8),
        Field("encoding_format", "mapped", note="float and base64; 422 to others", sample="float"),
        Field("input_type", "refused", note="422, unless it is text, which is what a worker assumes", sample="query"),
    ),
}
KNOWN = body_members(FIELDS)
"""The names of the members of a body."""

QUERY = b"api-version=2024-05-01-preview"
EXAMPLES: Examples = {
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, QUERY, ends=b"data: [DONE]"),),
    "embed": (Example("embed", {"input": [WORDS]}, QUERY, streams="never"),),
}
"""The smallest valid requests."""
