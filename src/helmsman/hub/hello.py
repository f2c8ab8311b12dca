"""Hello of a client, as the hub parses it: texts in hex, in fields separated by tabs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from helmsman.hub.launch import OF_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping


def text_in(field: str) -> str:
    """Decode a text, which may be a path that is not UTF-8."""
    return os.fsdecode(bytes.fromhex(field))


def texts_in(field: str) -> list[str]:
    return [text_in(one) for one in field.split(",") if one]


def environment_in(field: str) -> dict[str, str]:
    """Return the environment of a client."""
    pairs = (text.partition("=") for text in texts_in(field))
    return {name: value for name, _, value in pairs}


class BridgeHello:
    """Place of a remote client on this machine: the fields that the bridge adds to the client's own hello.

    `of_door` are the few variables that the client sends about its terminal.
    """

    def __init__(self, fields: list[str], of_door: Mapping[str, str]) -> None:
        pid, directory, environment, *_ = fields
        self.pid = int(pid)
        self.directory = text_in(directory)
        terminal = {name: value for name, value in of_door.items() if name in OF_TERMINAL}
        self.environment = {**environment_in(environment), **terminal}


def in_hex(text: str) -> bytes:
    """Encode a text for an answer."""
    return os.fsencode(text).hex().encode()
