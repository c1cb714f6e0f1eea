"""Prompts and replies for operators: those that rules choose, masked and in files or traces; or, dangerously, the body
of every request in the log itself.

entry.py      what is kept of one request, bounded
recording.py  keeps the reply that a dialect writes
masks.py      takes secrets out of texts
writer.py     the thread that writes, and how much may wait for it
files.py      a folder of files, bounded in bytes and age; bucket.py: objects of a bucket
traces.py     spans of traces
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import NamedTuple, cast

from gateway.config import Config
from gateway.config.prompt_log import PromptLog as Options
from gateway.core.messages import Generate
from gateway.core.ports import Dialect, RequestTrace
from gateway.features import Built, Parts
from gateway.features.prompt_log.entry import Entry
from gateway.features.prompt_log.recording import Recording
from gateway.features.prompt_log.writer import Writer
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.offload import run_step
from gateway.translation.texts import Guarded


class Bodies(Feature):
    """Logs the body of every request by `log(request id, body)`."""

    def __init__(self, log: Callable[[str, bytes], None]) -> None:
        self._log = log

    def around_receive(self, inner: Step) -> Step:
        async def receive(call: Call) -> None:
            await inner(call)
            self._log(call.record.id, call.request.body)

        return receive


class Rule(NamedTuple):
    """keys, teams, models: None for all. sample: the share of the requests."""

    name: str
    keys: frozenset[str] | None
    teams: frozenset[str] | None
    models: frozenset[str] | None
    sample: float

    def chooses(self, call: Call) -> bool:
        caller = call.principal
        return (
            (self.keys is None or caller.key in self.keys)
            and (self.teams is None or caller.team in self.teams)
            and (self.models is None or call.served.name in self.models)
            and drawn(call.record.id, self.sample)
        )


def drawn(id: str, share: float) -> bool:
    """Whether the request is of the share: in all gateways, and each time, the same."""
    return share >= 1 or int.from_bytes(sha256(id.encode()).digest()[:8]) < share * 2.0**64


class PromptLog(Feature):
    """A call's notes have its entry.

    trace_of  returns the trace of a request; None if it is not recorded
    """

    def __init__(
        self,
        rules: tuple[Rule, ...],
        writer: Writer,
        trace_of: Callable[[Call], RequestTrace | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules
        self._writer = writer
        self._trace_of = trace_of
        self._clock = clock

    def around_request(self, inner: Step) -> Step:
        async def request(call: Call) -> None:
            try:
                await inner(call)
            finally:
                entry: Entry | None = call.notes.pop(self, None)
                if entry is not None:
                    trace = self._trace_of(call)
                    if trace is not None and self._writer.tracing is not None:
                        trace.logged()
                    entry.end(call.record, [] if trace is None else trace.context)
                    self._writer.put(entry)

        return request

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            entry: Entry | None = call.notes.get(self)
            if entry is not None:
                call.reply.dialect = entry.dialect  # another model is asked
            by = self._chosen(call)
            if by is None:
                return inner(call)
            if entry is None:
                entry = self._writer.begin(by, call.reply.dialect)
                if entry is None:
                    return inner(call)
                call.notes[self] = entry
            return self._answer(call, entry, inner)

        return answer

    def _chosen(self, call: Call) -> str | None:
        """Why the request is logged; None if it is not."""
        if not isinstance(call.op, Guarded):
            return None
        if call.principal.logged_until > self._clock():
            return "key"
        return next((rule.name for rule in self._rules if rule.chooses(call)), None)

    async def _answer(self, call: Call, entry: Entry, inner: Step) -> None:
        await run_step(call.share, entry.ask, call.asked, call.served.name)
        reply = call.reply
        if isinstance(call.op, Generate):
            reply.dialect = cast("Dialect", Recording(entry.dialect, entry))  # the rest of it is the dialect's own
        try:
            await inner(call)
        except BaseException:
            reply.dialect = entry.dialect
            if reply.unseen:
                entry.forget_reply()
            raise


def _rules(options: Options, config: Config) -> tuple[Rule, ...]:
    found = []
    for name, rule in options.rules.items():
        keys, teams, models = (
            frozenset(rule.match[one]) if one in rule.match else None for one in ("key", "team", "model")
        )
        if models is not None:
            models = frozenset(config.resolve(one) or one for one in models)
        found.append(Rule(f"rule {name}", keys, teams, models, rule.sample))
    return tuple(found)


def build(parts: Parts) -> Built | None:
    config, log = parts.config, parts.log
    options, bodies = config.prompt_log, config.log.dangerously_log_prompts
    if options is None and not bodies:
        return None
    layers = (Bodies(log.prompt),) if bodies else ()
    rules = () if options is None else _rules(options, config)

    def logged_now(keys: Mapping[str, float]) -> list[str]:
        now = time.time()
        of_keys = [f"key {name}" for name, until in keys.items() if until > now] if options is not None else []
        return [*["all bodies, in the log"] * bodies, *(rule.name for rule in rules), *of_keys]

    parts.offers.prompts_logged = logged_now

    def take_effect() -> None:
        if bodies:
            log.event("warning", "prompts are logged", option="log.dangerously_log_prompts")
        if rules:
            log.event("warning", "prompts are logged", option="prompt_log", rules=[rule.name for rule in rules])

    if options is None:
        return Built(layers, take_effect=take_effect)
    tracing = config.tracing if options.traces else None
    writer: Writer | None = parts.earlier_services.get("prompt_log")
    if writer is None or (writer.options, writer.tracing) != (options, tracing):
        writer = Writer(options, tracing, parts.known_keys, parts.metrics, log)
    entries = PromptLog(rules, writer, parts.offers.trace_of)
    return Built(layers, {"entries": entries}, service=writer, start=writer.start, take_effect=take_effect)
