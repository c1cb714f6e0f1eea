"""Options of batches: requests that clients hand in as files, and that are answered on capacity that is idle."""

from __future__ import annotations

from pydantic import Field

from gateway.config.kinds import Bytes, Seconds, ServiceUrl, Variable, Whole
from gateway.config.section import Section

_DAY = 86400
_PART = "[A-Za-z0-9_-][A-Za-z0-9._-]*"


class Bucket(Section):
    """A bucket of a service that speaks S3's protocol. Its key may read, write, list and delete there. Needs the extra
    `s3`."""

    SECRETS = ("access_key_id", "secret_access_key")

    url: ServiceUrl
    """Address of the service, such as `https://s3.eu-central-1.amazonaws.com`; the bucket's name is added as a path."""
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    """The bucket, which exists."""
    prefix: str = Field(default="", pattern=rf"^({_PART}(/{_PART})*)?$", max_length=512)
    """The path in it below which everything is kept: two deployments in one bucket need two. Empty: its root."""
    region: str = Field(default="us-east-1", pattern=r"^[A-Za-z0-9-]{1,64}$")
    """The region that requests are signed for."""
    access_key_id_file: str | None = Field(default=None, min_length=1)
    """File with the id of the key, relative to this file's folder. Without any key: the role that the environment has;
    see docs/batches.md."""
    access_key_id_env: Variable | None = None
    """Environment variable with that id."""
    secret_access_key_file: str | None = Field(default=None, min_length=1)
    """File with its secret; both are read at the start and at each reload."""
    secret_access_key_env: Variable | None = None
    """Environment variable with its secret."""
    ca_file: str | None = Field(default=None, min_length=1)
    """PEM bundle that the service's certificate may chain to, beside the system's."""


class Batches(Section):
    """Batches and their files, by OpenAI's and Anthropic's own APIs; see docs/batches.md. Needs `redis`."""

    ANY_OF = ("directory", "bucket")

    directory: str | None = Field(default=None, pattern=r"^/", max_length=1024)
    """Absolute path of the folder for files, on a volume that all gateways of the Redis server share. Absent: there is
    a `bucket`."""
    bucket: Bucket | None = None
    """A bucket instead of a folder."""
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
    """Most requests of batches at workers at once in one gateway process."""
    headroom: float = Field(default=0.0625, ge=0, le=0.9)
    """Share of what each worker takes that batches leave free for the next requests of clients; at least one place."""
    keep_s: Seconds = Field(default=2592000.0, ge=60, le=3660 * _DAY)
    """How long files, results and batches that have ended are kept."""
