"""K1: thousands of keys are made and revoked by the admin API while clients call; then Redis is killed, and returns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from gateway.auth import new_key
from tests.chaos.house import CHAT, House, chat, house, start
from tests.chaos.link import Answer, Link
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.ports import free_port
from tests.support.redis_server import Server

COUNT = 5000 if FULL else 1000
STEADY, EVERY_S = 9, 0.1
"""Clients that call all the time, a third of them at a gateway without such keys, and how often each does."""
AT_ONCE, RATE = 8, 200.0
"""Changes that are under way together, and how many begin in a second."""
WATCHED = 50
"""One key of so many is asked for at the other gateway until it is in force there."""
BEFORE_S, AWAY_S = 5.0, 5.0
ADMIN = "/admin/v1/keys"
MOST_S = 1.0


class Issuer:
    """An admin, and its clients, before two gateways: changes go to the first, and are looked for at the second."""

    def __init__(self, at: House, admin: str, secret: str) -> None:
        self.at = at
        self.admin = admin
        self._headers = {"authorization": f"Bearer {secret}"}
        self.keys: dict[str, str] = {}
        self.waits: list[float] = []

    async def ask(self, link: Link, key: str) -> int:
        return (await link.get("/v1/models", {"api-key": key})).status

    async def change(self, link: Link, path: str, body: dict[str, str] | None = None) -> Answer:
        return await link.post(ADMIN + path, body, self._headers)

    async def each(self, names: Sequence[str], change: Callable[[Link, str], AsyncIterator[None]]) -> None:
        """`change` for all names, some at once, each over a connection that is kept."""
        left, begun = iter(enumerate(names)), time.monotonic()

        async def some() -> None:
            link = Link(self.admin)
            for number, name in left:
                await asyncio.sleep(max(0.0, begun + number / RATE - time.monotonic()))
                async for _ in change(link, name):
                    pass
            link.close()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def make(self, link: Link, name: str) -> AsyncIterator[None]:
        answer = await self.change(link, "", {"name": name, "team": "issued"})
        yield
        if answer.status == 201:
            self.keys[name] = answer.json()["key"]
            await self._watch(name, 200)

    async def revoke(self, link: Link, name: str) -> AsyncIterator[None]:
        answer = await self.change(link, f"/{name}/revoke")
        yield
        if answer.status == 200:
            await self._watch(name, 401)

    async def _watch(self, name: str, wanted: int) -> None:
        if int(name) % WATCHED:
            return
        link, begun = Link(self.at.gateways[1].address), time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while await self.ask(link, self.keys[name]) != wanted:  # noqa: ASYNC110 (it announces itself nowhere)
                    await asyncio.sleep(0.005)
        link.close()
        self.waits.append(time.monotonic() - begun)

    async def statuses(self, names: Sequence[str], gateway: int) -> Counter[int]:
        link = Link(self.at.gateways[gateway].address)
        found = Counter([await self.ask(link, self.keys[name]) for name in names])
        link.close()
        return found


@contextlib.asynccontextmanager
async def issuing(server: Server) -> AsyncIterator[Issuer]:
    """Two gateways on one Redis, and one more without such keys."""
    secret, entry = new_key("root")
    ports = [free_port() for _ in range(3)]
    config = {
        "keys_store": "redis",
        "admins": {"root": {"hash": entry.split("hash: ")[1].strip()}},
        "metrics": {"listen": f"127.0.0.1:{ports[0]}"},
        "redis": {"addresses": [server.address]},
    }
    async with house({"steady": {}}, config) as at:
        first = json.loads((at.folder / "gateway0.yaml").read_text())
        without = {name: value for name, value in first.items() if name not in ("keys_store", "admins")}
        for number, own in ((1, first), (2, without)):
            port = free_port()
            own = own | {"listen": {"port": port}, "metrics": {"listen": f"127.0.0.1:{ports[number]}"}}
            path = at.folder / f"gateway{number}.yaml"
            path.write_text(json.dumps(own))
            words = ["gateway.cli", "serve", "--config", str(path)]
            at.gateways.append(await start(at.folder, f"gateway{number}", *words, port=port))
            await at.gateways[number].ready("/readyz?model")
        yield Issuer(at, f"127.0.0.1:{ports[0]}", secret)


async def steady(at: House, place: int, seen: list[tuple[float, int, Answer]], going: Callable[[], bool]) -> None:
    link, due = Link(at.gateways[place % 3].address), time.monotonic() + EVERY_S * place / STEADY
    while going():
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += EVERY_S
        seen.append((time.monotonic(), place % 3, await link.post(CHAT, chat(1), {"api-key": at.keys["steady"]})))
    link.close()


@row("K1", "thousands of keys are made and revoked under load; Redis is killed and returns")
async def issued(findings: Findings) -> None:
    """1,000 keys (`FULL=1`: 5,000) are made by the admin API of one of two gateways, and half of them revoked, 8 at a
    time, under 90 requests a second, a third of them at a gateway without such keys. Then Redis is killed (SIGKILL)
    and returns 5 s later.

    Passes if a change is in force at the other gateway within a second; every key works and every revoked one gets
    a 401, on both gateways, before, while Redis is away and after; a revocation is a 503 meanwhile and works within
    5 s of the return; no other request fails, and their p99 is at most 50 ms above that of the gateway without such
    keys.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), "--appendonly", "yes") as server:
        async with issuing(server) as issuer:
            at, seen, going = issuer.at, list[tuple[float, int, Answer]](), True
            clients = [asyncio.create_task(steady(at, place, seen, lambda: going)) for place in range(STEADY)]
            await asyncio.sleep(BEFORE_S)
            begun = time.monotonic()
            names = [str(number) for number in range(COUNT)]
            await issuer.each(names, issuer.make)
            made = time.monotonic()
            findings.check("keys that were made", len(issuer.keys), COUNT, len(issuer.keys) == COUNT)
            gone, kept = names[::2], names[1::2]
            await issuer.each(gone, issuer.revoke)
            revoked = time.monotonic()
            rates = f"{COUNT / (made - begun):.0f} made, {len(gone) / (revoked - made):.0f} revoked a second"
            findings.at_most(
                f"until in force elsewhere, s, at most {MOST_S} ({rates})",
                max(issuer.waits),
                MOST_S,
                len(issuer.waits),
                ".3f",
                timed=True,
            )
            await asyncio.sleep(MOST_S)
            await judge(findings, issuer, gone, kept, 401)

            server.kill()
            await asyncio.sleep(AWAY_S)
            await judge(findings, issuer, gone, kept, 401, " while Redis is away")
            link = Link(issuer.admin)
            refused = (await issuer.change(link, f"/{kept[0]}/revoke")).status
            findings.check("a revocation while Redis is away, 503", refused, 1, refused == 503)
            await asyncio.to_thread(server.start)
            returned = time.monotonic()
            for _ in range(600):
                if (await issuer.change(link, f"/{kept[0]}/revoke")).status == 200:
                    break
                await asyncio.sleep(0.05)
            findings.at_most("until keys change again, s, at most 5", time.monotonic() - returned, 5, 1, timed=True)
            link.close()
            await asyncio.sleep(MOST_S)
            await judge(findings, issuer, [*gone, kept[0]], kept[1:], 401, " once it is back")
            held = server.command("HLEN", "{dragoman-keys}")
            findings.check("keys and revoked ones in Redis", held, COUNT, held == COUNT)
            going = False
            await asyncio.gather(*clients)
            wrong = [one for _, _, one in seen if one.status != 200]
            findings.none("steady clients: answers other than 200", [one.status for one in wrong], len(seen))
            while_made = [(place, one.seconds * 1000) for when, place, one in seen if begun <= when < revoked]
            mine, others = ([ms for place, ms in while_made if (place == 2) == other] for other in (False, True))
            grown = percentile(mine, 0.99) - percentile(others, 0.99)
            what = "steady clients: p99 above that of a gateway without such keys, ms, at most 50"
            findings.at_most(what, grown, 50, len(mine), timed=True)


async def judge(
    findings: Findings, issuer: Issuer, gone: Sequence[str], kept: Sequence[str], refusal: int, when: str = ""
) -> None:
    for gateway in range(2):
        valid, invalid = await issuer.statuses(kept, gateway), await issuer.statuses(gone, gateway)
        findings.check(f"keys of gateway {gateway}, 200{when}", dict(valid), len(kept), valid == {200: len(kept)})
        holds = invalid == {refusal: len(gone)}
        findings.check(f"revoked keys of gateway {gateway}, {refusal}{when}", dict(invalid), len(gone), holds)
