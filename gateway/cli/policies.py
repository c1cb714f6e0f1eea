"""Request policies of a configuration, for commands that show what becomes of a request."""

from __future__ import annotations

from gateway.auth import Principal
from gateway.cli import CommandError
from gateway.config import Config, has_feature
from gateway.core.http import Headers, Request
from gateway.core.messages import Op


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
