"""Prompts that the user keeps as files: `~/.config/helmsman/prompts/NAME.md` is the command `/NAME`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.caller_context import environment
from helmsman.base.user_directories import config_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER: Final = "prompts"
_SUFFIX: Final = ".md"
_NAME: Final = re.compile(r"[\w][\w.-]{0,63}")
_MOST: Final = 200
_MOST_BYTES: Final = 64 * 1024
_ARGUMENTS: Final = "$ARGUMENTS"
_TITLE: Final = 80


@dataclass(frozen=True)
class SavedPrompt:
    """Saved prompt. Text typed after its name replaces `$ARGUMENTS`, or follows the prompt if it has none."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """Its first line, without the mark of a heading."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        return first.lstrip("# ").strip()[:_TITLE]

    def with_arguments(self, arguments: str) -> str:
        if _ARGUMENTS in self.text:
            return self.text.replace(_ARGUMENTS, arguments)
        return f"{self.text}\n\n{arguments}" if arguments else self.text


def folder_of_prompts(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the user's prompts, which need not exist."""
    return Path(config_directory(environment() if env is None else env), _FOLDER)


def saved_prompts(env: Mapping[str, str] | None = None) -> dict[str, SavedPrompt]:
    """Return the user's prompts by name, in order. Reads files; blocks. Unreadable ones are left out."""
    folder = folder_of_prompts(env)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))[:_MOST]  # noqa: PTH208 - names
    except OSError:
        return {}
    found: dict[str, SavedPrompt] = {}
    for file in names:
        name = file.removesuffix(_SUFFIX)
        if _NAME.fullmatch(name) is None:
            continue
        try:
            with (folder / file).open("rb") as opened:
                # One byte more than allowed shows that the file is too long.
                text = opened.read(_MOST_BYTES + 1).decode("utf-8").strip()
        except (OSError, ValueError):
            continue
        if text and len(text.encode()) <= _MOST_BYTES:
            found[name] = SavedPrompt(name, text)
    return found


def expanded_prompt(typed: str, prompts: Mapping[str, SavedPrompt]) -> str | None:
    """Return the prompt for `/NAME arguments`; None if no prompt has this name."""
    name, _, arguments = typed.strip().removeprefix("/").partition(" ")
    prompt = prompts.get(name)
    return None if prompt is None else prompt.with_arguments(arguments.strip())
