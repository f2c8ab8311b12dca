"""Cloud tasks: submitted to the Codex cloud, registered here.

Only the cloud knows their current state, so each look asks it. The registry keeps its last answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio

from helmsman.agents.codex.agent import find_agent
from helmsman.agents.codex.cloud import FIRST_LOOK, NEXT_LOOK, CloudClient, poll_delays
from helmsman.base.config_table import read_table, switch
from helmsman.base.files import refuse_outside
from helmsman.base.processes import Process
from helmsman.base.structs import Value
from helmsman.errors import (
    CloudEnvironmentMissing,
    CloudSubmitUncertain,
    CloudTaskNotFound,
    Unsupported,
)
from helmsman.git.command import repository_root
from helmsman.model.cloud import CloudApplied, CloudEnvironments, CloudListed, CloudPage, CloudResults
from helmsman.model.inputs import turn_input
from helmsman.model.nature import ACTS, MOVES_CHANGES, READS, verb
from helmsman.steering.turn_errors import known_error
from helmsman.tasks.model import Task, TaskChanges, TaskDraft, TaskStatus, new_task_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helmsman.settings import ConfigFile

# --- Names for cloud environments: the table `[cloud]` of `helmsman.toml` ---------------------------------------------

#     [cloud]
#     default_environment = "site"        # a name from below, or an id or label as the cloud has it
#     takes_long_work = true              # in your own file only: work that may take long runs there
#
#     [cloud.environments]                # in your own file only
#     site = "env_0123456789abcdef"
#
# An environment has its own secrets and network access. A project's file comes with the repository and may be
# hostile, so it can only choose among the names that your own file has; a name that is not there counts for nothing.


def _environments(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(map(_is_name, (*value, *value.values()))):
        raise ValueError('names, and ids or labels of environments: site = "env_…"')
    return value


def _reference(value: Any) -> str:
    if not _is_name(value):
        raise ValueError("the name, id or label of an environment")
    return str(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


class _CloudTable(Value, frozen=True, kw_only=True):
    """Table `[cloud]`."""

    default_environment: Annotated[str | None, _reference] = None
    environments: Annotated[Mapping[str, str] | None, _environments] = None
    takes_long_work: Annotated[bool | None, switch] = None


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """`environments` are ids or labels by the user's own names. `note` tells of a project's choice that did not count."""

    environments: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    takes_long_work: bool = False
    note: str | None = None

    def reference(self, asked: str | None = None) -> str | None:
        """Return the reference to send to the cloud for a name, id or label, else for the default, else None."""
        wanted = asked or self.default
        return None if wanted is None else self.environments.get(wanted, wanted)

    @classmethod
    def load(cls, files: Iterable[ConfigFile]) -> CloudSettings:
        """Read the table from `Settings.files`, the file that wins first.

        Raises:
            InvalidSetting: A value in it is invalid.
        """
        environments: dict[str, str] = {}
        default: str | None = None
        takes_long_work = False
        note: str | None = None
        for file in sorted(files, key=lambda file: not file.trusted):  # the user's first: a project's only chooses
            table = read_table(_CloudTable, file.content.get("cloud", {}), "cloud", file.path)
            choice = table.default_environment
            if file.trusted:
                environments |= table.environments or {}
                default = choice
                takes_long_work = table.takes_long_work or False
            elif table.takes_long_work is not None:
                note = f"{file.path} sets cloud.takes_long_work, which is ignored: only your own file can set it."
            elif table.environments is not None:
                note = (
                    f"{file.path} sets cloud.environments, which is ignored: a repository must not choose where your tasks "
                    "run. Put the names into your own file."
                )
            elif choice in environments:
                default = choice
            elif choice is not None:
                note = (
                    f"{file.path} asks for the environment {choice!r}, which your own helmsman.toml does not list under "
                    "[cloud.environments]; add it there to use it."
                )
        return cls(environments, default, takes_long_work, note)


# ----------------------------------------------------------------------------------------------------------------------

__all__ = ["FIRST_LOOK", "NEXT_LOOK", "CloudEnvironments", "CloudListed", "CloudTasks"]

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.capabilities.shown_diffs import ShownDiffs
    from helmsman.steering.core import Steering

_COMPARED: Final = 20  # newest completed tasks that an estimate is made from
_BROKEN_OFF: Final = "Its process ended while it was being submitted: it may be in the cloud or not. Look there."


class CloudTasks:
    """Submits, follows and fetches them. Made by `helmsman.capabilities.all_tasks.Tasks`."""

    def __init__(self, helm: Steering, env: Mapping[str, str] | None, shown: ShownDiffs) -> None:
        self._helm = helm
        self._shown = shown
        self._env = env
        self.settings = CloudSettings.load(helm.settings.files)

    async def client(self) -> CloudClient:
        """Return `codex cloud` of the local Codex.

        Raises:
            CodexNotFound: It does not exist.
        """
        return CloudClient(await find_agent(self._helm.settings, self._env), self._helm.settings.codex_home, self._env)

    @verb(READS)
    async def environments(self) -> CloudEnvironments:
        """Return the known environments."""
        return await (await self.client()).environments(self.settings.environments, default=self.settings.default)

    # --- submit ------------------------------------------------------------------------------------------------------

    @verb(ACTS)
    async def submit(
        self,
        instruction: str,
        *,
        environment: str | None = None,
        attempts: int = 1,
        branch: str | None = None,
        model: str | None = None,
        directory: Path | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Register a task and return its id immediately. It is submitted in the background.

        Raises:
            InvalidInput: The instruction is empty or too long.
            Unsupported: A model was given, but the cloud does not support choosing one.
            CloudEnvironmentMissing: None was given, and none is configured.
        """
        # Only for its checks of the text: the cloud takes nothing else of a turn.
        turn_input(instruction)
        if model is not None:
            raise Unsupported("The Codex cloud chooses the model itself. Leave the model out.")
        chosen = self.settings.reference(environment)
        if chosen is None:
            raise CloudEnvironmentMissing(
                "A cloud task needs an environment. Name one by its id, label or configured name, or set "
                "default_environment under [cloud] in helmsman.toml."
            )
        task_id = new_task_id("cloud")
        draft = TaskDraft(
            id=task_id,
            origin="cloud",
            instruction=instruction,
            directory=str(directory) if directory is not None else None,
            idempotency_key=idempotency_key,
            owner=Process.me(),
            poll_ms=5000,
        )
        # Registered before it is sent, so that a crash in between leaves a task that says so.
        task, fresh = await self._helm.task_writer.registry(lambda registry: registry.add(draft))
        if not fresh:
            return task.id

        async def send() -> None:
            changes: TaskChanges = {"status": "unknown", "note": _BROKEN_OFF}  # in case this process is closed first
            try:
                client = await self.client()
                sent = await client.submit(
                    instruction, environment=chosen, attempts=attempts, branch=branch, directory=directory
                )
            except CloudSubmitUncertain as error:
                changes = {"status": "unknown", "note": error.message}
            # It never came there, so the same key may be used for another attempt.
            except Exception as error:  # noqa: BLE001 - reported with the task; an error of one task ends no other
                changes = {"status": "failed", "error": known_error(error).as_dict(), "idempotency_key": None}
            else:
                changes = {"status": "working", "external_id": sent.external_id, "url": sent.url}
            finally:
                self._helm.task_writer.update(task_id, changes)

        self._helm.in_background(send)
        return task_id

    @verb(READS)
    async def usual_seconds(self) -> float | None:
        """Return how long earlier tasks took, as their median. None if none has completed."""
        completed: tuple[TaskStatus, ...] = ("completed",)
        ended, _ = await self._helm.task_writer.registry(
            lambda registry: registry.list(status=completed, origin="cloud", limit=_COMPARED)
        )
        took = [
            (task.completed_at - task.created_at).total_seconds() for task in ended if task.completed_at is not None
        ]
        return median(took) if took else None

    # --- look --------------------------------------------------------------------------------------------------------

    @verb(READS)
    async def now(self, task: Task) -> Task:
        """Return the task's current state in the cloud.

        Raises:
            CloudError: The cloud cannot be asked; the registry has its last answer.
        """
        if task.has_ended:
            return task
        if task.external_id is None:
            if task.status == "pending" and not task.has_living_owner:
                return await self._update(task.id, {"status": "unknown", "note": _BROKEN_OFF}) or task
            return await self._helm.task_writer.registry(lambda registry: registry.get(task.id)) or task
        try:
            status = await (await self.client()).status(task.external_id)
        except CloudTaskNotFound as error:
            return await self._update(task.id, {"status": "unknown", "note": error.message}) or task
        changes: TaskChanges = {"status": status.status, "note": status.note}
        if status.updated_at is not None:
            changes["last_event_at"] = status.updated_at
        if status.status == "failed":
            changes["error"] = {
                "code": "cloud_task_failed",
                "message": f"The cloud says {status.said}. {status.url} says why.",
                "retryable": False,
            }
        return await self._update(task.id, changes) or task

    async def wait(self, task: Task, first: float = FIRST_LOOK, then: float = NEXT_LOOK) -> Task:
        """Wait, for ever if need be, until the task has ended: 2, 5, 10, then every 15 seconds, each ±20 %."""
        delays = poll_delays(random.Random(), first=first, then=then)  # noqa: S311 - spreads the load, guards nothing
        while True:
            task = await self.now(task)
            if not task.is_running:
                return task
            # Before it is in the cloud, only the registry is asked, which may be often.
            await anyio.sleep(next(delays) if task.external_id is not None else 0.2)

    @verb(READS)
    async def results(self, task: Task, *, attempt: int = 1) -> CloudResults:
        """Return the diff of an attempt and the status of the task.

        Raises:
            CloudError: The cloud cannot be asked, or does not have it.
        """
        return await (await self.client()).results(self._external_id(task), attempt=attempt)

    @verb(MOVES_CHANGES)
    async def apply(
        self, task: Task, directory: Path, *, attempt: int, allow_dirty: bool, digest: str | None = None
    ) -> CloudApplied:
        """Apply a task's changes to a working tree; with a digest, only the diff that was shown.

        Raises:
            InvalidInput: The tree is not completely inside the allowed roots.
            DiffChanged: The change is not the one that was shown.
            DirtyTree: The tree has uncommitted changes, and `allow_dirty` is not set.
            ApplyConflict: The change does not fit; the tree is unchanged.
        """
        # git applies to a whole repository, so all of it has to be inside the roots.
        refuse_outside(repository_root(directory) or directory, self._helm.settings.allowed_roots, "apply_to")
        client = await self.client()

        def check(patch: bytes) -> None:
            self._shown.check(f"task {task.id}", patch, digest)

        return await client.apply(
            self._external_id(task),
            directory,
            attempt=attempt,
            allow_dirty=allow_dirty,
            state_dir=self._helm.settings.state_dir,
            check=check,
        )

    @verb(READS)
    async def page(self, *, environment: str | None = None, cursor: str | None = None) -> CloudPage:
        """Return a page of the account's tasks as the cloud lists them, newest first.

        Raises:
            CloudError: The cloud cannot be asked.
        """
        chosen = None if environment is None else self.settings.reference(environment)
        return await (await self.client()).page(environment=chosen, cursor=cursor)

    @verb(READS)
    async def cannot_cancel(self, task: Task, reason: str | None = None) -> str:
        """Say that a cancel has no effect, and where the task can be cancelled. The reason is stored."""
        if reason and not task.has_ended:
            self._helm.task_writer.update(task.id, {"cancel_reason": reason})
        if task.has_ended:
            return f"There is nothing to cancel: it is {task.status}."
        if task.external_id is None:
            return "It is not in the cloud yet, or never came there; `codex cloud` cannot cancel anyway."
        return (await self.client()).cancel(task.external_id)

    def _external_id(self, task: Task) -> str:
        if task.external_id is None:
            raise CloudTaskNotFound(
                f"Task {task.id} is not in the cloud ({task.status}). Look at its status to see why."
            )
        return task.external_id

    async def _update(self, task_id: str, changes: TaskChanges) -> Task | None:
        return await self._helm.task_writer.registry(lambda registry: registry.update(task_id, **changes))
