"""Submit, follow, read and apply tasks of the Codex cloud, through `codex cloud`.

Each call is one bounded process of the real client, with the user's login, in a scratch directory (it leaves an `error.log`
wherever it runs). Prompts go through stdin, so that none is read as an option. `apply` applies the diff itself
(`helmsman.git.patches`): `codex cloud apply` runs in the user's tree and does not report conflicts.

One reader serves every version: 0.93 to 0.145 print the same (`tests/golden/cloud` holds recordings). The exit code says
nothing (`status` exits with 1 for everything but READY), so the text decides. An unknown form is None, or an error that
quotes it.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.agents.child_process import ProgramOutput, run_command
from helmsman.agents.codex.features import Feature
from helmsman.agents.codex.processes import codex_environment
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
    InvalidInput,
    Unsupported,
)
from helmsman.git.command import current_branch
from helmsman.git.diff import read_diff
from helmsman.git.patches import apply_patch, diff_digest
from helmsman.model.cloud import (
    CloudApplied,
    CloudEnvironment,
    CloudEnvironments,
    CloudListed,
    CloudPage,
    CloudResults,
    CloudState,
    CloudStatus,
    CloudSubmitted,
    DiffStat,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from helmsman.agents.codex.binary import CodexBinary

# --- output ----------------------------------------------------------------------------------------------------------


_STATES: Final[dict[str, CloudState]] = {
    "PENDING": "working",
    "READY": "completed",
    "APPLIED": "completed",
    "ERROR": "failed",
}
_SHOWN_CHARACTERS: Final = 600
"""Limit for quoting unexpected output in an error, such as a proxy's HTML page."""

TASK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_TASK_URL: Final = re.compile(rf"https?://\S+/codex/tasks/(?P<id>{TASK_ID.pattern})")
_STATUS_HEAD: Final = re.compile(r"\[(?P<said>[^\]\s]+)\] (?P<title>.*)", re.DOTALL)
_STAT_LINE: Final = re.compile(r"\+(?P<added>\d+)/-(?P<removed>\d+) • (?P<files>\d+) files?")


def state_of(said: str) -> CloudState:
    """Helmsman's word for Codex's; a word that is not known is `unknown`."""
    return _STATES.get(said.upper(), "unknown")


# --- output on success ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Detail:
    """Output of `codex cloud status`."""

    said: str
    title: str
    environment: str | None
    diff_stat: DiffStat | None


def read_submitted(output: str) -> tuple[str, str] | None:
    """Parse the id and web address of a new task."""
    found = _TASK_URL.fullmatch(output.strip())
    return None if found is None else (found["id"], found[0])


def read_task_id(given: str) -> str | None:
    """Parse a task id from user input: an id, or the address of its page."""
    given = given.strip()
    if TASK_ID.fullmatch(given):
        return given
    found = _TASK_URL.match(given)
    return None if found is None else found["id"]


def read_detail(output: str) -> Detail | None:
    """`[STATE] title`, then `environment  •  age`, then the size of the diff. A title may have several lines."""
    # The last two lines have a fixed form; the title comes before them, unescaped.
    lines = output.strip("\n").split("\n")
    head = _STATUS_HEAD.fullmatch("\n".join(lines[:-2]))
    if head is None:
        return None
    # Searched from the right: the name of an environment may contain the separator.
    environment, separator, _age = lines[-2].rpartition("  •  ")
    return Detail(head["said"], head["title"], environment.strip() if separator else None, _stat_of_line(lines[-1]))


def _stat_of_line(line: str) -> DiffStat | None:
    found = _STAT_LINE.fullmatch(line.strip())
    if found is None:  # "no diff"
        return None
    return DiffStat(files=int(found["files"]), added=int(found["added"]), removed=int(found["removed"]))


def read_page(output: str) -> CloudPage | None:
    """Parse the output of `codex cloud list --json`, without entries that have no id."""
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
    # The list has lower case, `status` upper case.
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
    """Return the size of a unified diff in git's form."""
    files = [file for file in read_diff(diff) if file.path]
    return DiffStat(len(files), sum(file.added or 0 for file in files), sum(file.removed or 0 for file in files))


# --- output on failure ------------------------------------------------------------------------------------------------

_ERROR_LINE: Final = re.compile(r"^(?:Error|error): |^Not signed in", re.MULTILINE)
_HTTP_FAILURE: Final = re.compile(r"(?P<method>GET|POST) (?P<url>\S+) failed: (?P<status>\d{3})\b")
_ATTEMPTS_FOUND: Final = re.compile(r"Attempt \d+ not available; only (?P<count>\d+) attempt\(s\) found")


