"""Commands at the prompt, such as `/help` and `/diff`, and the completion of them and of `@file`.

They act here and cost no turn. `/NAME` of a saved prompt is replaced by its text. A text that begins with a space is sent as
it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio.to_thread

from helmsman.base.sanitize import one_line
from helmsman.capabilities.saved_prompts import expanded_prompt, folder_of_prompts, saved_prompts
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.git.command import find_git

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.capabilities.saved_prompts import SavedPrompt
    from helmsman.cli.displays import Display
    from helmsman.client import Helmsman
    from helmsman.sessions.session import Session

_COMMANDS: Final = {
    "help": "this list",
    "status": "the session, its model, tokens and directory",
    "diff": "what the session changed",
    "model": "the model from the next message on: /model NAME",
    "queue": "messages for after the turn: /queue drop N, /queue edit N, /queue first N",
    "quit": "leave; the session stays",
}
_LEAVES: Final = frozenset(("quit", "exit", "q"))
_WORDS: Final = frozenset(("exit", "quit", "/exit", "/quit", "/q", ":q"))
_MOST_FILES: Final = 20_000
_MOST_OFFERED: Final = 50
_FILES_SECONDS: Final = 30.0  # a list of files is used so long


class PromptOwner(Protocol):
    """What the commands act on."""

    @property
    def display(self) -> Display: ...

    @property
    def session(self) -> Session | None: ...

    @property
    def helm(self) -> Helmsman: ...

    def leave(self) -> None: ...

    def use_model(self, model: str) -> None: ...

    def forget_queued(self, task_id: str) -> None: ...

    def in_background(self, work: Callable[[], Awaitable[None]]) -> None: ...


class PromptCommands:
    """The commands of one conversation."""

    def __init__(self, conversation: PromptOwner) -> None:
        self._on = conversation
        self._prompts: dict[str, SavedPrompt] | None = None
        self._files: list[str] = []
        self._files_at = float("-inf")

    def message(self, typed: str) -> str | None:
        """Return the message to send for a typed line; None if it was a command, which is carried out."""
        text = typed.strip()
        if text in _WORDS:
            self._on.leave()
            return None
        if not typed.startswith("/") or "\n" in text or "/" in text[1:].split(" ")[0]:
            return typed  # a path is no command
        name, _, argument = text[1:].partition(" ")
        if name in _COMMANDS or name in _LEAVES:
            self._carry_out(name, argument.strip())
            return None
        prompt = expanded_prompt(text, self.prompts)
        if prompt is None:
            self._on.display.remark(
                f"There is no /{name}. /help lists what there is; a space before it sends it as it is."
            )
        return prompt

    @property
    def prompts(self) -> dict[str, SavedPrompt]:
        if self._prompts is None:
            self._prompts = saved_prompts()
        return self._prompts

    def completions(self, text: str) -> Sequence[str]:
        """Return what the last word can become: a command at the beginning, or a path after `@`."""
        word = text.split(" ")[-1]
        if word == text and word.startswith("/"):
            return [
                f"/{name}" for name in (*_COMMANDS, *self.prompts) if name.startswith(word[1:]) and name != word[1:]
            ]
        if not word.startswith("@"):
            return ()
        wanted = word[1:].casefold()
        files = self._known_files()
        begin = [file for file in files if file.casefold().startswith(wanted)]
        inside = [file for file in files if wanted in file.casefold() and not file.casefold().startswith(wanted)]
        return [f"@{file}" for file in (*begin, *inside)[:_MOST_OFFERED] if f"@{file}" != word]

    # --- commands ----------------------------------------------------------------------------------------------------

    def _carry_out(self, name: str, argument: str) -> None:
        if name in _LEAVES:
            self._on.leave()
        elif name == "help":
            self._help()
        elif (session := self._on.session) is None:
            self._on.display.remark("Nothing has started yet.")
        elif name == "status":
            self._on.in_background(lambda: self._status(session))
        elif name == "diff":
            self._on.in_background(lambda: self._diff(session))
        elif name == "model":
            self._on.in_background(lambda: self._model(session, argument))
        else:
            self._on.in_background(lambda: self._queue(session, argument))

    def _help(self) -> None:
        shown = {f"/{name}": what for name, what in _COMMANDS.items()}
        shown |= {f"/{prompt.name}": prompt.title for prompt in self.prompts.values()}
        shown["@path"] = "Tab completes the path of a file"
        width = max(map(len, shown))
        lines = [f"{name:<{width}}  {one_line(what)}" for name, what in shown.items()]
        if not self.prompts:
            lines.append(f"Your own: {folder_of_prompts()}/NAME.md is /NAME.")
        self._on.display.remark("\n".join(lines), "")

    async def _status(self, session: Session) -> None:
        from helmsman.cli.displays import tokens
        from helmsman.cli.output import session_word

        state = session.state
        shown = {
            "session": session.id,
            "status": session_word(session.status),
            "model": session.model,
            "directory": session.directory,
            "sandbox": state.sandbox,
            "tokens": tokens(session.usage),
        }
        lines = [f"{label:<10} {one_line(text)}" for label, text in shown.items() if text]
        self._on.display.remark("\n".join(lines), "")

    async def _diff(self, session: Session) -> None:
        changed = await self._on.helm.extras.changes.diff(session.id)
        if changed.diff.patch:
            await self._on.display.page(changed.diff.patch)
        else:
            self._on.display.remark("Nothing has changed.", "")

    async def _model(self, session: Session, name: str) -> None:
        models = await self._on.helm.extras.account.models(session.options.agent)
        if not name:
            listed = [f"{'›' if one.id == session.model else ' '} {one.id}" for one in models]
            self._on.display.remark("\n".join([*listed, "/model NAME uses one from the next message on."]), "")
            return
        if models and name not in [one.id for one in models]:
            raise InvalidInput(f"{session.options.agent} lists no model {name}. /model shows those there are.")
        self._on.use_model(name)
        self._on.display.remark(f"{name} is used from the next message on.", "")

    async def _queue(self, session: Session, argument: str) -> None:
        queue = list(session.queue)
        what, _, number = argument.partition(" ")
        if not what:
            lines = [f"{place} {one_line(one.text)}" for place, one in enumerate(queue, 1)]
            self._on.display.remark("\n".join(lines or ["No message is queued. Tab queues one while a turn runs."]), "")
            return
        if what not in ("drop", "edit", "first") or not number.isdigit() or not 0 < int(number) <= len(queue):
            raise InvalidInput(
                "Say /queue drop N, /queue edit N or /queue first N, with the number of a queued message."
            )
        queued = queue[int(number) - 1]
        if what == "first":
            await self._on.helm.extras.message_queue.move(session.id, queued.task_id, 1)
            return
        await self._on.helm.extras.message_queue.drop(session.id, queued.task_id)
        self._on.forget_queued(queued.task_id)
        line = self._on.display.line
        if what == "edit" and line is not None:
            line.put(queued.text)

    # --- files -------------------------------------------------------------------------------------------------------

    def _known_files(self) -> list[str]:
        """Return the files of the session's directory. They are read in the background; the first time there are none."""
        if time.monotonic() - self._files_at > _FILES_SECONDS:
            self._files_at = time.monotonic()
            session = self._on.session
            directory = Path(session.directory) if session is not None and session.directory else Path.cwd()
            self._on.in_background(lambda: self._read_files(directory))
        return self._files

    async def _read_files(self, directory: Path) -> None:
        state_dir = self._on.helm.settings.state_dir
        self._files = await anyio.to_thread.run_sync(files_below, directory, state_dir)
        if self._on.display.line is not None:
            self._on.display.line.redraw()


def files_below(directory: Path, state_dir: Path) -> list[str]:
    """Return the paths of the files below a directory that git does not ignore; without git, all but hidden ones. Blocks."""
    try:
        git = find_git(directory, state_dir)
        if git is not None:
            top = os.path.relpath(git.work_tree, directory)
            names = git.names("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            return sorted({os.path.normpath(os.path.join(top, name)) for name in names})[:_MOST_FILES]  # noqa: PTH118
    except HelmsmanError:
        pass
    found: list[str] = []
    for place, folders, names in os.walk(directory):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        found += [os.path.relpath(os.path.join(place, name), directory) for name in sorted(names)]  # noqa: PTH118
        if len(found) > _MOST_FILES:
            break
    return found[:_MOST_FILES]
