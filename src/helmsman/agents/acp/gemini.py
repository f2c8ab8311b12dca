"""Google's Gemini CLI: its profile, and its sessions.

A session is in `~/.gemini/tmp/<project>/chats/session-<minute>-<8 of the id>.jsonl`. A line is a header, a message, or a
patch (`$set`). A message that changes is written again under its id, also in a second file of the same session, which begins
when it is loaded later: each id counts once. Tool calls are all gathered in one message, wherever they were made; the answer
of the tool stands in its place.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp.profile import AgentHome, Profile, home_in
from helmsman.agents.protocol import SessionInfo, Trust
from helmsman.agents.sandbox_view import cloud_logins
from helmsman.agents.session_files import (
    Gathering,
    SeenFiles,
    SessionReader,
    StoredTurn,
    is_id,
    json_lines,
    spending_of,
)
from helmsman.base.files import changed_at, replace_file, size_and_time
from helmsman.base.json_values import (
    count,
    json_object_in,
    mapping,
    optional_text,
    sequence,
    text,
    timestamp,
)
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.spending import SessionSpending
    from helmsman.model.options import SessionOptions

_LOAD_AGAIN: Final = 1.0
_CONTEXT: Final = "<session_context>"


class Gemini(Profile):
    """Google's Gemini CLI.

    It ignores a folder's settings until the user trusts it, and reports little about commands.
    """

    name = "gemini"
    title = "Gemini"
    program = "gemini"
    arguments = ("--acp",)
    install = "npm install -g @google/gemini-cli"
    trust = Trust(
        asking_mode="default",
        reading_mode="plan",
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=("GEMINI_*", "GOOGLE_*"),
        shared=("tmp",),
    )
    model_by = "set_model"
    counting = "files"

    _TRUST = "GEMINI_CLI_TRUST_WORKSPACE"
    _MARK = ".project_root"

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        made = {**env, "GEMINI_CLI_NO_RELAUNCH": "1"}  # it would start itself a second time
        made.pop(self._TRUST, None)
        if options.trust_repository:
            made[self._TRUST] = "true"
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []

    def tool_of(self, call: Mapping[str, Any]) -> str | None:
        named = re.fullmatch(r"(.+)__\1_\d+_\d+", text(call.get("toolCallId")))
        return None if named is None else named[1]

    def mode_in(self, text: str) -> str | None:
        told = re.fullmatch(r"\[MODE_UPDATE\] (\w+)", text)
        return None if told is None else told[1]

    def is_remark(self, text: str) -> bool:
        return self.mode_in(text) is not None

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        return None, None  # it never tells

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        return GeminiReader(self.home(env).path / "tmp")

    def home(self, env: Mapping[str, str]) -> AgentHome:
        base = Path(env.get("GEMINI_CLI_HOME") or home_in(env))
        return AgentHome(
            path=base / ".gemini",
            variable="GEMINI_CLI_HOME",
            below=".gemini",
            shared=self.trust.shared,
            kept=("tmp/bin",),  # programs that it has fetched
            mark=self._MARK,
            empty=("history",),  # its own repositories, whose configuration git would run
        )

    # Google Cloud's own login files count only if the user has chosen that login.
    def reads(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        return cloud_logins(env, {"GOOGLE_GENAI_USE_VERTEXAI": "google", "GOOGLE_GENAI_USE_GCA": "google"})

    def own_project(self, home: Path, directory: Path) -> Path | None:
        """Return the project that Gemini would use: by its list, or by the mark in it. Mark a new one."""
        listed = mapping((json_object_in(home / "projects.json") or {}).get("projects"))
        name, mark = text(listed.get(str(directory))), self._MARK
        named = [home / "tmp" / name] if name and Path(name).name == name else []
        # The list may be stale, so every place must prove itself by its mark.
        for place in (*named, *(home / "tmp").glob("*")):
            with suppress(OSError, ValueError):
                if (place / mark).read_text(encoding="utf-8").strip() == str(directory):
                    return place
        stem = re.sub(r"[^a-z0-9]+", "-", directory.name.lower()).strip("-") or "project"
        fresh = home / "tmp" / f"{stem}-{secrets.token_hex(4)}"
        # A listed directory without a mark is Gemini's own choice for this project.
        chosen = next((place for place in named if not (place / mark).exists()), fresh)
        chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(chosen / mark, str(directory))
        return chosen

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("GEMINI_API_KEY", "GOOGLE_API_KEY"), (home_in(env) / ".gemini" / "oauth_creds.json",)

    async def may_load(self, session_id: str, env: Mapping[str, str]) -> None:
        """Refuse to load a session in the minute of its creation: the recorder of the load would overwrite its file."""
        await anyio.to_thread.run_sync(self.was_loaded, session_id, env)
        while True:
            minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
            name = f"*/chats/session-{minute}-{session_id[:8]}.jsonl"
            # The file name has the minute, so a load in the same minute would open, and empty, the same file.
            if not list((self.home(env).path / "tmp").glob(name)):
                return
            await anyio.sleep(_LOAD_AGAIN)

    def was_loaded(self, session_id: str, env: Mapping[str, str]) -> None:
        """Undo a side effect of a load: an empty file, which the next Gemini takes for a broken session and deletes."""
        for path in (self.home(env).path / "tmp").glob(f"*/chats/session-*-{session_id[:8]}.jsonl"):
            with suppress(OSError, ValueError, RecursionError):
                lines = [mapping(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
                # Only a header and no message with an id: a load left it behind.
                if lines and lines[0].get("sessionId") == session_id and not any("id" in line for line in lines):
                    path.unlink()


# --- sessions ----------------------------------------------------------------------------------------------------------


class GeminiReader(SessionReader):
    """See `SessionReader`."""

    def __init__(self, projects: Path) -> None:
        self.home = self._projects = projects
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        newest: dict[str, SessionInfo] = {}
        for info in self._seen.all(self._projects.glob("*/chats/session-*.jsonl")):
            known = newest.get(info.session_id)
            if known is None or known.updated_at < info.updated_at:
                newest[info.session_id] = info
        yield from newest.values()

    def find(self, session_id: str) -> SessionInfo | None:
        return max(self._seen.all(self._files(session_id)), key=lambda info: info.updated_at, default=None)

    def _files(self, session_id: str) -> list[Path]:
        if not is_id(session_id):
            return []
        # The name holds only the first eight characters of the id, which may belong to several sessions.
        named = self._projects.glob(f"*/chats/session-*-{session_id[:8]}.jsonl")
        return sorted(path for path in named if _header(path).get("sessionId") == session_id)

    def files(self) -> Iterator[tuple[str, int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._projects.glob("*/chats/session-*.jsonl"):
            key = str(path.with_name(path.stem[-8:]))  # of one session there may be several files
            (size, changed), (more, later) = found.get(key, (0, 0)), size_and_time(path)
            found[key] = size + more, max(changed, later)
        return ((key, *one) for key, one in found.items())

    def read(self, key: str) -> SessionSpending | None:
        place = Path(key)
        files = sorted(place.parent.glob(f"session-*-{place.name}.jsonl"))
        info = next((info for path in files if (info := _info(path)) is not None), None)
        return None if info is None else spending_of(info, _turns_in(files))

    def stored_turns(self, session_id: str) -> list[StoredTurn] | None:
        files = self._files(session_id)
        return _turns_in(files) if files else None


def _turns_in(files: list[Path]) -> list[StoredTurn]:
    messages: dict[str, dict[str, Any]] = {}
    for path in files:
        for line in json_lines(path):
            for message_id, message in _messages(line):
                # Patches repeat whole messages: later fields win.
                messages.setdefault(message_id, {}).update(message)
    gathered = Gathering()
    listed = (mapping(call) for message in messages.values() for call in sequence(message.get("toolCalls")))
    calls: dict[str, Mapping[str, Any]] = {text(call.get("id")): call for call in listed}
    # Of several files and of patches, the order of lines is not that of the conversation.
    for message in sorted(messages.values(), key=lambda one: text(one.get("timestamp"))):
        _take(gathered, message, calls)
    return gathered.turns


def _messages(line: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the messages that a line adds or changes, with their ids."""
    for message in (*map(mapping, sequence(mapping(line.get("$set")).get("messages"))), line):
        if message_id := text(message.get("id")):
            yield message_id, message


