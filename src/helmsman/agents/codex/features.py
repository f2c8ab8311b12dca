"""Versions of Codex, and which of them can do what.

Codex changes every week, and its protocol does not list its features. So this table has the first and the last version with
each feature on which Helmsman depends. No other module compares versions. The numbers come from the released binaries: their
help, their schemas, or else their behaviour.

Some differences show in the data, so no code asks for the version. When Helmsman drops the last version named here, their
branches can go:

| difference | until | read by |
| --- | --- | --- |
| lines of session files have no `type` and no `payload` | 0.92 | `storage` |
| every notification comes a second time, as `codex/event/*` | 0.93 | `normalise` |
| a declined command ends twice, the second time as failed | 0.93 | `normalise` |
| a session file names no turns, and records neither beginning nor completion | 0.93 | `storage` |
| the model is named after the first prompt, not before | 0.93 | `storage` |
| turn ids are numbers per thread, not UUIDs | 0.93 | `storage` |
| plan mode's counterpart is called `code`, not `default` | 0.93 | `threads` |
| the result of a client's tool is `output`, not `contentItems` | 0.93 | `questions` |
| a running turn's thread cannot be resumed (`THREAD_STATUS`) | 0.104 | `engine` |
| an MCP tool is approved through `requestUserInput` | 0.115 | `questions` |
| a command is named only when it runs, not before it is asked about | 0.115 | `normalise` |
| an interrupt may get no answer | 0.115 | `engine` |
| the sandbox of `codex sandbox` is a subcommand per platform | 0.130 | `sandbox` |
| the answer to `thread/resume` has no page of turns | 0.130 | `connection` |
| the status of an MCP server does not name its thread | 0.130 | `normalise` |
| a failed turn is recorded as one that completed without a message | 0.130 | `storage` |
| a turn begins with a repeated token count | 0.130 | `storage` |
| the end of a turn has no items, so its answer is that of the last message | 0.145 | `normalise` |
| the file of a fork begins with a copy of its parent's lines | 0.145 | `storage` |
| turns that were taken back stay in the file (`thread_rolled_back`) | 0.145 | `storage` |
| messages are recorded as `user_message` and `agent_message` | 0.149 | `storage` |
| commands of root keep their capabilities in the sandbox | 0.154 | `sandbox` |
| `thread/rollback` (`ROLLBACK`); since 0.148 `thread/revert`, except for files that are not paginated | 0.155 | `engine` |
| a handshake that offers compression is dropped | 0.165 | `connection` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering
from typing import Final, Self

_VERSION: Final = re.compile(r"(?<![\w.])v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z.-]+))?")


@total_ordering  # which a Struct would not let define the other comparisons
@dataclass(frozen=True, slots=True)
class Version:
    """Version of Codex. 0.0.0 is a development build, which counts as newer than every release."""

    major: int
    minor: int
    patch: int
    prerelease: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the first version number in the text; a text without one gives a development build."""
        found = _VERSION.search(text)
        if found is None:
            return cls(0, 0, 0)
        major, minor, patch, prerelease = found.groups()
        return cls(int(major), int(minor), int(patch), prerelease or "")

    @property
    def is_development(self) -> bool:
        return (self.major, self.minor, self.patch) == (0, 0, 0)

    def __lt__(self, other: Version) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[object, ...]:
        # As in semantic versioning: a pre-release comes before its release, and numbers in it compare as numbers.
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.prerelease.split("."))
        return (self.is_development, self.major, self.minor, self.patch, not self.prerelease, parts)

    def __str__(self) -> str:
        if self.is_development:
            return "(development build)"
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.prerelease}" if self.prerelease else "")


OLDEST: Final = Version.parse("0.93.0")
"""Oldest supported version."""


class Feature(Enum):
    """Something not every Codex can do. `text` completes "this Codex can …"; `until` is the last version that can."""

    # --- the process ---
    APP_SERVER = "run as an app-server", "0.93.0"
    GUARDED_SOCKET = "keep the commands it runs from reaching the socket on which it listens", "0.163.0"
    REMOTE = "be reached from another machine, and continue without the client that began", "0.130.0"
    PATH_BUBBLEWRAP = (
        "build its sandbox with the bubblewrap on its PATH, which hides places from its commands",
        "0.130.0",
    )
    SHELL_SNAPSHOT = "keep a snapshot of the login shell's environment for its commands", "0.115.0"

    # --- starting and resuming ---
    ON_FAILURE_APPROVAL = "use the approval policy on-failure", None, "0.142.0"
    PROFILE_IN_CONFIG = "take a profile by its name in a thread's config", None, "0.133.0"
    TRUST_ON_START = "mark a repository as trusted when a thread starts with a writable sandbox", "0.120.0"
    UNTRUSTED_RULES_IGNORED = "ignore the rules of an untrusted repository", "0.130.0"
    TRACELESS_THREADS = "open a session that leaves no trace before its first message", "0.115.0"

    # --- turns ---
    STEER = "put a message into a running turn", "0.99.0"
    BACKGROUND_TERMINALS = "stop the commands a turn left running", "0.99.0"
    WORKSPACE_ROOTS = "replace the workspace roots of a session with a turn", "0.145.0"
    THREAD_STATUS = "report when a session becomes active or idle", "0.105.0"

    # --- upkeep of sessions ---
    UNSUBSCRIBE = "let go of a session", "0.106.0"
    COMPACT = "compact a session", "0.96.0"
    ROLLBACK = "forget the last turns of a session (thread/rollback)", None, "0.155.0"
    REVERT = "go back to an earlier turn of a session (thread/revert)", "0.148.0"
    FORK_AT_TURN = "fork a session from an earlier turn", "0.143.0"
    GOALS = "keep a goal for a session", "0.128.0"
    PLAN_INSTRUCTIONS = "bring its own instructions for plan mode", "0.115.0"

    # --- exec and cloud ---
    CLOUD = "run tasks in the Codex cloud", "0.93.0"
    EXEC_UNTRUSTED_INSTRUCTIONS = "read the AGENTS.md of an untrusted repository in `codex exec`", None, "0.145.0"

    # --- files ---
    PAGINATED_FILES = "write paginated session files", "0.152.0"
    KEEPS_PAGINATED_FILES = "continue a paginated session file without damaging it", "0.145.0"

    def __init__(self, text: str, since: str | None = None, until: str | None = None) -> None:
        self.text = text
        self.since = None if since is None else Version.parse(since)
        self.until = None if until is None else Version.parse(until)

    def is_in(self, version: Version) -> bool:
        """Return whether that version of Codex has the feature."""
        if self.since is not None and version < self.since:
            return False
        if self.until is None:
            return True
        # Nothing is taken away in a patch release: 0.142.5 still has what 0.142.0 has.
        return not version.is_development and (version.major, version.minor) <= (self.until.major, self.until.minor)

    @property
    def versions(self) -> str:
        """Versions with the feature, in words."""
        if self.since is None:
            return "every Codex" if self.until is None else f"Codex {self.until} and older"
        return f"Codex {self.since} and newer" if self.until is None else f"Codex {self.since} to {self.until}"
