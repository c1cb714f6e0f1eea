"""The only reader of gateway.yaml and of the environment.

`load` gives a frozen `Config` or raises `ConfigError` with everything that is wrong, each fault with its file and line.
"""

from gateway.config.checks import Known
from gateway.config.faults import ConfigError, Fault
from gateway.config.loading import load
from gateway.config.model import (
    Breaker,
    Config,
    Deadlines,
    DialectOptions,
    Health,
    Key,
    Listen,
    Log,
    Metrics,
    Model,
    Queue,
    Relay,
    Retry,
)
from gateway.config.reference import json_schema, reference_markdown

__all__ = [
    "Breaker",
    "Config",
    "ConfigError",
    "Deadlines",
    "DialectOptions",
    "Fault",
    "Health",
    "Key",
    "Known",
    "Listen",
    "Log",
    "Metrics",
    "Model",
    "Queue",
    "Relay",
    "Retry",
    "json_schema",
    "load",
    "reference_markdown",
]
