"""Gateways and simulated workers as processes of their own, for rows that need several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gateway.auth import new_key
from tests.chaos.link import Answer, Link, request
from tests.support.ports import free_port
from tests.support.records import Members, parsed, seconds

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


class Process:
    """One process of ours; its output is kept in a file. Ended by its id, and only it."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, log: Path, words: Sequence[str]) -> None:
        self.process = process
        self.address = address
        self.log = log
        self.words = words

    async def again(self) -> Process:
        """Another one in the place of this one, which has ended."""
        return await _spawn(self.words, self.address, self.log)

    def lines(self) -> list[Members]:
        """The records of its log so far, their times in Unix seconds."""
        found = []
        for line in self.log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                record = parsed(line)
                if "time" in record:
                    record["time"] = seconds(record["time"])
                found.append(record)
        return found

    def descriptors(self) -> int:
        """How many files and sockets it has open (Linux)."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self, *, at_worst: bool = False) -> int:
        """Bytes of memory that are its own, now or at their worst (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:" if at_worst else "VmRSS:")[2].split()[0])

    def cpu_s(self) -> float:
        """Seconds that it has computed (Linux), in steps of 10 ms."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def get(self, path: str) -> Answer:
        """The answer to one request, over a connection of its own."""
        return await self._once("GET", path)

    async def post(self, path: str, body: Any) -> Answer:
        return await self._once("POST", path, json.dumps(body).encode())

    async def _once(self, method: str, path: str, body: bytes = b"") -> Answer:
        link = Link(self.address)
        try:
            return await link.send(request(method, path, {}, body))
        finally:
            link.close()

    async def generated(self, since: int = 0) -> list[dict[str, Any]]:
        """A worker's ledger after its entry of the number `since`, less what probed it; `request` is the gateway's id
        of a request, or ""."""
        entries = (await self.get(f"/sim/ledger?since={since}")).json()["entries"]
        found = [entry for entry in entries if entry["generation"]]
        for entry in found:
            id_ = next((value for name, value in entry["headers"] if name == "x-request-id"), "")
            entry["request"] = id_.rpartition("-")[0]
        return found

    async def settled(self, most: int, seconds: float) -> int:
        """`descriptors` once they are no more than `most`, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.descriptors() > most:  # noqa: ASYNC110 (the kernel tells nobody)
                    await asyncio.sleep(0.1)
        return self.descriptors()

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    async def ready(self, path: str) -> None:
        async with asyncio.timeout(90):
            while True:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    if (await self.get(path)).status == 200:
                        break
                if self.process.returncode is not None:
                    raise RuntimeError(f"ended at once:\n{self.log.read_text()[-2000:]}")
                await asyncio.sleep(0.05)


async def start(folder: Path, name: str, *words: str, port: int) -> Process:
    """A module of ours."""
    return await program(folder, name, sys.executable, "-m", *words, port=port)


async def program(folder: Path, name: str, *words: str, port: int) -> Process:
    return await _spawn(words, f"127.0.0.1:{port}", folder / f"{name}.log")


async def _spawn(words: Sequence[str], address: str, log: Path) -> Process:
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=out, stderr=asyncio.subprocess.STDOUT)
    return Process(process, address, log, words)


class House:
    """gateways and workers are running; keys are those of `names`, to be sent as `api-key`. clocks says how many
    seconds ahead of this machine's clock each gateway's is. What is added to `others` ends with it."""

    def __init__(self, folder: Path, clocks: Sequence[float]) -> None:
        self.folder = folder
        self.clocks = clocks
        self.gateways: list[Process] = []
        self.workers: list[Process] = []
        self.others: list[Process] = []
        self.keys: dict[str, str] = {}

    async def admits(self, since: int = 0) -> dict[str, dict[str, Any]]:
        """What workers were given: the gateway's request id -> the worker's ledger entry. Of each worker those after
        its entry of the number `since`."""
        entries = [entry for worker in self.workers for entry in await worker.generated(since)]
        return {entry["request"]: entry for entry in entries if entry["request"]}

    def records(self) -> dict[str, dict[str, Any]]:
        """The gateways' request log: id -> record, its time by this machine's clock."""
        return {
            line["id"]: Members(line, time=line["time"] - ahead)
            for one, ahead in zip(self.gateways, self.clocks, strict=True)
            for line in one.lines()
            if line.get("event") == "request"
        }


@contextlib.asynccontextmanager
async def house(
    keys: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any],
    gateways: int = 1,
    workers: Sequence[Sequence[str]] = ((),),
    clocks: Sequence[float] = (),
    front: Callable[[House], Awaitable[Sequence[str]]] | None = None,
    under: Sequence[str] = (),
) -> AsyncIterator[House]:
    """keys: name -> further options of its entry. config: its model "m" adds to that of the workers here. workers: the
    flags of each. clocks: how far ahead each gateway's is, in seconds; absent, all are right. front: starts what
    stands before the workers, and says by which addresses gateways reach them; none, if they discover them. under: the
    module, and its words, that runs each gateway."""
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        found = House(Path(name), clocks or (0.0,) * gateways)
        entries = {}
        for key, options in keys.items():
            found.keys[key], entry = new_key(key)
            entries[key] = {**yaml.safe_load(entry)[key], **options}
        try:
            for number, flags in enumerate(workers):
                port = free_port()
                words = ["tests.support.simulated", "--port", str(port), "--ledger", "200000", *flags]
                found.workers.append(await start(found.folder, f"worker{number}", *words, port=port))
            addresses = await front(found) if front is not None else [one.address for one in found.workers]
            models = dict(config.get("models", {}))
            model = {
                "backend": "vllm",
                "upstream_model": "sim",
                **({"workers": [f"http://{address}" for address in addresses]} if addresses else {}),
                **models.pop("m", {}),
            }
            for number, ahead in enumerate(found.clocks):
                port = free_port()
                path = found.folder / f"gateway{number}.yaml"
                whole = {
                    "keys": entries,
                    **config,
                    "listen": {**config.get("listen", {}), "port": port},
                    "models": {"m": model, **models},
                }
                path.write_text(json.dumps(whole))
                words = ["gateway.cli", "serve", "--config", str(path)]
                words = ["tests.chaos.skewed", str(ahead), *words] if ahead else [*under, *words]
                found.gateways.append(await start(found.folder, f"gateway{number}", *words, port=port))
            await asyncio.gather(*(worker.ready("/health") for worker in found.workers))
            await asyncio.gather(*(gateway.ready("/readyz?model") for gateway in found.gateways))
            yield found
        finally:
            await asyncio.gather(*(one.stop() for one in [*found.gateways, *found.others, *found.workers]))


def chat(max_tokens: int, stream: bool = False, text: str = "hello") -> dict[str, Any]:
    """A request whose reply has exactly `max_tokens` tokens."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
