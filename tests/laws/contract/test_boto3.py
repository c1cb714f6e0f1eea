"""The unmodified boto3 client `sagemaker-runtime` against a gateway with a simulated worker: what it gives and raises.

Every request here is signed and verified, unless the test is about another way to say who is calling.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError, ResponseStreamingError

from gateway.auth import Keyring, PendingAuth
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from tests.support.harness import Stack

ACCESS_KEY, SECRET, BEARER = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "sk-a-bearer-key"
CONFIG = {
    "auth": "keys",
    "keys": {
        "notebooks": {"aws_access_key_id": ACCESS_KEY, "aws_secret_env": "SECRET", "priority": 1},
        "bearer": {"hash": "sha256:" + sha256(BEARER.encode()).hexdigest()},
        "no-sagemaker": {
            "aws_access_key_id": "AKIDFORBIDDEN",
            "aws_secret_env": "SECRET",
            "dialects": ["openai"],
        },
    },
    "dialects": {"sagemaker": {"default_model": "m"}},
    "deadlines": {"idle_s": 0.5},
}
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"models": ("sim", "sim-2")},), CONFIG, environ={"SECRET": SECRET}) as running:
        other = {"backend": "vllm", "upstream_model": "sim-2", "aliases": ["org/other"], "workers": [running.sim.url]}
        running.run(running.gateway.reload(running.config({"models": {"other": other}})))
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[boto3.Session]:
    """Without whatever this machine's user has configured for AWS."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")
        patch.delenv("AWS_PROFILE", raising=False)
        yield boto3.Session(region_name="eu-west-1")


@pytest.fixture
def make(session: boto3.Session, stack: Stack) -> Iterator[Make]:
    """Makes clients; they make one attempt, unless told otherwise."""
    made = []

    def client(
        secret: str = SECRET, access_key: str = ACCESS_KEY, base: str = "/sagemaker", attempts: int = 1, **config: Any
    ) -> Any:
        found = session.client(
            "sagemaker-runtime",
            endpoint_url=stack.url + base,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=20, **config),
        )
        made.append(found)
        return found

    yield client
    for one in made:
        one.close()


@pytest.fixture
def client(make: Make) -> Any:
    return make()


def body(script: dict[str, Any] | None = None, **members: Any) -> bytes:
    """A chat; `script` is what the simulated worker says exactly."""
    content = "hi" if script is None else "sim:" + json.dumps(script)
    return json.dumps({"messages": [{"role": "user", "content": content}], **members}).encode()


def events(reply: Any) -> list[bytes]:
    """What a streamed reply holds, part by part."""
    return [event["PayloadPart"]["Bytes"] for event in reply["Body"]]


def asked(stack: Stack) -> str:
    """The model that the worker was asked for last."""
    return str(json.loads(stack.sim.entries[-1].body)["model"])


def text_of(parts: list[bytes]) -> str:
    """As in AWS's own samples: lines over part boundaries."""
    lines = b"".join(parts).split(b"\n")
    data = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data)


# ---- invoke_endpoint


@pytest.mark.parametrize("base", ["/sagemaker", "/sagemaker/"])
def test_a_chat_without_content_type(make: Make, base: str) -> None:
    reply = make(base=base).invoke_endpoint(EndpointName="ep", Body=body({"text": "Grüezi 👋🏽"}))
    assert reply["ContentType"] == "application/json"
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    assert reply["ResponseMetadata"]["RequestId"] == reply["ResponseMetadata"]["HTTPHeaders"]["x-request-id"]
    found = json.loads(reply["Body"].read())
    assert found["choices"][0]["message"]["content"] == "Grüezi 👋🏽"
    assert found["model"] == "/opt/ml/model"
    assert found["id"] == "chatcmpl-" + reply["ResponseMetadata"]["RequestId"]


