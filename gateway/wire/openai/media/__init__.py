"""Text of sound, sound and images, by OpenAI's API: fields, requests, replies."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.http import Route
from gateway.wire.openai.media.fields import EXAMPLES, FIELDS, FORMS, PATHS
from gateway.wire.openai.media.requests import read


def routes(prefix: str) -> Sequence[Route]:
    """The routes of all these operations behind `prefix`. Each is named like its operation."""
    return [Route("POST", prefix + path.removeprefix("/v1"), name, form=name in FORMS) for name, path in PATHS.items()]
