"""A gateway with load of every kind that a dashboard shows, and a real Prometheus that scrapes it and its workers.

Load: streams and plain requests in several dialects, of two teams; clients that leave; requests over limits, of the
wrong form, and with fields that are dropped; workers that fail; prompts computed apart, and shown to a guard; workers
that tell what they have cached; reloads, every second one refused; a key in the store; a batch, and a web socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import yaml
from msgspec import Struct
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import WebSocketException

from gateway.auth.key_store import KeyStore
from gateway.redis import connect
from tests.acceptance.monitoring.dashboards import FILES, filled, load
from tests.chaos.house import CHAT, House, Process, chat, house, program, start
from tests.chaos.link import Link
from tests.repo.tree import ROOT
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.support.standins.guard import guard
from tests.unit.auth.stored_keys import put, stored

SECONDS = 16
ROUNDS = 15
"""The most times that the load is repeated where some query lacks data: a busy machine does less in SECONDS."""
STREAMS = 8
KEYS: dict[str, dict[str, Any]] = {
    "search": {"team": "red"},
    "chatbot": {"team": "blue"},
    "stray": {"limits": {"streams": 1}},
}
CONFIG: dict[str, Any] = {
    "auth": "keys",
    "models": {"m": {"aliases": ["gpt-*"], "max_in_flight": 3, "queue": {"max_waiting": 2},
                     "price": {"input": 1, "output": 5}}},
    "spend": {"currency": "EUR"},
    "metrics": {"top_keys": 10},
    "budgets": [{"name": "month", "amount": 0.01, "scope": ["team"], "warn_at": [0.01], "shadow": True}],
    "health": {"interval_s": 2, "timeout_s": 2},
    "breaker": {"failures": 2, "eject_s": 1, "slowstart_s": 0},
    "accounting": {"redis_stream": "usage"},
    "limits": [
        {"name": "requests", "kind": "requests", "limit": 3, "per_s": 1, "match": {"team": ["blue"]}},
        {"name": "slots", "kind": "concurrency", "limit": 50},
        {"name": "soon", "kind": "requests", "limit": 2, "per_s": 1, "shadow": True},
    ],
}  # fmt: skip
PROMPT = "What do you know about lighthouses? " * 12
"""Longer than a block of the KV cache, so that the prefix cache has something to find."""
WORKER = ("--itl-ms", "15", "--prefill-us-per-token", "200")
VALUES = {
    **dict.fromkeys(("namespace", "model", "team", "limit"), ".*"),
    "__rate_interval": "5s",
    "__range": f"{SECONDS}s",
}
"""What Grafana puts for variables, at a scrape a second; `.*` is what it puts for all."""


class Series(Struct):
    """What a query found of one: its labels, and (Unix seconds, value)."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


RARE = (
    *("dragoman_moved_total", "dragoman_worker_stalls_total", "dragoman_worker_stalled"),
    *("dragoman_continued_total", "dragoman_stored_keys_missing", "dragoman_reply_cache_errors_total"),
)
"""Metrics of workers that hang or die, which none does under this load: see the chaos rows H1 and G2. And of a Redis
that loses keys, or fails the cache of replies: see tests/unit/features/admin/test_api.py and
reply_cache/test_in_redis.py."""

Key = tuple[str, int, str]
"""A query: its dashboard, its panel's id, and its letter."""


class Seen(Struct):
    """panels: query -> every series that it found; choices: (dashboard, variable) -> values; rules: those that
    Prometheus evaluated, by name, with `health` and `lastError`; between: Unix seconds of the first and the last
    moment."""

    panels: dict[Key, list[Series]]
    choices: dict[tuple[str, str], list[str]]
    rules: dict[str, Mapping[str, Any]]
    between: tuple[float, float]


def rare(target: Mapping[str, Any]) -> bool:
    """Whether the query asks for what this load does not cause."""
    return any(name in target["expr"] for name in RARE)


def whatever(panel: Mapping[str, Any], found: Sequence[Series]) -> bool:
    """Does with what a query of the panel has found."""
    return True


