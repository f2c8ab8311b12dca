"""The tasks there are when the labelled requests are made: two at work, one done, one failed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from helmsman.base.structs import replace
from helmsman.tasks.model import Task, TaskStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def shelf_task(
    id: str,  # noqa: A002
    alias: str,
    status: TaskStatus,
    instruction: str = "Do it",
    *,
    minutes: float = 1,
    updated: float | None = None,
) -> Task:
    """A task begun `minutes` ago, last heard of `updated` minutes ago."""
    created_at = NOW - timedelta(minutes=minutes)
    updated_at = NOW - timedelta(minutes=minutes if updated is None else updated)
    return Task(
        id=id,
        alias=alias,
        status=status,
        origin="cloud" if "cloud" in id else "local",
        instruction=instruction,
        created_at=created_at,
        updated_at=updated_at,
    )


SHELF = (
    shelf_task("T-local-0d4472be91aa", "upgrade-deps", "failed", "Upgrade the dependencies", minutes=3000),
    shelf_task("T-local-84be52d1a6f0", "update-changelog", "completed", "Update the changelog", minutes=6),
    shelf_task("T-local-3f9a1c0b7d2e", "fix-login-test", "working", "Fix the failing login test", minutes=3),
    shelf_task("T-cloud-c51d07e9ab34", "port-to-typescript", "working", "Port the parser to TypeScript", minutes=40),
)
ASKING = tuple(replace(task, input_required=True) if task.alias == "fix-login-test" else task for task in SHELF)
"""The same, and one of them asks something."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One request of requests.toml and what a person means by it."""

    register: str
    action: str
    request: str
    task: str | None = None
    mode: str | None = None
    instruction: str | None = None
    answer: str | None = None
    held_out: bool = False


def labelled_requests() -> list[Labelled]:
    content = tomllib.loads((Path(__file__).parent / "requests.toml").read_text(encoding="utf-8"))
    held_out = content.pop("holdout")
    return [*_entries(content, held_out=False), *_entries(held_out, held_out=True)]


def _entries(registers: dict[str, Any], *, held_out: bool) -> list[Labelled]:
    found = []
    for register, actions in registers.items():
        for action, entries in actions.items():
            for entry in entries:
                fields = {"request": entry} if isinstance(entry, str) else entry
                found.append(Labelled(register=register, action=action, held_out=held_out, **fields))
    return found
