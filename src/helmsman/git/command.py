"""Run git. All of Helmsman starts git here.

Repositories are untrusted. Git sees a repository through a view that contains only harmless configuration
(`view_of`). The git directory is named explicitly where an agent may have written another `.git` into the tree.
Hooks and file system monitors do not run, git does not prompt or fetch, and it enters no other repository, such as a
submodule. Filters from the user's own configuration do run (git-lfs is one): without them, the content of a file would
be wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from helmsman.base import caller_context
from helmsman.base.files import temporary_directory
from helmsman.base.process_ending import end_group
from helmsman.base.programs import environment_for, find_program, is_out_of_reach
from helmsman.base.structs import Value, replace
from helmsman.base.user_directories import is_root, upwards
from helmsman.errors import ProgramRefused, WorktreeError
from helmsman.settings import ensure_state_dir

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# --- View of a repository for git: all of its content, but no configuration that could run a program ------------------

# Git runs the programs that a configuration names: filters, hooks, monitors, helpers, transports, and more in later
# versions. A repository's configuration is written by its author or by a model, and a list of dangerous keys would
# never be complete. So git does not get this configuration. It gets a **view**: a git directory in the state
# directory, with links to the repository's objects, references and so on, and a `config` that contains only settings
# known to be data. The user's own configuration still applies, so a filter defined there (git-lfs) runs.

# The view marks a filter that only the repository defines as required, without a command. Git then refuses to read or
# write files that need it. Without the mark, git would silently use other content.

# Attributes cannot hide content: `.gitattributes` could declare text binary and make its diff unreadable, so git
# decides from the content whether a file is text.

_DATA: Final = frozenset(
    [
        *("core.repositoryformatversion", "core.filemode", "core.symlinks", "core.ignorecase"),
        *("core.precomposeunicode", "core.protecthfs", "core.protectntfs", "core.longpaths", "core.autocrlf"),
        *("core.eol", "core.safecrlf", "core.checkroundtripencoding", "core.sparsecheckout"),
        *("core.sparsecheckoutcone", "core.trustctime", "core.checkstat", "core.attributesfile"),
        *("core.excludesfile", "core.sharedrepository", "core.logallrefupdates", "core.bigfilethreshold"),
        *("core.multipackindex", "core.commitgraph", "index.sparse", "index.skiphash", "diff.renamelimit"),
        *("merge.renamelimit", "merge.renames", "merge.renormalize"),
    ]
)

_DATA_WITH_NAMES: Final = re.compile(
    r"""(
        # How the repository is stored. A partial clone would fetch what is missing, by programs that its remotes name.
        extensions\.(?!partialclone\Z|worktreeconfig\Z)[^.]+
        | remote\..+\.(url|pushurl|fetch) | branch\..+\.(remote|merge) | url\..+\.(insteadof|pushinsteadof)
        | diff\..+\.(binary|algorithm|xfuncname|funcname)
    )\Z""",
    re.VERBOSE | re.DOTALL,
)
FILTER: Final = re.compile(r"filter\.(?P<name>.+)\.[^.]+\Z", re.DOTALL)
_MERGE_DRIVER: Final = re.compile(r"merge\.(?P<name>.+)\.driver\Z", re.DOTALL)

REFUSED_FILTER: Final = {"clean": "", "smudge": "", "required": "true"}

USERS: Final = frozenset({"system", "global"})
REPOSITORYS: Final = frozenset({"local", "worktree"})

_SHOW_ALL: Final = b"\n* !diff\n"
"""Last line of these attributes counts before those of the tree."""
_NOT_LINKED: Final = frozenset({"config", "config.worktree", "HEAD", "commondir", "gitdir", "hooks", "index", "info"})


class Setting(Value, frozen=True):
    """Line of a git configuration.

    `scope` is git's word for its source. A value of None is git's short form of true.
    """

    scope: str
    key: str
    value: str | None


class View(Value, frozen=True):
    """Git directory to use instead of the repository's. `refused_filters` are filters of the repository that do not
    run.

    `excludes` are the ignore files that settings name; None if settings include other files.
    """

    directory: Path
    refused_filters: frozenset[str]
    excludes: tuple[str, ...] | None


def read_settings(listed: bytes) -> list[Setting]:
    """Parse the output of `git config --list --show-scope -z`."""
    fields = iter(listed.split(b"\0")[:-1])
    settings: list[Setting] = []
    for scope, entry in zip(fields, fields, strict=True):
        key, is_set, value = entry.partition(b"\n")
        settings.append(Setting(scope.decode(), os.fsdecode(key), os.fsdecode(value) if is_set else None))
    return settings


@contextmanager
def view_of(git_dir: Path, common_dir: Path, settings: Iterable[Setting], place: Path) -> Iterator[View]:
    """Yield a view of a repository, in a temporary directory below `place`.

    Agents must not be able to write to `place`: a changed view could make git run any program.
    """
    with temporary_directory(place, "git-view") as name:
        directory = Path(name)
        _link_content(git_dir, common_dir, directory)
        settings = list(settings)
        configuration, refused = _configuration(settings)
        (directory / "config").write_bytes(os.fsencode(configuration))
        includes = any(setting.key.startswith(("include.", "includeif.")) for setting in settings)
        named = (setting.value or "" for setting in settings if setting.key == "core.excludesfile")
        yield View(directory, refused, None if includes else tuple(named))


def _configuration(settings: list[Setting]) -> tuple[str, frozenset[str]]:
    """Return a configuration with only the harmless settings, and the names of the filters that do not run."""
    named = [(setting, FILTER.match(setting.key)) for setting in settings]
    users_filters = {found["name"] for setting, found in named if found and setting.scope in USERS}
    own_filters = {found["name"] for setting, found in named if found and setting.scope in REPOSITORYS} - users_filters
    lines: list[str] = []
    for setting, is_filter in named:
        is_data = setting.key in _DATA or _DATA_WITH_NAMES.match(setting.key)
        if (is_data and setting.scope in REPOSITORYS) or ((is_data or is_filter) and setting.scope in USERS):
            lines.append(_line(setting.key, setting.value))
        driver = _MERGE_DRIVER.match(setting.key)
        if driver and setting.scope in REPOSITORYS:
            # Otherwise git would merge such a file as text.
            lines.append(_line(setting.key, "false"))
    for name in sorted(own_filters):
        # Both are there and empty: git takes a filter without any for one that is not there, and writes the file as it is.
        lines += [_line(f"filter.{name}.{key}", value) for key, value in REFUSED_FILTER.items()]
    return "".join(lines), frozenset(own_filters)


def _line(key: str, value: str | None) -> str:
    section, _, rest = key.partition(".")
    name, _, variable = rest.rpartition(".")
    quoted = f' "{_escaped(name)}"' if name else ""
    content = "" if value is None else ' = "' + _escaped(value).replace("\n", "\\n").replace("\t", "\\t") + '"'
    return f"[{section}{quoted}]\n\t{variable}{content}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _link_content(git_dir: Path, common_dir: Path, view: Path) -> None:
    """Link the contents of the git directory. Files of a linked worktree take precedence over shared ones."""
    is_linked = git_dir != common_dir
    entries = {entry.name: entry for entry in _entries(common_dir)}
    entries |= {entry.name: entry for entry in _entries(git_dir) if entry.name not in ("refs", "logs")}
    for name, entry in entries.items():
        if name not in _NOT_LINKED and not name.endswith(".lock"):
            _link(entry, view / name)
    (view / "info").mkdir()
    info = {entry.name: entry for entry in _entries(common_dir / "info")}
    if is_linked:
        info.pop("sparse-checkout", None)
        info |= {entry.name: entry for entry in _entries(git_dir / "info")}
    attributes = info.pop("attributes", None)
    for name, entry in info.items():
        _link(entry, view / "info" / name)
    own = attributes.read_bytes() if attributes is not None and attributes.is_file() else b""
    (view / "info" / "attributes").write_bytes(own + _SHOW_ALL)
    head = git_dir / "HEAD"
    if head.is_symlink():
        (view / "HEAD").symlink_to(head.readlink())
    else:
        (view / "HEAD").write_bytes(head.read_bytes())  # git takes no link to another place for a HEAD


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _link(target: Path, link: Path) -> None:
    if os.name == "posix":
        link.symlink_to(target)
    elif target.is_dir():  # Windows restricts links, but anyone may create junctions
        import _winapi

        _winapi.CreateJunction(str(target), str(link))  # type: ignore[attr-defined]
    else:
        shutil.copy2(target, link)


# --- which repository -------------------------------------------------------------------------------------------------

# Location of a git repository, seen from a directory inside it.


def repository_root(directory: Path | str) -> Path | None:
    """Return the root of the repository around a directory, or None. Never raises.

    A `.git` counts if it is a file (a worktree, a submodule) or has a HEAD: sandboxes leave empty ones behind.
    """
    # Strings, not Path objects: this runs for every turn, and Path is slow. And os.path does not raise without
    # permission.
    for place in upwards(os.fspath(directory)):
        if is_root(place):
            return Path(place)
    return None


# ----------------------------------------------------------------------------------------------------------------------

_GIT_SECONDS: Final = 120
"""Git may have to write a large tree through filters that fetch from the network."""
_SLOW_SECONDS: Final = 5
"""Seconds after which to check whether git is blocked forever."""
_READ_BY_GIT: Final = frozenset([".gitignore", ".gitattributes", ".gitmodules", ".mailmap"])

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
"""Variables of git that are kept.

