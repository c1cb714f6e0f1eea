"""The operators' view: the gateway's state as one JSON document, a page that draws it, and a playground.

state.py       the state: models, workers, teams, limits, and the counters behind their rates
fleet.py       the workers as the page asks for them
gateways.py    the other gateways, as each writes it to Redis
requests.py    the requests under way and the last ones, with what refused them
guard.py       access to the console, and headers for browsers
login.py       people who log in, and their sessions; provider.py: the identity provider behind it
playground.py  one request through the gateway's own kernel, with what both sides sent and got
spend.py       a month of spending for the page
transcript.py  what a playground's request has shown so far, bounded
routes.py      the ASGI endpoints on the admin address
page/          the page: HTML, CSS and JavaScript, served as they are
"""

from __future__ import annotations

from typing import Any

from gateway.config import is_loopback
from gateway.core.key_kind import KeyKind
from gateway.features import Built, Parts
from gateway.features.console.gateways import KEY_KINDS, Gateways
from gateway.features.console.routes import Console


def key_kinds() -> tuple[KeyKind, ...]:
    return KEY_KINDS


def build(parts: Parts) -> Built | None:
    if (listen := parts.config.metrics.listen) is None:
        return None
    before: Console | None = parts.earlier_services.get("console")
    console = before or Console(parts.watched, parts.metrics.registry, parts.group)
    parts.offers.answers |= {b"state": console.answer_state, b"requests": console.requests.answer}
    options, local = parts.config.console, is_loopback(listen.rpartition(":")[0].strip("[]"))
    if options.enabled:
        parts.offers.requests = console.requests
    layers = (console.recent,) if options.enabled else ()
    oidc = options.oidc

    def log_sessions() -> None:
        if oidc is not None and oidc.session_secret is None:
            parts.log.event("info", "console sessions hold at this gateway alone", reason="no session_secret")

    gateways, life = None, dict[str, Any]()
    if options.enabled and parts.config.redis is not None:
        gateways = Gateways(parts.config.redis, listen.rpartition(":")[2], console.state_of_all, parts.log.event)
        life = {"start": gateways.start, "close": gateways.close}
    operations = console.endpoints(options, local, parts.log, gateways)
    return Built(layers, service=console, operations=operations, take_effect=log_sessions, **life)
