"""The agents whose ways are known, each as it was seen to behave (in the versions that `scripts/fetch_agents.py` names)."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.agents.acp.profile import AgentAccess, Profile
from helmsman.base.files import replace_file
from helmsman.base.json_values import count, integer, mapping, optional_text, sequence, text
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.acp.storage.reader import SessionReader
    from helmsman.model.options import SessionOptions

_LOAD_AGAIN: Final = 1.0


class Gemini(Profile):
    """Google's Gemini CLI. It heeds nothing of a folder that nobody has trusted, and says little about commands."""

    name = "gemini"
    title = "Gemini"
    program = "gemini"
    arguments = ("--acp",)
    install = "npm install -g @google/gemini-cli"
    asking_mode = "default"
    reading_mode = "plan"
    model_by = "set_model"
    counting = "files"
    runs_repository_files = False

    _TRUST = "GEMINI_CLI_TRUST_WORKSPACE"

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        made = {**env, "GEMINI_CLI_NO_RELAUNCH": "1"}  # it would start itself a second time
        made.pop(self._TRUST, None)
        if options.trust_repository:
            made[self._TRUST] = "true"
        return made

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        return None, None  # it never tells

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        counts = mapping(mapping(mapping(answer.get("_meta")).get("quota")).get("token_count"))
        if integer(counts.get("input_tokens")) is None:
            return None
        return Usage(input_tokens=count(counts.get("input_tokens")), output_tokens=count(counts.get("output_tokens")))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.gemini import GeminiReader

        return GeminiReader(_home(env) / ".gemini" / "tmp")

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("GEMINI_API_KEY", "GOOGLE_API_KEY"), (_home(env) / ".gemini" / "oauth_creds.json",)

    async def may_load(self, session_id: str, env: Mapping[str, str]) -> None:
        """A session loaded in the minute it was made is emptied: the recorder of the load begins the same file."""
        while True:
            minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
            name = f"*/chats/session-{minute}-{session_id[:8]}.jsonl"
            if not list((_home(env) / ".gemini" / "tmp").glob(name)):
                return
            await anyio.sleep(_LOAD_AGAIN)