async def seen(enough: Callable[[Mapping[str, Any], Sequence[Series]], bool] = whatever) -> Seen:
    """Loads a gateway for SECONDS and asks Prometheus what every panel asks: of a single moment, one under load. Loads
    it again, and asks again, while a query has not found `enough` for its panel; what had is kept."""
    with tempfile.TemporaryDirectory(prefix="monitoring") as name, Server(Path(name)) as redis, guard() as policy:
        ports = free_port(), free_port()
        generates, computes = (f"http://127.0.0.1:{port}" for port in ports)
        prefill = {"workers": [computes]}
        apart = {"backend": "vllm", "upstream_model": "sim", "workers": [generates], "prefill": prefill}
        publishing = {free_port(): (free_port(), free_port()) for _ in range(2)}
        of_each = {
            f"http://127.0.0.1:{port}": {"kv_events": {"port": events, "replay_port": replay}}
            for port, (events, replay) in publishing.items()
        }
        told = {"backend": "vllm", "upstream_model": "sim", "workers": [*of_each], "worker_options": of_each}
        config = {
            **CONFIG,
            "models": {**CONFIG["models"], "apart": apart, "told": {**told, "kv_events": {}}},
            "redis": {"addresses": [redis.address], "timeout_s": 10},
            "keys_store": "redis",
            "guards": {"policy": {"url": policy.url, "models": ["apart"]}},
            "batches": {"directory": f"{name}/batches"},
            "reply_cache": {"models": ["told"]},
            "prompt_log": {"directory": f"{name}/prompts", "rules": {"told": {"match": {"model": ["told"]}}}},
        }

        async def other_workers(at: House) -> list[str]:
            """Starts the workers of the model whose prompts are computed apart, and of that whose workers tell what
            they have cached."""
            flags = {port: ["--kv-transfer"] for port in ports}
            for port, (events, replay) in publishing.items():
                flags[port] = [*WORKER, "--kv-events-port", str(events), "--kv-replay-port", str(replay)]
            for port, own in flags.items():
                words = ["tests.support.simulated", "--port", str(port), *own]
                at.others.append(await start(at.folder, f"other{port}", *words, port=port))
            return [worker.address for worker in at.workers]

        async with house(KEYS, config, 1, (WORKER, WORKER), front=other_workers) as at:
            store = KeyStore("dragoman", 1000, connect(redis.settings), redis.settings.call_s)
            await put(store, stored("made-later"))
            await store.close()
            prometheus = await _prometheus(at)
            began = time.time()
            found = Seen({}, {}, {}, (began, began))
            async with httpx.AsyncClient(base_url=f"http://{prometheus.address}/api/v1") as client:
                for _ in range(ROUNDS):
                    await _load(at)
                    found.between = began, time.time()
                    if await _ask_panels(client, found, enough):
                        break
                await _ask_others(client, found)
                return found


async def _prometheus(at: House) -> Process:
    port = free_port()
    targets = {"gateway": at.gateways, "workers": at.workers}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "helm" / "dragoman" / "alerts" / "*.yaml")],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [one.address for one in found], "labels": {"namespace": "llm"}}],
            }
            for job, found in targets.items()
        ],
    }
    path = at.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    words = [f"--config.file={path}", f"--storage.tsdb.path={at.folder / 'series'}", "--log.level=warn"]
    words += [f"--web.listen-address=127.0.0.1:{port}"]
    process = await program(at.folder, "prometheus", "prometheus", *words, port=port)
    at.others.append(process)
    await process.ready("/-/ready")
    return process


async def _load(at: House) -> None:
    """All kinds at once, for SECONDS."""
    end = asyncio.get_running_loop().time() + SECONDS
    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(_streams(at, ("search", "chatbot", "stray")[number % 3], end, leave=number % 4 == 3))
        group.create_task(_others(at, end))
        group.create_task(_batch(at))
        group.create_task(_socket(at, end))
        group.create_task(_faults(at, end))
        group.create_task(_reloads(at, end))


async def _streams(at: House, key: str, end: float, leave: bool) -> None:
    link = Link(at.gateways[0].address)
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            body = chat(20, stream=True, text=PROMPT)
            answer = await link.post(CHAT, body, {"api-key": at.keys[key]}, leave_after=3 if leave else None)
            # A client that is refused does not ask again at once.
            await asyncio.sleep(0.02 if answer.status == 200 else 0.2)
    link.close()


async def _others(at: House, end: float) -> None:
    """One request a kind, in turns."""
    link = Link(at.gateways[0].address)
    headers = {"api-key": at.keys["search"]}
    for turn in count():
        if asyncio.get_running_loop().time() >= end:
            break
        cut = chat(8, stream=True, text='sim:{"text": "a b c d e f", "fault": "fin@3"}')
        for path, body in (
            (CHAT, chat(4)),
            (CHAT, {**chat(4), "model": "apart"}),
            # A prompt of its own each time: what is cached already makes no event. Rounds begin anew, hence the clock.
            (CHAT, {**chat(4, text=f"{end}, {turn}: {PROMPT}"), "model": "told"}),
            (CHAT, {**chat(4), "model": "told", "temperature": 0}),
            (CHAT, {**chat(4), "max_tokens": "many"}),
            (CHAT, cut),
            ("/azure/chat/completions?api-version=2024-05-01-preview", {**chat(4), "unheard_of": 1}),
            ("/ollama/chat/completions", chat(4)),
            ("/v1/completions", {"model": "gpt-4", "prompt": "Three colours are", "max_tokens": 4}),
        ):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await link.post(path, body, {**headers, "extra-parameters": "drop"})
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await link.send(b"nonsense\r\n\r\n")
        link.close()
        await asyncio.sleep(0.2)


