"""Find the changed files that belong to a check: those that it runs, is configured by, or could load as its programs.

A change is checked with these files as they were before it, and without new ones. They are found by four means:

- names: tests, runner configuration, scripts, installed programs, version files;
- words: the files that the command names, and in turn the files that those name, if the check opened them;
- reads: executables opened before the first test, and Python files imported before those of the project;
- shadows: new files that Python or a shell would load instead of an installed one.

No rule about files finds every manipulated check, because the check's process also loads code, helpers and expected
data. `remarks` lists doubtful files for a person.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import shutil
import sys
import tomllib
import unicodedata
from configparser import Error as ConfigError
from configparser import RawConfigParser
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

from helmsman.base.json_values import json_object
from helmsman.base.sanitize import word_set

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

OwnKind = Literal["test", "how"]
"""Test, or file that controls how tests run."""

_NAMES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Patterns, and words in a text."""


def _pattern(name: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(_NAMES[name])})", flags)


_HOW: Final = _pattern("how", re.IGNORECASE)
_TEST: Final = _pattern("tests")
_TEST_FOLDERS: Final = word_set(_NAMES["test_folders"])
_SCRIPT_FOLDERS: Final = word_set(_NAMES["script_folders"])
_TOOL_FOLDERS: Final = word_set(_NAMES["tool_folders"])
_INSTALLED_SUFFIXES: Final = (".dist-info", ".egg-info", ".egg-link", ".pth", "._pth", ".egg")
_RUNNERS: Final = word_set(_NAMES["runners"])
_COMPILED: Final = word_set(_NAMES["compiled"])
_PATH_WORD: Final = re.compile(r"[\w.@+/~<>-]+")
_MODULE_WORD: Final = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\b|(?<=-p )\w+|(?<=-m )[\w.]+")
_IMPORT: Final = re.compile(r"^\s*(?:from\s+(\.*[\w.]*)\s+import\s+([\w, ()*]+)|import\s+([\w., ]+))", re.MULTILINE)
_PLUGINS: Final = re.compile(r"pytest_plugins\s*(?::[^=\n]+)?=\s*([\[(]?[^\])\n]*(?:\n[^\])]*)?)")
_CONFIG_KEYS: Final = word_set(_NAMES["config_keys"])
_READERS: Final = re.compile(
    r"[\s@+-]*(?:(?:uv|poetry|pipenv|pdm|hatch|npx|yarn|pnpm)\s+(?:run\s+)?|\S*python[\d.]*\s+-m\s+)*"
    rf"{_pattern('readers').pattern}(?:\s|$)"
)
_SCRIPTS: Final = word_set(_NAMES["scripts"])
_READ_BYTES: Final = 256 * 1024
_MOST_NAMED: Final = 500


@dataclass(frozen=True, slots=True)
class OwnFile:
    """Changed file of a check, with its status and the reason: `A` added, `M` modified, `D` deleted, `T` type changed."""

    path: str
    kind: OwnKind
    status: str
    why: str = "its name says so"

    @property
    def in_words(self) -> str:
        what = {"A": "is new", "D": "was deleted"}.get(self.status, "was changed")
        return f"{self.path} {what} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFiles:
    """Change as input of the rules: paths with their status, and both trees with modes, links and content.

    `modules` lists installed Python modules, `naming` returns the files before the change that contain a word,
    `installed` lists files next to the tree in which the check runs, and `programs` is the PATH of the check.
    """

    changed: Mapping[str, str]
    before: Mapping[str, str]
    after: Mapping[str, str]
    links_before: Mapping[str, str]
    links_after: Mapping[str, str]
    content_before: Callable[[str], bytes | None]
    content_after: Callable[[str], bytes | None]
    naming: Callable[[str], Collection[str]]
    modules: Collection[str] = ()
    installed: Collection[str] = ()
    programs: str | None = None


def own_kind(path: str) -> OwnKind | None:
    """Classify a file of a check by its path; None for a file that is checked."""
    pure = PurePosixPath(path)
    folders = {*pure.parts[:-1]}
    # First, because a conftest.py in a folder of tests controls how they run.
    if _HOW.fullmatch(pure.name) or _SCRIPT_FOLDERS & folders or is_installed(path):
        return "how"
    if _TEST.fullmatch(pure.name) or _TEST_FOLDERS & folders:
        return "test"
    return None


def is_test_name(name: str) -> bool:
    """Return whether a file with this name is a test."""
    return _TEST.fullmatch(name) is not None


def is_installed(path: str) -> bool:
    """Return whether a path is in a directory of installed programs, or one that Python reads to find them."""
    parts = PurePosixPath(path).parts
    return bool(_TOOL_FOLDERS & {*parts}) or any(part.casefold().endswith(_INSTALLED_SUFFIXES) for part in parts)


def shadows(path: str, files: Collection[str], modules: Collection[str] = ()) -> bool:
    """Return whether Python could import a file instead of the standard library, a runner or an installed module."""
    pure = PurePosixPath(path)
    if pure.suffix not in (".py", ".pyc", ".pyd", ".so") and ".so." not in pure.name:
        return False
    place, name = pure.parent, pure.name.partition(".")[0]
    if name == "__init__":
        place, name = place.parent, place.name
    is_in_package = place.parts and str(place / "__init__.py") in files
    return not is_in_package and (name in _RUNNERS or name in sys.stdlib_module_names or name in modules)


# Inside a package, an absolute import does not find it.
def own_files_in(change: ChangedFiles) -> tuple[OwnFile, ...]:
    """Return the changed files that belong to a check by name, or because they shadow others."""
    found = ((path, _kind(change, path, status), status) for path, status in sorted(change.changed.items()))
    return tuple(OwnFile(path, kind[0], status, kind[1]) for path, kind, status in found if kind is not None)


def _kind(change: ChangedFiles, path: str, status: str) -> tuple[OwnKind, str] | None:
    for link, target in change.links_before.items():
        if f"{path}/".startswith(f"{target}/") and (kind := own_kind(link + path[len(target) :])) is not None:
            return kind, f"{link} leads to it"
    if (kind := own_kind(path)) is not None:
        return kind, "programs are installed there" if is_installed(path) else "its name says so"
    if path in change.installed:
        return "how", "it stands in place of an installed file"
    leads = change.links_after.get(path)
    if leads is not None and status != "D":
        if leads.startswith(("/", "..")):
            return "how", "it is a link that leads out of the repository"
        if any(own_kind(one) is not None for one in (leads, f"{leads}/x")) or own_kind(f"{path}/x") is not None:
            return "how", f"it is a link to {leads}"
    # Only a new file can be loaded in place of something else.
    if status in ("A", "T"):
        if shadows(path, change.before.keys(), change.modules):
            return "how", "Python could load it in place of an installed module"
        if (module := _loaded_as(path)) is not None and any(
            _loaded_as(one) == module and own_kind(one) is not None for one in change.before if one != path
        ):
            return "how", "a runner could load it in place of a file of the check"
        if _is_program(change, path) and shutil.which(PurePosixPath(path).name, path=change.programs) is not None:
            return "how", "a shell could run it in place of an installed program"
        # Some file systems ignore case or normalize names, and open the one file for the other.
        folded = _folded(path)
        if any(_folded(one) == folded for one in change.before if one != path and len(one) == len(path)):
            return "how", "another file has this name but for its spelling"
        if own_kind(f"{path}/x") is not None and any(one.startswith(f"{path}/") for one in change.before):
            return "how", "it stands in place of a folder of the check"
    return None


_LOADED: Final = (".py", ".pyc", ".pyd", ".so", ".js", ".mjs", ".cjs", ".ts", ".mts", "")


def _loaded_as(path: str) -> str | None:
    """Return the import name of a file: its path without endings; None for other files than code."""
    pure = PurePosixPath(path)
    if pure.suffix not in _LOADED:
        return None
    if pure.stem in ("__init__", "index"):
        return str(pure.parent)
    # The name of a compiled module also holds the version of Python that loads it.
    name = pure.name.partition(".")[0] if pure.suffix in (".so", ".pyd", ".pyc") else pure.stem
    return str(pure.with_name(name))


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", path).casefold()