def attempts_found(error: CloudError) -> int | None:
    """Return the number of attempts in an error, if it says."""
    found = _ATTEMPTS_FOUND.search(str(error.details.get("said", "")))
    return None if found is None else int(found["count"])


def failure(stderr: str, exit_code: int | None) -> HelmsmanError:
    """Return the error for a failed `codex cloud`."""
    said = _complaint(stderr)
    details: dict[str, Any] = {"said": said, "exit_code": exit_code}
    if (http := _HTTP_FAILURE.search(said)) is not None:
        return _http_failure(http["method"], http["url"], int(http["status"]), details)
    # The first match counts, so the more specific patterns come first.
    for pattern, kind, sentence in _COMPLAINTS:
        if re.search(pattern, said):
            return kind(sentence.format(said=said.removeprefix("Error: ").rstrip(".")), **details)
    shown = said or f"it printed nothing and exited with {exit_code}"
    return CloudError(f"`codex cloud` failed: {shown}. Run it by hand to see more.", **details)


def unreadable(command: str, output: str) -> CloudOutputUnreadable:
    """Return the error for output in an unknown format."""
    shown = redact(output.strip()[:_SHOWN_CHARACTERS])
    return CloudOutputUnreadable(
        f"`codex cloud {command}` printed something Helmsman cannot read: {shown!r}. Run it by hand, and report this "
        "with the version of your Codex.",
        output=shown,
    )


def _complaint(stderr: str) -> str:
    """Return the error message without warnings before it and the response body after it."""
    # Codex prints warnings before the error, on the same stream.
    found = _ERROR_LINE.search(stderr)
    complaint = stderr[found.start() :] if found else stderr
    # The answer's headers and body follow, perhaps a whole page of HTML.
    complaint = re.sub(r"; content-type=.*", "", complaint, flags=re.DOTALL)
    return redact(" ".join(complaint.split()))[:_SHOWN_CHARACTERS]


def _http_failure(method: str, url: str, status: int, details: dict[str, Any]) -> HelmsmanError:
    details["http_status"] = status
    if status in (401, 403):
        return CloudNotLoggedIn(
            f"The Codex cloud does not accept this login (HTTP {status}). Run `helmsman agents login` and sign in with a "
            "ChatGPT account that has Codex cloud.",
            **details,
        )
    if status == 404 and re.search(r"/tasks/(?!list$)[^/]+", url):
        return CloudTaskNotFound("The Codex cloud has no such task. Look for it with `codex cloud list`.", **details)
    if status == 429:
        return CloudRateLimited(
            "The Codex cloud takes no more requests for now (HTTP 429). Try again later.", **details
        )
    # After a failed POST the task may exist, so it must not be submitted again without a look.
    if status >= 500 and method == "POST":
        return CloudSubmitUncertain(
            f"The Codex cloud broke off while it took the task (HTTP {status}), which may exist or not. Look at "
            "`codex cloud list` before you submit it again.",
            **details,
        )
    if status >= 500:
        return CloudUnreachable(f"The Codex cloud has an internal problem (HTTP {status}). Try again later.", **details)
    return CloudError(f"The Codex cloud refused the request (HTTP {status}): {details['said']}. Check it.", **details)


