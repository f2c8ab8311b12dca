"""What doors say of themselves, as the hub reads it: texts in hex, in fields with tabs between them."""

from __future__ import annotations

import os


def text_in(field: str) -> str:
    """A text, which may be a path that is no UTF-8."""
    return os.fsdecode(bytes.fromhex(field))


def texts_in(field: str) -> list[str]:
    return [text_in(one) for one in field.split(",") if one]


def environment_in(field: str) -> dict[str, str]:
    """The environment of a door."""
    pairs = (text.partition("=") for text in texts_in(field))
    return {name: value for name, _, value in pairs}


def in_hex(text: str) -> bytes:
    """A text for an answer."""
    return os.fsencode(text).hex().encode()
