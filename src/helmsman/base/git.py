"""Git as Helmsman runs it, everywhere: the one place that starts it.

Whatever a repository says about itself is content, not instruction. Git is shown the repository through a view that has
nothing of its configuration but data (`git_view.py`), and the git directory is named outright where Codex may have written
another `.git` into the tree. Hooks and file system monitors are not run, nothing is asked at a terminal, nothing is fetched,
and no other repository (a submodule, one planted in the tree) is entered. The filters of the person's own configuration are
run (git-lfs is one): without them the content of a file cannot be told.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from helmsman.base import surroundings
from helmsman.base.git_view import Setting, View, read_settings, repository_root, view_of
from helmsman.base.process_ending import end_group
from helmsman.base.programs import environment_for, find_program, is_out_of_reach
from helmsman.base.structs import Value, replace
from helmsman.errors import ProgramRefused, WorktreeError
from helmsman.settings import ensure_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_GIT_SECONDS: Final = 120
_SLOW_SECONDS: Final = 5
"""After so long it is looked whether git waits for something that never comes."""
_READ_BY_GIT: Final = frozenset([".gitignore", ".gitattributes", ".gitmodules", ".mailmap"])
"""Git may have to write a large tree through filters that fetch from the network."""
_PIECE: Final = 256 * 1024

_SETTINGS: Final[dict[str, str]] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",  # would write a shared part of our own index into the repository
    "core.quotePath": "true",
    "diff.suppressBlankEmpty": "false",
    "log.showSignature": "false",  # would run a program to check it
    "status.submoduleSummary": "false",
    "diff.submodule": "short",
    "submodule.recurse": "false",
    "safe.bareRepository": "explicit",  # a directory that looks like a git directory may be a file of the tree
    "merge.conflictStyle": "merge",
    "gc.auto": "0",
}

_KEPT_VARIABLES: Final = frozenset(
    {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH", "GIT_SSL_CAINFO"}
)
"""Helmsman may have been started by a git hook, whose other variables name another repository. A file or directory that a
session could write is not taken from these either: git takes its programs from it."""


_LOOKS_INTO_SUBMODULES: Final = frozenset({"status", "diff", "diff-files", "diff-index"})
"""They would run git in each submodule, under its own configuration, unless told otherwise in so many words: `.gitmodules`
is content, and may ask for it."""

_ANY: Final = range(256)
_LIST_SETTINGS: Final = ("config", "-z", "--list", "--show-scope")


class Git(Value, frozen=True, kw_only=True):
    """One working tree with its git directory. `index` and `objects`, where given, stand in for the repository's own.

    `place` is where views are made: the state directory. `view` is one that is made already (`viewed`). `variables` are
    further ones of git's environment.
    """

    work_tree: Path
    git_dir: Path
    place: Path
    index: Path | None = None
    objects: Path | None = None
    settings: tuple[tuple[str, str], ...] = ()
    view: View | None = None
    variables: tuple[tuple[str, str], ...] = ()

    def run(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        accept: Sequence[int] = (0,),
        most_memory: int | None = None,
    ) -> GitAnswer:
        """Run git there. Exit codes other than those accepted raise. A file as `stdin` is read from where it stands.

        With `most_memory` git fails if it needs more bytes of memory than that (Linux).

        Raises:
            WorktreeError: Git cannot be run, does not end, or fails; or a file needs a filter of the repository's own.
        """
        if self.view is None:
            with self.viewed() as git:
                return git.run(*arguments, stdin=stdin, accept=accept, most_memory=most_memory)
        if arguments[0] in _LOOKS_INTO_SUBMODULES:
            arguments = (arguments[0], "--ignore-submodules=dirty", *arguments[1:])
        variables = self._variables(self.view)
        answer = _run(arguments, self.work_tree, variables, stdin=stdin, accept=_ANY, most_memory=most_memory)
        if answer.code:
            _check_filters(answer, self.view)
        return answer.checked(arguments, self.work_tree, accept)

    def write(self, *arguments: str, stdin: bytes, into: IO[bytes], most: int) -> bool:
        """Have what git says written to a file, piece by piece. False where it would be more than `most` bytes: git was
        ended then.

        Raises:
            WorktreeError: Git cannot be run, does not end, or fails.
        """
        if self.view is None:
            with self.viewed() as git:
                return git.write(*arguments, stdin=stdin, into=into, most=most)
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as complaint:
            asked.write(stdin)
            asked.seek(0)
            child = _popen(arguments, self.work_tree, self._variables(self.view), asked, complaint)
            is_late = threading.Event()

            def end() -> None:
                is_late.set()
                _kill(child)

            timer = threading.Timer(_GIT_SECONDS, end)
            timer.start()
            fits = True
            with child:
                try:
                    assert child.stdout is not None
                    while fits and (piece := child.stdout.read(_PIECE)):
                        most -= len(piece)
                        fits = most >= 0
                        into.write(piece if fits else b"")
                except BaseException:
                    _kill(child)
                    raise
                finally:
                    timer.cancel()
                    if not fits:
                        _kill(child)
            if not fits:
                return False
            if is_late.is_set():
                raise WorktreeError(
                    f"git {arguments[0]} did not end in {_GIT_SECONDS} s. Try it by hand in {self.work_tree}."
                )
            complaint.seek(0)
            GitAnswer(child.returncode, b"", complaint.read()).checked(arguments, self.work_tree, (0,))
            return True

    def run_unviewed(self, *arguments: str) -> GitAnswer:
        """Run git under the repository's whole configuration: only what reads and writes no file of the tree.

        Hooks are what could be run, those in files and, since git 2.54, those in the configuration.
        """
        hooks = {f"hook.{name}.enabled": "false" for name in self._configured_hooks()}
        variables = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.work_tree), **_as_variables(hooks)}
        return _run(arguments, self.work_tree, variables)

    def ask(self, *arguments: str) -> str | None:
        """What git says, or None when it has nothing to say."""
        answer = self.run(*arguments, accept=_ANY)
        return answer.output.decode("utf-8", "replace").strip() or None if answer.code == 0 else None

    @contextmanager
    def viewed(self) -> Iterator[Git]:
        """The same with one view for all that is done in the block. What others do to HEAD meanwhile is not seen."""
        if self.view is not None:
            yield self
            return
        settings, place = read_settings(self._listed_settings()), ensure_state_dir(self.place)
        with ExitStack() as stack:
            try:
                view = stack.enter_context(view_of(self.git_dir, self.common_dir, settings, place))
            except OSError as error:
                raise WorktreeError(
                    f"The repository {self.git_dir} cannot be looked at: {error}. See whether it is whole, and whether "
                    f"{place} has room."
                ) from error
            yield replace(self, view=view)

    def _listed_settings(self) -> bytes:
        variables = {"GIT_DIR": str(self.git_dir), **_as_variables({})}
        return _run(_LIST_SETTINGS, self.git_dir, variables).output

    def _configured_hooks(self) -> set[str]:
        keys = (setting.key.split(".") for setting in read_settings(self._listed_settings()))
        return {".".join(parts[1:-1]) for parts in keys if parts[0] == "hook" and len(parts) > 2}

    def text(self, *arguments: str) -> str:
        """The one value that git answers with."""
        return one_value(self.run(*arguments).output)

    def names(self, *arguments: str) -> list[str]:
        """What git lists with a NUL after each: paths, and what stands before them."""
        return [os.fsdecode(name) for name in self.run(*arguments).output.split(b"\0") if name]

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

    def with_variables(self, **variables: str) -> Git:
        return replace(self, variables=(*self.variables, *variables.items()))

    def without_merge_programs(self) -> Git:
        """The same with those that attributes may choose not run: a file that needs one is then a conflict."""
        configured = self.run(
            "config", "-z", "--name-only", "--get-regexp", r"^merge\..*\.driver$", accept=(0, 1)
        ).output
        return self.with_settings({os.fsdecode(name): "false" for name in configured.split(b"\0") if name})

    def _variables(self, view: View) -> dict[str, str]:
        variables = {"GIT_DIR": str(view.directory), "GIT_WORK_TREE": str(self.work_tree)}
        variables["GIT_INDEX_FILE"] = str(self.index or self.git_dir / "index")
        if self.objects is not None:
            variables["GIT_OBJECT_DIRECTORY"] = str(self.objects)
            variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(self.common_dir / "objects")
        return variables | _as_variables(dict(self.settings)) | dict(self.variables)


class GitAnswer(Value, frozen=True):
    code: int
    output: bytes
    complaint: bytes

    def checked(self, arguments: Sequence[str], folder: Path, accept: Sequence[int]) -> GitAnswer:
        if self.code not in accept:
            said = _last_words(self.complaint, self.code)
            raise WorktreeError(f"git {arguments[0]} failed: {said}. Try it by hand in {folder}.")
        return self


def find_git(directory: Path, place: Path) -> Git | None:
    """The working tree around a directory, as git finds it; None outside of one (a bare repository has none either).

    `place` is the state directory.

    Raises:
        WorktreeError: There is one, but git refuses to use it.
    """
    if _git_directory_around(directory) is not None:
        return None
    asked = ("--show-toplevel", "--absolute-git-dir")
    answer = _run(("rev-parse", "--is-inside-work-tree", *asked), directory, accept=(0, 128))
    inside, *paths = answer.output.split(b"\n")[:-1] or [b""]
    if inside == b"false":
        return None
    if answer.code:
        if repository_root(directory) is not None:
            answer.checked(("rev-parse",), directory, (0,))  # raises with what git says
        return None
    if len(paths) != len(asked):  # a newline in a path: where one ends and the next begins cannot be told
        paths = [_run(("rev-parse", what), directory).output.removesuffix(b"\n") for what in asked]
    root, git_dir = (Path(os.fsdecode(path)) for path in paths)
    return Git(work_tree=root, git_dir=git_dir, place=place)


def init_bare(path: Path, object_format: str, place: Path) -> Git:
    """A repository without a working tree, made if it is not there; nothing of a template is in it."""
    if not (path / "HEAD").is_file():
        options = ("--bare", "--quiet", "--template=", f"--object-format={object_format}")
        _run(("init", *options, "--initial-branch=none", str(path)), path.parent)
    return Git(work_tree=path, git_dir=path, place=place)


def settings_around(directory: Path) -> list[Setting]:
    """All that holds for git in a directory; nothing where there is no git, or it refuses to work there."""
    try:
        answer = _run(_LIST_SETTINGS, directory, accept=_ANY)
    except (WorktreeError, ProgramRefused):
        return []
    return [] if answer.code else read_settings(answer.output)


def is_bare(directory: Path) -> bool:
    """Return whether the directory is in what git would take for a repository without a working tree."""
    found = _git_directory_around(directory)
    return found is not None and found.name != ".git"


def _git_directory_around(directory: Path) -> Path | None:
    """A git directory that lies open around a directory, and nearer than any working tree."""
    for place in (directory, *directory.parents):
        if (place / ".git").exists():
            return None
        if (place / "HEAD").is_file() and (place / "objects").is_dir() and (place / "refs").is_dir():
            return place
    return None


def current_branch(directory: Path) -> str | None:
    """The branch that is checked out around a directory; None without one, or between branches."""
    try:
        answer = _run(("symbolic-ref", "--quiet", "--short", "HEAD"), directory, accept=_ANY)
    except (WorktreeError, ProgramRefused):
        return None
    return one_value(answer.output) or None if answer.code == 0 else None


def _check_filters(answer: GitAnswer, view: View) -> None:
    """Say it in other words when git failed for want of a filter that it was not given."""
    for said in answer.complaint.decode("utf-8", "replace").splitlines():
        for name in view.refused_filters:
            if said.endswith((f"clean filter '{name}' failed", f"smudge filter {name} failed")):
                path = said.removeprefix("fatal: ").partition(":")[0]
                raise WorktreeError(
                    f"{path} needs the filter {name!r}, which only the repository's own configuration defines, and Helmsman "
                    f"runs no program that a repository names. If you trust it, define it in your own configuration: `git "
                    f"config --global filter.{name}.clean …`, and `.smudge` or `.process`."
                )


def one_value(output: bytes) -> str:
    """What git printed, without the end of its line: a path may itself end with a newline."""
    return os.fsdecode(output.removesuffix(b"\n"))


def pager() -> str | None:
    """The pager that the person wants for what git shows, by git's own rules; None if they want none.

    Only their own configuration is asked: what a repository says of itself must not choose a program to run.
    """
    known = surroundings.environment()
    chosen = known.get("GIT_PAGER")
    if chosen is None:
        with suppress(WorktreeError, ProgramRefused):
            answer = _run(("config", "--get", "core.pager"), Path(os.sep), accept=_ANY)
            chosen = one_value(answer.output) if answer.code == 0 else None
    if chosen is None:
        chosen = known.get("PAGER", "less")
    return None if chosen in ("", "cat") else chosen


def _run(
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    stdin: bytes | IO[bytes] = b"",
    accept: Sequence[int] = (0,),
    most_memory: int | None = None,
) -> GitAnswer:
    given = None if isinstance(stdin, bytes) else stdin
    child = _popen(
        arguments, folder, variables, subprocess.PIPE if given is None else given, subprocess.PIPE, most_memory
    )
    with child:
        try:
            try:
                output, complaint = child.communicate(
                    stdin if isinstance(stdin, bytes) else None, timeout=_SLOW_SECONDS
                )
            except subprocess.TimeoutExpired:
                refuse_pipes(folder)
                output, complaint = child.communicate(timeout=_GIT_SECONDS - _SLOW_SECONDS)
        except BaseException as error:
            _kill(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise WorktreeError(
                f"git {arguments[0]} did not end in {_GIT_SECONDS} s. Try it by hand in {folder}."
            ) from error
    return GitAnswer(child.returncode, output, complaint).checked(arguments, folder, accept)


def refuse_pipes(folder: Path) -> None:
    """Refuse a tree in which git reads a pipe instead of a file: it would wait for a writer.

    Raises:
        WorktreeError: There is one; it is named.
    """
    for place, folders, files in os.walk(folder):
        if ".git" in folders:
            folders.remove(".git")
        for name in _READ_BY_GIT.intersection(files):
            path = Path(place) / name
            with suppress(OSError):
                if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
                    raise WorktreeError(
                        f"Git cannot read this tree: {path} is no ordinary file. Remove it, and try again."
                    )


def _popen(
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None,
    stdin: int | IO[bytes],
    complaint: int | IO[bytes],
    most_memory: int | None = None,
) -> subprocess.Popen[bytes]:
    limit = None
    if most_memory is not None and sys.platform == "linux":
        import resource  # only POSIX has it

        # Before git runs: a limit that is set from outside can come too late.
        limit = partial(resource.setrlimit, resource.RLIMIT_AS, (most_memory, most_memory))
    known = surroundings.environment()
    program = find_program("git", known)
    if program is None:
        raise WorktreeError("There is no git on PATH, and this needs it. Install git.")
    environment = {
        name: value
        for name, value in environment_for(surroundings.for_others(known)).items()
        if not name.startswith("GIT_") or (name in _KEPT_VARIABLES and is_out_of_reach(value, known))
    }
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}
    environment["LANGUAGE"] = "en"  # what git says is read; other programs keep their encoding
    environment |= variables or _as_variables({})
    try:
        return subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=complaint,
            start_new_session=True,  # filters are its children: they end with it
            umask=surroundings.umask_in(known),
            preexec_fn=limit,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WorktreeError(f"git {arguments[0]} could not be run: {error}. Try it by hand in {folder}.") from error


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End git and its filters. Asked to end, it removes its lock files; killed immediately, it would leave them."""
    if os.name != "posix":
        child.kill()
        return
    end_group(child.pid, child.poll)


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
