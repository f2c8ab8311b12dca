"""Profiles of known agents, as observed (in the versions that `scripts/fetch_agents.py` names)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman.agents.acp.profile import AgentAccess, AgentHome, Profile
from helmsman.agents.sandbox import spellings
from helmsman.agents.sandbox_view import cloud_logins
from helmsman.base.files import replace_file
from helmsman.base.json_values import (
    count,
    integer,
    json_object,
    json_object_in,
    mapping,
    optional_text,
    sequence,
    text,
)
from helmsman.errors import EngineStartFailed, InvalidInput
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.acp.storage.reader import SessionReader
    from helmsman.agents.transcripts import CarriedTranscripts
    from helmsman.model.options import SessionOptions

_LOAD_AGAIN: Final = 1.0
_SETTINGS_OF_THE_MACHINE: Final = Path(
    "/Library/Application Support/QwenCode/settings.json"
    if sys.platform == "darwin"
    else "/etc/qwen-code/settings.json"
)


class Gemini(Profile):
    """Google's Gemini CLI.

    It ignores a folder's settings until the user trusts it, and reports little about commands.
    """

    name = "gemini"
    title = "Gemini"
    program = "gemini"
    arguments = ("--acp",)
    install = "npm install -g @google/gemini-cli"
    has_history = True
    asking_mode = "default"
    reading_mode = "plan"
    model_by = "set_model"
    counting = "files"
    memory = ()
    runs_repository_files = False
    variables = ("GEMINI_*", "GOOGLE_*")

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

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        counts = mapping(mapping(mapping(answer.get("_meta")).get("quota")).get("token_count"))
        if integer(counts.get("input_tokens")) is None:
            return None
        return Usage(input_tokens=count(counts.get("input_tokens")), output_tokens=count(counts.get("output_tokens")))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.gemini import GeminiReader

        return GeminiReader(self.home(env).path / "tmp")

    def home(self, env: Mapping[str, str]) -> AgentHome:
        base = Path(env.get("GEMINI_CLI_HOME") or _home(env))
        return AgentHome(
            path=base / ".gemini",
            variable="GEMINI_CLI_HOME",
            below=".gemini",
            shared=("tmp",),
            kept=("tmp/bin",),  # programs that it has fetched
            mark=self._MARK,
            empty=("history",),  # its own repositories, whose configuration git would run
        )

    def reads(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        return cloud_logins(env, {"GOOGLE_GENAI_USE_VERTEXAI": "google", "GOOGLE_GENAI_USE_GCA": "google"})

    def own_project(self, home: Path, directory: Path) -> Path | None:
        """Return the project that Gemini would use: by its list, or by the mark in it. Mark a new one."""
        listed = mapping((json_object_in(home / "projects.json") or {}).get("projects"))
        name, mark = text(listed.get(str(directory))), self._MARK
        named = [home / "tmp" / name] if name and Path(name).name == name else []
        for place in (*named, *(home / "tmp").glob("*")):
            with suppress(OSError, ValueError):
                if (place / mark).read_text(encoding="utf-8").strip() == str(directory):
                    return place
        stem = re.sub(r"[^a-z0-9]+", "-", directory.name.lower()).strip("-") or "project"
        fresh = home / "tmp" / f"{stem}-{secrets.token_hex(4)}"
        chosen = next((place for place in named if not (place / mark).exists()), fresh)
        chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(chosen / mark, str(directory))
        return chosen

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("GEMINI_API_KEY", "GOOGLE_API_KEY"), (_home(env) / ".gemini" / "oauth_creds.json",)

    async def may_load(self, session_id: str, env: Mapping[str, str]) -> None:
        """Refuse to load a session in the minute of its creation: the recorder of the load would overwrite its file."""
        await anyio.to_thread.run_sync(self.was_loaded, session_id, env)
        while True:
            minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
            name = f"*/chats/session-{minute}-{session_id[:8]}.jsonl"
            if not list((self.home(env).path / "tmp").glob(name)):
                return
            await anyio.sleep(_LOAD_AGAIN)

    def was_loaded(self, session_id: str, env: Mapping[str, str]) -> None:
        """Undo a side effect of a load: an empty file, which the next Gemini takes for a broken session and deletes."""
        for path in (self.home(env).path / "tmp").glob(f"*/chats/session-*-{session_id[:8]}.jsonl"):
            with suppress(OSError, ValueError, RecursionError):
                lines = [mapping(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
                if lines and lines[0].get("sessionId") == session_id and not any("id" in line for line in lines):
                    path.unlink()


class OpenCode(Profile):
    """OpenCode. Without a permission setting it asks nothing, and plugins of a repository are run whatever one says."""

    name = "opencode"
    title = "OpenCode"
    program = "opencode"
    arguments = ("acp",)
    install = "npm install -g opencode-ai"
    has_history = True
    asking_mode = "build"
    reading_mode = None
    memory = ()
    variables = ("OPENCODE_*", "*_API_KEY")  # its settings, and the keys of its providers
    model_by = "set_model"
    steering = "second prompt"
    counting = "files"
    cached_beside = True
    thoughts_beside = True
    tells_later = True
    runs_repository_files = False
    acts_unasked = False  # a command could change what its own session may do

    _DATABASE = "opencode.db"
    _SESSIONS = "helmsman"
    """Below its data, a directory for each session of Helmsman."""
    _XDG: Mapping[str, str] = {"DATA": ".local/share", "CONFIG": ".config", "CACHE": ".cache", "STATE": ".local/state"}
    _CONFIGURATIONS = ("opencode.json", "opencode.jsonc")
    _PLUGIN = re.compile(rb"plugin|\\u|\{(?:file|env):")
    """Words in a configuration that may name a plugin. Of all its content, only plugins are run."""
    _READS = ("read", "grep", "glob", "list", "todoread", "todowrite")
    _ACTS = ("bash", "edit", "webfetch", "websearch", "codesearch", "skill", "external_directory", "doom_loop")
    _NEVER = ("task",)
    """Its sub-agents. What they ask it keeps to itself, and waits for the answer for ever."""

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        # Each by its name too, as rules of the user's own configuration are: what must be asked is asked.
        acts = "deny" if options.writes == "nothing" else "ask"
        permission = {"*": acts, **dict.fromkeys(self._ACTS, acts), **dict.fromkeys(self._READS, "allow")}
        permission |= dict.fromkeys(self._NEVER, "deny")
        # The last matching rule counts, and these are merged with the user's own, which keep their position. So each
        # rule is repeated as a pattern that users do not write, and therefore comes last.
        again = {**dict.fromkeys(self._READS, "allow"), **dict.fromkeys(self._NEVER, "deny")}
        permission |= {"**": acts, **{f"{name[:-1]}?": effect for name, effect in again.items()}}
        given = json_object(env.get("OPENCODE_CONFIG_CONTENT")) or {}
        # Permissions of an agent in the configuration override those for all.
        agents = mapping(given.get("agent"))
        used = {**mapping(agents.get(self.asking_mode)), "permission": permission}
        content = {**given, "permission": permission, "agent": {**agents, self.asking_mode: used}}
        content |= {"default_agent": self.asking_mode, "autoupdate": False, "share": "disabled"}
        made = {**env, "OPENCODE_CONFIG_CONTENT": json.dumps(content), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        for name in ("OPENCODE_PERMISSION", "OPENCODE_DB"):
            made.pop(name, None)
        if not options.trust_repository:
            made["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        found: list[Path] = []
        for above in _with_all_above(directory):
            configurations = [place / name for place in (above, above / ".opencode") for name in self._CONFIGURATIONS]
            found += [path for folder in ("plugin", "plugins") for path in _files(above / ".opencode" / folder)]
            found += [path for path in configurations if _may_say(path, self._PLUGIN)]
        return found

    def home(self, env: Mapping[str, str]) -> AgentHome:
        return self._xdg(env, "DATA", shared=(self._SESSIONS,), empty=("*.db", "*.db-*", "log", "repos", "snapshot"))

    def more_homes(self, env: Mapping[str, str]) -> tuple[AgentHome, ...]:
        state = self._xdg(env, "STATE", empty=("*",))
        return self._xdg(env, "CONFIG"), self._xdg(env, "CACHE"), state

    def _xdg(
        self, env: Mapping[str, str], kind: str, *, shared: tuple[str, ...] = (), empty: tuple[str, ...] = ()
    ) -> AgentHome:
        variable = f"XDG_{kind}_HOME"
        others = Path(env.get(variable) or _home(env) / self._XDG[kind])
        return AgentHome(
            path=others / "opencode",
            variable=variable,
            below="opencode",
            shared=shared,
            empty=empty,
            inside=kind.lower(),
            others=others,
        )

    def session_place(self, session_id: str, env: Mapping[str, str], *, enforced: bool) -> Path | None:
        """A database for each session: in the one of all sessions are accounts and the approvals of all projects."""
        places = self.home(env).path / self._SESSIONS
        if not session_id:
            place = places / secrets.token_hex(8)
            place.mkdir(mode=0o700, parents=True)
            return place
        from helmsman.agents.acp.storage.opencode import forget_permissions, place_of

        place_of_session = place_of(places, session_id)
        if place_of_session is not None:
            forget_permissions(place_of_session)
        elif enforced:
            raise InvalidInput(
                f"Session {session_id} was begun in OpenCode itself, in one file with its accounts and all other sessions, "
                "which a sandbox would have to show. Start a new session instead.",
                parameter="unenforced",
            )
        return place_of_session

    def place_environment(self, place: Path) -> Mapping[str, str]:
        return {"OPENCODE_DB": str(place / self._DATABASE)}

    def was_begun(self, session_id: str, place: Path) -> None:
        from helmsman.agents.acp.storage.opencode import name_place

        name_place(place, session_id)

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        return optional_text(output.get("output")), integer(mapping(output.get("metadata")).get("exit"))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.opencode import OpenCodeReader

        data = self.home(env).path
        return OpenCodeReader(data / self._DATABASE, data / self._SESSIONS)

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return (), (self.home(env).path / "auth.json",)


class Qwen(Profile):
    """Qwen Code. It obeys the settings of a repository, also one that says "ask nothing", unless folders need trust."""

    name = "qwen"
    title = "Qwen"
    program = "qwen"
    arguments = ("--acp",)
    install = "npm install -g @qwen-code/qwen-code"
    has_history = True
    asking_mode = "default"
    reading_mode = "plan"
    model_by = "set_model"
    steering = "when asked"
    counting = "turn"
    runs_repository_files = False
    moves = True
    variables = ("DASHSCOPE_*", "OPENAI_*", "QWEN_*", "*_API_KEY")  # its settings name the variable of each provider

    _SETTINGS = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
    _MEMORY = ("enableManagedAutoMemory", "enableManagedAutoDream", "enableAutoSkill")
    """Settings for actions after a turn: it records instructions for later sessions without asking."""
    memory = ("memories", "projects/*/memory")  # nor does it ask about what its model writes there
    _WRITERS = ("Edit", "WriteFile")

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        theirs = env.get(self._SETTINGS) or str(_SETTINGS_OF_THE_MACHINE)  # those of its administrator stay
        settings = json_object_in(Path(theirs)) or {}
        settings["memory"] = {**mapping(settings.get("memory")), **dict.fromkeys(self._MEMORY, False)}
        if self.access(options).answers != "yes":
            homes = (*spellings(self.home(env).path), places.resolve())
            denied = [f"{tool}(/{home}/{kept}/**)" for home in homes for kept in self.memory for tool in self._WRITERS]
            rules = mapping(settings.get("permissions"))
            settings["permissions"] = {**rules, "deny": [*sequence(rules.get("deny")), *denied]}
        if not options.trust_repository:
            settings["security"] = {**mapping(settings.get("security")), "folderTrust": {"enabled": True}}
        made_of = json.dumps(settings)
        path = places / f"qwen-settings-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}.json"
        replace_file(path, made_of)
        made = {**env, self._SETTINGS: str(path)}
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
        from helmsman.agents.acp.storage.qwen import QwenReader

        return QwenReader(self.home(env).path / "projects")

    def transcripts(self, env: Mapping[str, str]) -> CarriedTranscripts:
        from helmsman.agents.acp.storage.qwen import QwenTranscripts

        home = self.home(env).path
        return QwenTranscripts(
            lambda session_id: (home / "projects").glob(f"*/chats/{session_id}.jsonl"),
            lambda directory: None if (own := self.own_project(home, directory)) is None else own / "chats",
        )

    def home(self, env: Mapping[str, str]) -> AgentHome:
        path = Path(env.get("QWEN_HOME") or _home(env) / ".qwen")
        return AgentHome(
            path=path,
            variable="QWEN_HOME",
            shared=("projects",),
            copied=("extension-store", "extensions"),
            empty=("debug", "sessions", "tmp", "todos", "usage"),
        )

    def own_project(self, home: Path, directory: Path) -> Path | None:
        name = re.sub(r"[^a-zA-Z0-9]", "-", str(directory))
        return home / "projects" / name if str(directory).isascii() else None

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("OPENAI_API_KEY", "DASHSCOPE_API_KEY"), (_home(env) / ".qwen" / "oauth_creds.json",)


class Copilot(Profile):
    """GitHub Copilot's command line. What went wrong it says as text; hooks of a repository are run whatever one says."""

    name = "copilot"
    title = "Copilot"
    program = "copilot"
    arguments = ("--acp",)
    install = "npm install -g @github/copilot"
    has_history = True
    asking_mode = "https://agentclientprotocol.com/protocol/session-modes#agent"
    reading_mode = None
    memory = ()
    asking_options: Mapping[str, str] = {"allow_all": "off"}  # a session keeps the settings of its terminal
    model_by = "environment"
    counting = "process"
    runs_repository_files = False
    variables = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN")

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        made = {**env, "COPILOT_AUTO_UPDATE": "false", **({"COPILOT_MODEL": options.model} if options.model else {})}
        for name in ("COPILOT_ALLOW_ALL", "COPILOT_AUTO_APPROVE"):
            made.pop(name, None)
        return made

    def prepare(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Let it unpack its code before it runs: here, no command can change that code."""
        import subprocess

        try:
            subprocess.run(
                argv,
                env={**env, "COPILOT_SEA_EXTRACT_ONLY": "1", "COPILOT_AUTO_UPDATE": "false"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=self.start_seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineStartFailed(
                f"Copilot could not unpack its code ({error}), which it must before a sandbox is put around it. Start "
                "`copilot --version` by hand to see why."
            ) from error

    def reads(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        return (
            Path(env.get("XDG_CACHE_HOME") or _home(env) / ".cache") / "copilot",
        )  # its code, as it has unpacked it

    def dangerous_files(self, directory: Path) -> list[Path]:
        return [path for above in _with_all_above(directory) for path in _files(above / ".github" / "hooks")]

    def is_remark(self, text: str) -> bool:
        return text.startswith("Info: ")

    def failure_in(self, text: str) -> str | None:
        return text.removeprefix("Error: ").strip() if text.startswith("Error: ") else None

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        said = optional_text(output.get("content"))
        if said is not None:
            said = said.rpartition("\n<shellId:")[0] if "\n<shellId:" in said else said
        codes = (integer(mapping(part).get("exitCode")) for part in sequence(output.get("contents")))
        return said, next((code for code in codes if code is not None), None)

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.copilot import CopilotReader

        return CopilotReader(self.home(env).path / "session-state")

    def home(self, env: Mapping[str, str]) -> AgentHome:
        path = Path(env.get("COPILOT_HOME") or _home(env) / ".copilot")
        return AgentHome(path=path, variable="COPILOT_HOME", shared=("session-state",), empty=("logs",))

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY"), ()


class OwnAgent(Profile):
    """Agent of the user, from `[agents.NAME]` in `helmsman.toml`."""

    asking_mode: str | None = None
    reading_mode: str | None = None
    memory: tuple[str, ...] = ()
    runs_repository_files: bool = True
    variables = ("*",)  # which of them it needs is not known

    def __init__(
        self, name: str, title: str, *, mode: str | None, runs_repository_files: bool, writable: tuple[Path, ...] = ()
    ) -> None:
        self.name = name
        self.title = title
        self.asking_mode = mode
        self.runs_repository_files = runs_repository_files
        self.writable = writable

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []  # none are known

    def home(self, env: Mapping[str, str]) -> AgentHome | None:
        return None

    def access(self, options: SessionOptions) -> AgentAccess:
        found = super().access(options)
        note = f"Helmsman does not know what {self.title} does without asking."
        return AgentAccess(found.mode, found.answers, (*found.notes, note))


KNOWN: Final[tuple[Profile, ...]] = (Gemini(), OpenCode(), Qwen(), Copilot())


def _home(env: Mapping[str, str]) -> Path:
    return Path(text(env.get("HOME")) or Path.home())


def _with_all_above(directory: Path) -> Iterator[Path]:
    """Yield a directory and its parents, up to the user's home.

    Not up to the repository's root, because a repository can fake its root with a useless `.git` in a subdirectory. The
    agent searches the same directories, whatever links led here. Files are looked up by name, so the file system
    decides about upper and lower case.
    """
    real = directory.resolve()
    for above in (real, *real.parents):
        if above == Path.home():
            return
        yield above


def _may_say(path: Path, what: re.Pattern[bytes]) -> bool:
    """Return whether a file contains such words; True if it cannot be read."""
    try:
        return what.search(path.read_bytes()) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []
