"""The paths that are served: those of the dialects that a configuration offers, with its prefixes.

Several dialects may have the same path. Then the method decides which dialect reads a request; if several have that
method too, the header tests of their routes decide (`core.http.Route.when`). A path is found by one look-up in a
dictionary, unless it has parameters.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace
from starlette.routing import compile_path

from gateway import dialects
from gateway.app.base_urls import BaseUrls, single_slashes
from gateway.app.features import path_advices, path_aliases, routes_of
from gateway.config import Config
from gateway.core.http import HeaderTest, Route, path_parameter
from gateway.core.ports import Dialect, Settings
from gateway.kernel import Application, Endpoint, Receive, Runtime, Scope, Send

_PARAMETER = re.compile(r"\{\w+(:path)?\}")
_NEUTRAL = "openai"
"""The dialect whose form errors have while no dialect is known: that of docs/errors.md."""


class Line(Struct, frozen=True):
    """One line of the route table. when: the header that sets its requests apart from those of another dialect at the
    same path, or ""."""

    method: str
    path: str
    dialect: str
    name: str
    when: str = ""


def active_dialects(config: Config) -> list[Dialect]:
    """The dialects that `config` offers, in registry order, with its prefixes and policies."""
    offered = ((name, config.dialect(name)) for name in dialects.REGISTRY)
    runs = config.tools.runs
    settings = ((name, replace(options.settings, runs=runs)) for name, options in offered if options.enabled)
    return [dialects.create(name, one) for name, one in settings]


def paths(config: Config, dialect: Dialect, routes: Sequence[Route] | None = None) -> dict[str, dict[str, Route]]:
    """Every path of `dialect`, its prefixes and aliases included, and what is there by method; or those of `routes`
    alone."""
    found: dict[str, dict[str, Route]] = {}
    for prefix in dialect.prefixes:
        for route in dialect.routes if routes is None else routes:
            path = route.path if route.absolute else prefix.rstrip("/") + route.path or "/"
            found.setdefault(path, {})[route.method] = route
    for alias_of in path_aliases(config):
        for path, methods in list(found.items()):
            if (alias := alias_of(path)) is not None:
                found[alias] = {**methods, **found.get(alias, {})}
    return found


def posts(config: Config, runtime: Runtime) -> dict[tuple[str, str], Endpoint]:
    """The endpoints of all POSTs, by the names of their dialects and their paths without a prefix."""
    return {
        (dialect.name, route.path): Endpoint(runtime, dialect, {"POST": route}, _default_model(config, dialect))
        for dialect in active_dialects(config)
        for route in dialect.routes
        if route.method == "POST"
    }


def _segments(dialect: Dialect) -> list[str]:
    """The first segments of the paths behind this dialect's prefixes, such as `api`."""
    found = [route.path.split("/")[1] for route in dialect.routes if "/" in route.path and not route.absolute]
    return [one for one in dict.fromkeys(found) if one and "{" not in one]


def _roots(dialect: Dialect) -> set[str]:
    """The beginnings of paths that are this dialect's: its prefixes, and the first segments behind them."""
    prefixes = [one.rstrip("/") for one in dialect.prefixes]
    return {*prefixes, *(f"{prefix}/{one}" for prefix in prefixes for one in _segments(dialect))}


def served_at(config: Config, name: str, prefix: str) -> set[str]:
    """Each `METHOD path` that the dialect serves under `prefix`, with the header test of its requests if there is one.
    A request could be meant for two dialects that serve the same. config: its own prefixes do not matter."""
    dialect = dialects.create(name, Settings(prefixes=(prefix,)))
    return {
        f"{method} {_PARAMETER.sub('{}', path)}{f' ({route.when})' if route.when is not None else ''}"
        for path, routes in paths(config, dialect).items()
        for method, route in routes.items()
    }


def _list_path(dialect: Dialect) -> str | None:
    """The path of the dialect's list of models, None without one."""
    found = (route.path for route in dialect.routes if route.method == "GET" and route.name == dialect.lists)
    path = next((one for one in found if "{" not in one), None)
    return None if path is None else dialect.prefixes[0].rstrip("/") + path


def postable(config: Config) -> dict[str, tuple[Dialect, str]]:
    """Every path to which clients send a request with a body: the dialect there, and the name of its route."""
    return {
        path: (dialect, routes["POST"].name)
        for dialect in active_dialects(config)
        for path, routes in paths(config, dialect).items()
        if "POST" in routes
    }