If a git hook started Helmsman, the others name another repository. Files and directories that a session can write are
dropped too: git would start programs from them.
"""


_LOOKS_INTO_SUBMODULES: Final = frozenset({"status", "diff", "diff-files", "diff-index"})
"""Commands that run git in each submodule, with its configuration, unless `--ignore-submodules` forbids it.

`.gitmodules` is untrusted, and may ask for it.
"""

_ANY: Final = range(256)
_ANY_END: Final = range(-64, 256)
"""Also by a signal."""
_LIST_SETTINGS: Final = ("config", "-z", "--list", "--show-scope")


SUBMODULE: Final = "160000"
"""Mode of a submodule in a tree."""


class TreeDifference(NamedTuple):
    """Path on which two trees differ, with modes and objects. Those of a side without the path are zeros."""

    path: str
    old_mode: str
    new_mode: str
    old_id: str
    new_id: str

    @property
    def is_deletion(self) -> bool:
        return self.new_mode.strip("0") == ""

    @property
    def is_submodule(self) -> bool:
        return SUBMODULE in (self.old_mode, self.new_mode)


class Git(Value, frozen=True, kw_only=True):
    """Working tree with its git directory. `index` and `objects` replace the repository's own, if given.

    `place` is where views are created: the state directory. `view` is an existing view (`viewed`). `variables` are
    added to git's environment.
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
        """Run git in the working tree. Raise for exit codes that are not accepted. Read a file given as `stdin` from
        its current position.

        With `most_memory`, git fails if it needs more bytes of memory (Linux only).

        Raises:
            WorktreeError: Git cannot be run, does not end, or fails; or a file needs a filter of the repository.
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
        """Write git's output to a file. Return False if it is more than `most` bytes, of which no more are written.

        Raises:
            WorktreeError: Git cannot be run, does not end, or fails.
        """
        if self.view is None:
            with self.viewed() as git:
                return git.write(*arguments, stdin=stdin, into=into, most=most)
        into.flush()
        largest = into.tell() + most
        variables = self._variables(self.view)
        answer = _run(arguments, self.work_tree, variables, stdin=stdin, accept=_ANY_END, into=into, largest=largest)
        size = os.fstat(into.fileno()).st_size
        if size > largest or (answer.code and size == largest):
            return False
        answer.checked(arguments, self.work_tree, (0,))
        return True

    def run_unviewed(self, *arguments: str) -> GitAnswer:
        """Run git under the repository's whole configuration: only what reads and writes no file of the tree.

        Hooks are what could be run, those in files and, since git 2.54, those in the configuration.
        """
        hooks = {f"hook.{name}.enabled": "false" for name in self._configured_hooks()}
        variables = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.work_tree), **_as_variables(hooks)}
        return _run(arguments, self.work_tree, variables)

    def ask(self, *arguments: str) -> str | None:
        """Return git's output, or None if it is empty."""
        answer = self.run(*arguments, accept=_ANY)
        return answer.output.decode("utf-8", "replace").strip() or None if answer.code == 0 else None

    @contextmanager
    def viewed(self) -> Iterator[Git]:
        """Yield the same repository with one view for the whole block.

        Changes of HEAD by other processes are not seen during the block.
        """
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
        """Return the one value that git answers with."""
        return one_value(self.run(*arguments).output)

    def names(self, *arguments: str) -> list[str]:
        """Return the NUL-separated entries of git's output: paths and their prefixes."""
        return [os.fsdecode(name) for name in self.run(*arguments).output.split(b"\0") if name]

    def differences(self, before: str, after: str) -> list[TreeDifference]:
        """Return the paths on which two trees differ. A rename is a deletion and an addition."""
        raw = self.names("diff-tree", "-r", "--no-renames", "--ignore-submodules=none", "--raw", "-z", before, after)
        return [
            TreeDifference(path, *about.removeprefix(":").split(" ")[:4])
            for about, path in zip(raw[::2], raw[1::2], strict=True)
        ]

    def has(self, revision: str) -> bool:
        return self.run("rev-parse", "--verify", "--quiet", revision, accept=(0, 1, 128)).code == 0

    def commit(self, name: str) -> str | None:
        """Return the id of a commit by its name; None if there is none."""
        sought = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        try:
            answer = self.run(*sought, accept=(0, 1, 128))
        except ValueError:  # half of a surrogate pair or a NUL cannot even be asked for
            return None
        return None if answer.code else one_value(answer.output)

    @property
    def common_dir(self) -> Path:
        """Git directory that all worktrees of the repository share."""
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
        """Return the same with those that attributes may choose not run: a file that needs one is then a conflict."""
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
    """Return the working tree around a directory as git finds it, or None outside of one or in a bare repository.

    `place` is the state directory.

    Raises:
        WorktreeError: Git refuses to use the repository.
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
            answer.checked(("rev-parse",), directory, (0,))  # raises with git's message
        return None
    if len(paths) != len(asked):  # a newline in a path: the paths cannot be told apart
        paths = [_run(("rev-parse", what), directory).output.removesuffix(b"\n") for what in asked]
    root, git_dir = (Path(os.fsdecode(path)) for path in paths)
    return Git(work_tree=root, git_dir=git_dir, place=place)


def init_bare(path: Path, object_format: str, place: Path) -> Git:
    """Create a repository without a working tree and without templates, unless it exists, and return it."""
    if not (path / "HEAD").is_file():
        options = ("--bare", "--quiet", "--template=", f"--object-format={object_format}")
        _run(("init", *options, "--initial-branch=none", str(path)), path.parent)
    return Git(work_tree=path, git_dir=path, place=place)


def settings_around(directory: Path) -> list[Setting]:
    """Return git's whole configuration for a directory; empty without git, or if git refuses to work there."""
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
    """Return a git directory that encloses a directory more closely than any working tree does."""
    for place in (directory, *directory.parents):
        if (place / ".git").exists():
            return None
        if (place / "HEAD").is_file() and (place / "objects").is_dir() and (place / "refs").is_dir():
            return place
    return None


