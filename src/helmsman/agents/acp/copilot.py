"""GitHub Copilot's command line: its profile, and its sessions.

A session is in `~/.copilot/session-state/<id>/`: `workspace.yaml` (a line for each field) and `events.jsonl`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.agents.acp.profile import AgentHome, Profile, files_in, home_in, with_all_above
from helmsman.agents.protocol import SessionInfo, Trust
from helmsman.agents.session_files import Gathering, SeenFiles, SessionReader, StoredTurn, is_id, json_lines
from helmsman.base.files import changed_at, size_and_time
from helmsman.base.json_values import count, integer, mapping, optional_text, sequence, text, timestamp
from helmsman.errors import EngineStartFailed
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.model.options import SessionOptions

_HEAD: Final = "workspace.yaml"
_EVENTS: Final = "events.jsonl"


class Copilot(Profile):
    """GitHub Copilot's command line. What went wrong it says as text; hooks of a repository are run whatever one says."""

    name = "copilot"
    title = "Copilot"
    program = "copilot"
    arguments = ("--acp",)
    install = "npm install -g @github/copilot"
    trust = Trust(
        asking_mode="https://agentclientprotocol.com/protocol/session-modes#agent",
        reading_mode=None,
        asking_options={"allow_all": "off"},  # a session keeps the settings of its terminal
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN"),
        shared=("session-state",),
    )
    model_by = "environment"
    counting = "process"

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        made = {**env, "COPILOT_AUTO_UPDATE": "false", **({"COPILOT_MODEL": options.model} if options.model else {})}
        # Either variable would turn off every question.
        for name in ("COPILOT_ALLOW_ALL", "COPILOT_AUTO_APPROVE"):
            made.pop(name, None)
        return made

    def prepare(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Let it unpack its code before it runs: here, no command can change that code."""
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
            Path(env.get("XDG_CACHE_HOME") or home_in(env) / ".cache") / "copilot",
        )  # its code, as it has unpacked it

    def dangerous_files(self, directory: Path) -> list[Path]:
        # `.github/hooks` run at the first prompt, and no option is known that turns them off.
        return [path for above in with_all_above(directory) for path in files_in(above / ".github" / "hooks")]

    def is_remark(self, text: str) -> bool:
        return text.startswith("Info: ")

    def failure_in(self, text: str) -> str | None:
        return text.removeprefix("Error: ").strip() if text.startswith("Error: ") else None

    def command_end(self, fields: Mapping[str, Any]) -> tuple[str | None, int | None]:
        output = mapping(fields.get("rawOutput"))
        said = optional_text(output.get("content"))
        if said is not None:
            # The shell appends its id and exit code to the output.
            said = said.rpartition("\n<shellId:")[0] if "\n<shellId:" in said else said
        codes = (integer(mapping(part).get("exitCode")) for part in sequence(output.get("contents")))
        return said, next((code for code in codes if code is not None), None)

    def reader(self, env: Mapping[str, str]) -> SessionReader:
        return CopilotReader(self.home(env).path / "session-state")

    def home(self, env: Mapping[str, str]) -> AgentHome:
        path = Path(env.get("COPILOT_HOME") or home_in(env) / ".copilot")
        return AgentHome(path=path, variable="COPILOT_HOME", shared=self.trust.shared, empty=("logs",))

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY"), ()


# --- sessions ----------------------------------------------------------------------------------------------------------


class CopilotReader(SessionReader):
    """See `SessionReader`."""

    def __init__(self, states: Path) -> None:
        self.home = self._states = states
        self._seen = SeenFiles(_info)

    def sessions(self) -> Iterator[SessionInfo]:
        return self._seen.all(self._states.glob(f"*/{_HEAD}"))

    def find(self, session_id: str) -> SessionInfo | None:
        return self._seen.get(self._states / session_id / _HEAD) if is_id(session_id) else None

    def files(self) -> Iterator[tuple[str, int, int]]:
        return ((events.parent.name, *size_and_time(events)) for events in self._states.glob(f"*/{_EVENTS}"))

    def stored_turns(self, session_id: str) -> list[StoredTurn] | None:
        if not is_id(session_id):
            return None
        events = self._states / session_id / _EVENTS
        if not events.exists():
            return None
        gathered = Gathering()
        calls: dict[str, Mapping[str, Any]] = {}
        for event in json_lines(events):
            at, data = timestamp(event.get("timestamp")), mapping(event.get("data"))
            match event.get("type"):
                case "user.message":
                    gathered.asked(text(data.get("content")), at)
                case "assistant.message":
                    gathered.said(text(data.get("content")), at)
                case "tool.execution_start":
                    calls[text(data.get("toolCallId"))] = data
                case "tool.execution_complete":
                    started = calls.pop(text(data.get("toolCallId")), {})
                    gathered.called(
                        text(started.get("toolName")),
                        mapping(started.get("arguments")),
                        at,
                        # Same suffix as in the updates.
                        output=text(mapping(data.get("result")).get("content")).rpartition("\n<shellId:")[0],
                        exit_code=integer(mapping(data.get("shellExecution")).get("exitCode")),
                        failed=data.get("success") is False,
                    )
                case "session.usage_record":
                    _count(gathered, mapping(data.get("usage")), event)
                case "abort":
                    gathered.cut_off()
                case _:
                    pass
        return gathered.turns


def _count(gathered: Gathering, counts: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    usage = Usage(
        input_tokens=count(counts.get("inputTokens")),
        cached_input_tokens=count(counts.get("cacheReadTokens")),
        output_tokens=count(counts.get("outputTokens")),
        reasoning_output_tokens=count(counts.get("reasoningTokens")),
    )
    gathered.used(usage, optional_text(counts.get("model")), timestamp(event.get("timestamp")))


def _info(path: Path) -> SessionInfo | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    fields = {name: _value(value) for name, colon, value in (line.partition(": ") for line in lines) if colon}
    if not fields.get("id"):
        return None
    return SessionInfo(
        session_id=fields["id"],
        agent="copilot",
        created_at=timestamp(fields.get("created_at")),
        updated_at=timestamp(fields.get("updated_at")) or changed_at(path),
        directory=fields.get("cwd"),
        name=fields.get("name"),
        originator=fields.get("client_name"),
        path=path.parent / _EVENTS,
    )


def _value(written: str) -> str:
    written = written.strip()
    if written.startswith('"'):
        # Names with special characters are quoted as in JSON; plain ones follow YAML's single quotes.
        try:
            return text(json.loads(written))
        except ValueError:
            return written
    return written[1:-1].replace("''", "'") if len(written) > 1 and written[0] == written[-1] == "'" else written
