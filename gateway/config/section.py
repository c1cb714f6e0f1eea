"""The base of every section of options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, model_validator

S = TypeVar("S", bound="Section")
_FEATURES = Path(__file__).parent.parent / "features"


def has_feature(name: str) -> bool:
    """Whether `gateway/features` has the folder `name`."""
    return (_FEATURES / name / "__init__.py").is_file()


class Section(BaseModel):
    """Frozen; unknown keys are refused; messages never repeat a value.

    SECRETS  names of secrets: the options NAME_file and NAME_env lead to each, and `load` reads it
    ANY_OF   options of which one at least is needed, for the JSON Schema
    FEATURES options that a folder of `gateway/features` reads, each with the folder's name. Without the folder the
             option is unknown, and readers of the section get its default
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)
    SECRETS: ClassVar[tuple[str, ...]] = ()
    ANY_OF: ClassVar[tuple[str, ...]] = ()
    FEATURES: ClassVar[Mapping[str, str]] = {}

    _held: dict[str, SecretStr] = PrivateAttr(default_factory=dict)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        absent = [option for option, feature in cls.FEATURES.items() if not has_feature(feature)]
        for option in absent:
            setattr(cls, option, cls.__pydantic_fields__.pop(option).get_default(call_default_factory=True))
        if absent:
            cls.model_rebuild(force=True)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    def overridden(self: S, own: S | None) -> S:
        """This section with the options that `own` sets."""
        return self.model_copy(update=own.model_dump(exclude_unset=True)) if own is not None else self

    def holding(self: S, secrets: Mapping[str, str]) -> S:
        """A copy that holds `secrets` by name."""
        copy = self.model_copy()
        copy._held = {name: SecretStr(text) for name, text in secrets.items()}
        return copy

    def held(self, name: str) -> str | None:
        """The secret `name`, once `load` has read it."""
        found = self._held.get(name)
        return found.get_secret_value() if found is not None else None


def section_in(kind: Any) -> type[BaseModel] | None:
    """The section that an option of this type holds, if any."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for one in get_args(kind) if (found := section_in(one)) is not None), None)