def test_text_with_every_header_that_the_client_knows(client: Any, stack: Stack) -> None:
    reply = client.invoke_endpoint(
        EndpointName="ep",
        Body=json.dumps({"prompt": ["a", "b"], "max_tokens": 2}).encode(),
        ContentType="application/json",
        Accept="application/json",
        CustomAttributes="trace=1",
        TargetModel="other",
        TargetVariant="v1",
        TargetContainerHostname="host",
        InferenceId="inf-1",
        InferenceComponentName="component",
        EnableExplanations="`true`",
        SessionId="NEW_SESSION",
    )
    assert [choice["index"] for choice in json.loads(reply["Body"].read())["choices"]] == [0, 1]
    assert reply["CustomAttributes"] == "trace=1"
    headers = reply["ResponseMetadata"]["HTTPHeaders"]
    assert headers["x-amzn-sagemaker-inference-id"] == "inf-1"
    assert set(headers["x-dragoman-dropped"].split(", ")) == {
        "X-Amzn-SageMaker-Enable-Explanations",
        "X-Amzn-SageMaker-Session-Id",
        "X-Amzn-SageMaker-Target-Container-Hostname",
        "X-Amzn-SageMaker-Target-Variant",
    }
    assert asked(stack) == "sim-2"


@pytest.mark.parametrize(
    ("name", "model"), [("ep", "sim"), ("other", "sim-2"), ("org/other", "sim-2"), ("a b%2Fc/ü", "sim")]
)
def test_the_endpoint_name_selects_a_model_if_it_is_one(client: Any, stack: Stack, name: str, model: str) -> None:
    reply = client.invoke_endpoint(EndpointName=name, Body=body(max_tokens=1))
    assert json.loads(reply["Body"].read())["object"] == "chat.completion"
    assert asked(stack) == model


def test_a_streaming_body_through_the_plain_operation(client: Any) -> None:
    reply = client.invoke_endpoint(EndpointName="ep", Body=body({"text": "one two"}, stream=True))
    assert reply["ContentType"] == "text/event-stream"
    assert text_of([reply["Body"].read()]) == "one two"


def test_a_streaming_body_that_is_cut_off(client: Any) -> None:
    script = {"pieces": [" a"] * 5, "fault": "stall@3"}
    reply = client.invoke_endpoint(EndpointName="ep", Body=body(script, stream=True, max_tokens=100))
    with contextlib.closing(reply["Body"]) as stream, pytest.raises(ResponseStreamingError):
        stream.read()


# ---- invoke_endpoint_with_response_stream


@pytest.mark.parametrize("members", [{}, {"stream": True}, {"stream": False}])
def test_a_stream_of_200_chunks(client: Any, members: dict[str, Any]) -> None:
    pieces = [f" word{number}" for number in range(200)]
    reply = client.invoke_endpoint_with_response_stream(
        EndpointName="ep", Body=body({"pieces": pieces}, max_tokens=4000, **members), CustomAttributes="k=v"
    )
    assert (reply["ContentType"], reply["CustomAttributes"]) == ("text/event-stream", "k=v")
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    parts = events(reply)
    assert len(parts) == 203  # the role before, the finish and the terminal mark after them
    assert all(part.startswith(b"data: ") and part.endswith(b"}\n\n") for part in parts[:-1])
    assert parts[-1] == b"data: [DONE]\n\n"
    assert text_of(parts) == "".join(pieces)


def test_the_usage_chunk_when_asked_for(client: Any) -> None:
    reply = client.invoke_endpoint_with_response_stream(
        EndpointName="ep", Body=body({"text": "one"}, stream_options={"include_usage": True})
    )
    assert json.loads(events(reply)[-2][6:])["usage"]["completion_tokens"] == 2


def test_a_worker_that_falls_silent_raises_in_the_middle_of_the_stream(client: Any) -> None:
    reply = client.invoke_endpoint_with_response_stream(
        EndpointName="ep", Body=body({"pieces": [" a"] * 5, "fault": "stall@3"}, max_tokens=100)
    )
    parts: list[bytes] = []
    with contextlib.closing(reply["Body"]) as stream, pytest.raises(EventStreamError, match="ModelStreamError"):
        parts.extend(event["PayloadPart"]["Bytes"] for event in stream)
    assert text_of(parts) == " a a a"
    assert b"[DONE]" not in b"".join(parts)


