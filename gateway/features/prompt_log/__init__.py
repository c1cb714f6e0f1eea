"""Logs the body of each request, prompts included, for operators who accept that."""

from __future__ import annotations

from collections.abc import Callable

from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step


class PromptLog(Feature):
    """Logs the body of every request by `log(request id, body)`."""

    def __init__(self, log: Callable[[str, bytes], None]) -> None:
        self._log = log

    def around_receive(self, inner: Step) -> Step:
        async def receive(call: Call) -> None:
            await inner(call)
            self._log(call.record.id, call.request.body)

        return receive


def build(parts: Parts) -> Built | None:
    return Built((PromptLog(parts.log.prompt),)) if parts.config.log.dangerously_log_prompts else None
