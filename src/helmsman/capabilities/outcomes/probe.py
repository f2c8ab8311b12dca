"""Program that records and repeats calls of functions in a clean room, with the Python of the repository's check.

As `sitecustomize` it records the calls that a test run makes. As a program it generates more calls with Hypothesis, if that
is installed, and writes what each returns. It stands alone, imports nothing of Helmsman, and runs on Python 3.8.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import copy
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import typing
from itertools import islice
from pathlib import Path

if typing.TYPE_CHECKING:
    from types import CodeType, FrameType

HERE = Path(__file__).resolve().parent
MOST_CALLS = 50
GENERATED = 100
LITERAL_CHARS = 2000
_CALL_SECONDS = 1.0
_PLAIN = (int, str, float, bool, bytes)
_MOST_ITEMS = 1000


def literal(value: object) -> str | None:
    """Return the literal of a value, or None if it has none."""
    try:
        text = repr(value)
        return text if len(text) <= LITERAL_CHARS and ast.literal_eval(text) == value else None
    except Exception:  # noqa: BLE001 - code of the repository
        return None


def record() -> None:
    """Record the calls of the functions in `targets.json`, until the process ends."""
    targets = json.loads((HERE / "targets.json").read_text(encoding="utf-8"))
    wanted = {(str(HERE.parent / path), name) for path, names in targets.items() for name in names}
    found: dict[CodeType, dict[str, typing.Any]] = {}
    passed: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in passed:
            return
        if (os.path.realpath(code.co_filename), code.co_name) not in wanted or frame.f_globals[
            "__name__"
        ] == "__main__":
            passed.add(code)
            return
        calls = found.setdefault(code, {"module": frame.f_globals["__name__"], "name": code.co_name, "calls": []})[
            "calls"
        ]
        if len(calls) >= MOST_CALLS or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            return
        values = {
            name: literal(frame.f_locals[name])
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        }
        if None not in values.values() and values not in calls:
            calls.append(values)

    def keep() -> None:
        sys.setprofile(None)
        if found:
            told = {"python": sys.executable, "path": sys.path, "functions": list(found.values())}
            (HERE / f"calls-{os.getpid()}.json").write_text(json.dumps(told), encoding="utf-8")

    atexit.register(keep)
    threading.setprofile(profile)
    sys.setprofile(profile)


def strategy_of(value: typing.Any, st: typing.Any) -> typing.Any:
    """Return a strategy for values like this one."""
    if isinstance(value, (list, tuple, set)) and value:
        inner = st.one_of(*(strategy_of(one, st) for one in list(value)[:3]))
        return st.lists(inner, max_size=8).map(type(value))
    if isinstance(value, dict) and value:
        key, item = next(iter(value.items()))
        return st.dictionaries(strategy_of(key, st), strategy_of(item, st), max_size=8)
    plain = {
        int: st.integers(-1000, 1000),
        str: st.text(max_size=20),
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
        float: st.floats(-1e6, 1e6),
    }
    return plain.get(type(value), st.just(value))


def generated(function: typing.Any, calls: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return generated calls, by the annotations of the function, else by the recorded calls."""
    try:
        from hypothesis import HealthCheck, given, settings, strategies
    except ImportError:
        return []
    hints: dict[str, typing.Any] = {}
    with contextlib.suppress(Exception):
        hints = typing.get_type_hints(function)
    by_name = {}
    for name in inspect.signature(function).parameters:
        if hints.get(name) in _PLAIN:
            by_name[name] = strategies.from_type(hints[name])
        else:
            seen = [ast.literal_eval(call[name]) for call in calls[:5]]
            by_name[name] = strategies.one_of(*(strategy_of(one, strategies) for one in seen))
    made: list[dict[str, str]] = []

    @settings(
        max_examples=GENERATED,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.fixed_dictionaries(by_name))
    def collect(values: dict[str, object]) -> None:
        texts = {name: text for name, value in values.items() if (text := literal(value)) is not None}
        if len(texts) == len(values):
            made.append(texts)

    with contextlib.suppress(Exception):
        collect()
    return made


def outcome(function: typing.Any, call: dict[str, str]) -> list[str]:
    """Return the result or error of a call, and its arguments afterwards."""
    values = {name: ast.literal_eval(text) for name, text in call.items()}
    parameters = inspect.signature(function).parameters.items()
    positional = [values.pop(name) for name, one in parameters if one.kind is one.POSITIONAL_ONLY and name in values]
    given = copy.deepcopy((positional, values))
    try:
        signal.setitimer(signal.ITIMER_REAL, _CALL_SECONDS)
        result = function(*given[0], **given[1])
        if hasattr(result, "__next__"):
            result = list(islice(result, _MOST_ITEMS))
        return ["value", repr(result), repr(given)]
    except BaseException as error:  # noqa: BLE001 - whatever the code raises
        return ["raises", type(error).__name__, ""]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def repeat() -> None:
    """Make the calls in `calls.json`, generate others if it says so, and write the outcomes to `outcomes.json`."""
    asked = json.loads((HERE / "calls.json").read_text(encoding="utf-8"))
    sys.path[:] = [path for path in asked["path"] if path != str(HERE)]

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    told = []
    for one in asked["functions"]:
        with contextlib.suppress(Exception, SystemExit):
            function = getattr(importlib.import_module(one["module"]), one["name"])
            calls = one["calls"] + (generated(function, one["calls"]) if asked["generate"] else [])
            outcomes = [outcome(function, call) for call in calls]
            if asked["generate"]:  # a result that differs from itself, or names an address, says nothing
                again = [outcome(function, call) for call in calls]
                kept = [at for at, seen in enumerate(outcomes) if seen == again[at] and " at 0x" not in seen[1]]
                calls, outcomes = [calls[at] for at in kept], [outcomes[at] for at in kept]
            told.append({**one, "calls": calls, "outcomes": outcomes})
    (HERE / "outcomes.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "sitecustomize":
    record()
elif __name__ == "__main__":
    repeat()
