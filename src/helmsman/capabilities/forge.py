"""Issues and pull requests at a forge, through `gh` or `glab` (their login, no token here). Functions block.

All texts from a forge are written by others. They are passed on as quoted data (`quoted`), and answer no question.
"""

from __future__ import annotations

import json
import re
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from helmsman.base import caller_context, sanitize
from helmsman.base.json_values import mapping
from helmsman.base.programs import environment_for, find_program
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SECONDS: Final = 60
_SCP_LIKE: Final = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+):(?P<path>[^/].*)")
_NAME: Final = re.compile(r"[\w.-]{1,100}")
_ISSUE_PATH: Final = re.compile(r"(?P<repository>/.+?)/(?:-/)?(?:issues|work_items|pull)/(?P<number>\d{1,9})")
_PULL_REQUEST: Final = re.compile(r"(?P<repository>.+?)/(?:pull|-/merge_requests)/(?P<number>\d{1,9})")
_NUMBER: Final = re.compile(r"#?(?P<number>\d{1,9})")
_MOST_COMMENTS: Final = 50
_MOST_TEXT: Final = 20_000
_MEMBERS: Final = frozenset(("OWNER", "MEMBER", "COLLABORATOR"))
_FAILED: Final = frozenset(("failure", "timed_out", "cancelled", "action_required", "startup_failure"))
# GitLab's roles are numbers. From developers on, members may push.
_DEVELOPER: Final = 30
_GITLAB_RUNS: Final = frozenset(("created", "pending", "running", "preparing", "waiting_for_resource"))
_LOG_LINES: Final = 80


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
    *owner, name = path.strip("/").removesuffix(".git").split("/")
    if not host or not owner or not all(map(_is_name, (*owner, name))):
        return None
    # Only GitLab has groups in groups.
    if len(owner) > 1 and not _is_gitlab(host):
        return None
    return Repository(host, "/".join(owner), name)


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
    found_in = None if path is None else repository_of(f"https://{parts.hostname or ''}{path['repository']}")
    if parts.scheme != "https" or path is None or found_in is None:
        raise InvalidInput(
            f"{reference!r:.200} is no issue. Give its address, or its number as '#5'.", parameter="issue"
        )
    return found_in, int(path["number"])


def pull_request_of(url: str) -> tuple[Repository, int] | None:
    """Return the repository and the number of a pull request by its address; None if the address is of none."""
    found = _PULL_REQUEST.match(url)
    repository = None if found is None else repository_of(found["repository"])
    return None if found is None or repository is None else (repository, int(found["number"]))


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in (".", "..")


def _is_gitlab(host: str) -> bool:
    return "gitlab" in host.split(".") or host == _host_named_by("GITLAB_HOST")


def _host_named_by(variable: str) -> str:
    # `gh` and `glab` read these variables too. The value may be an address.
    named = caller_context.environment().get(variable, "")
    return urlsplit(named).hostname or named


