"""Compare what Python functions return before and after a refactoring, in the clean room.

The tests of the repository run once on the code before, and `probe` records how they call the public functions that the
change touches. Then the recorded calls, and others that Hypothesis generates, run on the code before and after. A call that
returned something before and returns something else after is a counterexample. Calls that raised before do not count: they
may be outside of what the function promises.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
import stat
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio.to_thread
import msgspec

from helmsman.base.structs import Value
from helmsman.capabilities.outcomes.check_files import own_kind
from helmsman.capabilities.outcomes.claims import Evidence, Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.outcomes.experiments import Experiment

T = TypeVar("T")
_Outcome = tuple[str, str, str]
"""`value` or `raises`, the result or error, and the arguments after the call."""
_FOLDER: Final = ".helmsman-probe"
_PROBE: Final = Path(__file__).with_name("probe.py")
_SECONDS: Final = 120.0
_SLOW_SECONDS: Final = 60.0
"""Checks that take longer are not run once more with a recorder."""
_READ_BYTES: Final = 16 * 1024 * 1024
_SHOWN_CHARS: Final = 200
_MOST_SHOWN: Final = 5
_MISSING: Final = ("raises", "ImportError", "")


class _Function(Value, frozen=True, kw_only=True):
    """Function with calls, and their outcomes once they were made."""

    module: str
    name: str
    calls: list[dict[str, str]]
    outcomes: tuple[_Outcome, ...] = ()


class _Recording(Value, frozen=True, kw_only=True):
    """Calls that a process made, with its Python and the path of that."""

    python: str
    path: list[str]
    functions: list[_Function]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison: the functions, the number of calls, and those that differ (`call`, `before`, `after`)."""

    functions: Sequence[str] = ()
    calls: int = 0
    counterexamples: Sequence[Mapping[str, str]] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"functions": [*self.functions], "calls": self.calls, "counterexamples": [*self.counterexamples]}

    @property
    def verdict(self) -> Verdict:
        """Evidence of the comparison; none if nothing was compared."""
        if not self.functions:
            return Verdict()
        if not self.counterexamples:
            names = ", ".join(self.functions[:_MOST_SHOWN])
            what = f"For {self.calls} calls, touched functions return what they returned before: {names}."
            return verdict([Evidence(ok=True, what=what)])
        return verdict(
            Evidence(ok=False, what=f"{one['call']} {one['before']} before the change, and {one['after']} after it.")
            for one in self.counterexamples[:_MOST_SHOWN]
        )


def touched_functions(before: bytes, after: bytes) -> list[str]:
    """Return the public functions of a module with the same parameters and other bodies."""
    try:
        old, new = _functions(before), _functions(after)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [name for name in old if name in new and old[name][0] == new[name][0] and old[name][1] != new[name][1]]


def _functions(content: bytes) -> dict[str, tuple[str, str]]:
    return {
        node.name: (ast.dump(node.args), "".join(map(ast.dump, node.body)))
        for node in ast.parse(content).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


async def compare(checks: Experiment, command: str, seconds: float) -> Comparison:
    """Compare the touched functions of a change; `seconds` is how long the check takes."""
    changed = [path for path in await checks.changed() if path.endswith(".py") and own_kind(path) is None]
    targets = {
        path: names
        for path in changed
        if (names := touched_functions(*[one or b"" for one in await checks.both(path)]))
    }
    if not targets or seconds > _SLOW_SECONDS:
        return Comparison()
    probe = await anyio.to_thread.run_sync(_PROBE.read_bytes)
    put = {"sitecustomize.py": probe, "targets.json": json.dumps(targets).encode()}
    path = f"{checks.room_path / _FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"
    recorded = await _run(
        checks, "before", f'export PYTHONPATH="{path}"; {command}', command, put, "calls-*.json", _Recording
    )
    functions = _merged(recorded)
    if not functions:
        return Comparison()
    told: list[list[_Function]] = []
    for place in ("before", "after"):
        # Without the outcomes before the change, which the code after it could repeat.
        calls = [{"module": one.module, "name": one.name, "calls": one.calls} for one in functions]
        asked = {"path": recorded[0].path, "functions": calls, "generate": place == "before"}
        put = {"probe.py": probe, "calls.json": json.dumps(asked).encode()}
        once = f"cd {shlex.quote(str(checks.room_path))} && {shlex.quote(recorded[0].python)} {_FOLDER}/probe.py"
        found = await _run(checks, place, once, command, put, "outcomes.json", list[_Function])
        functions = found[0] if found else []
        told.append(functions)
    return _compared(*told)


async def _run(
    checks: Experiment, place: str, once: str, command: str, files: Mapping[str, bytes], written: str, kind: type[T]
) -> list[T]:
    """Run a command in the room with files of the probe, as part of the check; return what it wrote, as this type."""
    await checks.with_files(
        place, once, {f"{_FOLDER}/{name}": one for name, one in files.items()}, allowed_as=command, timeout=_SECONDS
    )

    def read() -> list[T]:
        folder = checks.room_path / _FOLDER
        found = [] if folder.is_symlink() else sorted(folder.glob(written))
        return [one for path in found if (one := _read(path, kind)) is not None]

    return await anyio.to_thread.run_sync(read)


def _read(path: Path, kind: type[T]) -> T | None:
    """Parse what the probe wrote. The code of the repository could have put something else there, also a link or a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return msgspec.json.decode(file.read(_READ_BYTES), type=kind)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _merged(recorded: Sequence[_Recording]) -> list[_Function]:
    """Return the recorded functions of all processes, each once."""
    found: dict[tuple[str, str], _Function] = {}
    for process in recorded:
        for one in process.functions:
            if one.calls:
                found.setdefault((one.module, one.name), one)
    return [*found.values()]


def _compared(before: Sequence[_Function], after: Sequence[_Function]) -> Comparison:
    new = {(one.module, one.name): one.outcomes for one in after}
    functions: list[str] = []
    differing: list[dict[str, str]] = []
    count = 0
    for one in before:
        name = f"{one.module}.{one.name}"
        outcomes = chain(new.get((one.module, one.name), ()), repeat(_MISSING))
        pairs = [
            (call, old, now)
            for call, old, now in zip(one.calls, one.outcomes, outcomes, strict=False)
            if old[0] == "value"
        ]
        if not pairs:
            continue
        functions.append(name)
        count += len(pairs)
        shortest = min((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: len(str(pair[0])), default=None)
        if shortest is not None:
            call, old, now = shortest
            given = ", ".join(f"{key}={value}" for key, value in call.items())
            differing.append({"call": f"{name}({given})", "before": _said(old, now), "after": _said(now, old)})
    return Comparison(functions=functions, calls=count, counterexamples=differing)


def _said(one: _Outcome, other: _Outcome) -> str:
    if one[0] == "raises":
        return f"raises {one[1]}"
    same_result = one[:2] == other[:2]
    return f"leaves its arguments as {one[2][:_SHOWN_CHARS]}" if same_result else f"returns {one[1][:_SHOWN_CHARS]}"
