"""Options that have no effect where another one turns off what they are about (`broken_configs/ineffective.yaml`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError, load

SMALL = "models:\n  small: {backend: vllm, workers: [http://127.0.0.1:8081]"


def faults(folder: Path, text: str, **environ: str) -> list[str]:
    path = folder / "gateway.yaml"
    path.write_text(text)
    try:
        load(path, environ=environ)
    except ConfigError as error:
        return [str(fault).removeprefix(f"{path}:") for fault in error.faults]
    return []


@pytest.mark.parametrize(
    "more",
    [
        "redis: {addresses: [a:1, b:1], mode: sentinel, sentinel_name: x, sentinel_auth: true}",
        "redis: {url: redis://a, sentinel_auth: false}",
        "redis: {url: redis://a}\nlimiter: {partitions: 2, partition_by: key, replicas: 4}",
        "redis: {url: redis://a}\nlimits: [{name: a, kind: requests, limit: 1, on_redis_failure: closed}]",
        "redis: {url: redis://a}\nlimiter: {store: memory, replicas: 1}",
        "queue: {learn_capacity: true}",
        "queue: {learn_capacity: false}\nrouting: {scrape_s: 0}",
        "retry: {attempts: 1}",
        "retry: {attempts: 2, budget: 0.1}",
        "store: {where: memory, ttl_s: 60, max_bytes: 1MiB}",
        "redis: {url: redis://a}\naccounting: {redis_stream: a, max_length: 1000}",
        "cors: {origins: [https://a.example], headers: [x-a], max_age: 0}",
        "metrics: {enabled: true, genai: true}",
        "metrics: {enabled: false, genai: false}",
    ],
)
def test_what_has_an_effect_or_asks_for_nothing_is_no_fault(tmp_path: Path, more: str) -> None:
    assert faults(tmp_path, f"{SMALL}}}\n{more}\n") == []


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("redis: {addresses: [a:1], mode: sentinels, sentinel_name: x}", "redis.mode"),
        ("limiter: {partitions: many, partition_by: key}", "limiter.partitions"),
        ("store: {where: disk, ttl_s: 60}", "store.where"),
        ("accounting: {redis_stream: 'a b', max_length: 1000}", "accounting.redis_stream"),
        ("cors: {origins: [nothing], max_age: 60}", "cors.origins.0"),
    ],
)
def test_a_wrong_value_says_nothing_of_what_hangs_on_it(tmp_path: Path, more: str, wrong: str) -> None:
    (said,) = faults(tmp_path, f"{SMALL}}}\n{more}\n")
    assert said.startswith(f"3: {wrong}: ")


def test_a_name_to_look_up_that_is_wrong(tmp_path: Path) -> None:
    found = "redis: {url: redis://a}\n"
    (said,) = faults(tmp_path, f"{found}{SMALL}, discover: {{redis: true, dns: name, interval_s: 2}}}}\n")
    assert said.startswith("3: models.small.discover.dns: ")
    assert faults(tmp_path, f"{SMALL}, discover: {{dns: 'name:1', interval_s: 2}}}}\n") == []


def test_the_variable_that_set_it_is_named(tmp_path: Path) -> None:
    said = faults(tmp_path, f"{SMALL}}}\n", DRAGOMAN_STORE__TTL_S="60")
    assert said == ["environment: DRAGOMAN_STORE__TTL_S: has no effect as nothing is stored: where is nowhere"]
    assert faults(tmp_path, f"{SMALL}}}\n", DRAGOMAN_STORE__TTL_S="60", DRAGOMAN_STORE__WHERE="memory") == []
