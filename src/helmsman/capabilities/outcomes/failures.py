"""Parse the output of a check: failed tests with messages, or the reason why nothing was checked.

Supported formats: pytest, unittest, Node's test runner, Jest, Vitest, go and cargo. For other formats, lines that look
like errors are returned. The output comes from a program of the repository, so it affects displays and comparisons,
never permissions.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST: Final = 200
_MOST_LINES: Final = 500
_BLOCK_CHARS: Final = 20_000
"""Limits against output that is crafted to be slow to parse."""
_MESSAGE_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class TestFailure:
    """Failed test, by the name its runner uses."""

    # Without this, pytest would collect the class, because of its name.
    __test__ = False

    name: str
    message: str = ""


# --- failed tests ----------------------------------------------------------------------------------------------------

_PYTEST: Final = re.compile(r"^(?:FAILED|ERROR) ([^\s:]+\.py(?:::\S.*?)?)(?: - (.*))?$", re.MULTILINE)
_UNITTEST: Final = re.compile(r"^(?:FAIL|ERROR): (\S+) \(([\w.]+)\)", re.MULTILINE)
_UNITTEST_END: Final = re.compile(r"^(?:={20,}|-{70}\nRan \d|(?:FAIL|ERROR): \S+ \()", re.MULTILINE)
_TAP: Final = re.compile(r"^[ \t]*not ok \d+ - (.+?)(?: # (?!SKIP|TODO).*)?$", re.MULTILINE)
_TAP_ERROR: Final = re.compile(r"^\s+error: (?:\|-\n\s+(.*)|['\"](.*?)['\"]$)", re.MULTILINE)
_SPEC: Final = re.compile(r"^[ \t]*✖ (?!failing tests)(.+?) \([\d.]+ms\)$", re.MULTILINE)
_JEST: Final = re.compile(r"^ {2}● (.+ › .+|(?!Console|Test suite).+)$", re.MULTILINE)
_VITEST: Final = re.compile(r"^ *(?:FAIL|×|❯) +(?:\S+ +)??(\S+\.[cm]?[jt]sx? > .+?)(?: \d+ms)?$", re.MULTILINE)
_GO: Final = re.compile(r"^[ \t]*--- FAIL: (\S+) \([\d.]+s\)$", re.MULTILINE)
_CARGO: Final = re.compile(r"^test (\S+)(?: - .*?)? \.\.\. FAILED$", re.MULTILINE)
_PANIC: Final = re.compile(r"^---- (.+?) stdout ----\n(.+)\n(.*)", re.MULTILINE)
_NEXT_LINES: Final = 12
_RAISED: Final = re.compile(
    r"^(?:E\s+)?((?:[\w.]+\.)?\w*(?:Error|Exception|Failure|Interrupt|Exit)\b(?: \[\w+\])?(?::.*)?|.*panicked at.*"
    r"|\s+\S+_test\.go:\d+: .*|assertion .* failed.*)$",
    re.MULTILINE,
)


def failed_tests(output: str) -> tuple[TestFailure, ...]:
    """Return the distinct failed tests in order; empty for an unknown format."""
    found: dict[str, str] = {}
    for name, message in (*_pytest(output), *_unittest(output), *_node(output), *_compiled(output)):
        if name not in found or (message and not found[name]):
            found[name] = message[:_MESSAGE_CHARS]
    return tuple(TestFailure(name, message) for name, message in found.items())[:_MOST]


_NODE_FILE: Final = re.compile(
    r"^(?:not ok \d+ - |[ \t]*✖ )(/\S.*?\.[cm]?[jt]sx?|[^\s/:]\S*\.[cm]?[jt]sx?)(?: \([\d.]+ms\))?$", re.MULTILINE
)


def files_without_names(output: str, root: Path) -> list[str]:
    """Return files that Node's test runner reports as failed without naming a test, below the root of the run."""
    found: dict[str, None] = {}
    for match in _first(_NODE_FILE, output):
        path = Path(match[1])
        here = path if path.is_absolute() else root / path
        if here.is_relative_to(root) and ".." not in here.parts and here.is_file():
            found[str(here)] = None
    return [*found]


def _first(pattern: re.Pattern[str], output: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(output), _MOST_LINES)


def _pytest(output: str) -> Iterator[tuple[str, str]]:
    for match in _first(_PYTEST, output):
        collecting = "" if "::" in match[1] else "ERROR collecting it: "  # no test of the file ran
        yield match[1], collecting + (match[2] or "").strip()


def _unittest(output: str) -> Iterator[tuple[str, str]]:
    for match in _first(_UNITTEST, output):
        last = match.end() + _BLOCK_CHARS
        end = _UNITTEST_END.search(output, match.end(), last)
        block = output[match.end() : end.start() if end else last].strip().splitlines()
        where = match[2]
        name = where if where.endswith(f".{match[1]}") else f"{where}.{match[1]}"
        # The last line that looks like an error is the failure itself. Those before it may be its causes.
        yield name, next((line.strip() for line in reversed(block) if _RAISED.match(line.strip())), "")