def _is_program(change: ChangedFiles, path: str) -> bool:
    """Return whether a shell would run a file: it is executable, or has a shebang."""
    if "100755" in (change.after.get(path), change.before.get(path)):
        return True
    return any(
        (content or b"").startswith(b"#!") for content in (change.content_after(path), change.content_before(path))
    )


def installed_modules(command: str, programs: str | None) -> frozenset[str]:
    """Return the modules installed for the Pythons of a command and of a PATH. Reads directories; blocks."""
    words = [word for word in words_of(command) if PurePosixPath(word).name.startswith("python")]
    found = (shutil.which(word, path=programs) for word in dict.fromkeys([*words, "python", "python3"]))
    names: set[str] = set()
    # The Python of a virtual environment is a link. Its modules count, and those of the Python behind it.
    for program in {one for each in found if each is not None for one in (Path(each), Path(each).resolve())}:
        root = program.parent.parent
        roots = [root, *root.glob("versions/*")]  # pyenv, which uses scripts as programs
        for folder in (one for place in roots for one in place.glob("lib/python3*/*-packages")):
            names |= {entry.name.partition(".")[0] for entry in folder.iterdir() if not entry.name.endswith("-info")}
    return frozenset(names)


# --- files named by the command --------------------------------------------------------------------------------------


def words_of(command: str) -> list[str]:
    """Return the words of a command, including those of quoted commands inside it."""
    try:
        words = shlex.split(command, comments=False)
    # An unbalanced quote must not hide the words of a command.
    except ValueError:
        words = command.split()
    # `$DIR/run.sh` may name a file of the repository, so look for it without the variable.
    plain = [re.sub(r"\$\{?\w+\}?/", "", word) for word in words]
    apart = [part for word in plain for part in re.split(r"[;&|()<>\s`$]+", word)]
    return [part for part in apart if part]


def _paths_of(words: Iterable[str], places: Sequence[str]) -> Iterator[str]:
    """Yield the paths that words may refer to, relative to these directories."""
    for word in words:
        # pytest appends `::test` to a path, and options put `=` before it.
        for part in {word, *re.split(r"[=:,]", word.partition("::")[0])}:
            plain = part.strip("'\"").replace("<rootDir>/", "")
            if plain and not plain.startswith("/"):
                yield from (posixpath.normpath(posixpath.join(place, plain)) for place in places)


def _modules_of(names: Iterable[str], places: Sequence[str]) -> Iterator[str]:
    """Yield the files that Python module names may refer to."""
    for name in names:
        parts = [part for part in name.split(".") if part]
        for count in range(len(parts), 0, -1):
            below = "/".join(parts[:count])
            endings = (".py", "/__init__.py", "/__main__.py") if count == len(parts) else ("/__init__.py",)
            for place in (*places, *(posixpath.join(place, "src") for place in places)):
                yield from (posixpath.normpath(posixpath.join(place, below + ending)) for ending in endings)


def _named_by_command(change: ChangedFiles, command: str, folder: str) -> set[str]:
    words = words_of(command)
    folders = {posixpath.dirname(path) for path in change.before}
    below = [one for one in _paths_of(words, (folder, "")) if one in folders]
    places = (folder, "", *below)  # after `cd` into one of them
    named = {*_paths_of(words, places)}
    patterns = [one for one in named if re.search(r"[*?\[]", one)]
    named |= {path for path in (*change.changed, *change.before) if any(fnmatch(path, one) for one in patterns)}
    # invoke loads tasks.py without being told its name.
    if words and words[0] in ("inv", "invoke"):
        named |= {posixpath.join(place, "tasks.py") for place in places}
    modules = [word for before, word in pairwise(words) if before in ("-m", "-p", "import", "from")]
    named |= {one for one in _modules_of(modules, places) if not one.endswith("/__init__.py") or len(modules) == 0}
    return named


