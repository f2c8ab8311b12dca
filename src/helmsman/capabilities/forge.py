"""Issues and pull requests at a forge, through the command `gh` (its login, no token here). Functions block.

All texts from a forge are written by others. They are passed on as quoted data (`quoted`), and answer no question.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from helmsman.base import caller_context
from helmsman.base.json_values import mapping
from helmsman.base.programs import environment_for, find_program
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_SECONDS: Final = 60
_SCP_LIKE: Final = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+):(?P<path>[^/].*)")
_NAME: Final = re.compile(r"[\w.-]{1,100}")
_ISSUE_PATH: Final = re.compile(r"/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)/(?:issues|pull)/(?P<number>\d{1,9})")
_NUMBER: Final = re.compile(r"#?(?P<number>\d{1,9})")
_MOST_COMMENTS: Final = 50
_MOST_TEXT: Final = 20_000
_MEMBERS: Final = frozenset(("OWNER", "MEMBER", "COLLABORATOR"))
_FAILED: Final = frozenset(("failure", "timed_out", "cancelled", "action_required", "startup_failure"))


@dataclass(frozen=True)
class Repository:
    """A repository at a forge."""

    host: str
    owner: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


@dataclass(frozen=True)
class Comment:
    """A comment, by its author's login. `place` is the file and line that it is about.

    `is_review`: it belongs to code. `is_by_member`: the forge says that its author belongs to the repository; anybody may
    comment on a public one.
    """

    id: str
    author: str
    text: str
    place: str = ""
    is_review: bool = False
    is_by_member: bool = False


@dataclass(frozen=True)
class Issue:
    url: str
    title: str
    text: str
    comments: tuple[Comment, ...]


@dataclass(frozen=True)
class FailedCheck:
    """A check of a commit that has failed, with its summary."""

    id: str
    name: str
    summary: str
    url: str


@dataclass(frozen=True)
class PullRequestState:
    """The state of a pull request. `pending` is the number of checks that still run."""

    url: str
    is_open: bool
    is_merged: bool
    pending: int
    failed: tuple[FailedCheck, ...]
    comments: tuple[Comment, ...]


def repository_of(url: str) -> Repository | None:
    """Return the repository that the address of a remote names; None if it is at no forge."""
    if "://" in url:
        parts = urlsplit(url)
        host, path = parts.hostname or "", parts.path
    elif found := _SCP_LIKE.fullmatch(url):
        host, path = found["host"], found["path"]
    else:
        return None
    names = path.strip("/").removesuffix(".git").split("/")
    if len(names) != 2 or not host or not all(map(_NAME.fullmatch, names)):
        return None
    return Repository(host, names[0], names[1])


def issue_of(reference: str, repository: Repository | None) -> tuple[Repository, int]:
    """Return the repository and the number of an issue, given as an address or, for this repository, as `#5`.

    Raises:
        InvalidInput: It is neither.
    """
    if (found := _NUMBER.fullmatch(reference)) is not None:
        if repository is None:
            raise InvalidInput(f"Issue {reference} needs a repository at a forge. Give the address of the issue.")
        return repository, int(found["number"])
    parts = urlsplit(reference)
    path = _ISSUE_PATH.fullmatch(parts.path)
    if parts.scheme != "https" or not parts.hostname or path is None:
        raise InvalidInput(
            f"{reference!r:.200} is no issue. Give its address, or its number as '#5'.", parameter="issue"
        )
    return Repository(parts.hostname, path["owner"], path["name"]), int(path["number"])


def quoted(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text of others as a quotation in Markdown."""
    shown = text if len(text) <= most else f"{text[:most]}\n[… {len(text) - most} more characters]"
    return "\n".join(f"> {line}".rstrip() for line in shown.replace("\r\n", "\n").split("\n"))