def test_a_stream_cut_off_by_the_gateway_raises_another_error(client: Any, stack: Stack) -> None:
    reply = client.invoke_endpoint_with_response_stream(
        EndpointName="ep", Body=body({"pieces": [" a"] * 5, "fault": "stall@1"}, max_tokens=100)
    )
    stream = iter(reply["Body"])
    assert next(stream)

    async def end() -> None:
        for run in list(stack.gateway.deployment.runtime.active.requests):
            run.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down"))

    stack.run(end())
    with pytest.raises(EventStreamError, match=r"InternalStreamFailure.*shutting down"):
        list(stream)
    reply["Body"].close()


@pytest.mark.parametrize("end", ["fin", "eof", "reset", "error-frame"])
@pytest.mark.parametrize("tokens", range(6))
def test_a_stream_cut_anywhere_never_looks_complete(client: Any, end: str, tokens: int) -> None:
    """Before the first byte was sent it is a ModelError, after it an EventStreamError, which is a ClientError too."""
    script = {"pieces": [" a"] * 5, "fault": f"{end}@{tokens}"}

    def consume() -> None:
        reply = client.invoke_endpoint_with_response_stream(EndpointName="ep", Body=body(script, max_tokens=100))
        with contextlib.closing(reply["Body"]) as stream:
            list(stream)

    with pytest.raises(ClientError, match=r"ModelError|ModelStreamError"):
        consume()


def test_a_client_that_stops_reading_stops_the_worker(client: Any, stack: Stack) -> None:
    aborted = stack.sim.ledger.aborted
    reply = client.invoke_endpoint_with_response_stream(
        EndpointName="ep", Body=body({"pieces": [" a"] * 5, "fault": "stall@2"}, max_tokens=100)
    )
    assert next(iter(reply["Body"]))
    reply["Body"].close()
    stack.run(stack.sim.ledger.wait(aborted=aborted + 1))


# ---- errors


