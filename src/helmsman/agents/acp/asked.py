"""What callers ask for, as an agent takes it, and what is refused because it would not, or because it is not safe."""

from __future__ import annotations

import base64
import mimetypes
from typing import TYPE_CHECKING, Any

from helmsman.agents.prompt_words import as_words
from helmsman.base.json_values import mapping, optional_text
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from helmsman.agents.acp.profile import Profile
    from helmsman.model.options import SessionOptions, TurnInput


def refuse_danger(profile: Profile, options: SessionOptions, directory: Path) -> None:
    """Refuse to work where the agent would run files of the repository before anybody was asked.

    Raises:
        InvalidInput: It would, and nobody said that the repository is trusted.
    """
    if options.trust_repository:
        return
    found = profile.dangerous_files(directory)
    if found:
        listed = ", ".join(str(path) for path in found[:10])
        raise InvalidInput(
            f"{profile.title} would run files of this repository before anybody is asked: {listed}. Take them away, "
            "or let a person decide whether the repository is trusted (`trust_repository`).",
            parameter="trust_repository",
            files=[str(path) for path in found],
        )
    if profile.runs_repository_files:
        raise InvalidInput(
            f"{profile.title} may run files of this repository before anybody is asked: Helmsman does not know it. If it "
            f"runs none, say so with `runs_repository_files = false` under [agents.{profile.name}]; otherwise a person "
            "decides whether the repository is trusted (`trust_repository`).",
            parameter="trust_repository",
        )


def prompt_content(turn: TurnInput) -> list[Mapping[str, Any]]:
    """A prompt as the protocol has it.

    Raises:
        InvalidInput: An image cannot be read.
    """
    content: list[Mapping[str, Any]] = [text_block(turn.text)]
    for path in turn.images:
        kind = mimetypes.guess_type(path.name)[0] or "image/png"
        try:
            data = base64.b64encode(path.read_bytes()).decode("ascii")
        except OSError as error:
            raise InvalidInput(f"The image {path} cannot be read: {error}. Name one that can.") from error
        content.append({"type": "image", "data": data, "mimeType": kind})
    return content


def text_block(said: str) -> dict[str, Any]:
    """A text for the model, as the protocol has it."""
    return {"type": "text", "text": as_words(said)}


def model_in(made: Mapping[str, Any]) -> str | None:
    """The model of a session that was made or loaded, where the agent says it."""
    return optional_text(mapping(made.get("models")).get("currentModelId"))
