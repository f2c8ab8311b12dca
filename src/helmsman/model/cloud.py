"""What Helmsman says of the Codex cloud: frozen values, in the words of Helmsman's tasks.

`codex cloud` knows four states: PENDING, READY, APPLIED and ERROR. PENDING is both waiting and running, and ERROR is
both failed and cancelled: it does not tell them apart, so neither do these values. Its own word is kept in `said`.
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
    """How much a diff changes."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSubmitted:
    """A task that the cloud has taken."""

    external_id: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudListed:
    """A task as the listing shows it. `environment` is the label, which is all that `codex cloud list` gives.

    `said` is Codex's own word: `PENDING`, `READY`, `APPLIED`, `ERROR`, or one that Helmsman does not know.
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
    """A page of the listing, newest first, and the cursor of the next one."""

    tasks: tuple[CloudListed, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudStatus(CloudListed):
    """How a task stands. `note` is a sentence where something is odd: listing and detail disagree, or `said` is unknown."""

    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEnvironment:
    """An environment one can submit to. `reference` goes to `submit`: an id where one is known, else the label.

    `name` is what the user calls it in `helmsman.toml`, or the label that the listing shows.
    """

    name: str
    reference: str
    source: Literal["configuration", "listing"]
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEnvironments:
    """The environments that are known, and a sentence on those that are not."""

    environments: tuple[CloudEnvironment, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudResults:
    """What a task gave. `diff` is None when the attempt has none; `note` then says why.

    `attempts` is how many attempts have a diff, None where Codex does not say. The agent's final message is only on the
    web page of the task: `codex cloud` does not show it.
    """

    attempt: int
    diff: str | None
    attempts: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudApplied:
    """A task's change is in the working tree, not staged. `three_way` says that it was merged: HEAD had moved.

    `digest` is that of the diff that was applied.
    """

    attempt: int
    repository: Path
    files: tuple[str, ...]
    digest: str
    diff_stat: DiffStat
    three_way: bool
