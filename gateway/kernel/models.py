"""The models of one configuration at run time: which one a request means, and the list of those a caller may use."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct

from gateway.auth import Principal
from gateway.config import Aliases
from gateway.core.errors import GatewayError, Kind
from gateway.core.figures import Histogram
from gateway.core.http import Headers, Response
from gateway.core.messages import PLACEHOLDERS, ListModels, ModelCard, Op
from gateway.core.money import Tariff
from gateway.core.ports import Backend, Capabilities, Deadlines, Pool, Transport
from gateway.kernel.other_models import UNAVAILABLE, OtherModels

if TYPE_CHECKING:
    from gateway.kernel.way import Way


class ServedModel(Struct):
    """One model at run time.

    headers  that every request to its workers carries
    total_s  seconds that a whole request may take, or None
    created  Unix seconds, for lists of models
    paths    the workers' paths that may be used; None for all
    gaps     seconds between two pieces of output of its streams, counted by the pump
    other_models  those that may answer in its place; None where there are none
    way      of its requests
    first_byte_per_token  seconds that each token of a prompt adds to the deadlines of the first byte and token
    tariff   its prices; None if it has none
    listed   lists of models name it
    update_load  called with (worker, the head of each whole 200) if that may carry its load; None if it does not
    adapter  the LoRA adapter that this is, of the model `name`; None for the model itself
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
    way: Way
    paths: frozenset[str] | None = None
    other_models: OtherModels | None = None
    first_byte_per_token: float = 0.0
    adapter: str | None = None
    update_load: Callable[[Any, Headers], None] | None = None
    tariff: Tariff | None = None
    listed: bool = True

    def __repr__(self) -> str:
        return f"ServedModel({self.name!r})"  # a header may hold the workers' key

    @property
    def own_name(self) -> str:
        """The name that means it alone: the adapter's, if it is one."""
        return self.adapter or self.name

    def card(self, name: str, ready: bool) -> ModelCard:
        """Its entry in a list of models under `name`, its own or an alias."""
        return ModelCard(
            name,
            self.created,
            ready,
            self.can.max_context,
            self.name if name != self.name else None,
            self.can.features,
            self.can.lacks,
        )


def resolve_model(
    models: Mapping[str, ServedModel], patterns: Aliases, op: Op, default: str | None, principal: Principal
) -> ServedModel:
    """The model that `op` names, or `default` where it names none. `op.model` becomes the name that was found.

    The caller's own aliases win, then the names in `models`, then `default` for a placeholder, then patterns. A model
    that the caller may not use is answered as one that does not exist. Raises GatewayError: NO_MODEL, also where only
    unknown hints name one, and BAD_REQUEST where nothing does and there is no default.
    """
    if principal.aliases is not None:
        meant = _by_alias(models, principal.aliases, op, bound=principal.bounds.models)
        if meant is not None:
            return meant
    for hint in op.model_hints:
        served = models.get(hint)
        if served is not None and principal.may_use(served.name):
            op.model = hint
            break
    name = op.model
    served = models.get(name) if name is not None else None
    if served is None:
        served = _by_alias(models, patterns, op, frozenset() if default is None else PLACEHOLDERS)
        if served is None and default is not None and (name is None or name in PLACEHOLDERS):
            served = models[default]
            op.model = default
        if name is None and served is None and not op.model_hints:
            raise GatewayError(
                Kind.BAD_REQUEST, "missing required parameter: 'model'", param="model", code="missing_parameter"
            )
    if served is None or (
        (principal.models is not None or principal.bounds.models is not None) and not principal.may_use(served.name)
    ):
        raise unknown_model(name or next(iter(op.model_hints), ""))
    return served


def _by_alias(
    models: Mapping[str, ServedModel],
    aliases: Aliases,
    op: Op,
    without: Container[str] = (),
    bound: Container[str] | None = None,
) -> ServedModel | None:
    """The model that a name in `op` means by `aliases`, none of the names `without`. If there is one, `op.model`
    becomes that name. bound: the models that may be meant; None for all."""
    for name in op.model_hints if op.model is None else (*op.model_hints, op.model):
        found = None if name in without else aliases.find(name)
        if found is not None and (bound is None or found in bound):
            op.model = name
            return models.get(found)
    return None


def list_models(
    models: Mapping[str, ServedModel],
    patterns: Aliases,
    asked: ListModels,
    default: str | None,
    principal: Principal,
    draining: bool,
) -> Response:
    """The list of models that the caller may use, or the one asked for. The list has neither
    patterns nor the caller's own aliases: clients offer its names for choice. A name that these cover can be asked for.

    Raises GatewayError(NO_MODEL) if the one asked for is not among those that the caller may use."""
    only = default if asked.one and asked.model is None else asked.model
    usable = (name for name in asked.names if name in models and principal.may_use(models[name].name))
    only = next(usable, only)
    listed = models
    if only is not None:
        meant = None if principal.aliases is None else principal.aliases.find(only)
        if meant is None and only not in models:
            meant = patterns.find(only)
        if meant is not None:
            listed = {only: models[meant]}
    cards = [
        served.card(name, not draining and _ready(models, served, principal))
        for name, served in listed.items()
        if principal.may_use(served.name) and (served.listed if only is None else name == only)
    ]
    if only is not None and not cards:
        raise unknown_model(only)
    return asked.write(cards)


def _ready(models: Mapping[str, ServedModel], served: ServedModel, principal: Principal) -> bool:
    """Whether the model, or one of its fallbacks, has a ready worker."""
    other_models = served.other_models
    return served.pool.ready or (
        other_models is not None
        and UNAVAILABLE in other_models.on
        and any(models[name].pool.ready and principal.may_use(models[name].name) for name in other_models.fallback)
    )


def unknown_model(name: str) -> GatewayError:
    """The error for a model that is not there, or not for this caller. name: what the client called it, empty where it
    named none."""
    shown = unquote(name)[:128]
    message = (
        f"the model '{shown}' does not exist or you do not have access to it"
        if shown
        else "no model was named, and there is no default model that you have access to"
    )
    return GatewayError(Kind.NO_MODEL, message, param="model")
