"""Check an agent's final message against the JSON schema that was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


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