class OpenCode(Profile):
    """OpenCode. Without a permission setting it asks nothing, and plugins of a repository are run whatever one says."""

    name = "opencode"
    title = "OpenCode"
    program = "opencode"
    arguments = ("acp",)
    install = "npm install -g opencode-ai"
    asking_mode = "build"
    model_by = "set_model"
    steering = "second prompt"
    counting = "files"
    cached_beside = True
    thoughts_beside = True
    runs_repository_files = False

    _READS = ("read", "grep", "glob", "list", "todoread", "todowrite")
    _ACTS = ("bash", "edit", "webfetch", "websearch", "codesearch", "task", "skill", "external_directory", "doom_loop")

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        try:
            content = json.loads(env.get("OPENCODE_CONFIG_CONTENT") or "{}")
        except ValueError:
            content = {}
        # Each by its name too, as rules of the user's own configuration are: what must be asked is asked.
        acts = "deny" if options.writes == "nothing" else "ask"
        permission = {"*": acts, **dict.fromkeys(self._ACTS, acts), **dict.fromkeys(self._READS, "allow")}
        content = {**content, "permission": permission, "autoupdate": False, "share": "disabled"}
        made = {**env, "OPENCODE_CONFIG_CONTENT": json.dumps(content), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        made.pop("OPENCODE_PERMISSION", None)
        if not options.trust_repository:
            made["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        return [
            path
            for above in _up_to_the_root(directory)
            for folder in ("plugin", "plugins")
            for path in _files(above / ".opencode" / folder)
        ]

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        return optional_text(output.get("output")), integer(mapping(output.get("metadata")).get("exit"))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.opencode import OpenCodeReader

        return OpenCodeReader(self._data(env) / "opencode.db")

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return (), (self._data(env) / "auth.json",)

    def _data(self, env: Mapping[str, str]) -> Path:
        return Path(env.get("XDG_DATA_HOME") or _home(env) / ".local" / "share") / "opencode"


class Qwen(Profile):
    """Qwen Code. It obeys the settings of a repository, also one that says "ask nothing", unless folders need trust."""

    name = "qwen"
    title = "Qwen"
    program = "qwen"
    arguments = ("--acp",)
    install = "npm install -g @qwen-code/qwen-code"
    asking_mode = "default"
    reading_mode = "plan"
    model_by = "set_model"
    steering = "when asked"
    counting = "turn"
    runs_repository_files = False

    _SETTINGS = "QWEN_CODE_SYSTEM_SETTINGS_PATH"

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        if options.trust_repository:
            return dict(env)
        settings: dict[str, Any] = {}
        if theirs := env.get(self._SETTINGS):  # those of the machine's administrator stay
            try:
                settings = dict(mapping(json.loads(Path(theirs).read_text(encoding="utf-8"))))
            except (OSError, ValueError):
                settings = {}
        security = {**mapping(settings.get("security")), "folderTrust": {"enabled": True}}
        path = places / "qwen-settings.json"
        replace_file(path, json.dumps({**settings, "security": security}))
        return {**env, self._SETTINGS: str(path)}

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        return optional_text(output.get("output")), integer(output.get("exitCode"))

    def prompt_usage(self, answer: Mapping[str, Any]) -> Usage | None:
        return None  # each model call is told by itself

    def update_usage(self, update: Mapping[str, Any]) -> Usage | None:
        return self.read_usage(mapping(mapping(update.get("_meta")).get("usage")))

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        from helmsman.agents.acp.storage.qwen import QwenReader

        return QwenReader(_home(env) / ".qwen" / "projects")

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("OPENAI_API_KEY", "DASHSCOPE_API_KEY"), (_home(env) / ".qwen" / "oauth_creds.json",)


class Copilot(Profile):
    """GitHub Copilot's command line. What went wrong it says as text; hooks of a repository are run whatever one says."""

    name = "copilot"
    title = "Copilot"
    program = "copilot"
    arguments = ("--acp",)
    install = "npm install -g @github/copilot"
    asking_mode = "https://agentclientprotocol.com/protocol/session-modes#agent"
    model_by = "environment"
    counting = "process"
    runs_repository_files = False

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        made = {**env, **({"COPILOT_MODEL": options.model} if options.model else {})}
        for name in ("COPILOT_ALLOW_ALL", "COPILOT_AUTO_APPROVE"):
            made.pop(name, None)
        return made

    def dangerous_files(self, directory: Path) -> list[Path]:
        return [path for above in _up_to_the_root(directory) for path in _files(above / ".github" / "hooks")]

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

        return CopilotReader(_home(env) / ".copilot" / "session-state")

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY"), ()


class OwnAgent(Profile):
    """An agent of the user's own, from `[agents.NAME]` in `helmsman.toml`."""

    def __init__(self, name: str, title: str, *, mode: str | None, runs_repository_files: bool) -> None:
        self.name = name
        self.title = title
        self.asking_mode = mode
        self.runs_repository_files = runs_repository_files

    def access(self, options: SessionOptions) -> AgentAccess:
        found = super().access(options)
        note = f"Helmsman does not know what {self.title} does without asking."
        return AgentAccess(found.mode, found.answers, (*found.notes, note))


KNOWN: Final[tuple[Profile, ...]] = (Gemini(), OpenCode(), Qwen(), Copilot())


def _home(env: Mapping[str, str]) -> Path:
    return Path(text(env.get("HOME")) or Path.home())


def _up_to_the_root(directory: Path) -> Iterator[Path]:
    """A directory and those above it, up to the repository's; without one, up to the user's home."""
    for above in (directory, *directory.parents):
        yield above
        if (above / ".git").exists() or above == Path.home():
            return


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []
