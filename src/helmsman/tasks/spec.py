"""All that is needed to run a turn, as the registry keeps it until an agent may have heard of it.

A hub writes it down before it gives out a task's id, so that the next hub can run what this one did not come to run. It
holds no secrets: a turn whose words or options look as if they had some is not written down whole, and so not at all.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from helmsman.base.pinned_directory import DirectoryIdentity
from helmsman.base.structs import Value, replace
from helmsman.model.options import (
    ReviewKind,
    ReviewTarget,
    SessionOptions,
    TurnInput,
    TurnKind,
    approval_word,
    sandbox_word,
)
from helmsman.tasks.model import Task, kept_options, options_to_keep

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


log = logging.getLogger(__name__)

IMAGES: Final = "images"
"""Where in the state directory the images of tasks that have not begun are: the caller may remove its own."""


class TurnSpec(Value, frozen=True, kw_only=True):
    """A turn, the session it belongs to by its options, and the detached engine that was there for it."""

    turn: TurnInput
    options: SessionOptions
    worktree: bool = False
    engine: str | None = None
    place: DirectoryIdentity | None = None
    """Which directory it was written down for."""

    def written_down(self, state_dir: Path, task_id: str) -> dict[str, Any] | None:
        """For the registry, with copies of the images; None where it cannot be written down whole. Blocks."""
        try:
            return replace(self, turn=_with_copies(self.turn, state_dir / IMAGES / task_id)).as_dict()
        except OSError as error:
            log.warning("task %s cannot be begun by another hub than this: %s", task_id, error)
            return None

    def words(self) -> dict[str, Any]:
        """The options of its session as callers say them."""
        options = self.options
        words: dict[str, Any] = {
            "agent": options.agent,
            "model": options.model,
            "sandbox": sandbox_word(options.writes),
            "approval_policy": approval_word(options.asks),
            "writable_roots": options.writable_roots,
            "profile": options.profile,
            "config": options.config,
            "base_instructions": options.base_instructions,
            "developer_instructions": options.developer_instructions,
            "skip_git_repo_check": options.skip_git_repo_check,
            "trust_repository": options.trust_repository,
            "unenforced": options.unenforced,
        }
        return {name: value for name, value in words.items() if value}

    def as_dict(self) -> dict[str, Any] | None:
        """For the registry; None where it cannot be written down whole."""
        turn, options = self.turn, self.options
        kept = options_to_keep(options)
        if kept_options(kept, options) != options:
            return None
        return {
            "text": turn.text,
            "images": [str(image) for image in turn.images],
            "outputSchema": None if turn.output_schema is None else dict(turn.output_schema),
            "effort": turn.effort,
            "kind": [turn.kind.kind, turn.kind.value] if isinstance(turn.kind, ReviewTarget) else turn.kind,
            "agent": options.agent,
            "directory": None if options.cwd is None else str(options.cwd),
            "place": self.place or DirectoryIdentity.at(options.cwd),
            "options": kept,
            "worktree": self.worktree,
            "engine": self.engine,
        }

    @classmethod
    def of(cls, task: Task) -> TurnSpec | None:
        """What a task needs to run; None where that is not known."""
        return None if task.spec is None else cls.kept(task.spec)

    @classmethod
    def kept(cls, kept: Mapping[str, Any]) -> TurnSpec | None:
        """As it was written down; None where it makes no sense."""
        try:
            place = kept["directory"]
            session = SessionOptions(agent=str(kept["agent"]), cwd=None if place is None else Path(place))
            return cls(
                turn=TurnInput(
                    text=str(kept["text"]),
                    images=tuple(map(Path, kept["images"])),
                    output_schema=kept["outputSchema"],
                    effort=kept["effort"],
                    kind=_kind(kept["kind"]),
                ),
                options=kept_options(kept["options"], session),
                worktree=kept["worktree"] is True,
                engine=kept["engine"],
                place=DirectoryIdentity.from_json(kept.get("place")),
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            return None


def _kind(kept: Any) -> TurnKind | None:
    if kept in (None, "plan", "work"):
        return kept  # type: ignore[no-any-return]
    kind, value = kept
    if kind not in get_args(ReviewKind):
        raise ValueError(kind)
    return ReviewTarget(kind=kind, value=str(value))


# --- images -----------------------------------------------------------------------------------------------------------


def _with_copies(turn: TurnInput, directory: Path) -> TurnInput:
    if not turn.images:
        return turn
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = tuple(directory / f"{number}{image.suffix}" for number, image in enumerate(turn.images, 1))
    for image, copy in zip(turn.images, copies, strict=True):
        shutil.copyfile(image, copy)
    return replace(turn, images=copies)


def forget_copies(state_dir: Path, task_id: str, turn: TurnInput) -> None:
    """A turn has begun with images of its own: no copies are needed. One that has the copies may still read them. Blocks."""
    if turn.images and turn.images[0].parent != state_dir / IMAGES / task_id:
        forget_images(state_dir, [task_id])


def forget_images(state_dir: Path, of_tasks: Collection[str]) -> None:
    """Remove the copies of these tasks' images. Blocks."""
    for task_id in of_tasks:
        shutil.rmtree(state_dir / IMAGES / task_id, ignore_errors=True)


def images_kept(state_dir: Path, *, older_than: float) -> list[str]:
    """The tasks of which there are copies, made so many seconds ago. Blocks."""
    before = time.time() - older_than
    with suppress(OSError):
        return [entry.name for entry in (state_dir / IMAGES).iterdir() if entry.stat().st_mtime <= before]
    return []
