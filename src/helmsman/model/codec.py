"""Encode events as JSON, for the store and for other processes.

Events from newer versions survive. An event of an unknown kind, or one that does not validate, becomes `Unknown`, and
an item of an unknown type `UnknownItem`. Unknown fields of an event are ignored. In all these cases the event keeps its
text (`Event.stored`), and `encode` returns that text. Only unknown fields of smaller values (a failure, a question) are
lost.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import force_setattr

from helmsman.base.json_values import mapping, optional_text, text
from helmsman.base.structs import path_as_text, path_from_text
from helmsman.model.events import Event, Item, SessionFact, Unknown, UnknownItem

_ENCODER: Final = msgspec.json.Encoder(enc_hook=path_as_text)
_ITEMS: Final[dict[str, type[Item]]] = {kind.type: kind for kind in get_args(Item)}


def encode(event: Event) -> str:
    """Return an event as JSON, without `Event.raw`."""
    if event.stored is not None:
        return event.stored
    try:
        return _ENCODER.encode(event).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which agents do write
        return json.dumps(msgspec.to_builtins(event, enc_hook=path_as_text), separators=(",", ":"))


def decode(kind: str, body: str) -> Event:
    """Return the event that `encode` wrote. `kind` is its `event_type`. Never raises."""
    try:
        return _decoder(kind).decode(body)
    except (KeyError, msgspec.DecodeError):
        return _read_part(kind, body)


@cache
def _kinds() -> dict[str, type[Event]]:
    kinds = (*Event.__subclasses__(), *SessionFact.__subclasses__())
    return {kind.event_type(): kind for kind in kinds if kind is not SessionFact}


@cache
def _decoder(kind: str) -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(_kinds()[kind], dec_hook=path_from_text)


def _read_part(kind: str, body: str) -> Event:
    """Decode the known fields of an event, and keep its whole text."""
    try:
        content = mapping(json.loads(body))
    except (ValueError, RecursionError):
        content = {}
    event = _known_part(kind, content) or Unknown(
        session_id=text(content.get("sessionId")),
        turn_id=optional_text(content.get("turnId")),
        agent_id=optional_text(content.get("agentId")),
        name=kind,
        payload=content,
    )
    force_setattr(event, "stored", body)
    return event


def _known_part(kind: str, content: Any) -> Event | None:
    cls = _kinds().get(kind)
    if cls is None:
        return None
    known = _known_fields(cls, content)
    # The item is read separately: one of an unknown type must not cost the rest of the event.
    try:
        if isinstance(item := content.get("item"), dict):
            known["item"] = read_item(item)
        return msgspec.convert(known, cls, dec_hook=path_from_text)
    except msgspec.ValidationError:
        return None


def read_item(content: dict[str, Any]) -> Item:
    """Return the item that `BaseItem.to_json` wrote, `UnknownItem` if its type is not known or it does not validate."""
    name = text(content.get("type"))
    cls = _ITEMS.get(name, UnknownItem)
    try:
        return msgspec.convert(_known_fields(cls, content), cls)
    except msgspec.ValidationError:
        return UnknownItem(id=text(content.get("id")), name=name, payload=content)


def _known_fields(cls: type[msgspec.Struct], content: Any) -> dict[str, Any]:
    # The classes forbid unknown fields, so drop them here. `type` is the tag, which is not among the fields.
    names = {"type", *cls.__struct_encode_fields__}
    return {name: value for name, value in content.items() if name in names}
