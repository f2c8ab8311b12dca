"""Copies of the images of tasks that have not begun: their caller may remove its own."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from helmsman.model.options import TurnInput
    from helmsman.model.request import TurnRequest

log = logging.getLogger(__name__)

IMAGES: Final = "images"
"""Subdirectory of the state directory for the copies."""


def packed_with_copies(request: TurnRequest, state_dir: Path, task_id: str) -> dict[str, Any] | None:
    """Return a request for the store, with copies of its images; None if it cannot be stored whole. Blocks."""
    try:
        return replace(request, turn=_with_copies(request.turn, state_dir / IMAGES / task_id)).packed()
    except OSError as error:
        log.warning("task %s cannot be begun by another hub than this: %s", task_id, error)
        return None


def _with_copies(turn: TurnInput, directory: Path) -> TurnInput:
    if not turn.images:
        return turn
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = tuple(directory / f"{number}{image.suffix}" for number, image in enumerate(turn.images, 1))
    for image, copy in zip(turn.images, copies, strict=True):
        shutil.copyfile(image, copy)
    return replace(turn, images=copies)


def forget_copies(state_dir: Path, task_id: str, turn: TurnInput) -> None:
    """Remove the copies of a turn that began with the original images. A turn with the copies may still
    read them. Blocks.
    """
    if turn.images and turn.images[0].parent != state_dir / IMAGES / task_id:
        forget_images(state_dir, [task_id])


def forget_images(state_dir: Path, of_tasks: Collection[str]) -> None:
    """Remove the copies of these tasks' images. Blocks."""
    for task_id in of_tasks:
        shutil.rmtree(state_dir / IMAGES / task_id, ignore_errors=True)


def images_kept(state_dir: Path, *, older_than: float) -> list[str]:
    """Return the tasks with copies that are at least this many seconds old. Blocks."""
    before = time.time() - older_than
    with suppress(OSError):
        return [entry.name for entry in (state_dir / IMAGES).iterdir() if entry.stat().st_mtime <= before]
    return []
