"""What `codex cloud` prints, read into values and errors.

One reading serves every version: 0.93 to 0.145 were seen to print the same in all cases, and the newest has the same
texts in it (`tests/golden/cloud` holds recordings). The exit code says nothing (`status` exits with 1 for everything but
READY), so the text decides. A form that is not known is None, or an error that quotes it; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import integer, json_object, mapping, optional_text, text, timestamp
from helmsman.base.redaction import redact
from helmsman.errors import (
    CloudEnvironmentMissing,
    CloudError,
    CloudNoDiff,
    CloudNotLoggedIn,
    CloudOutputUnreadable,
    CloudRateLimited,
    CloudSubmitUncertain,
    CloudTaskNotFound,
    CloudUnreachable,
    HelmsmanError,
    Unsupported,
)
from helmsman.model.cloud import CloudListed, CloudPage, CloudState, DiffStat
from helmsman.model.unified_diff import read_diff

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATES: Final[dict[str, CloudState]] = {
    "PENDING": "working",
    "READY": "completed",
    "APPLIED": "completed",
    "ERROR": "failed",
}
_SHOWN_CHARACTERS: Final = 600
"""How much of an odd output an error quotes: a proxy's page of HTML can be long."""

TASK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_TASK_URL: Final = re.compile(rf"https?://\S+/codex/tasks/(?P<id>{TASK_ID.pattern})")
_STATUS_HEAD: Final = re.compile(r"\[(?P<said>[^\]\s]+)\] (?P<title>.*)", re.DOTALL)
_STAT_LINE: Final = re.compile(r"\+(?P<added>\d+)/-(?P<removed>\d+) • (?P<files>\d+) files?")


def state_of(said: str) -> CloudState:
    """Helmsman's word for Codex's; a word that is not known is `unknown`."""
    return _STATES.get(said.upper(), "unknown")


# --- what it prints when all is well ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Detail:
    """The answer of `codex cloud status`."""

    said: str
    title: str
    environment: str | None
    diff_stat: DiffStat | None


def read_submitted(output: str) -> tuple[str, str] | None:
    """The id and web address of a new task."""
    found = _TASK_URL.fullmatch(output.strip())
    return None if found is None else (found["id"], found[0])


def read_task_id(given: str) -> str | None:
    """The task id in what a person gave: an id, or the address of its page."""
    given = given.strip()
    if TASK_ID.fullmatch(given):
        return given
    found = _TASK_URL.match(given)
    return None if found is None else found["id"]


def read_detail(output: str) -> Detail | None:
    """`[STATE] title`, then `environment  •  age`, then the size of the diff. A title may have several lines."""
    lines = output.strip("\n").split("\n")
    head = _STATUS_HEAD.fullmatch("\n".join(lines[:-2]))
    if head is None:
        return None
    environment, separator, _age = lines[-2].rpartition("  •  ")
    return Detail(head["said"], head["title"], environment.strip() if separator else None, _stat_of_line(lines[-1]))


def _stat_of_line(line: str) -> DiffStat | None:
    found = _STAT_LINE.fullmatch(line.strip())
    if found is None:  # "no diff"
        return None
    return DiffStat(files=int(found["files"]), added=int(found["added"]), removed=int(found["removed"]))


def read_page(output: str) -> CloudPage | None:
    """The answer of `codex cloud list --json`. An entry without an id is left out: nothing could be done with it."""
    page = json_object(output) or {}
    entries = page.get("tasks")
    if not isinstance(entries, list):
        return None
    read = (_listed(mapping(entry)) for entry in entries)
    return CloudPage(tasks=tuple(task for task in read if task is not None), cursor=optional_text(page.get("cursor")))


def _listed(entry: Mapping[str, Any]) -> CloudListed | None:
    task_id = optional_text(entry.get("id"))
    if not task_id:
        return None
    said = text(entry.get("status")).upper()
    return CloudListed(
        external_id=task_id,
        status=state_of(said),
        said=said,
        title=text(entry.get("title")),
        url=text(entry.get("url")),
        environment=optional_text(entry.get("environment_label")) or optional_text(entry.get("environment_id")),
        diff_stat=_stat_of_summary(mapping(entry.get("summary"))),
        updated_at=timestamp(entry.get("updated_at")),
    )


def _stat_of_summary(summary: Mapping[str, Any]) -> DiffStat | None:
    names = ("files_changed", "lines_added", "lines_removed")
    files, added, removed = (integer(summary.get(name)) or 0 for name in names)
    return DiffStat(files, added, removed) if files or added or removed else None


def diff_stat(diff: str) -> DiffStat:
    """The size of a unified diff in git's form."""
    files = [file for file in read_diff(diff) if file.path]
    return DiffStat(len(files), sum(file.added or 0 for file in files), sum(file.removed or 0 for file in files))


# --- what it prints when something is wrong --------------------------------------------------------------------------

_ERROR_LINE: Final = re.compile(r"^(?:Error|error): |^Not signed in", re.MULTILINE)
_HTTP_FAILURE: Final = re.compile(r"(?P<method>GET|POST) (?P<url>\S+) failed: (?P<status>\d{3})\b")
_ATTEMPTS_FOUND: Final = re.compile(r"Attempt \d+ not available; only (?P<count>\d+) attempt\(s\) found")


