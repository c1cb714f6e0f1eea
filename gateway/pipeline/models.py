"""The models of one configuration at run time: which one a request means, and the list of those a caller may use."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from msgspec import Struct

from gateway.auth import Principal
from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import Histogram
from gateway.core.http import Headers, Response
from gateway.core.messages import PLACEHOLDERS, ListModels, ModelCard, Op
from gateway.core.ports import Backend, Capabilities, Deadlines, Pool, Transport


class ServedModel(Struct):
    """One model at run time.

    headers  that every request to its workers carries
    total_s  seconds that a whole request may take, or None
    created  Unix seconds, for lists of models
    paths    the workers' paths that may be used; None for all
    gaps     seconds between two pieces of output of its streams, counted by the pump
    """

    name: str
    pool: Pool
    backend: Backend
    can: Capabilities
    transport: Transport
    deadlines: Deadlines
    headers: Headers
    total_s: float | None
    created: int
    gaps: Histogram
    aliases: tuple[str, ...] = ()
    paths: frozenset[str] | None = None

    def card(self, name: str, draining: bool) -> ModelCard:
        """What a list of models says of it under `name`, its own or an alias."""
        return ModelCard(
            name,
            self.created,
            self.pool.ready and not draining,
            self.can.max_context,
            self.name if name != self.name else None,
            self.can.features,
        )


def resolve_model(models: Mapping[str, ServedModel], op: Op, default: str | None, principal: Principal) -> ServedModel:
    """The model that `op` names, or `default` where it names none. `op.model` becomes the name that was found.

    A model that the caller may not use is answered as one that does not exist. Raises GatewayError: NO_MODEL, and
    BAD_REQUEST where no model is named and there is no default.
    """
    for hint in op.hints:
        served = models.get(hint)
        if served is not None and principal.may_use(served.name):
            op.model = hint
            break
    name = op.model
    served = models.get(name) if name is not None else None
    if served is None and default is not None and (name is None or name in PLACEHOLDERS):
        served = models[default]
        op.model = default
    if name is None and served is None:
        raise GatewayError(
            Kind.BAD_REQUEST, "missing required parameter: 'model'", param="model", code="missing_parameter"
        )
    if served is None or not principal.may_use(served.name):
        raise _unknown_model(name or next(iter(op.hints), ""))
    return served


def list_models(
    models: Mapping[str, ServedModel], asked: ListModels, default: str | None, principal: Principal, draining: bool
) -> Response:
    """The list of models that the caller may use, or the one asked for. Raises GatewayError(NO_MODEL) if that one is
    not among them."""
    only = default if asked.one and asked.model is None else asked.model
    cards = [
        served.card(name, draining)
        for name, served in models.items()
        if principal.may_use(served.name) and (only is None or name == only)
    ]
    if only is not None and not cards:
        raise _unknown_model(only)
    return asked.write(cards)


def _unknown_model(name: str) -> GatewayError:
    """`name` is what the client called it, empty where it named none."""
    shown = unquote(name)[:128]
    message = (
        f"the model '{shown}' does not exist or you do not have access to it"
        if shown
        else "no model was named, and there is no default model that you have access to"
    )
    return GatewayError(Kind.NO_MODEL, message, param="model")
