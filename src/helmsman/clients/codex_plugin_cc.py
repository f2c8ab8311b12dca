"""Import from codex-plugin-cc, which runs Codex from Claude Code: its jobs' sessions, and its one setting.

It keeps `state.json` for each repository in the data directory of its plugin: `config`, and `jobs` with Codex's
thread, title, status and process. Its sessions are Codex's own, so Helmsman continues them by the same id.
"""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.processes import running_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = 5
_TITLE: Final = 60
_AT_WORK: Final = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    id: str
    thread_id: str
    title: str
    is_running: bool
    updated_at: str


def notes_on_earlier_work(claude_home: Path, codex_home: Path) -> list[str]:
    """Return what a user of codex-plugin-cc can continue in Helmsman, as sentences; nothing without the plugin."""
    states = list(_states(claude_home))
    kept = {path.stem[-36:] for path in codex_home.glob("sessions/*/*/*/rollout-*.jsonl")} if states else set()
    # Reviews of the plugin leave no session behind.
    jobs = {job.thread_id: job for state in states for job in _jobs(state) if job.thread_id in kept}
    newest = sorted(jobs.values(), key=lambda job: job.updated_at, reverse=True)
    ended = [job for job in newest if not job.is_running]
    notes = [
        f"codex-plugin-cc still works on {job.title!r}. When it has ended (/codex:status {job.id}), continue it: "
        f"helmsman say {job.thread_id}"
        for job in newest
        if job.is_running
    ]
    if ended:
        shown = "; ".join(f"{job.title!r}: helmsman say {job.thread_id}" for job in ended[:_SHOWN])
        more = f"; {len(ended) - _SHOWN} more: helmsman list" if len(ended) > _SHOWN else ""
        notes.append(f"Sessions of codex-plugin-cc continue here. {shown}{more}")
    if any(_mapping(state.get("config")).get("stopReviewGate") is True for state in states):
        notes.append(
            "The review gate of codex-plugin-cc is on. Helmsman has none: keep that plugin for it, or review with "
            "/helmsman:review."
        )
    return notes


def _states(claude_home: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of each repository, without unreadable files."""
    data, temporary = claude_home / "plugins" / "data", Path(tempfile.gettempdir())
    for file in (*data.glob("codex-*/state/*/state.json"), *temporary.glob("codex-companion/*/state.json")):
        with suppress(OSError, ValueError, RecursionError):
            # Other users can write to the directory for temporary files.
            if file.stat().st_uid == os.getuid():
                yield _mapping(json.loads(file.read_bytes()))


def _jobs(state: dict[str, Any]) -> Iterator[_Job]:
    listed = state.get("jobs")
    for job in map(_mapping, listed if isinstance(listed, list) else ()):
        thread, pid = job.get("threadId"), job.get("pid")
        if not isinstance(thread, str):
            continue
        is_running = job.get("status") in _AT_WORK and isinstance(pid, int) and running_process(pid) is not None
        yield _Job(
            id=str(job.get("id")),
            thread_id=thread,
            title=textwrap.shorten(str(job.get("summary") or job.get("title")), _TITLE, placeholder="…"),
            is_running=is_running,
            updated_at=str(job.get("updatedAt", "")),
        )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
