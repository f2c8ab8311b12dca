"""What doors say of themselves, as the hub reads it: texts in hex, in fields with tabs between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from helmsman.hub.launch import OF_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping


def text_in(field: str) -> str:
    """A text, which may be a path that is no UTF-8."""
    return os.fsdecode(bytes.fromhex(field))


def texts_in(field: str) -> list[str]:
    return [text_in(one) for one in field.split(",") if one]


def environment_in(field: str) -> dict[str, str]:
    """The environment of a door."""
    pairs = (text.partition("=") for text in texts_in(field))
    return {name: value for name, _, value in pairs}


class BridgeHello:
    """Where a door of another machine stands here: what the bridge says of itself behind the door's own hello.

    `of_door` are the few variables that the door says of its terminal.
    """

    def __init__(self, fields: list[str], of_door: Mapping[str, str]) -> None:
        pid, directory, environment, *_ = fields
        self.pid = int(pid)
        self.directory = text_in(directory)
        terminal = {name: value for name, value in of_door.items() if name in OF_TERMINAL}
        self.environment = {**environment_in(environment), **terminal}


def in_hex(text: str) -> bytes:
    """A text for an answer."""
    return os.fsencode(text).hex().encode()