def error_of(call: Callable[..., Any], **arguments: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call(EndpointName="ep", **arguments)
    return caught.value


def code_of(error: ClientError) -> tuple[str, int]:
    return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_wrong_request_is_a_validation_error(client: Any) -> None:
    for call in (client.invoke_endpoint, client.invoke_endpoint_with_response_stream):
        for wrong in (b"", b"{}", b"no JSON", body(prompt="x"), body(temperature="hot"), body(model="nobody")):
            error = error_of(call, Body=wrong)
            assert isinstance(error, client.exceptions.ValidationError)
            assert code_of(error) == ("ValidationError", 400)
            assert error.response["Error"]["Message"]
            assert error.response["ResponseMetadata"]["RequestId"]


@pytest.mark.parametrize(
    ("fault", "original"), [("status:400", 400), ("status:422", 422), ("status:500", 500), ("fin", 502), ("html", 502)]
)
@pytest.mark.parametrize("operation", ["invoke_endpoint", "invoke_endpoint_with_response_stream"])
def test_a_failing_model_is_a_model_error(client: Any, operation: str, fault: str, original: int) -> None:
    error = error_of(getattr(client, operation), Body=body({"text": "a", "fault": fault}))
    assert isinstance(error, client.exceptions.ModelError)
    assert code_of(error) == ("ModelError", 424)
    response: Any = error.response
    assert response["OriginalStatusCode"] == original
    assert json.loads(response["OriginalMessage"])["error"]["message"] in response["Error"]["Message"]
    assert response["LogStreamArn"] == ""


def test_a_busy_worker_is_an_unavailable_service(client: Any) -> None:
    error = error_of(client.invoke_endpoint, Body=body({"text": "a", "fault": "status:503"}))
    assert isinstance(error, client.exceptions.ServiceUnavailable)
    assert code_of(error) == ("ServiceUnavailable", 503)


@pytest.fixture
def limited(stack: Stack) -> Iterator[list[float]]:
    """Refuses requests, one for each number, as over a limit, with that many seconds to wait."""
    runtime, waits = stack.gateway.deployment.runtime, list[float]()
    callers = runtime.callers

    def refusing(headers: Headers, dialect: str, scope: object) -> PendingAuth:
        if waits:
            raise GatewayError(Kind.LIMITED, "too many requests", retry_after=waits.pop(0))
        return callers.identify(headers, dialect, None)

    runtime.callers = callers._replace(identify=refusing)
    yield waits
    runtime.callers = callers


def test_throttling(client: Any, limited: list[float]) -> None:
    limited.append(60.0)
    error = error_of(client.invoke_endpoint, Body=body())
    assert code_of(error) == ("ThrottlingException", 429)
    assert error.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-retry-after"] == "60000"


def test_a_throttled_client_waits_as_long_as_it_is_told(make: Make, limited: list[float]) -> None:
    """Left to itself it would wait up to 2 s the second time."""
    limited += [0.2, 0.3]
    began = time.monotonic()
    reply = make(attempts=3).invoke_endpoint(EndpointName="ep", Body=body(max_tokens=1))
    assert reply["Body"].read()
    assert reply["ResponseMetadata"]["RetryAttempts"] == 2
    assert time.monotonic() - began >= 0.5


# ---- who is calling


def test_a_wrong_secret(make: Make) -> None:
    error = error_of(make(secret="wrong").invoke_endpoint, Body=body())
    assert code_of(error) == ("InvalidSignatureException", 403)
    assert "does not match" in error.response["Error"]["Message"]


def test_an_unknown_access_key(make: Make) -> None:
    error = error_of(make(access_key="AKIDNOBODY").invoke_endpoint, Body=body())
    assert code_of(error) == ("UnrecognizedClientException", 403)


def test_a_pair_that_may_not_speak_this_dialect(make: Make) -> None:
    error = error_of(make(access_key="AKIDFORBIDDEN").invoke_endpoint, Body=body())
    assert code_of(error) == ("AccessDeniedException", 403)


@pytest.mark.parametrize("off", [-3600, 3600])
def test_a_clock_that_is_wrong(make: Make, stack: Stack, off: int) -> None:
    runtime = stack.gateway.deployment.runtime
    callers = runtime.callers
    ring = Keyring(stack.gateway.deployment.config, lambda: time.time() + off)
    runtime.callers = callers._replace(identify=ring.identify)
    try:
        error = error_of(make().invoke_endpoint, Body=body())
    finally:
        runtime.callers = callers
    assert code_of(error) == ("InvalidSignatureException", 403)
    assert ("expired" if off > 0 else "not yet current") in error.response["Error"]["Message"]


def test_unsigned_with_a_bearer_key(make: Make) -> None:
    client = make(signature_version=UNSIGNED)
    assert code_of(error_of(client.invoke_endpoint, Body=body())) == ("MissingAuthenticationTokenException", 403)
    key = "wrong"

    def show(request: Any, **_: Any) -> None:
        request.headers["Authorization"] = f"Bearer {key}"

    client.meta.events.register("before-send.sagemaker-runtime", show)
    assert code_of(error_of(client.invoke_endpoint, Body=body())) == ("AccessDeniedException", 403)
    key = BEARER
    reply = client.invoke_endpoint(EndpointName="ep", Body=body({"text": "in"}))
    assert json.loads(reply["Body"].read())["choices"][0]["message"]["content"] == "in"
    parts = events(client.invoke_endpoint_with_response_stream(EndpointName="ep", Body=body({"text": "in"})))
    assert text_of(parts) == "in"


def test_a_signed_request_that_was_changed_on_its_way(make: Make, stack: Stack) -> None:
    seen: list[Any] = []
    client = make()
    client.meta.events.register("before-send.sagemaker-runtime", lambda request, **_: seen.append(request))
    client.invoke_endpoint(EndpointName="ep", Body=body(max_tokens=1))["Body"].read()
    (sent,) = seen
    headers = {name: value for name, value in sent.headers.items() if name.lower() != "content-length"}
    again = httpx.post(sent.url, content=sent.body, headers=headers)
    assert again.status_code == 200  # within 5 min a request can be sent again, as with AWS
    for url, content in ((sent.url, sent.body + b" "), (sent.url.replace("/ep/", "/other/"), sent.body)):
        reply = httpx.post(url, content=content, headers=headers)
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (403, "InvalidSignatureException")
