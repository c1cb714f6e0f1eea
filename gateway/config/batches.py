"""Options of batches: requests that clients hand in as files, and that are answered on capacity that is idle."""

from __future__ import annotations

from pydantic import Field

from gateway.config.kinds import Bytes, Seconds, Whole
from gateway.config.section import Section

_DAY = 86400


class Batches(Section):
    """Batches and their files, by OpenAI's and Anthropic's own APIs; see docs/batches.md. Needs `redis`."""

    directory: str = Field(pattern=r"^/", max_length=1024)
    """Absolute path of the folder for files. All gateways that share the Redis server need the same one, on a volume
    that they share."""
    max_file_bytes: Bytes = Field(default=209715200, ge=1024, le=1 << 36)
    """Largest file, or body of a batch of Anthropic's API; a larger one is answered 413."""
    max_line_bytes: Bytes = Field(default=1048576, ge=1024, le=1 << 30)
    """Largest single request in a batch; at most `listen.max_body_bytes`."""
    max_lines: Whole = Field(default=50000, ge=1, le=1000000)
    """Most requests in one batch."""
    max_files: Whole = Field(default=1000, ge=1, le=1000000)
    """Most files, and batches of each API, ended or not, that one tenant (a team, or a key without a team) may have."""
    max_tenant_bytes: Bytes = Field(default=10737418240, ge=1024, le=1 << 50)
    """Most bytes of one tenant's files, and of requests of batches that have not ended; results count, and are never
    refused."""
    max_batches: Whole = Field(default=20, ge=1, le=10000)
    """Most batches of one tenant that have not ended."""
    max_in_flight: Whole = Field(default=256, ge=1, le=100000)
    """Most requests of batches at once in one gateway process."""
    headroom: float = Field(default=0.0625, ge=0, le=0.9)
    """Share of what each worker takes that batches leave free for the next requests of clients; at least one place."""
    keep_s: Seconds = Field(default=2592000.0, ge=60, le=3660 * _DAY)
    """How long files, results and batches that have ended are kept."""
