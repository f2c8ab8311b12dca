"""A message to an agent is words for its model, and never a command of the agent's own program.

Agents take a prompt that begins with `/` (some terminals: `!`) as a command to themselves, before any model or question: to
approve everything from now on, to add a directory or a server, to change their settings, to forget the session. What a
session may do is not for a message to say. So such a message begins with a word of ours, and the model reads it as it is.
"""

from __future__ import annotations

import re
from typing import Final

_COMMAND: Final = re.compile(r"[\s\ufeff\u200b-\u200f\u2060-\u2064]*[/!]")
"""After all that an agent may take for nothing."""
_FIRST: Final = "Message: "


def is_command(text: str) -> bool:
    """Whether some agent could take this for a command to itself."""
    return _COMMAND.match(text) is not None


def as_words(text: str) -> str:
    """A message as no agent takes for a command."""
    return _FIRST + text if is_command(text) else text


def note_on(text: str, title: str) -> tuple[str, ...]:
    """What whoever sent a message is told if it is not sent as it is."""
    if not is_command(text):
        return ()
    return (f"{title} is given this as a message to its model: commands of its own are not taken from here.",)
