"""Git as Helmsman runs it: on a working tree and a git directory that are both named outright.

Codex may have written anything into a worktree, also a new `.git` file that leads to a configuration of its making, and
git runs programs that a configuration names. So what a tree says about itself is never asked: the git directory is the
one that was recorded when the worktree was made, and it lies outside of what Codex may write. Hooks and file system
monitors are not run, and nothing is asked at a terminal. The filters of the person's own configuration are run (git-lfs
is one): without them the content of a file cannot be told.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.errors import WorktreeError
from helmsman.repositories import repository_root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GIT_SECONDS: Final = 120
"""Git may have to write a large tree through filters that fetch from the network."""

_SETTINGS: Final[dict[str, str]] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",  # would write a shared part of our own index into the repository
    "core.quotePath": "true",
    "diff.suppressBlankEmpty": "false",
    "log.showSignature": "false",  # would run a program to check it
    "merge.conflictStyle": "merge",
    "gc.auto": "0",
}

_KEPT_VARIABLES: Final = frozenset(
    {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH", "GIT_SSL_CAINFO"}
)
"""Whoever started us may stand in a git hook, whose other variables name another repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """One working tree with its git directory. `index` and `objects`, where given, stand in for the repository's own."""

    work_tree: Path
    git_dir: Path
    index: Path | None = None
    objects: Path | None = None
    settings: tuple[tuple[str, str], ...] = ()

    def run(self, *arguments: str, stdin: bytes = b"", accept: Sequence[int] = (0,)) -> Answer:
        """Run git there. Exit codes other than those accepted raise.

        Raises:
            WorktreeError: Git cannot be run, does not end, or fails.
        """
        return _run(arguments, self.work_tree, self._variables(), stdin=stdin, accept=accept)

    def text(self, *arguments: str) -> str:
        """The one value that git answers with."""
        return one_value(self.run(*arguments).output)

    def has(self, revision: str) -> bool:
        return self.run("rev-parse", "--verify", "--quiet", revision, accept=(0, 1, 128)).code == 0

    def commit(self, name: str) -> str | None:
        """The id of the commit that a person calls this; None if there is none."""
        sought = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        try:
            answer = self.run(*sought, accept=(0, 1, 128))
        except ValueError:  # half of a surrogate pair or a NUL cannot even be asked for
            return None
        return None if answer.code else one_value(answer.output)

    @property
    def common_dir(self) -> Path:
        """The git directory that all worktrees of the repository share."""
        try:
            leads_to = os.fsdecode((self.git_dir / "commondir").read_bytes()).removesuffix("\n")
        except OSError:
            return self.git_dir
        return Path(os.path.normpath(self.git_dir / leads_to))

    def with_settings(self, settings: Mapping[str, str]) -> Git:
        return replace(self, settings=(*self.settings, *settings.items()))

    def _variables(self) -> dict[str, str]:
        variables = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.work_tree)}
        if self.index is not None:
            variables["GIT_INDEX_FILE"] = str(self.index)
        if self.objects is not None:
            variables["GIT_OBJECT_DIRECTORY"] = str(self.objects)
            variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(self.common_dir / "objects")
        return variables | _as_variables(dict(self.settings))


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    output: bytes


def find_git(directory: Path) -> Git | None:
    """The working tree around a directory, as git finds it; None outside of one (a bare repository has none either).

    Raises:
        WorktreeError: There is one, but git refuses to use it.
    """
    inside = _run(("rev-parse", "--is-inside-work-tree"), directory, accept=(0, 128))
    if inside.code or one_value(inside.output) != "true":
        if inside.code and repository_root(directory) is not None:
            _run(("rev-parse", "--is-inside-work-tree"), directory)  # raises with what git says
        return None
    root, git_dir = (
        Path(one_value(_run(("rev-parse", what), directory).output))
        for what in ("--show-toplevel", "--absolute-git-dir")
    )
    return Git(work_tree=root, git_dir=git_dir)


def is_bare(directory: Path) -> bool:
    answer = _run(("rev-parse", "--is-bare-repository"), directory, accept=(0, 128))
    return answer.code == 0 and one_value(answer.output) == "true"


def one_value(output: bytes) -> str:
    """What git printed, without the end of its line: a path may itself end with a newline."""
    return os.fsdecode(output.removesuffix(b"\n"))


def shown(path: bytes) -> str:
    """A path as text that can be sent anywhere."""
    return path.decode("utf-8", "replace")


def _run(
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    stdin: bytes = b"",
    accept: Sequence[int] = (0,),
) -> Answer:
    program = shutil.which("git")
    if program is None:
        raise WorktreeError("There is no git on PATH, and this needs it. Install git.")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT_VARIABLES
    }
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    environment |= variables or _as_variables({})
    advice = f"Try it by hand in {folder}."
    try:
        child = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # filters are its children: they end with it
        )
    except OSError as error:
        raise WorktreeError(f"git {arguments[0]} could not be run: {error}. {advice}") from error
    with child:
        try:
            output, complaint = child.communicate(stdin, timeout=_GIT_SECONDS)
        except BaseException as error:
            _kill(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise WorktreeError(f"git {arguments[0]} did not end in {_GIT_SECONDS} s. {advice}") from error
    if child.returncode not in accept:
        raise WorktreeError(f"git {arguments[0]} failed: {_last_words(complaint, child.returncode)}. {advice}")
    return Answer(child.returncode, output)


def _kill(child: subprocess.Popen[bytes]) -> None:
    if os.name != "posix":
        child.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _last_words(complaint: bytes, code: int) -> str:
    """What matters of what git said: its last line, and the first error, which is often the cause."""
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error:", "fatal:"))]
    told = dict.fromkeys((*errors[:1], *lines[-1:]))
    return "; ".join(told).rstrip(".") or f"exit {code}"


def _as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings that count for one run, more than any file. Unlike with `-c`, a name may contain anything."""
    pairs = list((_SETTINGS | dict(settings)).items())
    variables = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (name, value) in enumerate(pairs):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _quoted(path: Path) -> str:
    """A path in a list that is separated by colons, the way C writes text."""
    safe = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03o}" for byte in os.fsencode(path)
    )
    return f'"{safe}"'
