"""Which paths are served, and by what: the dialects that a configuration offers, with its prefixes.

Several dialects may have the same path. Then the method says whose request it is, and where several have that too, the
header tests of their routes (`core.http.Route.when`). A path of one dialect is found by one look-up in a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from gateway import dialects
from gateway.config import Config
from gateway.core.http import HeaderTest, Route, path_parameter
from gateway.core.ports import Dialect, Settings
from gateway.pipeline import Endpoint, Receive, Runtime, Scope, Send


class Line(Struct, frozen=True):
    """One line of the route table. when: the header by which its requests are told from those of another dialect at the
    same path, or ""."""

    method: str
    path: str
    dialect: str
    name: str
    when: str = ""


def active_dialects(config: Config) -> list[Dialect]:
    """The dialects that `config` offers, in registry order, with its prefixes and policies."""
    found = []
    for name in dialects.REGISTRY:
        options = config.dialect(name)
        if options.enabled:
            found.append(dialects.create(name, Settings(options.prefixes, options.extras, options.default_api_version)))
    return found


def paths(dialect: Dialect) -> dict[str, dict[str, Route]]:
    """Every path of `dialect`, its prefixes included, and what is there by method."""
    found: dict[str, dict[str, Route]] = {}
    for prefix in dialect.prefixes:
        for route in dialect.routes:
            path = route.path if route.absolute else prefix.rstrip("/") + route.path or "/"
            found.setdefault(path, {})[route.method] = route
    return found


def postable(config: Config) -> dict[str, tuple[Dialect, str]]:
    """Every path to which clients send a request with a body: the dialect there, and the name of its route."""
    return {
        path: (dialect, routes["POST"].name)
        for dialect in active_dialects(config)
        for path, routes in paths(dialect).items()
        if "POST" in routes
    }


def route_table(config: Config) -> list[Line]:
    """Every path that `config` serves, the gateway's own included."""
    found = [(path, dialect, routes) for dialect in active_dialects(config) for path, routes in paths(dialect).items()]
    places = [(path, method) for path, _, routes in found for method in routes]
    lines = [
        Line(method, path, dialect.name, route.name, str(route.when or "") if places.count((path, method)) > 1 else "")
        for path, dialect, routes in found
        for method, route in routes.items()
    ]
    own = ["/livez", "/readyz"]
    if config.metrics.enabled and config.metrics.listen is None:
        own.append("/metrics")
    return lines + [Line("GET", path, "-", path[1:]) for path in own]


def router(config: Config, runtime: Runtime) -> Router:
    """What `config` serves, as Starlette routes to raw ASGI endpoints: no middleware, no request object on the way."""
    placed: dict[str, list[Endpoint]] = {}
    fallbacks: dict[str, list[_Candidate]] = {}
    for dialect in active_dialects(config):
        default = config.dialect(dialect.name).default_model
        default = config.resolve(default) if default is not None else None
        for path, methods in paths(dialect).items():
            if "GET" in methods:
                methods = {**methods, "HEAD": methods["GET"]}
            placed.setdefault(path, []).append(Endpoint(runtime, dialect, methods, default))
        test = next((route.when for route in dialect.routes if route.when is not None), None)
        for prefix in dialect.prefixes:
            nothing = Endpoint(runtime, dialect, {}, default)
            fallbacks.setdefault(prefix.rstrip("/"), []).append((test, nothing))
    routes = []
    for path, endpoints in placed.items():
        endpoint = endpoints[0] if len(endpoints) == 1 else _SharedPath(endpoints)
        routes.append(StarletteRoute(path, _Decoded(endpoint) if "{" in path else endpoint))
    return Router(routes, redirect_slashes=False, default=_Fallback(fallbacks))


_Candidate = tuple[HeaderTest | None, Endpoint]
"""An endpoint, and the test of the requests that it is for; None for all that pass no other test."""


class _Decoded:
    """An endpoint whose path has parameters."""

    def __init__(self, endpoint: Endpoint | _SharedPath) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {name: path_parameter(value) for name, value in scope["path_params"].items()}
        await self._endpoint(scope, receive, send)


def _chosen(candidates: list[_Candidate], scope: Scope) -> Endpoint:
    """The one whose test the request passes. Without such a test, the first that has none."""
    headers = scope["headers"]
    for test, endpoint in candidates:
        if test is not None and test.passes(headers):
            return endpoint
    return next((endpoint for test, endpoint in candidates if test is None), candidates[0][1])


class _SharedPath:
    """The ASGI endpoint of a path that several dialects have."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._by_method: dict[str, list[_Candidate]] = {}
        for endpoint in endpoints:
            for method, route in endpoint.routes.items():
                self._by_method.setdefault(method, []).append((route.when, endpoint))
        first = endpoints[0]
        every = {method: route for endpoint in endpoints for method, route in endpoint.routes.items()}
        # For methods that none of them has: its refusal names those that there are.
        self._no_method = Endpoint(first.runtime, first.dialect, every, first.default_model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        candidates = self._by_method.get(scope["method"])
        await (self._no_method if candidates is None else _chosen(candidates, scope))(scope, receive, send)


class _Fallback:
    """Answers unknown paths: an error in the dialect whose prefix the path has, else in the one at the root. Where
    several have that prefix, it is the one whose routes' test the request passes."""

    def __init__(self, endpoints: Mapping[str, list[_Candidate]]) -> None:
        self._endpoints = sorted(endpoints.items(), key=lambda item: -len(item[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = (one for prefix, one in self._endpoints if path == prefix or path.startswith(prefix + "/"))
        await _chosen(next(found, self._endpoints[-1][1]), scope)(scope, receive, send)
