"""J1, J2: the gateway that runs a batch is killed at every step of it; another one goes on. Files lie in a folder, or
in a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.house import CHAT, House, Process, chat, house
from tests.chaos.row import FULL, Findings, row
from tests.support.redis_server import Server
from tests.unit.features.batches.s3 import S3

LINES = 400 if FULL else 80
ROUNDS = 3 if FULL else 1
MOST_S = 60.0
"""From a death until the batch has ended: a lease is free after 10 s."""
_ENDED = ("completed", "failed", "expired", "cancelled")


class Job:
    """One batch of so many lines, and its client, which calls the gateways that live."""

    def __init__(self, at: House, client: httpx.AsyncClient, folder: Path, name: str, lines: int = LINES) -> None:
        self.at = at
        self.name = name
        self.lines = lines
        self.id = ""
        self._client = client
        self._folder = folder

    def text(self, number: int) -> str:
        return f"{self.name} line {number}."

    def file(self) -> bytes:
        made = []
        for number in range(self.lines):
            body = {**chat(20, text=self.text(number)), "ignore_eos": True}
            made.append(json.dumps({"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}))
        return "\n".join(made).encode()

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """By a gateway that answers."""
        for _ in range(600):
            for gateway in self.at.gateways:
                with contextlib.suppress(httpx.TransportError):
                    headers = {"authorization": f"Bearer {self.at.keys['client']}"}
                    url = f"http://{gateway.address}/v1{path}"
                    return await self._client.request(method, url, headers=headers, **more)
            await asyncio.sleep(0.05)
        raise TimeoutError

    async def upload(self) -> str:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", self.file())}}
        return str((await self.call("POST", "/files", **form)).json()["id"])

    async def create(self) -> None:
        body = {"input_file_id": await self.upload(), "endpoint": CHAT, "completion_window": "24h"}
        self.id = (await self.call("POST", "/batches", json=body)).json()["id"]

    async def show(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", f"/batches/{self.id}")).json()
        return found

    async def ended(self, most_s: float = MOST_S) -> dict[str, Any]:
        """The batch once it has ended, or after `most_s`."""
        last = time.monotonic() + most_s
        while True:
            found = await self.show()
            if found["status"] in _ENDED or time.monotonic() > last:
                return found
            await asyncio.sleep(0.2)

    async def results(self, ended: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for name in ("output_file_id", "error_file_id"):
            if ended[name] is not None:
                text = (await self.call("GET", f"/files/{ended[name]}/content")).content
                found += [json.loads(line) for line in text.splitlines()]
        return found

    def holder(self) -> Process | None:
        """The gateway that took the batch last, and lives."""
        found = [
            (line["time"], place)
            for place, gateway in enumerate(self.at.gateways)
            for line in gateway.lines()
            if line.get("batch") == self.id and line["event"] in ("batch began", "batch resumed")
        ]
        return self.at.gateways[max(found)[1]] if found else None

    def noted(self) -> int:
        """Results of it so far; all once it has ended."""
        if not any(self._folder.rglob(f"{self.id}.input")):
            return self.lines
        found = 0
        for one in self._folder.rglob(f"{self.id}.*"):
            for part in one.iterdir() if one.is_dir() else [one]:
                with contextlib.suppress(FileNotFoundError):  # a part that another one has replaced
                    found += part.read_bytes().count(b" ok ")
        return found

    def writes(self) -> bool:
        """Its results are being put together."""
        return any(self._folder.rglob("file-*.part"))


def leftovers(files: Path) -> list[str]:
    return [str(one) for one in files.rglob("*") if one.is_file() and (".lines" in str(one) or one.suffix == ".input")]


async def until(seen: Callable[[], bool], seconds: float = 60.0) -> bool:
    ends = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.001)
    return True


async def kill(at: House, victim: Process) -> None:
    """Kills a gateway, and starts it again."""
    victim.process.kill()
    await victim.process.wait()
    place = at.gateways.index(victim)
    at.gateways[place] = await victim.again()
    await at.gateways[place].ready("/readyz?model")


async def at_upload(job: Job) -> None:
    sending = asyncio.create_task(job.upload())
    await until(job.writes, 5)
    await kill(job.at, job.at.gateways[0])
    await sending  # which another gateway has taken
    await job.create()


async def at_creation(job: Job) -> None:
    await job.create()
    await kill(job.at, job.at.gateways[0])


async def at_the_first_line(job: Job) -> None:
    await job.create()
    await until(lambda: job.holder() is not None)
    await kill(job.at, job.holder() or job.at.gateways[0])


async def in_the_middle(job: Job) -> None:
    await job.create()
    for share in (0.3, 0.6):
        await until(lambda share=share: job.noted() > share * LINES)  # type: ignore[misc]
        await kill(job.at, job.holder() or job.at.gateways[0])


async def at_the_end(job: Job) -> None:
    await job.create()
    await until(lambda: job.noted() >= LINES - 1)
    await until(job.writes, 2)
    await kill(job.at, job.holder() or job.at.gateways[0])


async def at_its_cancellation(job: Job) -> None:
    await job.create()
    await until(lambda: job.noted() > LINES // 3)
    await job.call("POST", f"/batches/{job.id}/cancel")
    await kill(job.at, job.holder() or job.at.gateways[0])


STEPS = (at_upload, at_creation, at_the_first_line, in_the_middle, at_the_end, at_its_cancellation)


@row("J1", "the gateway that runs a batch is killed at every step of it")
async def in_a_folder(findings: Findings) -> None:
    """Two gateways share a folder and Redis. The one that runs a batch of 80 requests (`FULL=1`: three rounds of 400)
    is killed (SIGKILL) and started again: during the upload, right after the creation, at the first line, at a
    third and two thirds of the lines, while results are put together, and right after a cancellation.

    Passes if every batch ends as asked, with one result for each request and counts that agree; no more requests
    were answered twice by workers than were counted as repeated; nothing is left in the folder but files that
    clients know.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "files")
        await batched(findings, Path(folder), files, {"directory": str(files)})