class GitHub:
    """GitHub, by `gh` in a directory. `gh` is looked up on PATH."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def is_installed(self) -> bool:
        return find_program("gh", caller_context.environment()) is not None

    def issue(self, repository: Repository, number: int) -> Issue:
        """Return an issue with its comments.

        Raises:
            HelmsmanError: `gh` is missing, not logged in, or refused.
        """
        found = mapping(self._api(repository, f"issues/{number}"))
        said = self._list(repository, f"issues/{number}/comments")
        return Issue(
            url=str(found.get("html_url") or f"https://{repository}/issues/{number}"),
            title=str(found.get("title") or ""),
            text=str(found.get("body") or ""),
            comments=tuple(_comment(one) for one in said[:_MOST_COMMENTS]),
        )

    def open_pull_request(
        self, repository: Repository, *, branch: str, base: str, title: str, text: str, draft: bool
    ) -> str:
        """Open a pull request and return its address; that of the one that is open already, with its text renewed."""
        # GitHub's filter for heads takes `owner:branch`.
        head = f"{repository.owner}:{branch}"
        known = self._list(repository, "pulls", head=head, state="open")
        if known:
            self._api(repository, f"pulls/{int(known[0]['number'])}", {"title": title, "body": text}, method="PATCH")
            return str(known[0]["html_url"])
        given = {"title": title, "body": text, "head": branch, "base": base, "draft": draft}
        return str(mapping(self._api(repository, "pulls", given)).get("html_url"))

    def pull_request(self, repository: Repository, number: int, own: Iterable[str] = ()) -> PullRequestState:
        """Return the state of a pull request, without comments of the logins in `own`."""
        found = mapping(self._api(repository, f"pulls/{number}"))
        commit = str(mapping(found.get("head")).get("sha") or "")
        runs = mapping(self._api(repository, f"commits/{commit}/check-runs?per_page=100")).get("check_runs") or []
        # GitHub keeps three kinds apart: comments on the conversation, comments on lines of code, and texts of reviews.
        comments = [_comment(one) for one in self._list(repository, f"issues/{number}/comments")]
        comments += [_comment(one, is_review=True) for one in self._list(repository, f"pulls/{number}/comments")]
        # Reviews are numbered apart from comments, so the prefix keeps their ids apart.
        comments += [
            _comment(one, prefix="r") for one in self._list(repository, f"pulls/{number}/reviews") if one.get("body")
        ]
        logins = set(own)
        return PullRequestState(
            url=str(found.get("html_url")),
            is_open=found.get("state") == "open",
            is_merged=bool(found.get("merged")),
            pending=sum(run.get("status") != "completed" for run in runs),
            failed=tuple(_failed(run, commit) for run in runs if run.get("conclusion") in _FAILED),
            comments=tuple(one for one in comments if one.author not in logins),
        )

    def answer(self, repository: Repository, number: int, comment: Comment, text: str) -> None:
        """Answer a comment on a pull request."""
        if comment.is_review:
            self._api(repository, f"pulls/{number}/comments/{comment.id.removeprefix('c')}/replies", {"body": text})
        else:
            # Only comments on code have a thread to answer in.
            self._api(repository, f"issues/{number}/comments", {"body": f"{quoted(comment.text, 300)}\n\n{text}"})

    def login(self, repository: Repository) -> str:
        """Return the user that `gh` is logged in as."""
        return str(mapping(self._call(repository.host, "user")).get("login") or "")

    # --- calls -------------------------------------------------------------------------------------------------------

    def _list(self, repository: Repository, path: str, **query: str) -> list[Mapping[str, Any]]:
        # The largest page that GitHub gives. Further pages are not read.
        words = "&".join([*(f"{name}={value}" for name, value in query.items()), "per_page=100"])
        found = self._api(repository, f"{path}?{words}")
        return [mapping(one) for one in found] if isinstance(found, list) else []

    def _api(self, repository: Repository, path: str, given: Mapping[str, Any] | None = None, method: str = "") -> Any:
        return self._call(repository.host, f"repos/{repository.path}/{path}", given, method)

    def _call(self, host: str, path: str, given: Mapping[str, Any] | None = None, method: str = "") -> Any:
        known = caller_context.environment()
        program = find_program("gh", known)
        if program is None:
            raise HelmsmanError("There is no gh on PATH, and this needs it. Install it, then log in: gh auth login")
        command = [program, "api", "--hostname", host, path, "--method", method or ("GET" if given is None else "POST")]
        if given is not None:
            command += ["--input", "-"]
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                # There is no terminal for prompts, and colours would end up in messages.
                env={**environment_for(caller_context.for_others(known)), "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1"},
                input=b"" if given is None else json.dumps(given).encode(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise HelmsmanError(f"gh could not be run: {error}. Try it by hand: gh api {path}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            why = said[-1] if said else f"exit {done.returncode}"
            raise HelmsmanError(f"gh could not do it ({path}): {why:.300} See `gh auth status`.")
        try:
            return json.loads(done.stdout or b"null")
        except ValueError as error:
            raise HelmsmanError(f"gh gave no JSON for {path}. Try it by hand: gh api {path}") from error


def _comment(one: Mapping[str, Any], *, is_review: bool = False, prefix: str = "c") -> Comment:
    line = one.get("line") or one.get("original_line")
    place = f"{one['path']}:{line}" if one.get("path") and line else str(one.get("path") or "")
    author = str(mapping(one.get("user")).get("login") or "")
    is_by_member = one.get("author_association") in _MEMBERS
    return Comment(f"{prefix}{one.get('id')}", author, str(one.get("body") or ""), place, is_review, is_by_member)


def _failed(run: Mapping[str, Any], commit: str) -> FailedCheck:
    output = mapping(run.get("output"))
    summary = "\n\n".join(str(output[key]) for key in ("title", "summary", "text") if output.get(key))
    name = str(run.get("name") or "check")
    # A check that fails again for another commit is another failure.
    return FailedCheck(f"{name}@{commit}", name, summary, str(run.get("html_url") or ""))