def route_table(config: Config) -> list[Line]:
    """Every path that `config` serves, the gateway's own included. A HEAD beside a GET is a GET's."""
    added = routes_of(config).values()
    found = [
        (path, dialect, routes)
        for dialect in active_dialects(config)
        for served in (None, *(one.get(dialect.name, ()) for one in added))
        for path, routes in paths(config, dialect, served).items()
    ]
    pairs = [(path, method) for path, _, routes in found for method in routes]
    lines = [
        Line(method, path, dialect.name, route.name, str(route.when or "") if pairs.count((path, method)) > 1 else "")
        for path, dialect, routes in found
        for method, route in routes.items()
        if method != "HEAD" or (path, "GET") not in pairs
    ]
    own = ["/livez", "/readyz"]
    if config.metrics.enabled and config.metrics.listen is None:
        own.append("/metrics")
    return lines + [Line("GET", path, "-", path[1:]) for path in own]


def router(
    config: Config,
    runtime: Runtime,
    of_features: Mapping[str, Callable[[Runtime, Dialect, Mapping[str, Route]], Endpoint]] = MappingProxyType({}),
) -> Paths:
    """The endpoints that `config` serves: raw ASGI, without middleware or a request object on the way. of_features:
    what makes the endpoints of `routes_of`, by the feature's name; all others are left out."""
    placed: dict[str, list[Endpoint]] = {}
    fallbacks: dict[str, list[_Candidate]] = {}
    segments: dict[str, list[str]] = {}
    mains: dict[str, list[str]] = {}
    active = active_dialects(config)
    added = routes_of(config)

    of_paths = path_advices(config)

    def advice(method: str, path: str) -> str:
        known = "" if served.methods(path) else next(filter(None, (one(path) for one in of_paths)), "")
        return known or urls.advice(method, path)

    elsewhere = next(filter(None, map(_list_path, active)), None)
    for dialect in active:
        default = _default_model(config, dialect)
        listed = _list_path(dialect) or elsewhere
        for path, methods in paths(config, dialect).items():
            if "GET" in methods:
                methods = {**methods, "HEAD": methods["GET"]}
            placed.setdefault(path, []).append(Endpoint(runtime, dialect, methods, default, listed, advice))
        for name, endpoint in of_features.items():
            for path, methods in paths(config, dialect, added[name].get(dialect.name, ())).items():
                placed.setdefault(path, []).append(endpoint(runtime, dialect, methods))
        test = next((route.when for route in dialect.routes if route.when is not None), None)
        nothing = Endpoint(runtime, dialect, {}, default, advice=advice)
        for root in sorted(_roots(dialect)):
            fallbacks.setdefault(root, []).append((test, nothing))
        posts = [route for route in dialect.routes if route.method == "POST" and not route.absolute]
        main = min(posts, key=lambda route: route.name != "chat").path
        for prefix in dialect.prefixes:
            segments.setdefault(prefix.rstrip("/"), []).extend(_segments(dialect))
            mains.setdefault(prefix.rstrip("/"), []).append(_PARAMETER.sub("MODEL", main))
    endpoints = {path: found[0] if len(found) == 1 else _SharedPath(found) for path, found in placed.items()}
    served = Paths(endpoints, _Fallback(fallbacks))
    urls = BaseUrls(served.methods, segments, mains)
    return served


def _default_model(config: Config, dialect: Dialect) -> str | None:
    default = config.dialect(dialect.name).default_model
    return config.resolve(default) if default is not None else None


def sockets(config: Config, runtime: Runtime) -> dict[str, Endpoint]:
    """The POST that reads the messages of a web socket, by path. A path with parameters has none."""
    return {
        path: Endpoint(runtime, dialect, {"POST": routes["POST"]}, _default_model(config, dialect), _list_path(dialect))
        for dialect in active_dialects(config)
        for path, routes in paths(config, dialect).items()
        if "GET" in routes and routes["GET"].socket
    }


def templates(config: Config) -> Callable[[str], str]:
    """Finds the line of the route table that serves a path: "" for a path that is not served."""
    added = routes_of(config).values()
    served = {
        path: path
        for dialect in active_dialects(config)
        for routes in (None, *(one.get(dialect.name, ()) for one in added))
        for path in paths(config, dialect, routes)
    }
    patterns = [(compile_path(path)[0], path) for path in _with_parameters(served)]

    def template(path: str) -> str:
        found = served.get(path)
        return next((one for match, one in patterns if match.match(path)), "") if found is None else found

    return template