def quoted(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text of others as a quotation in Markdown."""
    shown = text if len(text) <= most else f"{text[:most]}\n[… {len(text) - most} more characters]"
    return "\n".join(f"> {line}".rstrip() for line in shown.replace("\r\n", "\n").split("\n"))


def forge_of(repository: Repository, directory: Path) -> Forge:
    """Return the forge that a repository is at, to be asked from a directory."""
    return (GitLab if _is_gitlab(repository.host) else GitHub)(repository, directory)


class Forge(ABC):
    """A repository at a forge, by the forge's own program in a directory. The program is looked up on PATH."""

    program: ClassVar[str]
    _options: ClassVar[tuple[str, ...]] = ()
    _variables: ClassVar[Mapping[str, str]] = {}
    _host_variable: ClassVar[str]
    """Names the host of the user's own forge."""
    _own_host: ClassVar[str]
    _tokens: ClassVar[frozenset[str]]
    """Variables with a token that the program sends to any host it is asked for, also to one that a clone names."""

    def __init__(self, repository: Repository, directory: Path) -> None:
        self.repository = repository
        self._directory = directory

    @property
    def is_installed(self) -> bool:
        return find_program(self.program, caller_context.environment()) is not None

    @abstractmethod
    def address_to_open(self, base: str, branch: str) -> str:
        """Return the address where a user opens a pull request for a pushed branch."""

    @abstractmethod
    def issue(self, number: int) -> Issue:
        """Return an issue with its comments.

        Raises:
            HelmsmanError: The program is missing, not logged in, or refused.
        """

    @abstractmethod
    def open_pull_request(self, *, branch: str, base: str, title: str, text: str, draft: bool) -> str:
        """Open a pull request and return its address; that of the one that is open already, with its text renewed."""

    @abstractmethod
    def pull_request(self, number: int) -> PullRequestState:
        """Return the state of a pull request, without comments by the user that the program is logged in as."""

    @abstractmethod
    def answer(self, number: int, comment: Comment, text: str) -> None:
        """Answer a comment on a pull request."""

    # --- calls -------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _inside(self) -> str:
        """The path of the repository in the API."""

    def _list(self, path: str, **query: str) -> list[Mapping[str, Any]]:
        # The largest page that both forges give. Further pages are not read.
        words = "&".join([*(f"{name}={value}" for name, value in query.items()), "per_page=100"])
        found = self._api(f"{path}?{words}")
        return [mapping(one) for one in found] if isinstance(found, list) else []

    def _api(self, path: str, given: Mapping[str, Any] | None = None, method: str = "") -> Any:
        return self._call(f"{self._inside}/{path}", given, method)

    def _call(self, path: str, given: Mapping[str, Any] | None = None, method: str = "") -> Any:
        try:
            return json.loads(self._output(path, given, method) or b"null")
        except ValueError as error:
            raise HelmsmanError(
                f"{self.program} gave no JSON for {path}. Try it by hand: {self.program} api {path}"
            ) from error

    def _output(self, path: str, given: Mapping[str, Any] | None = None, method: str = "") -> bytes:
        name, known = self.program, caller_context.environment()
        program = find_program(name, known)
        if program is None:
            raise HelmsmanError(
                f"There is no {name} on PATH, and this needs it. Install it, then log in: {name} auth login"
            )
        command = [program, "api", "--hostname", self.repository.host, path, *self._options]
        command += ["--method", method or ("GET" if given is None else "POST")]
        if given is not None:
            command += ["--input", "-"]
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                # There is no terminal for prompts, and colours would end up in messages.
                env={**self._for_host(environment_for(caller_context.for_others(known))), "NO_COLOR": "1"},
                input=b"" if given is None else json.dumps(given).encode(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise HelmsmanError(f"{name} could not be run: {error}. Try it by hand: {name} api {path}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            # The program's own error; else the first line, which for example names the command to log in.
            why = next((line for line in said if line.startswith(f"{name}: ")), said[0] if said else "")
            why = why.rstrip(".") or f"exit {done.returncode}"
            withheld = self._withheld(known)
            hint = f" A token in {withheld[0]} needs the host in {self._host_variable}." if withheld else ""
            raise HelmsmanError(f"{name} could not do it ({path}): {why:.300}. See `{name} auth status`.{hint}")
        return done.stdout

    def _for_host(self, env: Mapping[str, str]) -> dict[str, str]:
        withheld = self._withheld(env)
        return {name: value for name, value in env.items() if name not in withheld} | {**self._variables}

    def _withheld(self, env: Mapping[str, str]) -> list[str]:
        """Return the variables whose tokens are not meant for this host."""
        if self.repository.host in (self._own_host, _host_named_by(self._host_variable)):
            return []
        return sorted(self._tokens & env.keys())


class GitHub(Forge):
    program = "gh"
    _variables: ClassVar = {"GH_PROMPT_DISABLED": "1"}
    _host_variable = "GH_HOST"
    _own_host = "github.com"
    # `gh` itself sends GH_TOKEN to GitHub's own hosts only.
    _tokens = frozenset({"GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"})

    def address_to_open(self, base: str, branch: str) -> str:
        return f"https://{self.repository}/compare/{base}...{branch}?expand=1"

    def issue(self, number: int) -> Issue:
        found = mapping(self._api(f"issues/{number}"))
        said = self._list(f"issues/{number}/comments")
        return Issue(
            url=str(found.get("html_url") or f"https://{self.repository}/issues/{number}"),
            title=str(found.get("title") or ""),
            text=str(found.get("body") or ""),
            comments=tuple(_comment(one) for one in said[:_MOST_COMMENTS]),
        )

    def open_pull_request(self, *, branch: str, base: str, title: str, text: str, draft: bool) -> str:
        # GitHub's filter for heads takes `owner:branch`.
        known = self._list("pulls", head=f"{self.repository.owner}:{branch}", state="open")
        if known:
            self._api(f"pulls/{int(known[0]['number'])}", {"title": title, "body": text}, method="PATCH")
            return str(known[0]["html_url"])
        given = {"title": title, "body": text, "head": branch, "base": base, "draft": draft}
        return str(mapping(self._api("pulls", given)).get("html_url"))

    def pull_request(self, number: int) -> PullRequestState:
        found = mapping(self._api(f"pulls/{number}"))
        commit = str(mapping(found.get("head")).get("sha") or "")
        runs = mapping(self._api(f"commits/{commit}/check-runs?per_page=100")).get("check_runs") or []
        # GitHub keeps three kinds apart: comments on the conversation, comments on lines of code, and texts of reviews.
        comments = [_comment(one) for one in self._list(f"issues/{number}/comments")]
        comments += [_comment(one, is_review=True) for one in self._list(f"pulls/{number}/comments")]
        # Reviews are numbered apart from comments, so the prefix keeps their ids apart.
        comments += [_comment(one, prefix="r") for one in self._list(f"pulls/{number}/reviews") if one.get("body")]
        own = mapping(self._call("user")).get("login")
        return PullRequestState(
            url=str(found.get("html_url")),
            is_open=found.get("state") == "open",
            is_merged=bool(found.get("merged")),
            pending=sum(run.get("status") != "completed" for run in runs),
            failed=tuple(_failed(run, commit) for run in runs if run.get("conclusion") in _FAILED),
            comments=tuple(one for one in comments if one.author != own),
        )

    def answer(self, number: int, comment: Comment, text: str) -> None:
        if comment.is_review:
            self._api(f"pulls/{number}/comments/{comment.id.removeprefix('c')}/replies", {"body": text})
        else:
            # Only comments on code have a thread to answer in.
            self._api(f"issues/{number}/comments", {"body": f"{quoted(comment.text, 300)}\n\n{text}"})

    @property
    def _inside(self) -> str:
        return f"repos/{self.repository.path}"


class GitLab(Forge):
    """GitLab, whose merge requests are the pull requests here."""

    program = "glab"
    # `glab` sends content that it reads without naming its type, which GitLab then does not parse.
    _options = ("--header", "Content-Type: application/json")
    _variables: ClassVar = {"NO_PROMPT": "1", "GLAB_CHECK_UPDATE": "false"}
    _host_variable = "GITLAB_HOST"
    _own_host = "gitlab.com"
    _tokens = frozenset({"GITLAB_TOKEN", "GITLAB_ACCESS_TOKEN", "OAUTH_TOKEN"})

    def address_to_open(self, base: str, branch: str) -> str:
        words = f"merge_request[source_branch]={branch}&merge_request[target_branch]={base}"
        return f"https://{self.repository}/-/merge_requests/new?{words}"

    def issue(self, number: int) -> Issue:
        found = mapping(self._api(f"issues/{number}"))
        said = self._list(f"issues/{number}/notes", sort="asc")
        # GitLab notes its own doings, such as a new label, among the comments.
        comments = [_note(one) for one in said if not one.get("system")]
        return Issue(
            url=str(found.get("web_url") or f"https://{self.repository}/-/issues/{number}"),
            title=str(found.get("title") or ""),
            text=str(found.get("description") or ""),
            comments=tuple(comments[:_MOST_COMMENTS]),
        )

    def open_pull_request(self, *, branch: str, base: str, title: str, text: str, draft: bool) -> str:
        known = self._list("merge_requests", state="opened", source_branch=quote(branch, safe=""))
        # A draft is one by its title, and stays one when its text is renewed.
        is_draft = draft or any(one.get("draft") for one in known[:1])
        given = {"title": f"Draft: {title}" if is_draft else title, "description": text}
        if known:
            self._api(f"merge_requests/{int(known[0]['iid'])}", given, method="PUT")
            return str(known[0]["web_url"])
        given |= {"source_branch": branch, "target_branch": base}
        return str(mapping(self._api("merge_requests", given)).get("web_url"))

    def pull_request(self, number: int) -> PullRequestState:
        found = mapping(self._api(f"merge_requests/{number}"))
        commit = str(found.get("sha") or "")
        runs = self._list(f"repository/commits/{commit}/statuses")
        own = mapping(self._call("user")).get("username")
        said = [
            _note(one, str(thread.get("id")))
            for thread in self._list(f"merge_requests/{number}/discussions")
            for one in map(mapping, thread.get("notes") or ())
            if not one.get("system") and _username(one) != own
        ]
        members = {author for author in {one.author for one in said} if self._may_push(author)}
        return PullRequestState(
            url=str(found.get("web_url")),
            is_open=found.get("state") in ("opened", "locked"),
            is_merged=found.get("state") == "merged",
            pending=sum(run.get("status") in _GITLAB_RUNS for run in runs),
            failed=tuple(self._failed(run, commit) for run in runs if _has_failed(run)),
            comments=tuple(replace(one, is_by_member=one.author in members) for one in said),
        )

    def answer(self, number: int, comment: Comment, text: str) -> None:
        thread, _, _ = comment.id.partition("/")
        self._api(f"merge_requests/{number}/discussions/{thread}/notes", {"body": text})

    @property
    def _inside(self) -> str:
        return f"projects/{quote(self.repository.path, safe='')}"

    def _may_push(self, author: str) -> bool:
        found = self._list("members/all", query=quote(author, safe=""))
        return any(one.get("username") == author and int(one.get("access_level") or 0) >= _DEVELOPER for one in found)

    def _failed(self, run: Mapping[str, Any], commit: str) -> FailedCheck:
        name = str(run.get("name") or "check")
        return FailedCheck(f"{name}@{commit}", name, self._why(run), str(run.get("target_url") or ""))

    def _why(self, run: Mapping[str, Any]) -> str:
        """Return the description of a check, and the end of its log where it is a job of GitLab."""
        described = str(run.get("description") or "")
        try:
            log = self._output(f"{self._inside}/jobs/{int(run['id'])}/trace").decode("utf-8", "replace")
        except (HelmsmanError, KeyError, ValueError):
            # Checks of other programs have no job here.
            return described
        ending = sanitize.visible("\n".join(log.splitlines()[-_LOG_LINES:]))
        return "\n\n".join(filter(None, (described, ending)))


def _has_failed(run: Mapping[str, Any]) -> bool:
    return run.get("status") in ("failed", "canceled") and not run.get("allow_failure")


def _username(note: Mapping[str, Any]) -> str:
    return str(mapping(note.get("author")).get("username") or "")


def _note(one: Mapping[str, Any], thread: str = "") -> Comment:
    position = mapping(one.get("position"))
    path, line = position.get("new_path"), position.get("new_line") or position.get("old_line")
    place = f"{path}:{line}" if path and line else str(path or "")
    return Comment(f"{thread}/{one.get('id')}", _username(one), str(one.get("body") or ""), place, bool(position))


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
