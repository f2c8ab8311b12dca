"""View of a repository for git: all of its content, but no configuration that could run a program.

Git runs the programs that a configuration names: filters, hooks, monitors, helpers, transports, and more in later
versions. A repository's configuration is written by its author or by a model, and a list of dangerous keys would never
be complete. So git does not get this configuration. It gets a **view**: a git directory in the state directory, with
links to the repository's objects, references and so on, and a `config` that contains only settings known to be data.
The user's own configuration still applies, so a filter defined there (git-lfs) runs.

The view marks a filter that only the repository defines as required, without a command. Git then refuses to read or
write files that need it. Without the mark, git would silently use other content.

Attributes cannot hide content: `.gitattributes` could declare text binary and make its diff unreadable, so git decides
from the content whether a file is text.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.repositories import is_root, upwards
from helmsman.base.structs import Value
from helmsman.base.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
