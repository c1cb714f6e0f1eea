"""The workers of one configuration: who they are, what they can do, and how the gateway watches them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gateway.config import Config
from gateway.config.proxies import shown
from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause
from gateway.core.figures import Silence
from gateway.core.http import Headers
from gateway.core.messages import Chat, Message, Text
from gateway.core.ports import UNKNOWN, Backend, Facts
from gateway.fleet.adapters import Adapters, Serving
from gateway.fleet.clients import AskingTransport, Clients
from gateway.fleet.discovery import Discovery, Dns, Fleet, FoundWorker, Source, able
from gateway.fleet.engine import Scraper
from gateway.fleet.health import Health
from gateway.fleet.kv_events import Listening
from gateway.fleet.model_fleet import ModelFleet
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.refusals import Refusals
from gateway.fleet.registry import Registry
from gateway.fleet.report import Report
from gateway.fleet.roster import Roster
from gateway.fleet.stalls import StallDetector
from gateway.fleet.waiting import PoolEvents
from gateway.fleet.worker import Worker
from gateway.fleet.worker_facts import ask
from gateway.redis import connect, split_address

_METRICS = "/metrics"
_QUESTION = Chat(model=None, messages=(Message("user", (Text("1"),)),), max_output=1)
_LEAVING = "the worker is leaving", "worker_leaving"
_STALLED = "the worker makes no progress", "worker_stalled"
_MOST_NAMED = 8
_PREFILL_WAIT_S = 30.0
"""Longest wait for a worker that computes a prompt. Then the worker that generates computes it."""


class Fleets:
    """The workers of all models, by model and address, and the fleet of each model.

    To make and to start fleets changes nothing of the workers that another configuration has: `take_effect` does.

    roster     has the fleets in force: workers in both keep their state, policies what they learned
    transport_of  makes the transport for what a model's workers are asked beside requests
    listening  to the caches of engines; None if that is configured for no model
    serving    serves the models
    stalls     finds workers that make no progress
    known      what sources were found to have before the start, by their names
    """

    def __init__(
        self,
        config: Config,
        roster: Roster,
        report: Report,
        transport_of: Callable[[str], AskingTransport],
        listening: Listening | None,
        serving: Serving,
    ) -> None:
        self.models: dict[str, ModelFleet] = {}
        self.workers: dict[tuple[str, str], Worker] = {}
        self.clients = Clients(transport_of, config.health.timeout_s)
        self.adapters = Adapters(config, self.models, self._ask_again, serving)
        self.known: Mapping[str, Fleet] = {}
        self.rested = False
        self._all_asked = False
        self._config = config
        self._roster = roster
        self._report = report
        self._listening = listening
        self.serving = serving
        self._debug = config.log.level == "debug"
        self._refusals = Refusals(report, lambda model: self.models[model].pool.waiting)
        self._redis: Any = None
        self.discovery: Discovery | None = None
        self.health: Health | None = None
        scrape_s = config.routing.scrape_s
        self.scraper = Scraper(scrape_s, self._metrics_of, self._load_changed) if scrape_s else None
        self.stalls = StallDetector(self, config.health.stalled_s)

    # -- pools ------------------------------------------------------------------------------------------------------

    def serve(self, model: str, backend: Backend, headers: Headers) -> ModelFleet:
        """Makes the pools of a model's workers."""
        options = self._config.models[model]
        fleet = self.models[model] = ModelFleet(model, options, backend, headers)
        fleet.pool = self._pool(fleet, options.workers, generate=True)
        if options.prefill is not None:
            fleet.prefill = self._pool(fleet, options.prefill.workers, generate=False)
        return fleet

    def _pool(self, fleet: ModelFleet, addresses: Sequence[str], *, generate: bool) -> Pool:
        """Makes the pool of a model's workers that generate, or of those that compute prompts: without these a request
        goes on, too."""
        config, before = self._config, self._roster.in_force
        known = None if before is None else before.models.get(fleet.name)
        learned = None if known is None else known.pool if generate else known.prefill
        policy = None if learned is None else learned.policy
        if policy is None or policy.name != fleet.options.policy:
            policy = POLICIES[fleet.options.policy]()
        queue = config.queue_for(fleet.name)
        if not generate:
            timeout_s = min(queue.timeout_s, _PREFILL_WAIT_S)
            queue = queue.model_copy(update={"timeout_s": timeout_s, "cold_start_s": 0.0})
        name = fleet.name
        events = PoolEvents(
            suspect=partial(self._suspect, name),
            ejected=partial(self._ejected, name),
            lacks=partial(self._lacks, name),
            returned=partial(self._returned, name),
            left_alone=partial(self.stalls.left_alone, name),
            waited=self._report.waits(name),
        )
        if generate:  # a request that finds no worker for its prompt goes on
            events.refused = self._refusals.of(name)
        made = Pool(
            [self._worker(fleet, address) for address in addresses],
            policy,
            queue,
            config.breaker.max_eject_share,
            clock=time.monotonic,
            events=events,
            sessions=frozenset(name.lower().encode() for name in config.routing.session_headers),
            salted=fleet.backend.salts,
        )
        if learned is not None:
            made.waking = learned.waking
        return made

    @property
    def ready(self) -> bool:
        """Whether some model has a ready worker."""
        return any(fleet.pool.ready for fleet in self.models.values())

    # -- who they are -----------------------------------------------------------------------------------------------

    def _worker(self, fleet: ModelFleet, address: str) -> Worker:
        """The worker at `address`: if the configuration in force has it, that one with its load and breaker."""
        key = fleet.name, address
        worker = self.workers.get(key)
        if worker is None:
            before = self._roster.in_force
            worker = before.workers.get(key) if before is not None else None
            if worker is None:
                worker = Worker(address, self._config.breaker, None)
                worker.draining = address in self._roster.drained
                self._settle(fleet, worker)
            self.workers[key] = worker
        return worker

    def _settle(self, fleet: ModelFleet, worker: Worker) -> None:
        """Gives the worker its options."""
        own = fleet.worker_options(worker.address)
        most = own.capacity or fleet.options.max_in_flight
        learns = most is None and self._config.queue_for(fleet.name).learn_capacity
        if not (learns and worker.learns):  # it keeps the capacity that it has learned
            worker.max_in_flight = most
        worker.learns = learns
        worker.weight = own.weight
        worker.breaker.options = self._config.breaker
        worker.http2 = fleet.options.http2 and worker.address.startswith("http:")
        proxy = fleet.options.proxy_for(worker.address)
        worker.proxy = None if proxy is None else shown(proxy)

    def _sources(self) -> list[Source]:
        """The sources in which workers are looked up."""
        found: list[Source] = []
        registered: dict[str, str] = {}
        for name, options in self._config.models.items():
            discover = options.discover
            if discover is not None and discover.dns is not None:
                found.append(Dns(name, *split_address(discover.dns), discover.interval_s))
            if discover is not None and discover.redis:
                registered[name] = options.served_name(name)
        if registered:
            assert self._config.redis is not None  # the configuration was checked
            self._redis = connect(self._config.redis)
            namespace, known = self._config.redis.namespace, self.known.get(Registry.name)
            report = self._ignored
            found.append(Registry(self._redis, registered, time.monotonic, namespace, report, known, self._answering))
        return found

    def _answering(self) -> set[str]:
        """The addresses of the workers that answer their probes."""
        return {address for (_, address), worker in self.workers.items() if worker.ready}

    def _known_before(self) -> Mapping[str, Fleet]:
        """The fleets that the configuration in force has found, of the models that are still looked up."""
        before = self._roster.in_force
        found = {} if before is None or before.discovery is None else before.discovery.read
        wanted = [name for name, options in self._config.models.items() if options.discover is not None]
        return {source: {name: fleet[name] for name in wanted if name in fleet} for source, fleet in found.items()}

    @property
    def unread(self) -> list[str]:
        """The sources of workers that could not be read since the start; and the models without a ready worker, some of
        whose workers were not probed yet, or have a name for which no name server answers."""
        found = [] if self.discovery is None else sorted(self.discovery.unread)
        for model, fleet in self.models.items():
            if not fleet.pool.ready and not all(worker.probed for worker in fleet.pool.workers):
                found.append(f"workers of {model}")
        if self.health is not None:
            nameless = {model for (model, _), worker in self.workers.items() if worker in self.health.unresolved}
            found += [f"names of {model}" for model in sorted(nameless) if not self.models[model].pool.ready]
        return found

    async def _join(self, model: str, members: Sequence[FoundWorker]) -> None:
        """Called by discovery: `members` are the workers of `model` from now on."""
        fleet = self.models[model]
        if fleet.prefill is not None:  # those that register are known under the model's name, too
            theirs = {worker.address for worker in fleet.prefill.workers}
            members = [member for member in members if member.address not in theirs]
        fleet.members = members
        before = set(fleet.pool.workers)
        workers = []
        for member in members:
            worker = self._worker(fleet, member.address)
            worker.draining = member.draining or member.address in self._roster.drained
            worker.leaving, left = member.leaving, worker.leaving
            if member.leaving and not left:
                self._log("info", "worker leaving", model, worker, in_flight=worker.in_flight)
                self.leave(model, worker)
            workers.append(worker)
        fleet.pool.change(workers)
        if self._roster.in_force is self:
            self._watch(fleet)
            self._narrow(fleet)
            self._roster.changed(self, model)
        fleet.pool.refit_waiting()
        for worker in before.difference(workers):
            del self.workers[model, worker.address]
            if self.health is not None:
                self.health.remove(worker)
                self._report.worker_left(model, worker.address)
            self.clients.forget(model, worker.address)
            self.serving.forget(model, worker.address)
            self._log("info", "worker left", model, worker)
        for worker in workers:
            if worker not in before:
                # An operator drained the address: it may have been another worker's.
                facts = {"drained": True} if worker.address in self._roster.drained else {}
                self._log("info", "worker joined", model, worker, **facts)
                if self.health is not None:
                    self._report.worker(model, worker.address, worker.ready)
                    self.health.add(model, worker)

    @property
    def drained(self) -> frozenset[str]:
        """The addresses that `drain` was called for."""
        return frozenset(self._roster.drained)

    def drain(self, address: str, drained: bool) -> None:
        """Has the known worker at `address` finish its requests and take no new ones, under later configurations, too;
        or take them again, unless it drains by itself."""
        change = self._roster.drained.add if drained else self._roster.drained.discard
        change(address)
        for model in [model for model, other in self.workers if other == address]:
            fleet = self.models[model]
            own = any(member.draining for member in fleet.members if member.address == address)
            self.workers[model, address].draining = drained or own
            for pool in fleet.pools:
                pool.refit_waiting()
            self._roster.changed(self, model)

    # -- what they can do -------------------------------------------------------------------------------------------

    def _narrow(self, fleet: ModelFleet) -> None:
        """Sets what may be asked of a model: what is declared, less what one of its workers reports as missing."""
        can = able(fleet.declared, fleet.staying())
        fleet.can = replace(can, lacks=can.lacks.union(*(worker.lacking for worker in fleet.workers)))
        fleet.name_workers()
        if self._all_asked and len(fleet.names) > 1 and fleet.names.keys() != fleet.reported:
            fleet.reported = fleet.names.keys()
            served = {name: found[:_MOST_NAMED] for name, found in fleet.names.items()}
            self._report.event("warning", "workers of one model serve different names", model=fleet.name, served=served)
        self.serving.narrowed(fleet.name, fleet.can)
        self.adapters.offer(fleet)

    async def _ask(self, model: str, worker: Worker) -> Cause | None:
        """Asks a worker what it can do. One that does not answer is believed able, as before. Returns why it may take
        no requests; probes and requests judge one that is ready."""
        fleet, before = self.models[model], worker.served_as
        known = worker.facts, worker.lacking, worker.serves, worker.served_as
        found = await ask(self.clients, fleet, worker)
        if worker.ready and not isinstance(found, Facts):
            worker.facts, worker.lacking, worker.serves, worker.served_as = known
            return None
        if worker.ready and found == known[0]:
            worker.lacking |= known[1]  # the same model: what its answers have shown stands
        worker.facts = found if isinstance(found, Facts) else UNKNOWN
        if worker.served_as is not None and worker.served_as != before:
            self._log("info", "worker serves another name", model, worker, served=worker.served_as)
        self._narrow(fleet)
        return found if isinstance(found, Cause) else None

    async def _ask_again(self, fleet: ModelFleet) -> None:
        """Asks the ready workers of a model again. If one does not answer, its last answer stands: probes judge it."""
        ready = [worker for worker in fleet.workers if worker.ready]
        found = await asyncio.gather(*(ask(self.clients, fleet, worker) for worker in ready))
        for worker, facts in zip(ready, found, strict=True):
            worker.facts = facts if isinstance(facts, Facts) else worker.facts
        self._narrow(fleet)

    # -- their life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one."""
        config = self._config
        self.known = self.known or self._known_before()
        sources = self._sources()
        for fleet in self.models.values():
            for pool in fleet.pools:
                pool.listen()
        if sources:
            fixed = {name: options.workers for name, options in config.models.items() if options.discover}
            self.discovery = Discovery(sources, fixed, self._join, self._source_state, self.known)
            await self.discovery.start()
        probed = self._probed if self._debug else None
        self.health = Health(self.workers, config.health, self.clients.probe, self._changed, probed, self._ask)
        await self.health.start()
        self._all_asked = True
        for fleet in self.models.values():
            self._narrow(fleet)

    def take_effect(self) -> None:
        """The workers have the options of this configuration from now on, and are watched as it says."""
        for (model, address), worker in self.workers.items():
            self._settle(self.models[model], worker)
            self._report.worker(model, address, worker.ready)
            worker.forget_load()
        self.adapters.start()
        if self._listening is not None:
            self._listening.keep([name for name, fleet in self.models.items() if fleet.options.kv_events is not None])
        for fleet in self.models.values():
            self._watch(fleet)
        self.stalls.start()

    def _watch(self, fleet: ModelFleet) -> None:
        """Reads the figures of a model's workers if a pick, the capacity or the stall detector depends on them, and
        follows what they cache."""
        if self.scraper is not None and fleet.gauges_apply:
            assert fleet.backend.gauges is not None
            wanted = [
                one
                for one in fleet.pools
                if self._config.health.stalled_s != 0
                or (one.policy.needs and len(one.workers) > 1)
                or any(worker.learns for worker in one.workers)
            ]
            self.scraper.follow(fleet.name, [worker for one in wanted for worker in one.workers], fleet.backend.gauges)
        if fleet.options.kv_events is None:
            for worker in fleet.workers:
                worker.blocks = None
        elif self._listening is not None:
            self._listening.follow(fleet.name, {worker: fleet.kv_events(worker) for worker in fleet.workers})

    def follow(self, newer: Fleets, model: str) -> None:
        """Gives the requests that wait here for a worker of `model`, or try another one, those of the configuration
        `newer`, unless these are addressed in another way: the requests are made for the workers of this one. If none
        of the others is ready, the requests keep the workers that are."""
        mine, theirs = self.models.get(model), newer.models.get(model)
        if not self.rested or mine is None or theirs is None or not mine.addressed_as(theirs):
            return
        pairs = ((mine.pool, theirs.pool), (mine.prefill, theirs.prefill))
        changed = []
        for pool, other in pairs:
            if pool is not None and other is not None and (other.ready or not pool.ready):
                pool.change(other.workers, ahead=True)
                changed.append(pool)
        self.adapters.offer(mine)
        for pool in changed:
            pool.refit_waiting()

    async def rest(self) -> None:
        """Stops discovery, probes and readings of load: from now on `follow` alone changes the workers. Running
        requests keep theirs."""
        self._refusals.close()
        await self.stalls.close()
        await self.adapters.close()
        if self.scraper is not None:
            await self.scraper.close()
        if self.discovery is not None:
            await self.discovery.close()
        if self.health is not None:
            await self.health.close()
        await self.clients.close()
        self.rested = True

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()
        for fleet in self.models.values():
            for pool in fleet.pools:
                pool.close()

    async def death_of(self, model: str, worker: Any) -> object | None:
        """Probes a worker; the name of its death, None if it lives."""
        gone = self.health is not None and await self.health.is_gone(model, worker)
        if not self.has(model, worker):
            self.clients.forget(model, worker.address)
        return (worker.address, worker.lives) if gone else None

    # -- for the stall detector -------------------------------------------------------------------------------------

    def has(self, model: str, worker: Worker) -> bool:
        """Whether the worker is one of the model's: it may have left, and still run requests."""
        fleets = self._roster.in_force if self.rested else self
        return fleets is not None and fleets.workers.get((model, worker.address)) is worker

    def pool_of(self, model: str, worker: Worker) -> Pool:
        fleet = self.models[model]
        return next((pool for pool in fleet.pools if worker in pool.workers), fleet.pool)

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        return self._roster.silence(model, worker, recent)

    async def ask(self, model: str, worker: Worker, patience_s: float) -> bool | None:
        """Asks the worker's model for one token. False if it does not answer within `patience_s`, None if the answer
        is that of a web server alone."""
        fleet = self.models[model]
        try:
            request = fleet.backend.write(_QUESTION, fleet.can)
            request = request if worker.renaming is None else worker.renaming.apply(request)
            if fleet.options.paths is not None and request.path not in fleet.options.paths:
                return None
            request.headers = [*request.headers, *fleet.headers, (b"x-request-id", b"dragoman-progress")]
            status = await self.clients.status(model, worker.address, request, patience_s)
        except TimeoutError:
            return False
        except GatewayError:
            return None
        return True if status == 200 else None

    def stalled(self, model: str, worker: Worker) -> None:
        self._report.stalled(model, worker.address)
        worker.trouble = Cause.STALLED
        facts = {"in_flight": worker.in_flight, "left_out": worker.breaker.ejected}
        if worker.progress.left_alone:
            facts["left_alone"] = True
        self._log("warning", "worker stalled", model, worker, **facts)

    def resumed(self, model: str, worker: Worker) -> None:
        worker.trouble = None if worker.trouble is Cause.STALLED else worker.trouble
        self._log("info", "worker moves again", model, worker)

    def leave(self, model: str, worker: Worker) -> None:
        """Moves the requests of a stalled or leaving worker to others, as far as others can take them."""
        why, code = _LEAVING if worker.leaving else _STALLED
        self._roster.leave(worker, GatewayError(Kind.TIMEOUT, why, code=code))

    # -- reports ----------------------------------------------------------------------------------------------------

    def _log(self, level: str, event: str, model: str, worker: Worker, **fields: object) -> None:
        self._report.event(level, event, model=model, worker=worker.address, **fields)

    async def _metrics_of(self, model: str, worker: Worker) -> bytes:
        try:
            return await self.clients.document(model, worker.address, _METRICS, self.models[model].headers)
        except GatewayError as error:
            raise OSError(f"no metrics of {worker.address}") from error

    def _source_state(self, source: str, trouble: str | None) -> None:
        event = self._report.event
        if trouble is None:
            event("info", "workers can be looked up again", source=source)
        else:
            event("warning", "workers cannot be looked up; the known ones stay", source=source, error=trouble)

    def _ignored(self, count: int) -> None:
        self._report.event("warning" if count else "info", "registry entries ignored", count=count)

    def _lacks(self, model: str, worker: Worker) -> None:
        """A request has shown that the model of `worker` does not do what was asked: no other one asks for it."""
        self._log("info", "worker cannot", model, worker, lacks=sorted(worker.lacking))
        self._narrow(self.models[model])

    def _ejected(self, model: str, worker: Worker) -> None:
        if not self.has(model, worker):  # its metrics are gone
            return
        self._report.ejected(model, worker.address)
        self._log("warning", "worker ejected", model, worker, reason=worker.reason)

    def _returned(self, model: str, worker: Worker) -> None:
        self._log("info", "worker returned", model, worker)

    def _suspect(self, model: str, worker: Worker) -> None:
        """A request to `worker` has failed."""
        if self._debug:
            self._log("debug", "worker failed", model, worker, failures=worker.breaker.failures)
        if self.health is not None:
            self.health.suspect(worker)

    def _probed(self, model: str, worker: Worker, found: str) -> None:
        self._log("debug", "probe", model, worker, found=found, missed=worker.missed_probes)

    def _changed(self, model: str, worker: Worker) -> None:
        if not self.has(model, worker):
            return
        self._report.worker(model, worker.address, worker.ready)
        if not worker.ready:
            more: dict[str, object] = {"serves": list(worker.serves)} if worker.serves else {}
            more |= {} if worker.proxy is None else {"proxy": worker.proxy}
            if worker.words is not None and worker.trouble is Cause.KEY_REFUSED:
                more["text"] = self._report.masked(worker.words)
            if worker.trouble is Cause.HOST_NOT_IN_CERTIFICATE and worker.proxy is None:
                more["certificate_for"] = list(worker.named)
            self._log("warning", "worker down", model, worker, reason=worker.reason, **more)
        else:
            self._log("info", "worker ready", model, worker)
            worker.lives += 1
            worker.breaker.come_back(time.monotonic())
            self._roster.changed(self, model)
        worker.freed()

    def _load_changed(self, model: str, worker: Worker, counts: bool) -> None:
        """The figures of a worker's engine count from now on, or no longer."""
        if not counts:
            self._log("warning", "load of worker stale", model, worker)
            return
        self._log("info", "load of worker known", model, worker)
        if worker.blocks is not None and worker.blocks.ranks > 1:
            self._log("warning", "cache of worker not used", model, worker, ranks=worker.blocks.ranks)