def current_branch(directory: Path) -> str | None:
    """Return the branch that is checked out around a directory, or None without a branch."""
    try:
        answer = _run(("symbolic-ref", "--quiet", "--short", "HEAD"), directory, accept=_ANY)
    except (WorktreeError, ProgramRefused):
        return None
    return one_value(answer.output) or None if answer.code == 0 else None


def _check_filters(answer: GitAnswer, view: View) -> None:
    """Raise a clearer error if git failed because a filter was not available."""
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
    """Return what git printed, without the end of its line: a path may itself end with a newline."""
    return os.fsdecode(output.removesuffix(b"\n"))


def pager() -> str | None:
    """Return the pager of the user's own git configuration, or None.

    A repository's configuration is ignored: it must not choose a program to run.
    """
    known = caller_context.environment()
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
    into: IO[bytes] | None = None,
    largest: int | None = None,
) -> GitAnswer:
    given = subprocess.PIPE if isinstance(stdin, bytes) else stdin
    with _popen(arguments, folder, variables, given, into or subprocess.PIPE, _limits(most_memory, largest)) as child:
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
    return GitAnswer(child.returncode, output or b"", complaint).checked(arguments, folder, accept)


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
    stdout: int | IO[bytes],
    limits: Mapping[int, int],
) -> subprocess.Popen[bytes]:
    known = caller_context.environment()
    program = find_program("git", known)
    if program is None:
        raise WorktreeError("There is no git on PATH, and this needs it. Install git.")
    environment = {
        name: value
        for name, value in environment_for(caller_context.for_others(known)).items()
        if not name.startswith("GIT_") or (name in _KEPT_VARIABLES and is_out_of_reach(value, known))
    }
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}
    environment["LANGUAGE"] = "en"  # git's messages are parsed; other programs keep their language
    environment |= variables or _as_variables({})
    try:
        return subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,  # filters are its children: they end with it
            umask=caller_context.umask_in(known),
            # In the child, before git runs: a limit set by the parent could come too late.
            preexec_fn=partial(_set_limits, limits) if limits else None,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WorktreeError(f"git {arguments[0]} could not be run: {error}. Try it by hand in {folder}.") from error


