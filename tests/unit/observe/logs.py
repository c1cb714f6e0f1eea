"""An output of the log that tests read, and a record for it."""

from __future__ import annotations

import io
from typing import Any

from gateway.core.ports import RequestRecord
from tests.support.records import Members, parsed


class Output(io.BytesIO):
    def lines(self) -> list[Members]:
        return [parsed(line) for line in self.getvalue().splitlines()]


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(id="id-1", dialect="openai", **fields)