def _used(message: Mapping[str, Any]) -> Usage | None:
    tokens = mapping(message.get("tokens"))
    if not tokens or message.get("type") == "user":
        return None
    thoughts = count(tokens.get("thoughts"))
    return Usage(
        input_tokens=count(tokens.get("input")),
        cached_input_tokens=count(tokens.get("cached")),
        output_tokens=count(tokens.get("output")) + thoughts,
        reasoning_output_tokens=thoughts,
    )


def _take(gathered: Gathering, message: Mapping[str, Any], calls: dict[str, Mapping[str, Any]]) -> None:
    at = timestamp(message.get("timestamp"))
    if message.get("type") == "user":
        for answer in (mapping(mapping(part).get("functionResponse")) for part in sequence(message.get("content"))):
            call = calls.pop(text(answer.get("id")), None)
            if call is not None:  # otherwise counted before: loading a session writes its answers again
                failed = "error" in mapping(answer.get("response"))
                gathered.called(text(answer.get("name")), mapping(call.get("args")), at, failed=failed)
        words = _words(message)
        if words:
            gathered.asked(words, at)
        return
    gathered.said(_words(message), at)
    used = _used(message)
    if used is not None:
        gathered.used(used, optional_text(message.get("model")), at)


def _words(message: Mapping[str, Any]) -> str:
    """Return the words of a message, without thoughts and without text of Gemini CLI or of a tool."""
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(_CONTEXT) else content
    parts = [text(part.get("text")) for part in map(mapping, sequence(content)) if not part.get("thought")]
    return "\n".join(part for part in parts if part and not part.startswith(_CONTEXT))


def _header(path: Path) -> Mapping[str, Any]:
    return next(iter(json_lines(path)), {})


def _info(path: Path) -> SessionInfo | None:
    header = _header(path)
    session_id = text(header.get("sessionId"))
    if not session_id or header.get("kind") not in (None, "main"):
        return None
    first = next((words for line in json_lines(path) if line.get("type") == "user" and (words := _words(line))), None)
    if first is None:
        return None  # nothing was said in it
    try:
        directory: str | None = (path.parent.parent / ".project_root").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        directory = None
    return SessionInfo(
        session_id=session_id,
        agent="gemini",
        created_at=timestamp(header.get("startTime")),
        updated_at=changed_at(path),
        directory=directory,
        first_prompt=first,
        path=path,
    )
