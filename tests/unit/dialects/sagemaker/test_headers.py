"""Headers of requests to the dialect `sagemaker`."""

from __future__ import annotations

import pytest

from gateway.core.errors import GatewayError, Kind
from tests.unit.dialects.sagemaker.exchange import DIALECT, ENDPOINT, RAW, read, request


def test_names_of_the_model_beside_the_body() -> None:
    headers = [
        (b"x-amzn-sagemaker-inference-component", b"component"),
        (b"x-amzn-sagemaker-target-model", b"target"),
        (b"x-amzn-sagemaker-adapter-identifier", b"adapter"),
    ]
    assert read({"prompt": "x"}, ENDPOINT, headers, "a/b").model_hints == ("target", "component", "adapter", "a/b")
    assert read({"prompt": "x"}).model_hints == ()


def test_headers_without_an_effect_are_named() -> None:
    headers = [
        (b"x-amzn-sagemaker-session-id", b"NEW_SESSION"),
        (b"x-amzn-sagemaker-target-variant", b"v1"),
        (b"x-amzn-sagemaker-accept", b"text/event-stream"),
    ]
    assert read({"prompt": "x"}, RAW, headers).dropped == (
        "X-Amzn-SageMaker-Session-Id",
        "X-Amzn-SageMaker-Target-Variant",
    )


@pytest.mark.parametrize(
    ("name", "value", "comes_back"),
    [
        (b"x-amzn-sagemaker-custom-attributes", b"trace=1, b", True),
        (b"x-amzn-sagemaker-custom-attributes", b"x" * 1024, True),
        (b"x-amzn-sagemaker-custom-attributes", b"x" * 1025, False),
        (b"x-amzn-sagemaker-custom-attributes", b"caf\xc3\xa9", False),
        (b"x-amzn-sagemaker-custom-attributes", b"a\tb", False),
        (b"x-amzn-sagemaker-custom-attributes", b"", False),
        (b"x-amzn-sagemaker-inference-id", b"inf-1", True),
        (b"x-amzn-sagemaker-inference-id", b"x" * 65, False),
        (b"x-amzn-sagemaker-target-model", b"m", False),
    ],
)
def test_headers_that_come_back(name: bytes, value: bytes, comes_back: bool) -> None:
    asked = request({"prompt": "x"}, RAW, [(name, value)])
    DIALECT.read(asked)
    assert asked.reply == ([(name, value)] if comes_back else [])
    refused = request({}, ENDPOINT, [(name, value)])
    DIALECT.refuse(GatewayError(Kind.BAD_REQUEST, "x"), refused, None)[0]
    assert refused.reply == [*([(name, value)] if comes_back else []), (b"x-amzn-requestid", b"req-1")]
