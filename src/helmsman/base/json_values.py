"""Read and write JSON leniently.

Readers never raise: a value of an unexpected type counts as absent. Writers leave out values that are None.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NO_FIELDS: Final[Mapping[str, Any]] = {}
_ABSURD: Final = 1e9
_MOST: Final = 10**12


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count(value: object) -> int:
    """Return a token count. Never negative, so that it cannot offset others, and never too large for a database."""
    # A damaged or hostile count must neither lower a sum nor overflow the database.
    return min(max(0, integer(value) or 0), _MOST)


def amount(value: object) -> float | None:
    """Return a number that can be an amount of money."""
    # Excludes infinity and NaN as well, which compare false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _ABSURD:
        return None
    return float(value)


def fraction(value: object) -> float | None:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else NO_FIELDS


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in sequence(value) if isinstance(row, dict)]


def texts(value: object) -> list[str]:
    return [entry for entry in sequence(value) if isinstance(entry, str)]


def json_object(data: str | bytes | None) -> dict[str, Any] | None:
    """Parse a JSON object. Return None for anything else, including JSON that is nested too deeply."""
    try:
        value = None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_object_in(path: Path) -> dict[str, Any] | None:
    """Read a JSON object from a file. Return None if the file is missing or contains anything else."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return None


@lru_cache(maxsize=512)
def snake_case(name: str) -> str:
    """`contextWindowExceeded` → `context_window_exceeded`; names already in snake case stay."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


@lru_cache(maxsize=512)
def camel_case(name: str) -> str:
    """`exit_code` → `exitCode`; names already in camel case stay."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def iso_time(time: datetime | None) -> str | None:
    """Return a time, to the second, as we write it."""
    return None if time is None else time.isoformat(timespec="seconds")


def utc_time(time: datetime | None) -> str | None:
    """Return the same as programs of the web write it: `Z` for UTC."""
    return None if time is None else time.isoformat(timespec="seconds").replace("+00:00", "Z")


def timestamp(value: object) -> datetime | None:
    """Return a time in the spelling of ISO 8601; one without a zone is in UTC."""
    try:
        time = datetime.fromisoformat(text(value))
    except ValueError:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


# --- Check an agent's final message against the JSON schema that was asked for ----------------------------------------


def read_output(text: str, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return the message as an object, and why it does not match the schema. The reason completes "The message …"."""
    # Imported here: they take 60 ms, and few turns have a schema.
    from jsonschema import SchemaError, ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        output = json.loads(text)
        # an empty registry, so that references in a schema fetch nothing
        validator_for(dict(schema))(dict(schema), registry=Registry()).validate(output)
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON ({error})"
    except (ValidationError, SchemaError) as error:
        return None, f"does not fit the output schema ({error.message})"
    except Unresolvable as error:
        return None, f"could not be checked: the output schema refers to {error.ref}, which is not in it"
    return output, None
