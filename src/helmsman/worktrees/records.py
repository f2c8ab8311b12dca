"""Records of worktrees, with which a later process finds them and learns whether they are in use.

Each record is a JSON file in the state directory, which Codex cannot write. It is written before the worktree is
created and removed after it is deleted, so a crash at any time leaves a record that leads to the remains. The owner of
a worktree holds a lock next to its record; the system releases the lock when that process dies.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from helmsman.base.files import release_lock, replace_file, take_lock
from helmsman.errors import WorktreeError
from helmsman.model.worktree import Worktree
from helmsman.settings import WORKTREES, ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS: Final = "worktree-records"
BRANCH_PREFIX: Final = "helmsman/"


# --- records ---------------------------------------------------------------------------------------------------------


def records_directory(state_dir: Path) -> Path:
    folder = ensure_state_dir(state_dir) / RECORDS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_record(tree: Worktree) -> None:
    """Write or replace the record.

    Raises:
        WorktreeError: The file cannot be written.
    """
    try:
        records_directory(tree.state_dir)
        replace_file(_record_of(tree), json.dumps(structs.asdict(tree), indent=2, default=str))
    except OSError as error:
        raise WorktreeError(
            f"The record of a worktree cannot be written: {error}. Make room or set HELMSMAN_STATE_DIR."
        ) from error


def read_records(state_dir: Path) -> Iterator[Worktree]:
    """Yield every recorded worktree, oldest first, without invalid records."""
    state_dir = state_dir.absolute()
    found = (_read(file, state_dir) for file in (state_dir / RECORDS).glob("*.json"))
    yield from sorted((tree for tree in found if tree is not None), key=lambda tree: (tree.created_at, tree.name))


def worktree_of(state_dir: Path, session_id: str) -> Worktree | None:
    """Return the worktree of a session, from any process."""
    return next((tree for tree in read_records(state_dir) if tree.session_id == session_id), None)


def remove_record(tree: Worktree) -> None:
    release(tree)
    for file in (_record_of(tree), set_up_of(tree), _lock_of(tree)):
        file.unlink(missing_ok=True)


def _read(file: Path, state_dir: Path) -> Worktree | None:
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        tree = Worktree(
            path=state_dir / WORKTREES / file.stem,
            directory=Path(content["directory"]),
            branch=BRANCH_PREFIX + file.stem,
            base=str(content["base"]),
            repository=Path(content["repository"]),
            git_dir=Path(content["git_dir"]),
            repository_git_dir=Path(content["repository_git_dir"]),
            session_id=content["session_id"] and str(content["session_id"]),
            owner_pid=int(content["owner_pid"]),
            created_at=datetime.fromisoformat(content["created_at"]),
            included=tuple(map(str, content.get("included", ()))),
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    # Recorded paths are removed one day, so they must be exactly those that Helmsman creates.
    consistent = content.get("branch") == tree.branch and tree.git_dir.parts[-2:] == ("worktrees", file.stem)
    return tree if consistent and tree.created_at.tzinfo is not None else None


def set_up_of(tree: Worktree) -> Path:
    """Return the file with the result of a worktree's set-up and the end of its output."""
    return tree.state_dir / RECORDS / f"{tree.name}.set-up.txt"


def _record_of(tree: Worktree) -> Path:
    return tree.state_dir / RECORDS / f"{tree.name}.json"


# --- ownership -------------------------------------------------------------------------------------------------------

_held: dict[Path, int] = {}
_holding = threading.Lock()


def claim(tree: Worktree) -> bool:
    """Lock the worktree for this process until it ends; False if another process has it."""
    file = _lock_of(tree)
    with _holding:
        if file in _held:
            return True
        held = take_lock(file)
        if held is None:
            return False
        _held[file] = held
        return True


def release(tree: Worktree) -> None:
    """Release a worktree, if this process has it."""
    with _holding:
        held = _held.pop(_lock_of(tree), None)
        if held is not None:
            release_lock(held)


def is_owned(tree: Worktree) -> bool:
    """Return whether a running process has the worktree."""
    with suppress(OSError):
        held = take_lock(_lock_of(tree))
        if held is None:
            return True
        release_lock(held)
    return False


def _lock_of(tree: Worktree) -> Path:
    return tree.state_dir / RECORDS / f"{tree.name}.lock"
