"""How a setting is declared: default, unit and one sentence, from which the docs are made."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from rejex_stream.addresses import expected_http_address

__all__ = ["SECRET", "HttpAddress", "Section", "secret", "setting"]

SECRET = "secret"
"""In place of a unit: the value is never printed."""


def _http_address(value: str) -> str:
    if expected := expected_http_address(value):
        raise PydanticCustomError("http_address", "{expected}", {"expected": expected})
    return value


HttpAddress = Annotated[str, AfterValidator(_http_address)]


class Section(BaseModel):
    """A table of the config file: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )


def setting(
    default: Any = ...,  # noqa: ANN401 - as pydantic's own Field
    *,
    unit: str = "",
    says: str,
    otherwise: str = "",
    example: Any = None,  # noqa: ANN401
    **limits: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Declare a setting.

    Parameters
    ----------
    default
        The default; required without one.
    unit
        Unit of the value, empty where it has none.
    says
        One sentence: what the setting decides.
    otherwise
        What happens where an optional setting is left out, e.g. ``half a window``.
    example
        A value that works, for error messages.
    limits
        pydantic's: ``gt``, ``ge``, ``lt``, ``le``, ``min_length``, …
    """
    extra: dict[str, Any] = {
        "unit": unit,
        "otherwise": otherwise,
        "example": example,
        "secret": False,
    }
    if isinstance(default, type):
        return Field(default_factory=default, description=says, json_schema_extra=extra, **limits)
    return Field(default, description=says, json_schema_extra=extra, **limits)


def secret(*, says: str, otherwise: str = "none") -> Any:  # noqa: ANN401
    """Declare a secret: never printed, not even in an error message."""
    extra: dict[str, Any] = {
        "unit": "secret",
        "otherwise": otherwise,
        "example": None,
        "secret": True,
    }
    return Field(None, description=says, json_schema_extra=extra, repr=False)