@row("J2", "the same, and the files are in a bucket")
async def in_a_bucket(findings: Findings) -> None:
    """J1 over a bucket of rclone's S3 server. Results are seen by nobody there before they are whole: the kill while
    they are put together comes when all lines have theirs.

    Passes if J1 would.
    """
    with tempfile.TemporaryDirectory() as folder, S3(Path(folder)) as s3:
        files = Path(folder, "files")
        await batched(findings, Path(folder), files, s3.section(files))


async def batched(findings: Findings, folder: Path, files: Path, options: dict[str, Any]) -> None:
    with Server(folder) as server:
        config = {
            "redis": {"addresses": [server.address]},
            "batches": options,
            "models": {"m": {"max_in_flight": 16}},
        }
        async with house({"client": {}}, config, 2, (("--itl-ms", "20"),)) as at, httpx.AsyncClient() as client:
            repeated, runs = 0, 0
            for number in range(ROUNDS):
                for step in STEPS:
                    job = Job(at, client, files, f"{step.__name__} {number}")
                    await step(job)
                    repeated += await judge(findings, job, step is at_its_cancellation)
                    runs += 1
            done = await executed(at)
            more = sum(done.values()) - len(done)
            findings.at_most(
                f"requests that ran again, at most {repeated} that were counted", more, repeated, len(done)
            )
            findings.none("files that are left of batches", leftovers(files), runs)


async def judge(findings: Findings, job: Job, cancelled: bool, most_s: float = MOST_S) -> int:
    """Returns how many lines were counted as repeated."""
    ended = await job.ended(most_s)
    wanted = "cancelled" if cancelled else "completed"
    findings.check(f"{job.name}: {wanted}", ended["status"], 1, ended["status"] == wanted)
    found = await job.results(ended)
    names = Counter(one["custom_id"] for one in found)
    twice = [name for name, count in names.items() if count > 1]
    findings.check(f"{job.name}: results", len(names), job.lines, len(names) == job.lines and not twice)
    good = sum(one["response"] is not None and one["response"]["status_code"] == 200 for one in found)
    counts = ended["request_counts"]
    whole = good == counts["completed"] and (cancelled or good == job.lines)
    findings.check(f"{job.name}: answered, as its counts say", good, job.lines, whole)
    seen = [line for one in job.at.gateways for line in one.lines() if line.get("batch") == job.id]
    return sum(line["repeated"] for line in seen if line["event"] == "batch resumed")


async def executed(at: House) -> Counter[str]:
    """Prompts of lines -> how often a worker has answered them whole."""
    entries = [entry for worker in at.workers for entry in await worker.generated()]
    return Counter(
        json.loads(entry["body"])["messages"][0]["content"] for entry in entries if entry["state"] == "completed"
    )
