"""Guide to prepare a repository for the Codex cloud.

The cloud works on a clone from GitHub, in an environment that the user creates in the Codex settings. The guide
inspects the local repository (remotes, branches, workflows, lock files), and marks each step as done, to do, or not
visible from here. It uses no network and changes nothing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from helmsman.base.truncate import counted
from helmsman.errors import HelmsmanError, WorktreeError
from helmsman.git.command import Git, find_git, repository_root

if TYPE_CHECKING:
    from collections.abc import Iterable


StepState = Literal["done", "todo", "unseen"]
"""`unseen` is what only the person can know: it is not on this machine."""

CODEX_PAGE: Final = "https://chatgpt.com/codex"
ENVIRONMENTS_PAGE: Final = "https://chatgpt.com/codex/settings/environments"
_GITHUB_HOSTS: Final = frozenset({"github.com", "www.github.com", "ssh.github.com"})
_FILE_LIMIT: Final = 256 * 1024

_TABLES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class GuideStep:
    """Step of the guide: name, state, and what to do (or what was found)."""

    title: str
    state: StepState
    text: str


@dataclass(frozen=True, slots=True)
class Guide:
    """Steps in order, and the whole guide as Markdown."""

    steps: tuple[GuideStep, ...]
    text: str


def github_guide(directory: Path, *, environments: Iterable[str] = (), state_dir: Path) -> Guide:
    """Return the guide for the repository around a directory. Blocks (it runs git); call it in a thread. Never raises.

    Args:
        directory: Any directory, also one outside of a repository.
        environments: Names of the known cloud environments.
        state_dir: The state directory, if it is not the default one.
    """
    directory = directory.absolute()
    root = repository_root(directory)
    place = root or directory
    local = _look(root, state_dir)
    steps = (
        GuideStep("A git repository with a commit", *_repository(directory, local)),
        GuideStep("The repository on GitHub", *_github(place, local)),
        GuideStep("Your work pushed", *_pushed(local)),
        GuideStep("GitHub connected to Codex", *_connection(local)),
        GuideStep("An environment", *_environment(local, setup_script(place), tuple(environments))),
        GuideStep("AGENTS.md", *_instructions(place)),
        GuideStep("Checks on what Codex proposes", *_checks(place)),
    )
    return Guide(steps, _markdown(local.github_name or place.name, steps))


# --- what lies here --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Local:
    """Local facts from git. `url` contains no credentials."""

    root: Path | None = None
    has_commit: bool = False
    branch: str | None = None
    remote: str | None = None
    url: str | None = None
    host: str | None = None
    github_name: str | None = None
    default_branch: str | None = None
    is_pushed: bool = False
    unpushed: int = 0
    uncommitted: int = 0


def _look(root: Path | None, state_dir: Path) -> _Local:
    """Collect the facts from git. Without git only the existence of a repository is known."""
    if root is None:
        return _Local()
    try:
        found = find_git(root, state_dir)
        if found is None:
            return _Local(root=root)
        with found.viewed() as git:
            return _ask(git, root)
    # The guide is still useful without these facts, so no error of git ends it.
    except HelmsmanError:
        return _Local(root=root)


def _ask(git: Git, root: Path) -> _Local:
    remote, url = _chosen_remote(git)
    host, path = _host_and_path(url) if url else (None, None)
    branch = git.ask("symbolic-ref", "--quiet", "--short", "HEAD")
    head = git.ask("symbolic-ref", "--quiet", "--short", f"refs/remotes/{remote}/HEAD") if remote else None
    pushed = f"refs/remotes/{remote}/{branch}"
    is_pushed = bool(remote and branch and git.has(pushed))
    unpushed = git.ask("rev-list", "--count", f"{pushed}..HEAD") if is_pushed else None
    return _Local(
        root=root,
        has_commit=git.has("HEAD"),
        branch=branch,
        remote=remote,
        url=url,
        host=host,
        github_name=path if host in _GITHUB_HOSTS else None,
        default_branch=head.partition("/")[2] if head else _likely_default(git, branch),
        is_pushed=is_pushed,
        unpushed=int(unpushed) if unpushed else 0,
        uncommitted=_count_uncommitted(git),
    )


def _count_uncommitted(git: Git) -> int:
    try:
        return len((git.ask("status", "--porcelain", "--untracked-files=normal") or "").splitlines())
    except WorktreeError:  # a file needs a filter that is not run
        return 0


def _chosen_remote(git: Git) -> tuple[str | None, str | None]:
    """Return the preferred remote: GitHub first, then `origin`. Its URL contains no credentials."""
    names = (git.ask("remote") or "").splitlines()
    found = [(name, _without_login(url)) for name in names if (url := git.ask("remote", "get-url", name))]
    found.sort(key=lambda entry: (_host_and_path(entry[1])[0] not in _GITHUB_HOSTS, entry[0] != "origin"))
    return found[0] if found else (None, None)


def _without_login(url: str) -> str:
    """Remove credentials from the URL of a remote."""
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url)


def _host_and_path(url: str) -> tuple[str | None, str | None]:
    """`git@github.com:owner/name.git` or `https://github.com/owner/name` → `github.com`, `owner/name`."""
    found = re.fullmatch(r"(?:\w+://)(?:[^/@]*@)?(?P<host>[^/:]+)(?::\d+)?/(?P<path>.+)", url)
    # A host has two letters at least: one letter and a colon are a drive of Windows.
    found = found or re.fullmatch(r"(?:[^/@:]+@)?(?P<host>[^/:@]{2,}):(?P<path>(?!//).+)", url)
    if found is None:
        return None, None  # a path on this machine
    return found["host"].lower(), found["path"].strip("/").removesuffix(".git")


def _likely_default(git: Git, branch: str | None) -> str | None:
    """Without a word from the remote: a branch with one of the usual names, else the one that is checked out."""
    for name in ("main", "master"):
        if git.has(f"refs/heads/{name}"):
            return name
    return branch


def _workflows(place: Path) -> dict[str, bool]:
    """GitHub's workflows, and whether each runs on pull requests."""
    folder = place / ".github" / "workflows"
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in (".yml", ".yaml"))
    except OSError:
        return {}
    # A search for the word is enough for a hint, so the file is not parsed.
    return {f".github/workflows/{file.name}": "pull_request" in _content(file) for file in files}