def files_of_check(change: ChangedFiles, command: str, folder: str, reads: Sequence[str] | None) -> tuple[OwnFile, ...]:
    """Return the changed files of a check. `reads` lists the files that a run opened, in order; None if unknown."""
    held = {one.path: one for one in own_files_in(change)}

    def hold(path: str, why: str) -> None:
        if path in change.changed and path not in held:
            held[path] = OwnFile(path, "how", change.changed[path], why)

    command_files = _named_by_command(change, command, folder)
    for path in sorted(command_files):
        hold(path, "the command names it")
    first_test = _first_test(change, reads, command_files)
    early = None if reads is None else set(reads if first_test is None else reads[:first_test])
    for path, why in _named_by_check(change, command_files, folder, early, reads, has_tests=first_test is not None):
        hold(path, why)
    if reads is not None:
        for path in reads[: first_test or 0]:
            if path in change.changed and _is_program(change, path):
                hold(path, "it was run before the first test")
        for path in reads:
            if path.endswith(".py"):
                if change.changed.get(path) != "A":
                    break
                hold(path, "it was loaded before any file of the project")
    for path, status in change.changed.items():  # remove files that block a restored file of the check
        if status in ("A", "T") and any(one.startswith(f"{path}/") for one in held if change.changed[one] != "A"):
            hold(path, "it stands in place of a folder of the check")
    return tuple(held[path] for path in sorted(held))


def _first_test(change: ChangedFiles, reads: Sequence[str] | None, named: Collection[str]) -> int | None:
    for place, path in enumerate(reads or ()):
        if path not in change.changed and path not in named and _TEST.fullmatch(PurePosixPath(path).name):
            return place
    return None


def _named_by_check(
    change: ChangedFiles,
    command_files: Collection[str],
    folder: str,
    early: Collection[str] | None,
    reads: Collection[str] | None,
    *,
    has_tests: bool,
) -> Iterator[tuple[str, str]]:
    """Yield changed files that files of the check named before the change, if the check opened them.

    Files named by a script count if they were opened before the first test; those named by a runner's configuration
    always count.
    """

    def opened(path: str, naming: str) -> bool:
        return early is None or path in early or (_is_configuration(naming) and path in (reads or ()))

    start = [path for path in command_files if path in change.before]
    configured = [path for path in change.before if own_kind(path) == "how" and not is_installed(path)]
    waiting = [*start, *(path for path in configured if early is None or path in early)][:_MOST_NAMED]
    seen = {*waiting}
    while waiting:
        naming = waiting.pop(0)
        text = (change.content_before(naming) or b"")[:_READ_BYTES].decode("utf-8", "replace")
        is_run = naming in command_files
        for path in _named_in(naming, text, folder, has_tests=has_tests, is_run=is_run):
            if path == naming or PurePosixPath(path).suffix in _COMPILED:
                continue
            is_new = path in change.changed and path not in change.before  # no earlier run can have opened it
            if path in change.changed and (is_new or opened(path, naming)):
                yield path, f"{naming} names it"
            if path in change.before and path not in seen and len(seen) < _MOST_NAMED and opened(path, naming):
                seen.add(path)
                waiting.append(path)


def _named_in(naming: str, text: str, folder: str, *, has_tests: bool, is_run: bool) -> set[str]:
    pure, own = PurePosixPath(naming), posixpath.dirname(naming)
    places = tuple(dict.fromkeys((own, folder, "")))
    plugins = " ".join(_PLUGINS.findall(text)) if pure.suffix == ".py" else ""
    found = {*_modules_of(re.findall(r"[\w.]+", plugins), places)}
    if pure.suffix in _SCRIPTS and not _is_configuration(naming):
        if pure.name == "conftest.py" or (own_kind(naming) == "test" and not is_run) or not has_tests:
            return found  # it mostly loads the code under test
        for origin, names, plain in _IMPORT.findall(text):
            modules = [one.split(" as ")[0].strip(" ()") for one in (plain or names).split(",")]
            if origin:
                modules = [origin, *(f"{origin}.{one}" for one in modules)]
            found |= {*_modules_of(modules, places)}
        return found | {*_paths_of(re.findall(r"['\"]([\w./-]+)['\"]", text), places)}
    if pure.suffix == ".md" or (own_kind(naming) == "test" and not is_run):
        return found
    text = _relevant(pure.name, text)
    found |= {*_modules_of(_MODULE_WORD.findall(text), places)} if pure.suffix in (".toml", ".cfg", ".ini") else set()
    return found | {*_paths_of(_PATH_WORD.findall(text), places)}


