"""Request policies of a configuration, for commands that show what becomes of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from gateway import backends
from gateway.auth import Principal
from gateway.cli import CommandError
from gateway.config import Config, has_feature
from gateway.core.http import Headers, Request
from gateway.core.messages import Op
from gateway.core.ports import Backend, Capabilities, Dialect
from gateway.translation import offline


class Policies:
    """Those for requests of a key, by its name, for a model.

    names    theirs, the farthest first
    changes  what they changed of a request's own

    Raises CommandError if there is no such key."""

    def __init__(self, config: Config, model: str, key: str | None) -> None:
        found = config.keys.get(key) if key is not None else None
        if key is not None and found is None:
            raise CommandError(f"there is no key {key}; there are {', '.join(config.keys) or 'none'}")
        caller = Principal(key or "anonymous", found.team if found is not None else None)
        self.names: list[str] = []
        self.changes: list[str] = []
        if not has_feature("request_policies"):
            return
        from gateway.features.request_policies import of_model  # the folder may be deleted

        policies = of_model(config, model)
        if policies is not None:
            self.names, self._rules = policies.names(caller), policies.rules_of(caller)

    def apply(self, op: Op) -> None:
        """Changes the request. Raises GatewayError for a cap that refuses."""
        if self.names:
            dropped, changed = self._rules.apply(op)
            self.changes = [*changed, *(f"{name} dropped" for name in dropped)]

    def finish(self, request: Request, client: Headers) -> None:
        """Changes a request as it was written for a worker."""
        finish = self._rules.finish(client) if self.names else None
        if finish is not None:
            finish(request)


def impossible(config: Config, offered: Iterable[Dialect]) -> Iterator[str]:
    """A sentence for each model whose workers refuse every chat in some dialects because of what policies set: members
    that they do not have."""
    if not has_feature("request_policies") or not config.request_policies:
        return
    from gateway.features.request_policies import of_model  # the folder may be deleted

    matches = [policy.match for policy in config.request_policies.values()]
    callers = {(match.get("key", ("anonymous",))[0], match.get("team", (None,))[0]) for match in matches}
    chats = [dialect for dialect in offered if "chat" in dialect.examples]
    found: dict[str, dict[str, None]] = {}
    for name, model in config.models.items():
        policies, backend, can = of_model(config, name), backends.create(model.backend), model.declared(name)
        for key, team in sorted(callers, key=str) if policies is not None else ():
            assert policies is not None
            caller = Principal(key, team)
            rules = policies.rules_of(caller)
            for dialect in chats:
                if not _refused(dialect, backend, can) and _refused(dialect, backend, can, rules.apply):
                    at = f"request_policies {', '.join(policies.names(caller))}, model {name} ({model.backend})"
                    found.setdefault(at, {})[dialect.name] = None
    for at, names in found.items():
        yield f"{at}: a member that they set is refused in every chat of {', '.join(names)}"


def _refused(
    dialect: Dialect, backend: Backend, can: Capabilities, change: Callable[[Op], object] = lambda op: None
) -> bool:
    example = dialect.examples["chat"][0]
    body = json.dumps(example.body).encode()
    try:
        request, op = offline.read(dialect, body, route=example.route, query=example.query)
        offline.cross(dialect, request, op, backend, can, change)
    except offline.Refused:
        return True
    return False
