"""Writes docs/events.md from the code: every event, every item and what is inside them, as JSON has it.

python scripts/make_events.py            write it
python scripts/make_events.py --check    only say whether it is up to date
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from generated_page import write_or_check
from helmsman.base.files import DirectoryIdentity
from helmsman.base.json_values import camel_case
from helmsman.base.structs import Value
from helmsman.model import events
from helmsman.model.events import BaseItem, Event, Item, SessionFact, ToolCalled
from helmsman.model.questions import Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTRODUCTION = """\
# Events as JSON

Made by `scripts/make_events.py` from the code, and checked against it by the tests. Change the code, then run
`make reference`.

```python
async for event in session.events():
    print(json.dumps(event.to_json()))
```

```sh
helmsman run "Fix the failing test" --json    # the same, one event a line, and a last object of type `result`
helmsman watch 3b2d5c8e --json | jq 'select(.type == "item_ended").item.summary'
```

Every event is an object with a `type`, the `sessionId` and, where they are known, the `turnId` and the `agentId` of the
sub-agent it happened in. **A field without a value is left out.** Fields that may be missing are marked with `?`.

This is form 1. Names keep their meaning. New types, fields and values are added, so pass over what you do not know. A change
that would break a reader comes only with a new major version, and a line in the changelog.

[Events](#events) · [Items](#items) · [What is inside them](#what-is-inside-them)
"""

QUESTION_FIELDS = (
    ("id", "text"),
    ("type", "text"),
    (
        "questions",
        "list of objects: `question` (what is asked, safe to show) and `options` (the answers that can be given)",
    ),
    ("details", "object: what the agent said of it; which fields there are depends on `type`"),
)
ITEMS = """\
## Items

An item is one thing done in a turn. `item_started`, `item_updated` and `item_ended` each bring the whole of it. Every
item has a `type`, an `id` (unique within its turn), a `summary` in one line, and a `status`: """
IN_EVERY_EVENT = ("session_id", "turn_id", "agent_id")
IN_EVERY_ITEM = ("id", "status")
WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    datetime: "time (ISO 8601)",
    Path: "path",
    DirectoryIdentity: "list of integer",
    Any: "anything",
}


def page() -> str:
    """Return the expected page."""
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and kind.__module__ == events.__name__]
    told = [kind for kind in kinds if issubclass(kind, Event) and kind not in (Event, SessionFact, ToolCalled)]
    items = [kind for kind in kinds if issubclass(kind, Item)]
    inside = [kind for kind in kinds if issubclass(kind, Value) and not issubclass(kind, Event | BaseItem)]
    parts = [INTRODUCTION, "## Events\n"]
    parts += [_section(kind.event_type(), kind, IN_EVERY_EVENT) for kind in told]
    parts.append(f"{ITEMS}{_words(events.ItemStatus)}.\n")
    parts += [_section(kind.type, kind, IN_EVERY_ITEM) for kind in items]
    parts.append("## What is inside them\n")
    parts += [_section(_label(kind), kind, ()) for kind in inside]
    asked = "\n".join(f"| `{name}` | {words} |" for name, words in QUESTION_FIELDS)
    parts.append(
        f"### question\n\nWhat waits for an answer. `helmsman respond` and `session.respond` give it.\n\n{_HEAD}{asked}\n"
    )
    return "\n".join(parts)


_HEAD = "| field | value |\n| --- | --- |\n"


def _section(name: str, kind: type[Any], known: Sequence[str]) -> str:
    about = _about(kind)
    rows = "\n".join(f"| `{field}` | {words} |" for field, words in _fields(kind, known))
    return (
        f"### {name}\n\n"
        + (f"{about}\n\n" if about else "")
        + (f"{_HEAD}{rows}\n" if rows else "No fields of its own.\n")
    )


def _about(kind: type[Any]) -> str:
    own = kind.__dict__.get("__doc__") or ""
    names = [name for name in kind.__struct_fields__ if "_" in name]
    return functools.reduce(
        lambda text, name: text.replace(f"`{name}`", f"`{camel_case(name)}`"), names, inspect.cleandoc(own)
    )


def _fields(kind: type[Any], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(kind):
        if field.name not in known:
            is_optional, words = _value(field.type)
            yield field.encode_name + ("?" if is_optional else ""), words


def _value(hint: Any) -> tuple[bool, str]:
    if hint == Item:
        return False, "[an item](#items)"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [one for one in typing.get_args(hint) if one is not type(None)]
        return len(kinds) < len(typing.get_args(hint)), " or ".join(_value(one)[1] for one in kinds)
    origin = typing.get_origin(hint)
    if origin is Literal:
        return False, _words(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return False, _words(Literal[tuple(one.value for one in hint)])
    if origin is tuple:
        return False, f"list of {_value(typing.get_args(hint)[0])[1]}"
    if origin is not None and issubclass(origin, Mapping):
        return False, "object"
    if (
        isinstance(hint, type)
        and issubclass(hint, Value)
        and hint.__module__ not in (events.__name__, Question.__module__)
    ):
        return False, "object"
    if isinstance(hint, type) and issubclass(hint, Value):
        return False, f"[{_label(hint)}](#{_label(hint).replace(' ', '-')})"
    return hint is Any, WORDS[hint]


def _words(hint: Any) -> str:
    return ", ".join(f"`{word}`" for word in typing.get_args(hint))


def _label(kind: Any) -> str:
    """`PathChange` → `path change`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).lstrip()


if __name__ == "__main__":
    sys.exit(write_or_check("events.md", page()))
