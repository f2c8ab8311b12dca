"""What is said to a running Claude Code, but for answers to what it asks (`questions.py`)."""

from __future__ import annotations

import base64
import mimetypes
import uuid
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.prompt_words import as_words

if TYPE_CHECKING:
    from helmsman.model.options import TurnInput


COMPACT: Final = "/compact"


def control(subtype: str, **more: Any) -> dict[str, Any]:
    """A request to the program itself, with an id of its own."""
    return {"type": "control_request", "request_id": str(uuid.uuid4()), "request": {"subtype": subtype, **more}}


def user_message(content: str | list[dict[str, Any]]) -> dict[str, Any]:
    """Something for the model. The only command to the program itself is the one that the engine has a verb for."""
    if isinstance(content, str) and content != COMPACT:
        content = as_words(content)
    message = {"role": "user", "content": content}
    return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "default"}


def prompt_message(turn: TurnInput) -> dict[str, Any]:
    """A prompt with its images. Blocks, to read these."""
    if not turn.images:
        return user_message(turn.text)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": as_words(turn.text)}]
    for image in turn.images:
        kind = mimetypes.guess_type(image.name)[0] or "image/png"
        data = base64.b64encode(image.read_bytes()).decode("ascii")
        blocks.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    return user_message(blocks)
