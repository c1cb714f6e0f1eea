"""No background task of the gateway ends because one round of it raised what nobody expected."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.auth import jwt
from gateway.backends import create
from gateway.background import cancel_tasks, keep_running
from gateway.cli import serve
from gateway.config import Breaker, Config, Jwt
from gateway.config import Health as HealthOptions
from gateway.core.figures import Histogram
from gateway.fleet.adapters import Adapters
from gateway.fleet.discovery import Discovery, Fleet
from gateway.fleet.engine import Scraper
from gateway.fleet.health import Health
from gateway.fleet.worker import Worker
from gateway.observe.process import LoopLag
from gateway.ratelimit.limiter import SubjectLimiter
from gateway.ratelimit.memory import MemoryStore


class Rounds:
    """Raises in the first round; `more` is set in a later one. told: the reports of it other than `keep_running`'s."""

    def __init__(self) -> None:
        self.count = 0
        self.more = asyncio.Event()
        self.told: list[str] = []

    def go(self, *_: object) -> None:
        self.count += 1
        if self.count == 1:
            raise RuntimeError("a bug")
        self.more.set()

    async def go_async(self, *_: object) -> Any:
        self.go()
        return SimpleNamespace(status_code=200)


def worker() -> Worker:
    found = Worker("http://w", Breaker(), None)
    found.ready = True
    return found


@asynccontextmanager
async def adapters(rounds: Rounds) -> AsyncIterator[None]:
    config = SimpleNamespace(
        health=SimpleNamespace(interval_s=0), models={"m": SimpleNamespace(adapters=True)}, model_names=["m"]
    )
    made = Adapters(cast("Config", config), cast("Any", {"m": None}), rounds.go_async, cast("Any", None))
    made.start()
    yield
    await made.close()


@asynccontextmanager
async def loads(rounds: Rounds) -> AsyncIterator[None]:
    gauges = create("vllm").gauges
    assert gauges is not None
    made = Scraper(0, cast("Any", rounds.go_async), lambda *_: None)
    cast("Any", made).look = rounds.go_async
    made.follow("m", [worker()], gauges)
    yield
    await made.close()


@asynccontextmanager
async def probes(rounds: Rounds) -> AsyncIterator[None]:
    async def get(*_: object) -> int:
        return 200

    made = Health({}, HealthOptions(interval_s=0.001), get, lambda *_: None, rounds.go)
    made.add("m", worker())
    yield
    await made.close()


@asynccontextmanager
async def discovery(rounds: Rounds) -> AsyncIterator[None]:
    async def read() -> Fleet:
        return {}

    source: Any = SimpleNamespace(name="dns", interval_s=0, read=read)
    made = Discovery([source], {}, cast("Any", None), lambda _, trouble: rounds.told.append(str(trouble)))
    await made.start()

    async def look(_: object) -> None:
        rounds.go()

    cast("Any", made).look = look
    yield
    await made.close()


@asynccontextmanager
async def heartbeat(rounds: Rounds) -> AsyncIterator[None]:
    store = MemoryStore()
    cast("Any", store).beat = rounds.go_async
    made = SubjectLimiter([], store, heartbeat=0.001)
    await made.start()
    yield
    await made.close()


@asynccontextmanager
async def keys_of_tokens(rounds: Rounds) -> AsyncIterator[None]:
    async def fetch(_: str) -> bytes:
        raise OSError

    made = jwt.JwtVerifier(Jwt(jwks_url="http://keys", issuer="i", audience="a"), lambda: 0.0, rounds.go)
    task = asyncio.create_task(made._go_on(fetch, "http://keys"))  # the loop alone, without a start
    yield
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def watched_files(rounds: Rounds) -> AsyncIterator[None]:
    listening = asyncio.Event()
    listening.set()
    serving: Any = SimpleNamespace(
        _server=SimpleNamespace(listening=listening),
        _gateway=SimpleNamespace(draining=False),
        _reader=rounds.go_async,
        _watch=SimpleNamespace(changed=None),
        _log=SimpleNamespace(event=lambda *_: None),
        _reload=rounds.go_async,
    )
    task = asyncio.create_task(serve._Serving._follow(serving))  # the loop alone, without a server
    yield
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def loop_lag(rounds: Rounds) -> AsyncIterator[None]:
    made = LoopLag(Histogram([1.0]), late=rounds.go)
    made.start()
    yield
    made.stop()


TASKS = (adapters, loads, probes, discovery, heartbeat, keys_of_tokens, watched_files, loop_lag)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
async def test_the_next_round_goes_on(
    task: Callable[[Rounds], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jwt, "_RETRY_S", 0)
    monkeypatch.setattr(jwt, "_EVERY_S", 0)
    monkeypatch.setattr(serve, "_LOOK_S", 0)
    rounds = Rounds()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: rounds.told.append(repr(context["exception"])))
    async with task(rounds):
        async with asyncio.timeout(30):
            await rounds.more.wait()
    logged = [repr(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert len(rounds.told + logged) == 1
    assert "a bug" in (rounds.told + logged)[0]


async def test_what_ends_a_task_ends_it() -> None:
    with pytest.raises(asyncio.CancelledError), keep_running("a task"):
        raise asyncio.CancelledError


async def test_tasks_are_over_once_they_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    over: list[str] = []

    async def runs(error: type[Exception] | None) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            over.append(str(error))
            if error is not None:
                raise error

    tasks = [asyncio.create_task(runs(error)) for error in (None, OSError)]
    await asyncio.sleep(0)
    await cancel_tasks(*tasks, None)
    assert [task.done() for task in tasks] == [True, True]
    assert len(over) == 2
    await cancel_tasks(*tasks)  # once more changes nothing
    del tasks
    gc.collect()
    assert not caplog.records, "asyncio reports an exception that nobody has looked at"
