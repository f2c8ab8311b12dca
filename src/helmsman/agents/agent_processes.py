"""The processes of an agent that runs its commands itself, and the end of those that its turns have started.

A command that an agent runs can leave its parent, its group and its environment behind, and go on when the turn has ended:
it could change files while they are verified or applied. So when a turn ends, all that is below the agent is ended except
what was there when its first turn began: the agent itself, what it runs in, and its MCP servers with their own children.

No descendant escapes: the supervisor of an agent, or the reaper of a child, is a subreaper, and a sandbox is a PID
namespace, whose first process inherits all orphans in it. Where the system has neither, processes are found by their
parents and by a mark in their environment.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from helmsman.base.process_ending import end_processes, namespace_init
from helmsman.base.processes import (
    KEPT_MARK,
    Process,
    descendants,
    parent_of,
    started_before,
    started_now,
    with_variable,
)
from helmsman.base.structs import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.agents.child_process import Child
    from helmsman.agents.supervisor.records import ProcessRecord

_BASELINE: Final = "baseline"


class ProcessBaseline(Value, frozen=True):
    """The processes that were there at a moment: all that are older than `since`, or those `seen` if age cannot be told."""

    since: str | None = None
    seen: frozenset[Process] = frozenset()

    @classmethod
    def now(cls, found: frozenset[Process]) -> ProcessBaseline:
        """Return the baseline of this moment, at which these were found."""
        since = started_now()
        return cls(seen=found) if since is None else cls(since)

    def contains(self, process: Process) -> bool:
        if self.since is None:
            return process in self.seen
        return started_before(process, self.since)


class AgentProcesses:
    """All processes of one agent. Methods block, briefly."""

    def __init__(self, child: Child | None = None, record: ProcessRecord | None = None) -> None:
        self._child = child
        self._record = record
        self._baseline: ProcessBaseline | None = None

    def note_baseline(self) -> None:
        """Note which processes belong to the agent, unless that was noted; called before its first turn begins.

        It is kept for the next owner too, which may find the agent in the middle of a turn.
        """
        if self._baseline is None:
            self._baseline = ProcessBaseline.now(self._all())
            if self._record is not None:
                self._record.note(**{_BASELINE: msgspec.to_builtins(self._baseline)})

    def recall_baseline(self) -> None:
        """Take over the baseline of an earlier owner.

        If that is lost, the agent counts as started by the turn: it is ended with the rest, and the next turn starts
        another.
        """
        assert self._record is not None
        try:
            self._baseline = msgspec.convert(self._record.notes()[_BASELINE], ProcessBaseline)
        except (LookupError, msgspec.ValidationError):
            self._baseline = ProcessBaseline(seen=frozenset({self._record.child}))

    def started_by_turns(self) -> frozenset[Process]:
        """Return what turns have started and is still there; none before the first turn."""
        baseline = self._baseline
        if baseline is None:
            return frozenset()
        found = self._all()
        older = {process for process in found if baseline.contains(process)}
        servers = _servers(older)
        return frozenset(process for process in found - older if not servers or not _is_below(process, servers))

    def end_started_by_turns(self) -> frozenset[Process]:
        """End what turns have started; return what could not be ended.

        Then the agent is killed with it, since the end of a PID namespace is certain. The next turn starts another one.
        """
        baseline = self._baseline
        if baseline is None:
            return frozenset()
        inits = (namespace_init(process) for process in self._all() if baseline.contains(process))
        left = end_processes(self.started_by_turns, namespace=next(filter(None, inits), None))
        if left:
            self.kill_all()
        return left

    def kill_all(self) -> None:
        """Kill the agent and all that it has started, at once."""
        if self._child is not None:
            self._child.kill()
        else:
            end_processes(self._all, grace=0)

    def _all(self) -> frozenset[Process]:
        if self._child is not None:
            return self._child.below()
        assert self._record is not None
        found = descendants(self._record.supervisor) | with_variable(KEPT_MARK, str(self._record.directory))
        return frozenset(process for process in found if process != self._record.supervisor)


def _servers(older: Iterable[Process]) -> frozenset[int]:
    """Return the MCP servers among the processes of an agent: those that do not share its standard input.

    What a server starts is its own, whenever that was: a browser, or the program that `npx` runs in the end. The agent and
    the programs around it (sandbox, wrapper scripts) all have the pipe as input on which the agent is told what to do, and
    what is started below those alone is a command. A process of which this cannot be told is not taken for a server.
    """
    by_age = sorted(older, key=lambda process: (len(process.started), process.started, process.pid))
    inputs = {process.pid: _input_of(process.pid) for process in by_age}
    agents_input = next(iter(inputs.values()), None)
    return frozenset(pid for pid, given in inputs.items() if given is not None and given != agents_input)


def _input_of(pid: int) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(f"/proc/{pid}/fd/0")  # noqa: PTH116 - called for many processes
        return status.st_dev, status.st_ino
    return None


def _is_below(process: Process, servers: frozenset[int]) -> bool:
    pid: int | None = process.pid
    while pid is not None and pid > 1:
        pid = parent_of(pid)
        if pid in servers:
            return True
    return False
