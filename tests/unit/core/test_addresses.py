"""Addresses of workers, as clients of OpenAI's API write them."""

from __future__ import annotations

import httpx
import pytest

from gateway import backends
from gateway.core.addresses import base_address
from tests.support.clients import CHAT
from tests.support.harness import Stack, load_text

URLS = {
    "http://a:8000/v1": "http://a:8000",
    "http://a:8000/v1/": "http://a:8000",
    "http://a:8000/": "http://a:8000",
    "http://a/base/v1": "http://a/base",
    "http://v1": "http://v1",
    "http://v1/v1": "http://v1",
    "http://a/v12": "http://a/v12",
    "http://a/v1/proxy": "http://a/v1/proxy",
}


@pytest.mark.parametrize("url", URLS)
def test_the_end_that_our_paths_begin_with_is_left_out(url: str) -> None:
    assert base_address(url) == URLS[url]
    assert base_address(URLS[url]) == URLS[url]


@pytest.mark.parametrize("backend", backends.REGISTRY)
@pytest.mark.parametrize("url", URLS)
def test_wherever_the_configuration_has_a_worker(url: str, backend: str) -> None:
    other = url.replace("://", "://p")
    prefill = f"    prefill: {{workers: ['{other}']}}\n" if backend == "vllm" else ""
    config = load_text(
        f"models:\n  m:\n    backend: {backend}\n    workers: ['{url}']\n{prefill}"
        f"    worker_options: {{'{url}': {{weight: 2}}}}\n"
    )
    model = config.models["m"]
    assert model.workers == (URLS[url],)
    assert set(model.worker_options) == {URLS[url]}
    assert model.prefill is None or model.prefill.workers == (URLS[url].replace("://", "://p"),)


@pytest.mark.parametrize("backend", ["vllm", "openai"])
def test_a_request_reaches_a_worker_that_is_written_so(backend: str) -> None:
    with Stack() as stack:
        config = {"models": {"m": {"backend": backend, "workers": [stack.sim.url + "/v1"], "upstream_model": "sim"}}}
        with Stack((), config) as other:
            reply = httpx.post(other.url + "/v1/chat/completions", json={"model": "m", **CHAT})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("endpoint", "sent_to"),
    [
        ("http://otel:4318", "http://otel:4318/v1/traces"),
        ("http://otel:4318/", "http://otel:4318/v1/traces"),
        ("http://otel:4318/v1", "http://otel:4318/v1/traces"),
        ("http://otel:4318/v1/traces", "http://otel:4318/v1/traces"),
        ("https://otel/custom", "https://otel/custom"),
        ("http://otel:4317/v1/traces", "http://otel:4317/v1/traces"),
    ],
)
def test_a_collector_without_a_path_is_completed(endpoint: str, sent_to: str) -> None:
    models = "models: {m: {backend: vllm, workers: ['http://a']}}\n"
    config = load_text(models + f"tracing: {{endpoint: '{endpoint}'}}\n")
    assert config.tracing is not None
    assert config.tracing.endpoint == sent_to
