"""The optional features of a configuration, and their order around the way of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from gateway.config import Config, has_feature
from gateway.core.http import Route
from gateway.core.ports import Backend, Dialect, Pool
from gateway.features import Built, OneModel, Parts, Routes
from gateway.fleet.model_fleet import ModelFleet
from gateway.kernel import Application, Endpoint, Runtime
from gateway.kernel.feature import Feature
from gateway.kernel.way import Way

ORDER = (
    "tracing",  # sees all that the others do
    "shedding",  # before anything is spent on the request
    "caps",  # by the caller's connections, which cost least to count
    "prompt_log",  # the bodies, also of what guards and limits refuse
    "pricing",  # limits charge what it has written
    "guards",  # a refused request is charged nothing
    "end_users",  # before guards are asked: these ask once those below have read the request; limits go by them, too
    "caps.streams",  # before guards are asked, too
    "tracing.steps",  # logs what was read before guards are asked, too
    "request_policies",  # limits charge what it lowers
    "prompt_log.entries",  # what guards have seen and left, as policies made it; also what limits refuse
    "limits",  # charges what all above have let pass
    "stored",  # a reply that limits refuse leaves nothing to store
    "reply_cache",  # a hit is charged as a request, and stored for its caller; no worker is asked for it
    "quarantine",  # outside what asks another worker: after two deaths none is asked
    "resume",  # a stream that was seen is not tried again as a whole
    "leave",  # a request leaves its worker within the attempts that resume looks at
    "web_tools",  # each round is a request to workers for all below
    "kv_events",  # the prefill worker is picked by the tokens, too
    "prefill",  # before a worker is asked for the text
    "mirror",  # copies what a worker is sent, by policies of its own
    "hedge",  # asks a worker itself
    "media",  # this and the four behind it have no layer
    "uploads",
    "sockets",
    "litellm",  # reports limits
    "batches",
    "console",  # keeps what has become of requests within all above
    "admin",  # shows batches, and ends requests that the console shows
)
"""The folders of `gateway/features`; one that is not there is left out. The order holds within a step of the way:
guards, which wrap `read`, are asked before all that wraps only `answer`, wherever it stands. The name behind a dot is
that of a further layer of the folder, with a position of its own."""


def folders() -> Iterator[tuple[str, ModuleType]]:
    for name in filter(has_feature, (entry for entry in ORDER if "." not in entry)):
        yield name, import_module(f"gateway.features.{name}")


def routes_of(config: Config) -> dict[str, Routes]:
    """The routes that features add to dialects, by the feature's name."""
    return {name: folder.client_routes(config) for name, folder in folders() if hasattr(folder, "client_routes")}


def path_aliases(config: Config) -> list[Callable[[str], str | None]]:
    """Functions of features: a path -> the further path at which it answers, too; None for none."""
    found = (folder.path_alias(config) for _, folder in folders() if hasattr(folder, "path_alias"))
    return [alias for alias in found if alias is not None]


def path_advices(config: Config) -> list[Callable[[str], str]]:
    """Functions of features: a path that is not served -> the rest of the sentence that says so; "" for none."""
    found = (folder.path_advice(config) for _, folder in folders() if hasattr(folder, "path_advice"))
    return [advice for advice in found if advice is not None]


class Features:
    """The features of one configuration.

    services  what outlives the configuration, by the feature's name
    offers    what they have for the kernel and the application
    """

    def __init__(self, parts: Parts) -> None:
        self._config: Config = parts.config
        self._built: dict[str, Built] = {}
        self.services: dict[str, Any] = {}
        self.offers = parts.offers
        for name, folder in folders():
            built: Built | None = folder.build(parts)
            if built is not None:
                self._built[name] = built
                self.services[name] = built.service

    def of(self, name: str | None = None, backend: Backend | None = None, fleet: ModelFleet | None = None) -> Way:
        """The way of requests to the model `name`; of all requests, while their model is not known."""
        model = None
        if name is not None and backend is not None and fleet is not None:
            model = OneModel(name, self._config.models[name], backend, cast("Pool | None", fleet.prefill))
        found: list[Feature | None] = []
        for entry in ORDER:
            folder, _, further = entry.partition(".")
            if (one := self._built.get(folder)) is None:
                continue
            if further:
                found.append(one.further_layers.get(further))
                continue
            found += one.layers
            found.append(None if model is None else one.of_model(model))
        return Way([one for one in found if one is not None])

    @property
    def endpoints(self) -> dict[str, Callable[[Runtime, Dialect, Mapping[str, Route]], Endpoint]]:
        """The makers of the endpoints of `routes_of`, by the feature's name."""
        return {name: one.endpoint for name, one in self._built.items() if one.endpoint is not None}

    @property
    def operations(self) -> dict[str, Application]:
        """The endpoints of the admin address, by path."""
        return {path: endpoint for one in self._built.values() for path, endpoint in one.operations.items()}

    async def start(self) -> None:
        for one in self._built.values():
            await one.start()

    def take_effect(self) -> None:
        """The configuration is in force from now on."""
        for one in self._built.values():
            one.take_effect()

    def drain(self) -> None:
        """The process ends soon."""
        for one in self._built.values():
            one.drain()

    async def close(self) -> None:
        """Closes what belongs to this configuration alone."""
        for one in self._built.values():
            await one.close()
