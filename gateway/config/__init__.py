"""The only reader of gateway.yaml and of the environment.

`load` gives a frozen `Config` or raises `ConfigError` with everything that is wrong, each fault with its file and line.
"""

from gateway.config.aliases import Aliases
from gateway.config.available import Available
from gateway.config.batches import Batches, Bucket
from gateway.config.faults import ConfigError, Fault
from gateway.config.file_thread import FileThread, TooSlow
from gateway.config.loading import config_file, faults_of, key_of, load, team_of
from gateway.config.model import (
    Breaker,
    Config,
    Health,
    Key,
    Model,
    Relay,
)
from gateway.config.routing import Mirror, Queue, SplitRule
from gateway.config.schema import json_schema
from gateway.config.secrets import plain_secrets, watched_files
from gateway.config.section import has_feature
from gateway.config.serving import Console, ConsoleOidc, Cors, Listen, Start, Tracing, is_loopback, is_private
from gateway.config.sharing import CacheSalt, Jwt, Limit, Redis, Seal, StoredKeys, Team
from gateway.config.tools import Tools, WebFetch, WebSearch
from gateway.config.watch import Watch