def _node(output: str) -> Iterator[tuple[str, str]]:
    for match in _first(_TAP, output):
        told = _TAP_ERROR.search(output, match.end(), match.end() + 1500)
        yield match[1], (told[1] or told[2] or "").strip() if told else ""
    for pattern in (_SPEC, _JEST, _VITEST):
        for match in _first(pattern, output):
            yield match[1].strip(), _raised_after(output, match.end())


def _compiled(output: str) -> Iterator[tuple[str, str]]:
    for match in _first(_GO, output):
        yield match[1], _raised_after(output, match.end())
    panics = _panics(output)
    for match in _first(_CARGO, output):
        yield match[1], panics.get(match[1], "")


def _raised_after(output: str, place: int) -> str:
    lines = output[place : place + 4000].splitlines()[1 : 1 + _NEXT_LINES]
    return next((line.strip() for line in lines if _RAISED.match(line) or _RAISED.match(line.strip())), "")


def _panics(output: str) -> dict[str, str]:
    return {
        match[1]: " ".join(part.strip() for part in match.groups()[1:] if part.strip())
        for match in _first(_PANIC, output)
    }


# --- nothing was checked ---------------------------------------------------------------------------------------------

_NOTHING: Final = {
    why: re.compile(f"^.*(?:{'|'.join(signs)}).*$", re.MULTILINE)
    for why, signs in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["nothing"].items()
}
_EMPTY: Final = re.compile(r"^(?:.*\bno tests ran\b.*|Ran 0 tests in .*|NO TESTS RAN.*|(?:#|ℹ) tests 0)$", re.MULTILINE)
"""Messages of runners that find no tests and exit successfully."""
# Exit code of pytest, and of unittest since Python 3.12, if there are no tests.
_NO_TESTS_EXIT: Final = 5
# Exit codes of a shell for a program that cannot be executed, and for one that is not found.
_NOT_FOUND_EXITS: Final = (126, 127)


@dataclass(frozen=True, slots=True)
class NotChecked:
    """Reason why a check is meaningless, and the line that shows it."""

    why: str
    line: str


_NO_PROGRAM: Final = re.compile(
    r"^(?:.*: (?:command )?not found|make(?:\[\d+\])?: \S+: No such file or directory|\S*python\S*: No module named \S+"
    r"|.*\bError 127\b.*|.*: Permission denied)$",
    re.MULTILINE,
)


def missing_program(exit_code: int | None, output: str) -> str | None:
    """Return the line that reports a missing program of a check; None if the check ran."""
    if exit_code in (None, 0) or failed_tests(output):
        return None
    found = _NO_PROGRAM.search(output)
    if exit_code in _NOT_FOUND_EXITS:
        return found[0].strip()[:_MESSAGE_CHARS] if found else f"exit code {exit_code}"
    # Programs print these words for other reasons. They count only with an exit code of the shell.
    if found is None or found[0].endswith(("Permission denied", "not found")):
        return None
    return found[0].strip()[:_MESSAGE_CHARS]


def not_checked(exit_code: int | None, output: str) -> NotChecked | None:
    """Return why a result says nothing about the code: a missing dependency, a failed build, or no tests."""
    if exit_code is None:
        return NotChecked("its time was up", "")
    if exit_code == 0:
        found = _EMPTY.search(output)
        return None if found is None else NotChecked("no tests were run", found[0].strip())
    for why, pattern in _NOTHING.items():
        if (found := pattern.search(output)) is not None:
            return NotChecked(why, found[0].removeprefix("E ").strip()[:_MESSAGE_CHARS])  # pytest marks errors so
    if exit_code in _NOT_FOUND_EXITS:
        return NotChecked("a program could not be run", f"exit code {exit_code}")
    if exit_code == _NO_TESTS_EXIT and not failed_tests(output):
        return NotChecked("no tests were run", f"exit code {exit_code}")
    return None


# --- comparable lines ------------------------------------------------------------------------------------------------

_LOOKS_WRONG: Final = re.compile(
    r"error|exception|fail|assert|panic|fatal|abort|traceback|expected|undefined|not equal|segmentation", re.IGNORECASE
)
_FORMS: Final = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds|secs?)\b"), "…s"),
    (re.compile(r"(?:/[\w.@+-]+)+/"), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*"), "…"),
    (re.compile(r"\s+"), " "),
)


def normalised(text: str) -> str:
    """Remove parts that differ between runs: times, addresses, directories, whitespace."""
    for pattern, form in _FORMS:
        text = pattern.sub(form, text)
    return text.strip()


def error_lines(output: str) -> tuple[str, ...]:
    """Return the distinct lines that look like errors, normalized."""
    looking = (normalised(line)[:_MESSAGE_CHARS] for line in output.splitlines() if _LOOKS_WRONG.search(line))
    return tuple(dict.fromkeys(line for line in looking if line))[:_MOST]