def _is_configuration(path: str) -> bool:
    """Return whether a file configures a runner, which loads the files named in it without a shell."""
    pure = PurePosixPath(path)
    return pure.suffix not in ("", ".py", ".sh", ".bash", ".mk", ".bats") and _HOW.fullmatch(pure.name) is not None


def _relevant(name: str, text: str) -> str:
    """Return the part of a configuration that concerns running; other parts name the code itself."""
    if name == "package.json":
        # JSON puts backslashes before quotes, and they would become part of the words.
        content = json_object(text) or {}
        return json.dumps({key: value for key, value in content.items() if key in _CONFIG_KEYS}).replace("\\", "")
    if name in ("pyproject.toml", "Cargo.toml"):
        try:
            tool = tomllib.loads(text).get("tool", {})
        # A file that cannot be parsed is searched as a whole: rather too many files than too few.
        except (ValueError, RecursionError):
            return text
        return json.dumps(
            {key: tool[key] for key in ("pytest", "tox", "nox", "coverage", "hatch") if key in tool}, default=str
        )
    if name == "setup.cfg":
        parser = RawConfigParser()
        try:
            parser.read_string(text)
        except ConfigError:
            return text
        return " ".join(
            value
            for section in parser.sections()
            if "pytest" in section or "tox" in section
            for _, value in parser[section].items()
        )
    return "\n".join(part for part in re.split(r"\n|&&|\|\||;|\|", text) if not _READERS.match(part))


def as_before(own: Iterable[OwnFile], base: str) -> dict[str, str | None]:
    """Return the changes for `CleanRoom.mixed` that restore the check's files from `base`."""
    return {file.path: None if file.status == "A" else base for file in own}


# --- doubtful files --------------------------------------------------------------------------------------------------

_DATA: Final = word_set(_NAMES["data"])
_SUSPICIOUS: Final = _pattern("suspicious")
_MOST_REMARKS: Final = 12


def remarks(
    change: ChangedFiles, held: Collection[str], reads: Sequence[str] | None, added: Iterable[tuple[str, int, str]]
) -> list[str]:
    """Return remarks on files that may belong to the check, for a person. They never cause a refusal.

    `added` lists added lines of the change: file, number, text.
    """
    rest = [path for path in sorted(change.changed) if path not in held]
    said = [f"{path} is data that the check may compare with." for path in rest if PurePosixPath(path).suffix in _DATA]
    said += [
        f"{path} is a helper of the check, by what imports it: {by}."
        for path in rest
        if (by := _test_that_alone_names(change, path)) is not None
    ]
    if reads is not None and rest and not {*rest} & {*reads}:
        said.append("The check opened none of the changed files.")
    if reads is None:
        said.append("The file system records no reads, so the check's own files were found by names and words alone.")
    lines = [(path, number, text) for path, number, text in added if path not in held and _SUSPICIOUS.search(text)]
    said += [f"{path}:{number} may treat tests in a special way: {text.strip()[:120]}" for path, number, text in lines]
    return said[:_MOST_REMARKS]


def _test_that_alone_names(change: ChangedFiles, path: str) -> str | None:
    """Return a test that names a module which no other code names, if there is one."""
    pure = PurePosixPath(path)
    name = pure.parent.name if pure.stem in ("__init__", "index") else pure.stem
    if pure.suffix not in (".py", ".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx", ".rb") or not name:
        return None
    others = [one for one in change.naming(name) if one != path and PurePosixPath(one).suffix == pure.suffix]
    if any(own_kind(one) is None for one in others):
        return None
    return next((one for one in others if PurePosixPath(one).name == "conftest.py" or "test" in name.casefold()), None)