def _with_parameters(paths: Iterable[str]) -> list[str]:
    """The paths with parameters, in the order in which they are tried: of two that match the same, the one with more
    text behind its last parameter says more (`/v1/models/{model:path}:countTokens`)."""
    return sorted((path for path in paths if "{" in path), key=lambda path: -len(path.rpartition("}")[2]))


class _Pattern(Struct, frozen=True):
    """A path with parameters. begins: its text before the first of them, which is compared first, because that is
    cheaper than a match."""

    begins: str
    match: re.Pattern[str]
    endpoint: Endpoint | _SharedPath


class Paths:
    """The ASGI application of all dialects' paths. `endpoints` are by path, in Starlette's syntax; `fallback` answers
    what has none.

    Starlette's own router tries the patterns of all paths in turn, the literal ones too: that was a quarter of what a
    plain request of `azure_openai` costs in `bench.inside`, whose paths name the deployment.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint | _SharedPath], fallback: Application) -> None:
        self.endpoints = endpoints
        self.literal = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        self._patterns = [
            _Pattern(path.partition("{")[0], compile_path(path)[0], endpoint)
            for path, endpoint in ((path, endpoints[path]) for path in _with_parameters(endpoints))
        ]
        self._fallback = fallback

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope["path"]
        endpoint = self._find(path, scope)
        if endpoint is None and "//" in path:
            endpoint = self._find(single_slashes(path), scope)
        return (endpoint or self._fallback)(scope, receive, send)

    def methods(self, path: str) -> Collection[str]:
        """The methods that are served at `path`."""
        endpoint = self._find(path, {})
        return () if endpoint is None else endpoint.routes

    def _find(self, path: str, scope: Scope) -> Endpoint | _SharedPath | None:
        """Writes the path, and its parameters if it has any, into `scope`."""
        endpoint = self.literal.get(path)
        if endpoint is not None:
            scope["path"] = path
            return endpoint
        for pattern in self._patterns:
            if path.startswith(pattern.begins) and (found := pattern.match.match(path)) is not None:
                given = found.groupdict()
                scope["path"] = path
                scope["path_params"] = {name: path_parameter(value) for name, value in given.items()}
                return pattern.endpoint
        return None


_Candidate = tuple[HeaderTest | None, Endpoint]
"""An endpoint, and the test of the requests that it is for; None for all that pass no other test."""


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
        if (
            "GET" in self._by_method
        ):  # another dialect's HEAD would have other headers than GET: RFC 9110, section 9.3.2
            self._by_method["HEAD"] = self._by_method["GET"]
        self.routes = {method: route for endpoint in endpoints for method, route in endpoint.routes.items()}
        self._no_method = list(self._refusing(endpoints))

    def _refusing(self, endpoints: list[Endpoint]) -> Iterator[_Candidate]:
        """For methods that none of them has: the refusals name those that there are, in the form of the dialect that
        the request shows. If it may be of several, no dialect is known."""
        plain = {}
        for endpoint in endpoints:
            test = next((route.when for route in endpoint.routes.values() if route.when is not None), None)
            if test is None:
                plain[endpoint.dialect.name] = endpoint.dialect
            else:
                yield test, Endpoint(endpoint.runtime, endpoint.dialect, self.routes, None, None, endpoint.advice)
        dialect = next(iter(plain.values())) if len(plain) == 1 else dialects.create(_NEUTRAL, Settings())
        yield None, Endpoint(endpoints[0].runtime, dialect, self.routes, None, None, endpoints[0].advice)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        candidates = self._by_method.get(scope["method"], self._no_method)
        return _chosen(candidates, scope)(scope, receive, send)


class _Fallback:
    """Answers unknown paths: an error in the dialect that has the prefix and the first segment behind it, else in the
    one that has the prefix, else in the one at the root. If several dialects qualify, the one whose routes' test the
    request passes answers."""

    def __init__(self, endpoints: Mapping[str, list[_Candidate]]) -> None:
        self._endpoints = sorted(endpoints.items(), key=lambda item: -len(item[0]))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope["path"]
        found = (one for prefix, one in self._endpoints if path == prefix or path.startswith(prefix + "/"))
        return _chosen(next(found, self._endpoints[-1][1]), scope)(scope, receive, send)
