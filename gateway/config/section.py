"""What every section of options is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from gateway.config.kinds import nothing_is_empty


class Section(BaseModel):
    """Frozen; unknown keys are refused; messages never repeat a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return nothing_is_empty(value)