def attempts_found(error: CloudError) -> int | None:
    """How many attempts there are, where an error says so."""
    found = _ATTEMPTS_FOUND.search(str(error.details.get("said", "")))
    return None if found is None else int(found["count"])


def failure(stderr: str, exit_code: int | None) -> HelmsmanError:
    """The error for a `codex cloud` that failed."""
    said = _complaint(stderr)
    details: dict[str, Any] = {"said": said, "exit_code": exit_code}
    if (http := _HTTP_FAILURE.search(said)) is not None:
        return _http_failure(http["method"], http["url"], int(http["status"]), details)
    for pattern, kind, sentence in _COMPLAINTS:
        if re.search(pattern, said):
            return kind(sentence.format(said=said.removeprefix("Error: ").rstrip(".")), **details)
    shown = said or f"it printed nothing and exited with {exit_code}"
    return CloudError(f"`codex cloud` failed: {shown}. Run it by hand to see more.", **details)


def unreadable(command: str, output: str) -> CloudOutputUnreadable:
    """The error for an answer in a form nobody has seen."""
    shown = redact(output.strip()[:_SHOWN_CHARACTERS])
    return CloudOutputUnreadable(
        f"`codex cloud {command}` printed something Helmsman cannot read: {shown!r}. Run it by hand, and report this "
        "with the version of your Codex.",
        output=shown,
    )


def _complaint(stderr: str) -> str:
    """The complaint itself, without the warnings before it and the body of the answer after it."""
    found = _ERROR_LINE.search(stderr)
    complaint = stderr[found.start() :] if found else stderr
    complaint = re.sub(r"; content-type=.*", "", complaint, flags=re.DOTALL)
    return redact(" ".join(complaint.split()))[:_SHOWN_CHARACTERS]


def _http_failure(method: str, url: str, status: int, details: dict[str, Any]) -> HelmsmanError:
    details["http_status"] = status
    if status in (401, 403):
        return CloudNotLoggedIn(
            f"The Codex cloud does not accept this login (HTTP {status}). Run `helmsman login` and sign in with a ChatGPT "
            "account that has Codex cloud.",
            **details,
        )
    if status == 404 and re.search(r"/tasks/(?!list$)[^/]+", url):
        return CloudTaskNotFound("The Codex cloud has no such task. Look for it with `codex cloud list`.", **details)
    if status == 429:
        return CloudRateLimited(
            "The Codex cloud takes no more requests for now (HTTP 429). Try again later.", **details
        )
    if status >= 500 and method == "POST":
        return CloudSubmitUncertain(
            f"The Codex cloud broke off while it took the task (HTTP {status}), which may exist or not. Look at "
            "`codex cloud list` before you submit it again.",
            **details,
        )
    if status >= 500:
        return CloudUnreachable(
            f"The Codex cloud has a problem of its own (HTTP {status}). Try again later.", **details
        )
    return CloudError(f"The Codex cloud refused the request (HTTP {status}): {details['said']}. Check it.", **details)


_COMPLAINTS: Final[tuple[tuple[str, type[HelmsmanError], str], ...]] = (
    (
        r"^Not signed in",
        CloudNotLoggedIn,
        "Codex is not signed in with ChatGPT, which the cloud needs. Run `helmsman login`.",
    ),
    (
        r"create_task failed: (?:error sending request|Decode error|POST \S+ succeeded)",
        CloudSubmitUncertain,
        "The submit broke off ({said}), and the task may exist or not. Look at `codex cloud list` before you submit again.",
    ),
    (
        r"error sending request|dns error|operation timed out",
        CloudUnreachable,
        "The Codex cloud cannot be reached ({said}). Check the network and try again.",
    ),
    (
        r"^Error: environment label .* is ambiguous",
        CloudEnvironmentMissing,
        "Several environments have this name ({said}). Use the id from the environment's page in the Codex settings.",
    ),
    (
        r"^Error: (?:environment .* not found|environment id must not be empty|no cloud environments)",
        CloudEnvironmentMissing,
        "The Codex cloud does not know this environment ({said}). Use its id or label as the Codex settings show it.",
    ),
    (
        r"^Error: (?:No diff available|Attempt \d+ not available)",
        CloudNoDiff,
        "There is no such diff: {said}. Ask for the status first.",
    ),
    (
        r"^Error: CODEX_CLOUD_TASKS_BASE_URL must use",
        Unsupported,
        "This Codex takes no cloud but OpenAI's ({said}). Unset CODEX_CLOUD_TASKS_BASE_URL.",
    ),
    (
        r"^error: un(?:recognized subcommand|expected argument)",
        Unsupported,
        "This Codex does not know the command ({said}). Update Codex, or set CODEX_CLI_PATH to a newer one.",
    ),
    (
        r"Decode error|Task metadata missing",
        CloudOutputUnreadable,
        "Codex cannot read the cloud's answer ({said}). Update Codex, and try again.",
    ),
)
"""A complaint, its error, and the sentence for it. The first that fits counts."""
