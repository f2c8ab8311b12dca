"""What a person names on the command line to see, apply or drop changes: a session, or the task that was a turn of it."""

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
    """The cloud task that is meant; None if what is meant is local.

    Raises:
        TaskNotFound: It is written as the id of a task, and there is none.
    """
    if not reference.startswith("T-"):
        return None
    task = await helm.tasks.find(reference)
    return task if task.origin == "cloud" else None


async def local_session(helm: Helmsman, reference: str) -> str:
    """The session that is meant, by its id, the beginning or end of it, or the id of a task.

    Raises:
        InvalidInput: It may be several, or none that could have changed anything here.
        SessionNotFound: There is none.
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
    """What a cloud task changed, as a diff."""
    return ((await helm.tasks.cloud.results(task, attempt=attempt)).diff or "").encode("utf-8", "surrogateescape")


def file_line(file: FileStat) -> str:
    """A changed file in a line."""
    path = one_line(file.path if file.old_path is None else f"{file.old_path} → {file.path}")
    lines = "binary" if file.binary else f"+{file.added} -{file.removed}"
    return f"{file.kind:<8}  {path}  {lines}"