async def _batch(at: House) -> None:
    """A batch whose lines take some seconds of the workers that are not busy."""
    link = Link(at.gateways[0].address)
    text = f"sim:{json.dumps({'text': 'word ' * 300})}"
    params = {"model": "told", "max_tokens": 400, "messages": [{"role": "user", "content": text}]}
    lines = [{"custom_id": f"line-{number}", "params": params} for number in range(20)]
    made = await link.post("/v1/messages/batches", {"requests": lines}, {"x-api-key": at.keys["search"]})
    assert made.status == 200, made.body
    link.close()


async def _socket(at: House, end: float) -> None:
    """A client's web socket that stays open, whatever its gateway does with it."""
    headers = {"authorization": f"Bearer {at.keys['search']}"}
    while (left := end - asyncio.get_running_loop().time()) > 0:
        with contextlib.suppress(OSError, TimeoutError, WebSocketException):
            async with (
                asyncio.timeout(left),
                connect_socket(f"ws://{at.gateways[0].address}/v1/responses", additional_headers=headers) as socket,
            ):
                await socket.wait_closed()


async def _faults(at: House, end: float) -> None:
    """The second worker refuses work for a moment, again and again."""
    link = Link(at.workers[1].address)
    while asyncio.get_running_loop().time() < end:
        await link.post("/sim/faults", {"fault": "status:500", "count": 6, "path": CHAT}, {})
        await asyncio.sleep(1.5)
    link.close()


async def _reloads(at: House, end: float) -> None:
    """A new configuration every 2 s; every second one is wrong."""
    path = at.folder / "gateway0.yaml"
    right = path.read_text()
    wrong = json.dumps({**json.loads(right), "nonsense": 1})
    while asyncio.get_running_loop().time() < end:
        for text in (right, wrong):
            path.write_text(text)
            at.gateways[0].process.send_signal(signal.SIGHUP)
            await asyncio.sleep(1)
    path.write_text(right)


async def _ask_panels(
    client: httpx.AsyncClient, found: Seen, enough: Callable[[Mapping[str, Any], Sequence[Series]], bool]
) -> bool:
    """Asks what has not found enough before. Whether all has now."""
    began, ended = found.between
    lacking = 0
    for path in FILES:
        for panel in load(path)["panels"]:
            for target in panel["targets"]:
                key = (path.stem, panel["id"], target["refId"])
                if key in found.panels and enough(panel, found.panels[key]):
                    continue
                query = {"query": filled(target["expr"], VALUES)}
                if target["instant"]:
                    result = await _get(client, "query", {**query, "time": ended - 2})
                    found.panels[key] = [_series(one["metric"], [one["value"]]) for one in result["result"]]
                else:
                    over = {"start": began, "end": ended, "step": 1}
                    result = await _get(client, "query_range", {**query, **over})
                    found.panels[key] = [_series(one["metric"], one["values"]) for one in result["result"]]
                lacking += not rare(target) and not enough(panel, found.panels[key])
    return not lacking


async def _ask_others(client: httpx.AsyncClient, found: Seen) -> None:
    """What the variables have to choose from, and what became of the rules once all were evaluated."""
    began, ended = found.between
    for path in FILES:
        for one in load(path)["templating"]["list"][1:]:
            metric, _, label = one["definition"].removeprefix("label_values(").removesuffix(")").partition(", ")
            over = {"match[]": metric, "start": began, "end": ended}
            found.choices[path.stem, one["name"]] = await _get(client, f"label/{label}/values", over)
    async with asyncio.timeout(60):
        while not found.rules or any(rule["health"] == "unknown" for rule in found.rules.values()):
            groups = (await _get(client, "rules", {}))["groups"]
            found.rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
            await asyncio.sleep(0.2)


def _series(labels: dict[str, str], samples: Sequence[tuple[float, str]]) -> Series:
    return Series(labels, [(at, float(value)) for at, value in samples])


async def _get(client: httpx.AsyncClient, path: str, query: Mapping[str, Any]) -> Any:
    """Prometheus's `data`. Raises AssertionError with what it says against a query."""
    answer = (await client.get(f"/{path}", params=query)).json()
    assert answer["status"] == "success", (query, answer)
    return answer["data"]
