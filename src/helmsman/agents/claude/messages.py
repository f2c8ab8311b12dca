"""What is said to a running Claude Code, but for answers to what it asks (`questions.py`)."""

from __future__ import annotations

import base64
import mimetypes
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helmsman.model.options import TurnInput


def control(subtype: str, **more: Any) -> dict[str, Any]:
    """A request to the program itself, with an id of its own."""
    return {"type": "control_request", "request_id": str(uuid.uuid4()), "request": {"subtype": subtype, **more}}


def user_message(content: Any) -> dict[str, Any]:
    """Something for the model."""
    message = {"role": "user", "content": content}
    return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "default"}


def prompt_message(turn: TurnInput) -> dict[str, Any]:
    """A prompt with its images. Blocks, to read these."""
    if not turn.images:
        return user_message(turn.text)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}]
    for image in turn.images:
        kind = mimetypes.guess_type(image.name)[0] or "image/png"
        data = base64.b64encode(image.read_bytes()).decode("ascii")
        blocks.append({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    return user_message(blocks)
