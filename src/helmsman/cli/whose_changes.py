"""Resolve the session or task named in `diff`, `apply` and `discard`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.base.shown_text import one_line
from helmsman.cli.session_ids import full_session_id
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.model.unified_diff import FileStat
    from helmsman.service import Helmsman
    from helmsman.tasks.model import Task


async def cloud_task(helm: Helmsman, reference: str) -> Task | None:
    """Return the named cloud task, or None for a local reference.

    Raises:
        TaskNotFound: There is no task with this id.
    """
    if not reference.startswith("T-"):
        return None
    task = await helm.tasks.find(reference)
    return task if task.origin == "cloud" else None


async def local_session(helm: Helmsman, reference: str) -> str:
    """Return the named session, by id, prefix, suffix or task id.

    Raises:
        InvalidInput: Several match, or the task has no local session.
        SessionNotFound: There is no such session.
        TaskNotFound: There is no such task.
    """
    if not reference.startswith("T-"):
        return await full_session_id(helm, reference)
    task = await helm.tasks.find(reference)
    if task.session_id is None:
        where = "is in the cloud" if task.origin == "cloud" else "never became a session"
        raise InvalidInput(f"Task {task.id} {where}, so there is no worktree of it here. Name a session.")
    return task.session_id


async def cloud_patch(helm: Helmsman, task: Task, attempt: int = 1) -> bytes:
    """Return the changes of a cloud task as a diff."""
    return ((await helm.tasks.cloud.results(task, attempt=attempt)).diff or "").encode("utf-8", "surrogateescape")


def file_line(file: FileStat) -> str:
    """Format a changed file as a line."""
    path = one_line(file.path if file.old_path is None else f"{file.old_path} → {file.path}")
    lines = "binary" if file.binary else f"+{file.added} -{file.removed}"
    return f"{file.kind:<8}  {path}  {lines}"
