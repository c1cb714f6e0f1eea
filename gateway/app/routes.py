"""Which paths are served, and by what: the dialects that a configuration offers, with its prefixes."""

from __future__ import annotations

from msgspec import Struct
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from gateway import dialects
from gateway.config import Config
from gateway.core.http import Route, path_parameter
from gateway.core.ports import Dialect, Settings
from gateway.pipeline import Endpoint, Receive, Runtime, Scope, Send


class Line(Struct, frozen=True):
    """One line of the route table."""

    method: str
    path: str
    dialect: str
    name: str


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
            path = route.path if route.absolute else prefix.rstrip("/") + route.path
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
    lines = [
        Line(route.method, path, dialect.name, route.name)
        for dialect in active_dialects(config)
        for path, routes in paths(dialect).items()
        for route in routes.values()
    ]
    own = ["/livez", "/readyz"]
    if config.metrics.enabled and config.metrics.listen is None:
        own.append("/metrics")
    return lines + [Line("GET", path, "-", path[1:]) for path in own]


def router(config: Config, runtime: Runtime) -> Router:
    """What `config` serves, as Starlette routes to raw ASGI endpoints: no middleware, no request object on the way."""
    routes = []
    fallbacks: list[tuple[str, Endpoint]] = []
    for dialect in active_dialects(config):
        default = config.dialect(dialect.name).default_model
        default = config.resolve(default) if default is not None else None
        for path, methods in paths(dialect).items():
            if "GET" in methods:
                methods = {**methods, "HEAD": methods["GET"]}
            endpoint = Endpoint(runtime, dialect, methods, default)
            routes.append(StarletteRoute(path, _Decoded(endpoint) if "{" in path else endpoint))
        for prefix in dialect.prefixes:
            fallbacks.append((prefix.rstrip("/"), Endpoint(runtime, dialect, {}, default)))
    fallbacks.sort(key=lambda item: -len(item[0]))
    return Router(routes, redirect_slashes=False, default=_Fallback(fallbacks))


class _Decoded:
    """An endpoint whose path has parameters."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {name: path_parameter(value) for name, value in scope["path_params"].items()}
        await self._endpoint(scope, receive, send)


class _Fallback:
    """Answers unknown paths: an error in the dialect whose prefix the path has, else in the one at the root."""

    def __init__(self, endpoints: list[tuple[str, Endpoint]]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        for prefix, endpoint in self._endpoints:
            if path == prefix or path.startswith(prefix + "/"):
                await endpoint(scope, receive, send)
                return
        await self._endpoints[-1][1](scope, receive, send)