_COMPLAINTS: Final[tuple[tuple[str, type[HelmsmanError], str], ...]] = (
    (
        r"^Not signed in",
        CloudNotLoggedIn,
        "Codex is not signed in with ChatGPT, which the cloud needs. Run `helmsman agents login`.",
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
"""Patterns of messages, with their error and its text. The first match counts."""

# --- client ----------------------------------------------------------------------------------------------------------


MAX_ATTEMPTS: Final = 4
"""Maximum of `codex cloud exec`."""

PAGE_LIMIT: Final = 20
"""Page size of `codex cloud list`."""

_ANSWER_SECONDS: Final = 60.0
_SUBMIT_SECONDS: Final = 180.0
"""Timeout of a submit, which uploads the whole prompt."""

_OUTPUT_LIMIT: Final = 64 * 1024 * 1024
_BASE_VARIABLE: Final = "CODEX_CLOUD_TASKS_BASE_URL"
_DEFAULT_BASE: Final = "https://chatgpt.com/backend-api"
_JITTER: Final = 0.2
FIRST_LOOK: Final = 2.0
NEXT_LOOK: Final = 5.0
_LONGEST_LOOK: Final = 15.0


def poll_delays(random: Random, *, first: float = FIRST_LOOK, then: float = NEXT_LOOK) -> Iterator[float]:
    """Seconds to wait before each next look at a task: the first, then ever twice as long up to 15, each ±20 %."""
    longest = max(_LONGEST_LOOK, then)
    doubled = accumulate(repeat(then), lambda seconds, _: min(seconds * 2, longest))
    # Jitter, so that clients that were started together do not stay together.
    for seconds in chain((first,), doubled):
        yield seconds * random.uniform(1 - _JITTER, 1 + _JITTER)


class CloudClient:
    """Runner of `codex cloud …`, one process per call. Calls share no state, so they may run concurrently."""

    def __init__(self, binary: CodexBinary, codex_home: Path, env: Mapping[str, str] | None = None) -> None:
        self._binary = binary
        self._env = codex_environment(binary, codex_home, env)

    # --- submit ------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        prompt: str,
        *,
        environment: str,
        attempts: int = 1,
        branch: str | None = None,
        directory: Path | None = None,
    ) -> CloudSubmitted:
        """Submit a task.

        Args:
            prompt: Prompt.
            environment: Id of an environment, or its label if that is unique.
            attempts: Number of parallel attempts (1 to 4).
            branch: Branch to start from. By default the branch that is checked out in `directory`, or else Codex's default,
                `main`.
            directory: Local repository of the task.

        Raises:
            CloudEnvironmentMissing: No environment is given, or the cloud does not know it.
            CloudSubmitUncertain: It failed when the task may have been accepted already.
            CloudError: Another failure; nothing was submitted.
        """
        if not prompt.strip():
            raise InvalidInput("The prompt is empty. Say what Codex is to do.", parameter="prompt")
        if not environment.strip():
            raise CloudEnvironmentMissing(
                "A cloud task needs an environment. Name one, or set default_environment under [cloud] in helmsman.toml."
            )
        if not 1 <= attempts <= MAX_ATTEMPTS:
            raise InvalidInput(f"attempts is {attempts}. Choose 1 to {MAX_ATTEMPTS}.", parameter="attempts")
        if branch is None and directory is not None:
            branch = await anyio.to_thread.run_sync(current_branch, directory)
        arguments = _options(env=environment, attempts=attempts, branch=branch)
        answer = await self._run("exec", *arguments, "-", prompt=prompt)
        task = read_submitted(answer.stdout)
        if task is None:
            if answer.exit_code:
                raise failure(answer.stderr, answer.exit_code)
            raise unreadable("exec", answer.stdout)
        return CloudSubmitted(external_id=task[0], url=task[1])

    # --- follow ------------------------------------------------------------------------------------------------------

    async def status(self, external_id: str) -> CloudStatus:
        """Return the status of a task: its own, compared with the list.

        Raises:
            CloudTaskNotFound: The cloud does not have it, or no longer.
        """
        task_id = _task_id(external_id)
        listed, detail, note = await self._look(task_id)
        if _contradict(listed, detail):  # unless the task moved on between the two looks: look once more
            listed, detail, note = await self._look(task_id)
        shown, url = detail or listed, self._url(task_id)
        assert shown is not None
        status = state_of(shown.said)
        if listed is not None and _contradict(listed, detail):
            itself = "is not there" if detail is None else f"says {detail.said}"
            status, note = "unknown", f"The task itself {itself}, the listing says {listed.said}. Look at {url}."
        elif status == "unknown":
            note = f"Codex says {shown.said}, a state that Helmsman does not know."
        return CloudStatus(
            external_id=task_id,
            status=status,
            said=shown.said,
            title=shown.title,
            url=url,
            environment=shown.environment,
            diff_stat=shown.diff_stat,
            updated_at=None if listed is None else listed.updated_at,
            note=note,
        )

    async def _look(self, task_id: str) -> tuple[CloudListed | None, Detail | None, str | None]:
        """Return the entry in the list and the task's own status, and a note if the list is unavailable."""
        listed, note = None, None
        try:
            # Only the newest page: reading further pages would not add anything to the task's own status.
            listed = next((task for task in await self.list() if task.external_id == task_id), None)
        except CloudError as error:
            note = f"The listing could not be read, so this is unconfirmed: {error.message}"
        detail = await self._detail(task_id)
        if detail is None and listed is None:
            raise CloudTaskNotFound(
                f"The Codex cloud has no task {task_id}, or no longer. Look for it with `codex cloud list`.",
                task_id=task_id,
            )
        return listed, detail, note

    async def _detail(self, task_id: str) -> Detail | None:
        """Return the output of `codex cloud status`; None if there is no such task."""
        answer = await self._run("status", task_id)
        # A task that is not ready exits with 1 too: what counts is whether it printed a status.
        detail = read_detail(answer.stdout)
        if detail is not None:
            return detail
        if not answer.exit_code:
            raise unreadable("status", answer.stdout)
        error = failure(answer.stderr, answer.exit_code)
        if isinstance(error, CloudTaskNotFound):
            return None
        raise error

    async def list(self) -> tuple[CloudListed, ...]:
        """Return one page of the newest tasks, newest first."""
        return (await self.page()).tasks

    async def page(self, *, environment: str | None = None, cursor: str | None = None) -> CloudPage:
        """Return a page of the account's tasks, newest first: of all environments, or of one."""
        answer = await self._run("list", "--json", *_options(env=environment, limit=PAGE_LIMIT, cursor=cursor))
        if answer.exit_code:
            raise failure(answer.stderr, answer.exit_code)
        page = read_page(answer.stdout)
        if page is None:
            raise unreadable("list", answer.stdout)
        return page

    async def environments(
        self, configured: Mapping[str, str] | None = None, *, default: str | None = None
    ) -> CloudEnvironments:
        """Return the known environments: those of the configuration, and those of recent tasks.

        `codex cloud` has no command for them, so an environment that is in neither place is missing; the note says so.
        `configured` maps the user's names to ids or labels, `default` is one of those names or an id or label.
        """
        known = [
            CloudEnvironment(
                name=name, reference=reference, source="configuration", is_default=default in (name, reference)
            )
            for name, reference in (configured or {}).items()
        ]
        note = "Codex cannot list environments; others may exist and can be named by id or label."
        tasks: tuple[CloudListed, ...] = ()
        try:
            tasks = await self.list()
        except CloudError as error:
            if not known:
                raise
            note = f"Only what is configured is shown, since the listing could not be read: {error.message}"
        named = {text for entry in known for text in (entry.name, entry.reference)}
        labels = dict.fromkeys(task.environment for task in tasks if task.environment)
        listed = [
            CloudEnvironment(name=label, reference=label, source="listing", is_default=label == default)
            for label in labels
            if label not in named
        ]
        return CloudEnvironments(environments=(*known, *listed), note=note)

    # --- read and apply ----------------------------------------------------------------------------------------------

    async def diff(self, external_id: str, *, attempt: int = 1) -> str:
        """Return the unified diff of an attempt.

        Raises:
            CloudNoDiff: It does not exist, or not yet.
        """
        if not 1 <= attempt <= MAX_ATTEMPTS:
            raise InvalidInput(f"attempt is {attempt}. Choose 1 to {MAX_ATTEMPTS}.", parameter="attempt")
        answer = await self._run("diff", _task_id(external_id), *_options(attempt=attempt))
        if answer.exit_code:
            raise failure(answer.stderr, answer.exit_code)
        return answer.stdout

    async def results(self, external_id: str, *, attempt: int = 1) -> CloudResults:
        """Return the results so far: the task's status, the diff of an attempt, and the number of attempts with a diff."""
        status = await self.status(external_id)
        # The diff is all that the CLI shows of a result.
        note = f"The agent's own message is only on {status.url}: `codex cloud` does not show it."
        diff: str | None = None
        try:
            diff = await self.diff(external_id, attempt=attempt)
            attempts = await self._attempts(external_id, at_least=attempt)
        except CloudNoDiff as error:
            attempts = attempts_found(error)
            why = {
                "working": "The task is not finished, so there is no diff yet.",
                "failed": "The task failed and left no diff.",
            }.get(status.status, "The task changed no file.")
            if attempts is not None:
                why = f"There is no attempt {attempt}: {attempts} have a diff."
            attempts, note = attempts or 0, f"{why} {note}"
        return CloudResults(attempt=attempt, diff=diff, attempts=attempts, note=note)

    async def _attempts(self, external_id: str, *, at_least: int) -> int | None:
        """Return the number of attempts with a diff. Codex names it when asked for the last possible one."""
        # The last possible attempt exists, so all do.
        if at_least == MAX_ATTEMPTS:
            return MAX_ATTEMPTS
        try:
            await self.diff(external_id, attempt=MAX_ATTEMPTS)
        except CloudNoDiff as error:
            return attempts_found(error)
        except CloudError:
            return None
        return MAX_ATTEMPTS

    async def apply(
        self,
        external_id: str,
        directory: Path,
        *,
        attempt: int = 1,
        allow_dirty: bool = False,
        state_dir: Path,
        check: Callable[[bytes], None] | None = None,
    ) -> CloudApplied:
        """Apply a task's change to the working tree around `directory`, unstaged: all of it, or nothing.

        `check` gets the diff that is about to be applied, and may raise to refuse it.

        Raises:
            CloudNoDiff: It does not exist, or not yet.
            DirtyTree: The tree has uncommitted changes, and `allow_dirty` is not set.
            ApplyConflict: The change does not fit; the tree is unchanged.
        """
        task_id = _task_id(external_id)
        diff = await self.diff(task_id, attempt=attempt)
        # Bytes that are not UTF-8 came as surrogates, and go back unchanged.
        patch = diff.encode("utf-8", "surrogateescape")
        if check is not None:
            check(patch)
        bring = partial(apply_patch, directory, diff, allow_dirty=allow_dirty, state_dir=state_dir)
        applied = await anyio.to_thread.run_sync(bring)
        return CloudApplied(
            attempt=attempt,
            repository=applied.repository,
            files=applied.files,
            digest=diff_digest(patch),
            diff_stat=diff_stat(diff),
            three_way=applied.three_way,
        )

    def cancel(self, external_id: str) -> str:
        """Say that nothing was stopped, because `codex cloud` has no cancel, and where a user can stop it."""
        task_id = _task_id(external_id)
        return f"`codex cloud` cannot cancel a task, so {task_id} continues. Open {self._url(task_id)} and cancel it there."

    def _url(self, task_id: str) -> str:
        # The web address differs from that of the API only in its path.
        base = self._env.get(_BASE_VARIABLE) or _DEFAULT_BASE
        return f"{base.rstrip('/').removesuffix('/backend-api')}/codex/tasks/{task_id}"

    # --- the process -------------------------------------------------------------------------------------------------

    async def _run(self, command: str, *arguments: str, prompt: str | None = None) -> ProgramOutput:
        """Run `codex cloud <command>` to its end; a prompt goes in over standard input."""
        self._binary.require(Feature.CLOUD)
        seconds = _ANSWER_SECONDS if prompt is None else _SUBMIT_SECONDS
        argv: list[str | Path] = [self._binary.path, "cloud", command, *arguments]
        given = (prompt or "").encode("utf-8", "replace")
        # Codex writes an `error.log` into its working directory.
        with tempfile.TemporaryDirectory(prefix="helmsman-cloud-", ignore_cleanup_errors=True) as scratch:
            answer = await run_command(
                argv, env=self._env, cwd=Path(scratch), seconds=seconds, given=given, limit=_OUTPUT_LIMIT
            )
        # A cut diff would be applied as if it were complete.
        if answer.is_cut:
            raise CloudError(
                f"`codex cloud {command}` printed more than {_OUTPUT_LIMIT} bytes. Look at the task on its web page."
            )
        if answer.exit_code is None:
            raise _too_slow(command, seconds)
        return answer


def _too_slow(command: str, seconds: float) -> CloudError:
    if command == "exec":
        return CloudSubmitUncertain(
            f"`codex cloud exec` did not answer within {seconds:g} seconds, so the task may exist or not. Look at "
            "`codex cloud list` before you submit it again."
        )
    return CloudUnreachable(f"`codex cloud {command}` did not answer within {seconds:g} seconds. Try again later.")


def _contradict(listed: CloudListed | None, detail: Detail | None) -> bool:
    """Return whether the two disagree. A task that is missing on the newest page of the list is only old."""
    return detail is None or (listed is not None and listed.said != detail.said)


def _task_id(given: str) -> str:
    task_id = read_task_id(given)
    if task_id is None:
        raise InvalidInput(
            f"{given[:100]!r} is not the id of a cloud task. Use an id as task_e_…, or the address of its page.",
            parameter="task_id",
        )
    return task_id


def _options(**given: object) -> list[str]:
    """Return options as `--name=value`: in one word, a value that begins with `-` stays a value."""
    options = {name: str(value) for name, value in given.items() if value is not None}
    for name, value in options.items():
        if any(character < " " for character in value):
            raise InvalidInput(f"{name} is {value!r}. Remove the control characters.", parameter=name)
    return [f"--{name}={value}" for name, value in options.items()]
