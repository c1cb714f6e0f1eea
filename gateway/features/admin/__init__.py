"""Keys are made, changed and revoked while gateways run; `gateway.auth` has what is stored of them.

callers.py   admins and their roles
changes.py   the changes of keys that they ask for
teams.py     the same for teams
draining.py  workers that take no new requests
api.py       the admin API; openapi.py: its operations, and their description
"""

from __future__ import annotations

from gateway.core.key_kind import KeyKind
from gateway.features import Built, Parts
from gateway.features.admin.api import AdminApi
from gateway.features.admin.callers import Admins
from gateway.features.admin.changes import KeyChanges
from gateway.features.admin.draining import KEY_KINDS, Draining
from gateway.features.admin.teams import TeamChanges


def key_kinds() -> tuple[KeyKind, ...]:
    return KEY_KINDS


def build(parts: Parts) -> Built | None:
    admins = Admins(parts.config, parts.tokens)
    if parts.keys is None or not (admins or parts.config.console.oidc):
        return None
    changes = KeyChanges(parts.config, parts.available, parts.keys, parts.log.event)
    teams = TeamChanges(parts.config, parts.available, parts.keys, parts.log.event)
    draining = Draining(parts.watched, parts.keys.store)
    api = AdminApi(admins, changes, teams, draining, parts.log.rationed, parts.offers)
    parts.offers.admin = api.of
    return Built(operations={"/admin/": api}, start=draining.start, close=draining.close)
