"""Stories of the scripted model in a soak, and checks that an answer belongs to its prompt.

Every prompt names its story and has a unique number. The model's answer repeats the number, so that the result of
another prompt or session is detected.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.testing import add, always, cut, fail, hang, patch, run, say
from helmsman.testing.script import Gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helmsman.testing import ModelRequest, ScriptedModel
    from helmsman.testing.script import Step

STORIES: Final = {
    "sentence": 6,
    "command": 3,
    "slow": 6,
    "approval": 6,
    "change": 3,
    "background": 1,
    "error 500": 1,
    "rate limit": 1,
    "cut once": 2,
    "cut always": 1,
    "hang": 1,
}
"""Stories with their relative frequency."""
GOOD_STORIES: Final = {name: STORIES[name] for name in ("sentence", "command", "slow", "approval", "change")}
"""Stories that succeed unless something interferes."""

_BETWEEN_WORDS: Final = 0.4
_WORDS: Final = 8


def prompt(story: str, number: int) -> str:
    return f"Story [{story}] #{number}"


def answer(number: int) -> str:
    return f"Answer to #{number}."


def marker_file(folder: Path, number: int) -> Path:
    """Return the file with a line for each run of an approved command."""
    return folder / f"ran-{number}"


def changed_file(repository: Path, number: int) -> Path:
    """Return the file that a session's change adds to the repository when it is applied."""
    return repository / f"change-{number}.txt"


def asked_in(message: str) -> int | None:
    """Return the number of the prompt whose command a question concerns."""
    found = re.search(r"ran-(\d+)", message)
    return None if found is None else int(found[1])


def teach(model: ScriptedModel, folder: Path) -> None:
    """Teach the model all stories. `folder` is where commands leave their marks; it is outside of every sandbox."""

    def says(request: ModelRequest) -> Step:
        return say(answer(number_in(request)))

    def says_slowly(request: ModelRequest) -> Step:
        words = [part for number in range(_WORDS) for part in (f"word {number} ", _Pause())]
        return say(*words, answer(number_in(request)))

    def changes(request: ModelRequest) -> Step:
        return patch(add(f"change-{number_in(request)}.txt", "once\n"))

    model.on("[sentence]", always(says))
    model.on("[command]", run("echo one; echo two"), always(says))
    model.on("[slow]", always(says_slowly))
    model.on("[approval]", asks_for(folder), always(says))
    model.on("[change]", changes, always(says))
    model.on("[background]", run("sleep 1000", yield_ms=250), always(says))
    model.on("[error 500]", always(fail(500)))
    model.on("[rate limit]", always(fail(429, error_type="usage_limit_reached", message="Too much.")))
    model.on("[cut once]", say("Hel", cut()), always(says))
    model.on("[cut always]", always(say("Hel", cut())))
    model.on("[hang]", always(say("Hm", hang())))


def asks_for(folder: Path) -> Callable[[ModelRequest], Step]:
    """Return a step that asks to run a command which leaves a mark."""

    def asks(request: ModelRequest) -> Step:
        return run(f"echo ran >>{marker_file(folder, number_in(request))}", escalate="It is outside the workspace.")

    return asks


class _Pause(Gate):
    """Short pause in the stream, like that of a real model."""

    async def pass_through(self) -> None:
        await anyio.sleep(_BETWEEN_WORDS)


def number_in(request: ModelRequest) -> int:
    """Return the number in the newest message that has one: Codex and Helmsman add their own messages."""
    return int(re.findall(r"#(\d+)", "\n".join(request.user_texts))[-1])
