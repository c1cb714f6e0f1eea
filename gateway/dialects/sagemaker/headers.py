"""Request headers: those that name the model, those returned with every reply, and those that are ignored."""

from __future__ import annotations

import re

from gateway.core.http import Request

# Headers that may name the model, the most specific first.
_HINTS = (
    b"x-amzn-sagemaker-target-model",
    b"x-amzn-sagemaker-inference-component",
    b"x-amzn-sagemaker-adapter-identifier",
)
# Headers that are returned with every reply if they are safe there -> the longest value that AWS allows.
_ECHOED = {b"x-amzn-sagemaker-custom-attributes": 1024, b"x-amzn-sagemaker-inference-id": 64}
# Headers for features that the gateway does not have. The reply names them as dropped.
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
_PRINTABLE = re.compile(rb"[\x20-\x7e]+\Z")


def is_aws(request: Request) -> bool:
    """True if the path is one that boto3 calls, or an unknown path that looks like one."""
    return request.route.startswith("endpoint") or (not request.route and "/endpoints/" in request.path)


def accompany(request: Request) -> None:
    """Sets the headers that every reply to `request` carries."""
    reply = [
        (name, value)
        for name, value in request.headers
        if name in _ECHOED and len(value) <= _ECHOED[name] and _PRINTABLE.match(value)
    ]
    if is_aws(request):
        reply.append((b"x-amzn-requestid", request.id.encode()))
    request.reply = reply


def read_headers(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names that may be the model's, names of ignored headers)."""
    found = {name: value for name, value in request.headers if name.startswith(b"x-amzn-sagemaker-")}
    hints = [found[name].decode("latin-1") for name in _HINTS if name in found]
    if "name" in request.params:
        hints.append(request.params["name"])
    return tuple(hints), tuple(_IGNORED[name] for name in found if name in _IGNORED)
