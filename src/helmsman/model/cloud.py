"""Values for Codex cloud tasks.

`codex cloud` has four states: PENDING, READY, APPLIED and ERROR. PENDING covers waiting and running, and ERROR covers
failed and cancelled, so these values cannot tell them apart either. `said` keeps Codex's own word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

CloudState = Literal["working", "completed", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class DiffStat:
    """Size of a diff."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSubmitted:
    """Task that the cloud has accepted."""

    external_id: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudListed:
    """Task in the cloud's list. `environment` is its label: `codex cloud list` gives no id.

    `said` is Codex's own word: `PENDING`, `READY`, `APPLIED`, `ERROR`, or a new one.
    """

    external_id: str
    status: CloudState
    said: str
    title: str
    url: str
    environment: str | None = None
    diff_stat: DiffStat | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPage:
    """Page of the list, newest first, with the cursor of the next page."""

    tasks: tuple[CloudListed, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudStatus(CloudListed):
    """Status of a task. `note` explains a contradiction: list and details disagree, or `said` is unknown."""

    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEnvironment:
    """Environment for new tasks. `reference` goes to `submit`: an id if known, otherwise the label.

    `name` comes from `helmsman.toml`, or is the label in the list.
    """

    name: str
    reference: str
    source: Literal["configuration", "listing"]
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEnvironments:
    """Known environments, and a note about those that are not."""

    environments: tuple[CloudEnvironment, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudResults:
    """Results of a task. `diff` is None if the attempt has none; `note` then says why.

    `attempts` is the number of attempts with a diff, None if Codex does not say. The agent's final message is only on
    the web page of the task: `codex cloud` does not show it.
    """

    attempt: int
    diff: str | None
    attempts: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudApplied:
    """Applied change: it is in the working tree, not staged. `three_way` means merged, because HEAD had moved.

    `digest` is that of the applied diff.
    """

    attempt: int
    repository: Path
    files: tuple[str, ...]
    digest: str
    diff_stat: DiffStat
    three_way: bool
