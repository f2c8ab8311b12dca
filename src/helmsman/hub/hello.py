"""Hello of a pipe, as the hub parses it: texts in hex, in fields separated by tabs."""

from __future__ import annotations

import os


def text_in(field: str) -> str:
    """Decode a text, which may be a path that is not UTF-8."""
    return os.fsdecode(bytes.fromhex(field))


def texts_in(field: str) -> list[str]:
    return [text_in(one) for one in field.split(",") if one]


def environment_in(field: str) -> dict[str, str]:
    """Return the environment of a client."""
    pairs = (text.partition("=") for text in texts_in(field))
    return {name: value for name, _, value in pairs}


def in_hex(text: str) -> bytes:
    """Encode a text for an answer."""
    return os.fsencode(text).hex().encode()
