"""S6: secrets stand nowhere but where they belong."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gateway.auth import new_key
from gateway.config import ConfigError
from tests.chaos.link import Answer, Link, request
from tests.chaos.row import Findings, row
from tests.support.clients import REQUESTS
from tests.support.harness import Stack, load_text
from tests.support.redis_server import Server

WORKER_KEY, AWS_SECRET, PASSWORD = "canary-worker-Zk3v9", "canary-aws-Wq8x2", "canary-redis-Tn5c7"
FAULTS = ("", "status:500", "status:401", "reset", "html", "fin")


def refused_texts(secrets: list[str]) -> list[str]:
    """What `dragoman check` says of configurations in which a secret stands where it must not."""
    said = []
    for secret in secrets:
        for text in (
            f"keys: {{a: {{hash: {secret}}}}}",
            f"keys: {{{secret}: {{}}}}",
            f"{secret}: 1",
            f"redis: {{addresses: [{secret}]}}",
            f"redis: {{url: 'redis://:{secret}@redis'}}",
        ):
            try:
                load_text(text)
            except ConfigError as error:
                said.append(str(error))
    return said


@row("S6", "secrets in logs, metrics, errors, headers to workers, Redis")
async def secrets_stay(findings: Findings) -> None:
    """Good and bad keys in every header of every dialect, failing workers, secrets in wrong places, with a worker's
    key, an AWS secret and a Redis password.

    Passes if no secret in the log, metrics, answers, messages about configurations, Redis, or a header to a worker
    other than its own.
    """
    good, entry = new_key("good")
    other, other_entry = new_key("other")
    entries = {**yaml.safe_load(entry), **yaml.safe_load(other_entry)}
    entries["good"]["limits"] = {"requests": 100_000, "tokens": 10**9}
    entries["good"]["models"] = ["m"]
    entries["other"]["expires"] = "2020-01-01"
    entries["signs"] = {"aws_access_key_id": "AKIDCANARY", "aws_secret_env": "AWS_SECRET"}
    secrets = [good, other, WORKER_KEY, AWS_SECRET, PASSWORD]
    secrets += [key.split("_")[2] for key in (good, other)]
    with tempfile.TemporaryDirectory() as name, Server(Path(name), "--requirepass", PASSWORD) as server:
        config = {
            "keys": entries,
            "models": {"m": {"api_key_env": "WORKER_KEY"}},
            "redis": {"url_env": "REDIS_URL", "timeout_s": 1},
            "accounting": {"redis_stream": "usage"},
            "dialects": {dialect: {"default_model": "m"} for dialect in REQUESTS},
            "log": {"level": "debug"},
        }
        environ = {"WORKER_KEY": WORKER_KEY, "AWS_SECRET": AWS_SECRET}
        environ["REDIS_URL"] = f"redis://:{PASSWORD}@{server.address}/0"
        with Stack(({},), config, environ=environ) as stack:
            link = Link(stack.url.removeprefix("http://"))
            answers = await traffic(link, stack, good, other)
            metrics = (await link.get("/metrics")).body.decode()
            upstream = [
                f"{key.decode()}: {value.decode('latin-1')}"
                for one in stack.sim.ledger.entries
                for key, value in one.headers
            ]
            link.close()
        log = stack.output.getvalue().decode()
        stored = await asyncio.to_thread(dump, server.port)
    said = refused_texts([good, other])
    told = [f"{one.headers} {one.body.decode('utf-8', 'replace')}" for one in answers]
    for what, texts in (
        ("log lines", log.splitlines()),
        ("lines of metrics", metrics.splitlines()),
        ("answers", told),
        ("messages about configurations", said),
        ("values in Redis", stored),
    ):
        found = [text for text in texts if any(secret in text for secret in secrets)]
        findings.none(f"secrets in {what}", len(found), len(texts))
    found = [text for text in upstream if any(secret in text for secret in secrets if secret != WORKER_KEY)]
    findings.none("secrets of clients in headers to workers", len(found), len(upstream))
    shown = [text for text in upstream if text == f"authorization: Bearer {WORKER_KEY}"]
    findings.check("the worker's own key, to the worker", len(shown), len(upstream), bool(shown))


async def traffic(link: Link, stack: Stack, good: str, other: str) -> list[Answer]:
    answers = []
    for fault in FAULTS:
        for path, chat in REQUESTS.values():
            for name, form in (("authorization", "Bearer {}"), ("api-key", "{}"), ("x-api-key", "{}")):
                for key in (good, other, good[:-1], good + "x"):
                    stack.sim.fault(fault, count=1)
                    body = json.dumps({"model": "m", **chat}).encode()
                    answers.append(await link.send(request("POST", path, {name: form.format(key)}, body)))
                    stack.sim.fault("")
            # A secret in the wrong place: the query, the path, an unknown header, the body.
            body = json.dumps({"model": good, **chat, good: good}).encode()
            answers.append(
                await link.send(request("POST", f"{path.split('?')[0]}/{good[:9]}?key={good[:9]}", {}, body))
            )
    return answers


def dump(port: int) -> list[str]:
    """All that Redis holds, as text."""
    import redis

    client: Any = redis.Redis(port=port, password=PASSWORD)
    found = []
    for key in client.keys("*"):
        kind = client.type(key)
        value = {b"hash": client.hgetall, b"stream": client.xrange, b"zset": lambda k: client.zrange(k, 0, -1)}[kind](
            key
        )
        found.append(f"{key} {value}")
    client.close()
    return found
