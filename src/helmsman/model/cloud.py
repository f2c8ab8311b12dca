"""Values for Codex cloud tasks.

`codex cloud` has four states: PENDING, READY, APPLIED and ERROR. PENDING covers waiting and running, and ERROR covers
failed and cancelled, so these values cannot tell them apart either. `said` keeps Codex's own word.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

from helmsman.base.structs import Value

CloudState = Literal["working", "completed", "failed", "unknown"]


class DiffStat(Value, frozen=True):
    """Size of a diff."""

    files: int
    added: int
    removed: int


class CloudSubmitted(Value, frozen=True, kw_only=True):
    """Task that the cloud has accepted."""

    external_id: str
    url: str


class CloudListed(Value, frozen=True, kw_only=True):
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


class CloudPage(Value, frozen=True, kw_only=True):
    """Page of the list, newest first, with the cursor of the next page."""

    tasks: tuple[CloudListed, ...]
    cursor: str | None = None


class CloudStatus(CloudListed, frozen=True, kw_only=True):
    """Status of a task. `note` explains a contradiction: list and details disagree, or `said` is unknown."""

    note: str | None = None


class CloudEnvironment(Value, frozen=True, kw_only=True):
    """Environment for new tasks. `reference` goes to `submit`: an id if known, otherwise the label.

    `name` comes from `helmsman.toml`, or is the label in the list.
    """

    name: str
    reference: str
    source: Literal["configuration", "listing"]
    is_default: bool = False


class CloudEnvironments(Value, frozen=True, kw_only=True):
    """Known environments, and a note about those that are not."""

    environments: tuple[CloudEnvironment, ...]
    note: str


class CloudResults(Value, frozen=True, kw_only=True):
    """Results of a task. `diff` is None if the attempt has none; `note` then says why.

    `attempts` is the number of attempts with a diff, None if Codex does not say. The agent's final message is only on
    the web page of the task: `codex cloud` does not show it.
    """

    attempt: int
    diff: str | None
    attempts: int | None
    note: str | None = None


class CloudApplied(Value, frozen=True, kw_only=True):
    """Applied change: it is in the working tree, not staged. `three_way` means merged, because HEAD had moved.

    `digest` is that of the applied diff.
    """

    attempt: int
    repository: Path
    files: tuple[str, ...]
    digest: str
    diff_stat: DiffStat
    three_way: bool
