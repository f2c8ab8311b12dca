"""Qwen Code: its profile, and its sessions (`~/.qwen/projects/<directory>/chats/<id>.jsonl`, a record a line)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.acp.profile import AgentHome, Profile, home_in
from helmsman.agents.protocol import SessionInfo, Trust
from helmsman.agents.sandbox_view import spellings
from helmsman.agents.session_files import Gathering, SeenFiles, SessionReader, StoredTurn, is_id, json_lines
from helmsman.agents.transcripts import OneFile
from helmsman.base.files import changed_at, replace_file, size_and_time
from helmsman.base.json_values import count, integer, json_object_in, mapping, optional_text, sequence, text, timestamp
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from helmsman.agents.transcripts import CarriedTranscripts, PlacedTranscript, TranscriptPart
    from helmsman.model.options import SessionOptions

_SETTINGS_OF_THE_MACHINE: Final = Path(
    "/Library/Application Support/QwenCode/settings.json"
    if sys.platform == "darwin"
    else "/etc/qwen-code/settings.json"
)


class Qwen(Profile):
    """Qwen Code. It obeys the settings of a repository, also one that says "ask nothing", unless folders need trust."""

    name = "qwen"
    title = "Qwen"
    program = "qwen"
    arguments = ("--acp",)
    install = "npm install -g @qwen-code/qwen-code"
    trust = Trust(
        asking_mode="default",
        reading_mode="plan",
        asking_options={},
        acts_unasked=True,
        memory=("memories", "projects/*/memory"),  # its model may write there without asking
        runs_repository_files=False,
        variables=("DASHSCOPE_*", "OPENAI_*", "QWEN_*", "*_API_KEY"),  # its settings name the variable of each provider
        shared=("projects",),
    )
    model_by = "set_model"
    steering = "when asked"
    counting = "turn"

    _SETTINGS = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
    _MEMORY = ("enableManagedAutoMemory", "enableManagedAutoDream", "enableAutoSkill")
    """Settings for actions after a turn: it records instructions for later sessions without asking."""
    _WRITERS = ("Edit", "WriteFile")

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        theirs = env.get(self._SETTINGS) or str(_SETTINGS_OF_THE_MACHINE)  # those of its administrator stay
        settings = json_object_in(Path(theirs)) or {}
        # These settings would let a turn change what later sessions follow.
        settings["memory"] = {**mapping(settings.get("memory")), **dict.fromkeys(self._MEMORY, False)}
        # With full access nothing is denied, as the session asks no questions anyway.
        if self.access(options).answers != "yes":
            homes = (*spellings(self.home(env).path), places.resolve())
            # By every spelling of the home: rules match paths as written, and `//` begins an absolute one.
            denied = [
                f"{tool}(/{home}/{kept}/**)" for home in homes for kept in self.trust.memory for tool in self._WRITERS
            ]
            rules = mapping(settings.get("permissions"))
            settings["permissions"] = {**rules, "deny": [*sequence(rules.get("deny")), *denied]}
        # Without folder trust Qwen obeys a repository that says "yolo".
        if not options.trust_repository:
            settings["security"] = {**mapping(settings.get("security")), "folderTrust": {"enabled": True}}
        made_of = json.dumps(settings)
        # Named by its content: several processes may share the file, and none sees another's settings.
        path = places / f"qwen-settings-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}.json"
        replace_file(path, made_of)
        made = {**env, self._SETTINGS: str(path)}
        # Qwen looks for the defaults beside the settings file, which has just moved.
        made.setdefault("QWEN_CODE_SYSTEM_DEFAULTS_PATH", str(Path(theirs).with_name("system-defaults.json")))
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []

    def tool_of(self, call: Mapping[str, Any]) -> str | None:
        return optional_text(mapping(call.get("_meta")).get("toolName"))

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        return optional_text(output.get("output")), integer(output.get("exitCode"))

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        return None  # each model call is reported separately

    def update_usage(self, update: Mapping[str, Any]) -> Usage | None:
        return self.read_usage(mapping(mapping(update.get("_meta")).get("usage")))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        return QwenReader(self.home(env).path / "projects")

    def transcripts(self, env: Mapping[str, str]) -> CarriedTranscripts:
        home = self.home(env).path
        return QwenTranscripts(
            lambda session_id: (home / "projects").glob(f"*/chats/{session_id}.jsonl"),
            lambda directory: None if (own := self.own_project(home, directory)) is None else own / "chats",
        )

    def home(self, env: Mapping[str, str]) -> AgentHome:
        path = Path(env.get("QWEN_HOME") or home_in(env) / ".qwen")
        return AgentHome(
            path=path,
            variable="QWEN_HOME",
            shared=self.trust.shared,
            copied=("extension-store", "extensions"),
            empty=("debug", "sessions", "tmp", "todos", "usage"),
        )

    def own_project(self, home: Path, directory: Path) -> Path | None:
        # Qwen names its directories so. For other characters no directory is assumed.
        name = re.sub(r"[^a-zA-Z0-9]", "-", str(directory))
        return home / "projects" / name if str(directory).isascii() else None

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("OPENAI_API_KEY", "DASHSCOPE_API_KEY"), (home_in(env) / ".qwen" / "oauth_creds.json",)


# --- sessions ----------------------------------------------------------------------------------------------------------


class QwenReader(SessionReader):
    """See `SessionReader`."""

    def __init__(self, projects: Path) -> None:
        self.home = self._projects = projects
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        return self._seen.all(self._projects.glob("*/chats/*.jsonl"))

    def find(self, session_id: str) -> SessionInfo | None:
        path = self._file(session_id)
        return None if path is None else self._seen.get(path)

    def _file(self, session_id: str) -> Path | None:
        return next(self._projects.glob(f"*/chats/{session_id}.jsonl"), None) if is_id(session_id) else None

    def files(self) -> Iterator[tuple[str, int, int]]:
        return ((path.stem, *size_and_time(path)) for path in self._projects.glob("*/chats/*.jsonl"))

    def stored_turns(self, session_id: str) -> list[StoredTurn] | None:
        path, gathered = self._file(session_id), Gathering()
        if path is None:
            return None
        for line in json_lines(path):
            at, parts = timestamp(line.get("timestamp")), _parts(line)
            if line.get("type") == "user":
                gathered.asked(_words(parts), at)
            elif line.get("type") == "assistant":
                for part in parts:
                    called = mapping(part.get("functionCall"))
                    if called:
                        gathered.called(text(called.get("name")), mapping(called.get("args")), at)
                gathered.said(_words(parts), at)
                _count(gathered, line)
        return gathered.turns


def _count(gathered: Gathering, line: Mapping[str, Any]) -> None:
    counts = mapping(line.get("usageMetadata"))
    if not counts:
        return
    usage = Usage(
        input_tokens=count(counts.get("promptTokenCount")),
        cached_input_tokens=count(counts.get("cachedContentTokenCount")),
        output_tokens=count(counts.get("candidatesTokenCount")),
        reasoning_output_tokens=count(counts.get("thoughtsTokenCount")),
    )
    gathered.used(usage, optional_text(line.get("model")), timestamp(line.get("timestamp")))


class QwenTranscripts(OneFile):
    """Sessions that are carried. Qwen loads one only where its first record was written, or where this file says it is."""

    def place(
        self, session_id: str, parts: Iterable[TranscriptPart], *, directory: Path, away: Path
    ) -> PlacedTranscript:
        placed = super().place(session_id, parts, directory=directory, away=away)
        # The record of the machine it came from names a directory that does not exist here.
        for file in self.files(session_id):
            status = {
                "schema_version": 1,
                "pid": os.getpid(),
                "session_id": session_id,
                "work_dir": str(directory.resolve()),
                "hostname": platform.node(),
                "started_at": time.time(),
                "qwen_version": None,
            }
            replace_file(_status_of(file.path), json.dumps(status))
        return placed


def _status_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.runtime.json")


def _moved_to(path: Path) -> str | None:
    """Return the directory of a session that was begun elsewhere."""
    return optional_text((json_object_in(_status_of(path)) or {}).get("work_dir"))


def _parts(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [mapping(part) for part in sequence(mapping(line.get("message")).get("parts"))]


def _words(parts: list[Mapping[str, Any]]) -> str:
    return "\n".join(text(part.get("text")) for part in parts if part.get("text") and not part.get("thought"))


def _info(path: Path) -> SessionInfo | None:
    first = next((line for line in json_lines(path) if line.get("type") == "user"), None)
    if first is None:
        return None
    return SessionInfo(
        session_id=text(first.get("sessionId")) or path.stem,
        agent="qwen",
        created_at=timestamp(first.get("timestamp")),
        updated_at=changed_at(path),
        directory=_moved_to(path) or optional_text(first.get("cwd")),
        first_prompt=_words(_parts(first)),
        engine_version=optional_text(first.get("version")),
        path=path,
    )
