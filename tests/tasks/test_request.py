"""What is needed to run a turn is written down whole, and read as it was written; or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.model.options import ReviewTarget, SessionOptions, TurnInput, TurnKind, WorktreeOptions
from helmsman.model.request import TurnRequest
from helmsman.tasks.images import forget_copies, forget_images, images_kept, packed_with_copies
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry

SECRET = "sk-" + "aB3" * 16


@pytest.fixture
def spec(tmp_path: Path) -> TurnRequest:
    options = SessionOptions(
        cwd=tmp_path,
        model="gpt-5.5",
        asks="when_needed",
        writes="workspace",
        writable_roots=(tmp_path,),
        config={"a": {"b": 1}},
        developer_instructions="Be brief.",
        trust_repository=True,
    )
    turn = TurnInput(text="Fix it", output_schema={"type": "object"}, effort="high")
    return TurnRequest(turn=turn, options=options, worktree=WorktreeOptions(), engine="e-1")


def kept(registry: Registry, spec: TurnRequest, state_dir: Path) -> TurnRequest | None:
    written = packed_with_copies(spec, state_dir, "T-local-1")
    task, _ = registry.add(TaskDraft(id="T-local-1", instruction=spec.turn.text, spec=written))
    read = registry.get(task.id)
    assert read is not None
    return TurnRequest.unpacked(read.spec)


@pytest.mark.parametrize("kind", [None, "plan", "work", ReviewTarget(kind="base", value="main")])
def test_it_is_read_as_it_was_written(
    registry: Registry, spec: TurnRequest, tmp_path: Path, kind: TurnKind | None
) -> None:
    spec = replace(spec, turn=replace(spec.turn, kind=kind))
    read = kept(registry, spec, tmp_path)
    assert read is not None
    assert replace(read, place=None) == spec


def test_a_long_text_is_kept_whole(registry: Registry, spec: TurnRequest, tmp_path: Path) -> None:
    spec = replace(spec, turn=replace(spec.turn, text="word " * 50_000))
    read = kept(registry, spec, tmp_path)
    assert read is not None
    assert replace(read, place=None) == spec


@pytest.mark.parametrize(
    "changed",
    [
        {"turn": TurnInput(text=f"use {SECRET}")},
        {"turn": TurnInput(text="x", output_schema={"const": SECRET})},
        {"turn": TurnInput(text="word " * 10_000 + SECRET)},
        {"options": SessionOptions(config={"key": SECRET})},
        {"options": SessionOptions(developer_instructions=SECRET)},
    ],
)
def test_with_a_secret_in_it_nothing_is_written_down(
    registry: Registry, spec: TurnRequest, tmp_path: Path, path: Path, changed: dict[str, Any]
) -> None:
    assert kept(registry, replace(spec, **changed), tmp_path) is None
    registry.close()
    assert SECRET.encode() not in path.read_bytes()


def test_it_is_removed_once_an_agent_may_have_received_it(
    registry: Registry, spec: TurnRequest, tmp_path: Path
) -> None:
    assert kept(registry, spec, tmp_path) is not None
    task = registry.update("T-local-1", status="working")
    assert task is not None
    assert (task.spec, task.is_waiting) == (None, False)


def test_an_invalid_request_is_none(registry: Registry) -> None:
    made: list[dict[str, Any]] = [{}, {"text": 1}, {"directory": None, "agent": "x", "images": 3}]
    for number, nonsense in enumerate(made):
        task, _ = registry.add(TaskDraft(id=f"T-local-{number}", instruction="x", spec=nonsense))
        assert TurnRequest.unpacked(task.spec) is None


def test_images_are_copied_and_outlive_their_originals(registry: Registry, spec: TurnRequest, tmp_path: Path) -> None:
    image = tmp_path / "one.png"
    image.write_bytes(b"an image")
    spec = replace(spec, turn=replace(spec.turn, images=(image,)))
    again = kept(registry, spec, tmp_path / "state")
    assert again is not None
    image.unlink()
    (copy,) = again.turn.images
    assert (copy.read_bytes(), copy.suffix) == (b"an image", ".png")
    assert images_kept(tmp_path / "state", older_than=0) == ["T-local-1"]
    assert images_kept(tmp_path / "state", older_than=600) == []
    forget_copies(tmp_path / "state", "T-local-1", again.turn)
    assert copy.exists(), "whoever runs it may not have read it yet"
    forget_copies(tmp_path / "state", "T-local-1", spec.turn)
    assert not copy.exists()
    forget_images(tmp_path / "state", ["T-local-1"])
    assert images_kept(tmp_path / "state", older_than=0) == []


def test_an_image_that_cannot_be_copied_keeps_nothing(spec: TurnRequest, tmp_path: Path) -> None:
    spec = replace(spec, turn=replace(spec.turn, images=(tmp_path / "gone.png",)))
    assert packed_with_copies(spec, tmp_path / "state", "T-local-1") is None