def _content(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_FILE_LIMIT)
    except OSError:
        return ""


def setup_script(place: Path) -> str | None:
    """Return a setup script based on the files at the root, or None."""
    commands: list[str] = []
    for family in _TABLES["setup"]:
        name, command = next(
            ((name, command) for name, command in family.items() if (place / name).is_file()), ("", "")
        )
        if name == "pyproject.toml":
            command = f'pip install -e "{_with_extra(place / name)}"'
        if command:
            commands.append(command)
    return "\n".join(commands) or None


def _with_extra(pyproject: Path) -> str:
    """`.[dev]` where the project has an extra for those who work on it."""
    try:
        extras = tomllib.loads(_content(pyproject))["project"]["optional-dependencies"]
        extra = next(name for name in ("dev", "test", "tests") if name in extras)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return "."
    return f".[{extra}]"


# --- the steps -------------------------------------------------------------------------------------------------------


def _repository(directory: Path, local: _Local) -> tuple[StepState, str]:
    if local.root is None:
        return "todo", f"{directory} is in no git repository. Run `git init`, `git add --all` and `git commit` there."
    if not local.has_commit:
        return "todo", "There is no commit yet. Run `git add --all` and `git commit`."
    return "done", f"{local.root}, on {local.branch or 'no branch'}."


def _github(place: Path, local: _Local) -> tuple[StepState, str]:
    if local.github_name is not None:
        return "done", f"{local.github_name} (remote `{local.remote}`: {local.url})."
    create = f"`gh repo create {place.name} --private --source=. --remote={{remote}} --push`"
    if local.url is None:
        return "todo", f"There is no remote. Make one, for example with {create.format(remote='origin')}."
    return "todo", (
        f"The remote `{local.remote}` is on {local.host or 'this machine'} ({local.url}), and the Codex cloud takes its "
        f"code from GitHub. Push a copy there, for example with {create.format(remote='github')}."
    )