def _limits(most_memory: int | None, largest: int | None) -> dict[int, int]:
    """Return the limits of a process: its memory (Linux only), and the size of files that it writes."""
    limits: dict[int, int] = {}
    if sys.platform == "linux" and most_memory is not None:
        limits[resource.RLIMIT_AS] = most_memory
    if sys.platform != "win32" and largest is not None:
        # The system kills a process that writes more, and shall not keep its memory.
        limits |= {resource.RLIMIT_FSIZE: largest, resource.RLIMIT_CORE: 0}
    return limits


def _set_limits(limits: Mapping[int, int]) -> None:
    for name, most in limits.items():
        resource.setrlimit(name, (most, most))


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End git and its filters. Asked to end, it removes its lock files; killed immediately, it would leave them."""
    if os.name != "posix":
        child.kill()
        return
    end_group(child.pid, child.poll)


def _last_words(complaint: bytes, code: int) -> str:
    """Return the useful part of git's error output: the last line, and the first error, which is often the cause."""
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error:", "fatal:"))]
    told = dict.fromkeys((*errors[:1], *lines[-1:]))
    return "; ".join(told).rstrip(".") or f"exit {code}"


def _as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as environment variables, which override all files.

    Unlike with `-c`, a name may hold any character.
    """
    return _numbered(_SETTINGS | dict(settings))


def _numbered(settings: Mapping[str, str], first: int = 0) -> dict[str, str]:
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (name, value) in enumerate(settings.items(), first):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _quoted(path: Path) -> str:
    """Return a path in a list that is separated by colons, the way C writes text."""
    safe = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03o}" for byte in os.fsencode(path)
    )
    return f'"{safe}"'


# Environment for the git that agents run.
#
# Agents run git on their own, and git runs the programs that a repository's configuration names. An agent works in
# the repository itself, so it cannot be given a view (`git_view.py`). Instead, environment variables override each
# setting that names a program, unless the user's own configuration names the same one. Hooks stay: they belong to
# commands that change something, which need approval.


_ALWAYS: Final = {
    "core.fsmonitor": "false",
    "log.showSignature": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",  # a directory that looks like a git directory may be files of the tree
}
"""Set always, also for repositories that the agent finds later."""
_SHOWING: Final = re.compile(r"(diff\..+\.textconv|core\.pager|pager\..+)\Z", re.DOTALL)
"""Programs that only display content. They are replaced by the plain content."""
_PROGRAM: Final = re.compile(
    r"""(
        alias\..+ | core\.(askpass|editor|gitproxy|sshcommand|alternaterefscommand)
        | diff\.external | credential\.(.+\.)?helper | gpg\.(.+\.)?(program|defaultkeycommand) | hook\..+\.command
        | remote\..+\.(uploadpack|receivepack|vcs) | (sequence|gui)\.editor | interactive\.difffilter
        | (web|help|instaweb)\.browser | man\.viewer | .+\.(cmd|command|driver|packobjectshook|tunnel)
    )\Z""",
    re.VERBOSE | re.DOTALL,
)
_NO_PROGRAM: Final = "false"
"""Program that always fails. Git then reports the setting."""
_LAZY: Final = re.compile(r"(extensions\.partialclone|remote\..+\.promisor)\Z", re.DOTALL)


def careful_environment(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return an environment in which git runs no program that the repository around a directory names.

    Blocks, briefly.
    """
    settings = settings_around(directory)
    pairs = _ALWAYS | _instead(settings)
    given = env.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    made = {**env, **_numbered(pairs, first), "GIT_OPTIONAL_LOCKS": "0"}
    if any(_LAZY.match(setting.key) for setting in settings if setting.scope in REPOSITORYS):
        made["GIT_NO_LAZY_FETCH"] = "1"  # git would fetch missing objects with a program that the remote names
    return made


def _instead(settings: Iterable[Setting]) -> dict[str, str]:
    """Return replacements for the programs that a repository names: the user's own, or none."""
    own: dict[str, str] = {}
    named: dict[str, str] = {}
    for setting in settings:
        if setting.scope in USERS:
            own[setting.key] = setting.value or ""
        elif setting.scope in REPOSITORYS:
            if found := FILTER.match(setting.key):
                # One that is required and fails: without it files would silently get other content.
                named |= {f"filter.{found['name']}.{key}": value for key, value in REFUSED_FILTER.items()}
                named[f"filter.{found['name']}.process"] = ""
            elif _SHOWING.match(setting.key):
                named[setting.key] = "cat"
            elif _PROGRAM.match(setting.key):
                named[setting.key] = _NO_PROGRAM
    return {name: own.get(name, value) for name, value in named.items()}
