"""What SageMaker's drivers share: the body of a chat, and the texts of its events."""

from __future__ import annotations

import json
from collections.abc import Iterator


def body(prompt: str, stream: bool) -> str:
    return json.dumps({"messages": [{"role": "user", "content": prompt}], "stream": stream})


def texts(lines: bytes) -> Iterator[str]:
    """The texts of whole events."""
    for line in lines.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