def _pushed(local: _Local) -> tuple[StepState, str]:
    state: StepState = "todo"
    if local.github_name is None:
        text = "The cloud sees only what is on GitHub."
    elif local.branch is None:
        state, text = "unseen", "No branch is checked out; name the branch that a task is to start from."
    elif not local.is_pushed:
        push = f"`git push --set-upstream {local.remote} {local.branch}`"
        text = f"`{local.branch}` is not on `{local.remote}` yet. Run {push}."
    elif local.unpushed:
        text = f"`{local.branch}` has {counted(local.unpushed, 'unpushed commit')}. Run `git push {local.remote}`."
    else:
        state = "todo" if local.uncommitted else "done"
        text = f"`{local.branch}` is on `{local.remote}`, as far as this clone knows."
    base = f"The default branch is `{local.default_branch}`. " if local.default_branch else ""
    dirty = f" The cloud does not see uncommitted changes: {counted(local.uncommitted, 'file')}."
    return state, f"{base}{text}{dirty if local.uncommitted else ''}"


def _connection(local: _Local) -> tuple[StepState, str]:
    return "unseen", (
        f"Open {CODEX_PAGE}, sign in with ChatGPT, connect GitHub and give Codex access to "
        f"{local.github_name or 'the repository'}. On this machine run `helmsman agents login` with the same account."
    )


def _environment(local: _Local, script: str | None, environments: tuple[str, ...]) -> tuple[StepState, str]:
    make = f"Open {ENVIRONMENTS_PAGE} and make an environment for {local.github_name or 'the repository'}."
    if script is None:
        setup = "Nothing here says what must be installed; give it a set-up script if your tests need something."
    else:
        indented = "\n".join(f"    {line}" for line in script.splitlines())
        setup = f"A set-up script that fits what lies here:\n\n{indented}\n"
    network = "The set-up script has internet access; the agent has none unless you allow it there."
    name = 'Then name it in your `helmsman.toml`:\n\n    [cloud.environments]\n    main = "<its id>"'
    if environments:
        known = ", ".join(environments)
        return "done", f"Known here: {known}. If none is for this repository: {make}\n\n{setup}\n{network}"
    return "todo", f"{make} {setup}\n{network} {name}"


def _instructions(place: Path) -> tuple[StepState, str]:
    if (place / "AGENTS.md").is_file():
        return "done", "It is there. See that it says how to test and check."
    return "todo", "There is none. Describe how to test and check: the agent looks there for its commands."


def _checks(place: Path) -> tuple[StepState, str]:
    workflows = _workflows(place)
    if checking := [path for path, on_pull_request in workflows.items() if on_pull_request]:
        return "done", f"Run on pull requests: {', '.join(checking)}."
    if workflows:
        return "todo", f"{', '.join(workflows)}: none runs on `pull_request`. Add that trigger to one that tests."
    if elsewhere := ", ".join(name for path, name in _TABLES["other_ci"].items() if (place / path).exists()):
        return "unseen", f"Found {elsewhere}, but no GitHub workflow. See that it also runs on pull requests at GitHub."
    return "todo", "No CI was found. A workflow on `pull_request` in .github/workflows would test each proposal."


_MARKS: Final[dict[StepState, str]] = {"done": "[x]", "todo": "[ ]", "unseen": "[?]"}


def _markdown(name: str, steps: tuple[GuideStep, ...]) -> str:
    left = sum(step.state != "done" for step in steps)
    summary = (
        f"{left} of {len(steps)} steps are open ([?] cannot be seen from here)." if left else "Everything is there."
    )
    lines = (
        f"{number}. {_MARKS[step.state]} **{step.title}** {step.text}" for number, step in enumerate(steps, start=1)
    )
    return "\n\n".join([f"# {name}: ready for the Codex cloud?", summary, *lines]) + "\n"
