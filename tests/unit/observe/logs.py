"""An output of the log that tests read, and a record for it."""

from __future__ import annotations

import io
import json
from typing import Any

from gateway.core.ports import RequestRecord


class Output(io.BytesIO):
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def record(**fields: Any) -> RequestRecord:
    return RequestRecord("id-1", "openai", **fields)
