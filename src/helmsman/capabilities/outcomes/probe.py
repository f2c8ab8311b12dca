"""Program that records and repeats calls of functions in a clean room, with the Python of the repository's check.

As `sitecustomize` it records the calls that a test run makes. As a program it generates more calls with Hypothesis, if that
is installed, and writes what each returns. It stands alone, imports nothing of Helmsman, and runs on Python 3.8.

A call is a dictionary of literals by parameter. For a method it also has the parameters of the constructor, as `self.NAME`,
and sometimes the attributes of the instance (`STATE`).
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import builtins
import collections.abc
import contextlib
import copy
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
import typing
from itertools import islice
from pathlib import Path

if typing.TYPE_CHECKING:
    from types import CodeType, FrameType

HERE = Path(__file__).resolve().parent
MOST_CALLS = 50
GENERATED = 100
LITERAL_CHARS = 2000
STATE = "self.__dict__"
OTHER_STATE = "other attributes"
_INSTANCE = "self."
_CALL_SECONDS = 2.0
_QUICK_SECONDS = 0.25  # calls that took longer before could exceed the limit after, on a busy machine
_FUNCTION_SECONDS = 5.0  # of the processor, as other programs may keep this one waiting
_MOST_SECONDS = 20.0
_ALL_SECONDS = 40.0
_PLAIN: typing.Any = (bool, int, float, complex, str, bytes, bytearray, type(None))
_MOST_ITEMS = 1000
_MOST_DEPTH = 6
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def literal(value: object) -> str | None:
    """Return the literal of a value, or the name of a built-in function; None if it has neither."""
    try:
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return name
        # It must read back as an equal value, because the `repr` of a class may be anything.
        text = repr(value)
        return text if len(text) <= LITERAL_CHARS and ast.literal_eval(text) == value else None
    except Exception:  # noqa: BLE001 - code of the repository
        return None


def value_of(text: str) -> typing.Any:
    """Return the value that `literal` wrote."""
    return getattr(builtins, text) if text.isidentifier() and hasattr(builtins, text) else ast.literal_eval(text)


# --- record ----------------------------------------------------------------------------------------------------------


def arguments(frame: FrameType, *, skip: int) -> dict[str, str] | None:
    """Return the literals of a call's arguments but the first `skip`; None if one has no literal."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
        count += bool(code.co_flags & flag)
    found = {name: literal(frame.f_locals[name]) for name in code.co_varnames[skip:count] if name in frame.f_locals}
    texts = {name: text for name, text in found.items() if text is not None}
    return texts if len(texts) == count - skip else None


class Recorder:
    """Records the calls of the functions in `targets.json`."""

    def __init__(self) -> None:
        targets = json.loads((HERE / "targets.json").read_text(encoding="utf-8"))
        self._wanted = {(str(HERE.parent / one["path"]), one["line"]): one for one in targets}
        self._classes = {one["name"].rpartition(".")[0] for one in targets if one["kind"] == "method"}
        self._found: dict[CodeType, dict[str, typing.Any]] = {}
        self._passed: set[CodeType] = set()
        self._frames: dict[int, FrameType] = {}  # of generators and coroutines, which are called again when they resume
        self._made: dict[int, dict[str, str] | None] = {}
        self._directory = Path.cwd()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._passed:
            return
        is_constructor = code.co_name == "__init__" and bool(code.co_argcount)
        if is_constructor and self._classes:
            self._keep_constructor(frame)
        one = self._target(code, frame)
        if one is None:
            # The profiler runs for each call of the whole test run, so code that is no target must cost little.
            if not is_constructor:
                self._passed.add(code)
            return
        calls = self._found.setdefault(code, {**one, "module": frame.f_globals["__name__"], "calls": []})["calls"]
        if len(calls) >= MOST_CALLS or len(self._frames) >= 100 * MOST_CALLS:
            return
        if code.co_flags & _RESUMED:
            if id(frame) in self._frames:
                return
            self._frames[id(frame)] = frame
        calls.extend(call for call in self._calls(frame, one) if call not in calls)

    def _target(self, code: CodeType, frame: FrameType) -> dict[str, typing.Any] | None:
        # Tests may import the file through a link.
        one = self._wanted.get((os.path.realpath(code.co_filename), code.co_firstlineno))
        is_this = one is not None and one["name"].rpartition(".")[2] == code.co_name
        # A module that runs as a program cannot be imported again to repeat its calls.
        return one if is_this and frame.f_globals["__name__"] != "__main__" else None

    def _keep_constructor(self, frame: FrameType) -> None:
        """Keep the arguments with which an instance is made, by the constructor of its class, not of a base."""
        instance = frame.f_locals.get(frame.f_code.co_varnames[0])
        cls: typing.Any = type(instance)
        is_own = getattr(cls.__init__, "__code__", None) is frame.f_code
        if is_own and cls.__qualname__ in self._classes:
            # By id, because an instance need not be hashable.
            self._made[id(instance)] = arguments(frame, skip=1)

    def _calls(self, frame: FrameType, one: dict[str, typing.Any]) -> list[dict[str, str]]:
        """Return a call, for a method on a new instance and, if it has others, with the attributes of this one."""
        kind, (owner, _, name) = one["kind"], one["name"].rpartition(".")
        values = arguments(frame, skip=int(kind in ("method", "class")))
        if values is None or kind != "method" or name == "__init__":
            return [] if values is None else [values]
        instance = frame.f_locals.get(frame.f_code.co_varnames[0])
        cls: typing.Any = type(instance)
        if cls.__qualname__ != owner:
            return []
        is_plain = cls.__init__ is object.__init__
        made = {} if is_plain else self._made.get(id(instance))
        if made is None:
            return []
        call = {**{_INSTANCE + key: text for key, text in made.items()}, **values}
        state = literal(getattr(instance, "__dict__", None))
        return [call] if state is None else [call, {**call, STATE: state}]

    def keep(self) -> None:
        # First, or the calls below would be seen too.
        sys.setprofile(None)
        path = [str(self._directory / one) for one in sys.path if one != str(HERE)]
        told = {
            "python": sys.executable,
            "path": path,
            "directory": str(self._directory),
            "functions": list(self._found.values()),
        }
        # A test run may consist of several processes.
        (HERE / f"calls-{os.getpid()}.json").write_text(json.dumps(told), encoding="utf-8")


def record() -> None:
    """Record calls until the process ends."""
    recorder = Recorder()
    atexit.register(recorder.keep)
    # The one is for threads that begin later, the other for this thread.
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)


# --- generate --------------------------------------------------------------------------------------------------------


class Values:
    """Strategies for values, with the constants of the code before and after: where behaviours differ, they are near."""

    def __init__(self, strategies: typing.Any, constants: list[typing.Any]) -> None:
        self.st = st = strategies
        numbers = [one + step for one in constants if type(one) is int for step in (-1, 0, 1)]
        texts = [one for one in constants if type(one) is str and len(one) <= LITERAL_CHARS]
        letters = sorted({*"aB1 .,;:-_/()\n\t", *"".join(texts)[:LITERAL_CHARS]})
        words = st.lists(st.one_of(st.sampled_from([*letters, *texts]), st.text(max_size=4)), max_size=8)
        self.text = words.map("".join)
        self._plain = {
            int: st.one_of(st.integers(-1000, 1000), st.integers(-4, 12), st.sampled_from(numbers or [0])),
            str: self.text,
            bool: st.booleans(),
            bytes: st.binary(max_size=20),
            float: st.floats(-1e6, 1e6),
        }

    def like(self, value: typing.Any) -> typing.Any:
        """Return a strategy for values like this one."""
        st = self.st
        if isinstance(value, (list, tuple, set)) and value:
            inner = st.one_of(*(self.like(one) for one in list(value)[:3]))
            return st.lists(inner, max_size=8).map(type(value))
        if isinstance(value, dict) and value:
            key, item = next(iter(value.items()))
            return st.dictionaries(self.like(key), self.like(item), max_size=8)
        return self._plain.get(type(value), st.just(value))

    def of(self, hint: typing.Any) -> typing.Any:
        """Return a strategy for an annotation of plain values and containers of them, or None."""
        st = self.st
        if hint is None or hint is type(None):
            return st.none()
        if hint in _PLAIN:
            return self._plain[hint] if hint in self._plain else st.from_type(hint)
        origin, given = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Literal:
            return st.sampled_from(given)
        inner = [self.of(one) for one in given if one is not Ellipsis]
        if not inner or None in inner:
            return None
        # By name, because Python 3.8 has no such type.
        if origin is typing.Union or type(hint).__name__ == "UnionType":
            return st.one_of(*inner)
        if origin in _LISTS:
            return st.lists(inner[0], max_size=8)
        if origin in (set, frozenset):
            return st.lists(inner[0], max_size=8).map(origin)
        if origin is tuple:
            return st.lists(inner[0], max_size=8).map(tuple) if Ellipsis in given else st.tuples(*inner)
        return st.dictionaries(*inner, max_size=8) if origin in _MAPS and len(inner) == 2 else None


_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def strategies_for(
    parameters: list[inspect.Parameter],
    hints: dict[str, typing.Any],
    prefix: str,
    calls: list[dict[str, str]],
    values: Values,
) -> dict[str, typing.Any] | None:
    """Return a strategy for each parameter, by its annotation, else by the recorded calls; None if one has neither."""
    found = {}
    for one in parameters:
        name, key = one.name, prefix + one.name
        is_many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        strategy = values.of(hints[name]) if name in hints and not is_many else None
        seen = [value_of(call[key]) for call in calls[:5] if key in call]
        if literal(one.default) is not None:  # options show what they take, by their defaults
            seen.append(one.default)
        if strategy is None and seen:
            strategy = values.st.one_of(*(values.like(value) for value in seen))
        if strategy is not None:
            found[key] = strategy
        elif one.default is one.empty and not is_many:
            return None
    return found


def hints_of(function: typing.Any) -> dict[str, typing.Any]:
    """Return the annotations of a function, or of the constructor of a class."""
    # Annotations may name what only type checkers import.
    with contextlib.suppress(Exception):
        constructor: typing.Any = getattr(function, "__init__", None)
        return typing.get_type_hints(constructor if isinstance(function, type) else function)
    return {}


class Clock:
    """Time limit for one function: of the processor, and by the clock on the wall."""

    def __init__(self) -> None:
        self._used = time.process_time() + _FUNCTION_SECONDS
        self._until = time.monotonic() + _MOST_SECONDS

    @property
    def is_over(self) -> bool:
        return time.process_time() > self._used or time.monotonic() > self._until


def generated(
    target: Target, calls: list[dict[str, str]], constants: list[typing.Any], clock: Clock
) -> list[dict[str, str]]:
    """Return generated calls; none without Hypothesis."""
    try:
        from hypothesis import HealthCheck, given, settings, strategies
    except ImportError:
        return []
    values = Values(strategies, constants)
    of_call = strategies_for(target.parameters(), hints_of(target.called), "", calls, values)
    of_instance = strategies_for(target.constructor(), hints_of(target.cls), _INSTANCE, calls, values)
    if of_call is None or of_instance is None:
        return []
    made: list[dict[str, str]] = []

    # The same calls each time, and no files of Hypothesis in the repository.
    @settings(
        max_examples=GENERATED,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.fixed_dictionaries({**of_call, **of_instance}))
    def collect(values: dict[str, object]) -> None:
        if clock.is_over:
            raise TimeoutError
        texts = {name: text for name, value in values.items() if (text := literal(value)) is not None}
        if len(texts) == len(values):
            made.append(texts)

    # The time limit, or an error, ends the generation. The calls made until then count.
    with contextlib.suppress(Exception):
        collect()
    return made


# --- repeat ----------------------------------------------------------------------------------------------------------


def described(value: typing.Any, depth: int = 0) -> str:
    """Return the content of a value by its type, so that no `__eq__` or `__repr__` of the repository hides a difference."""
    kind = type(value)
    if depth > _MOST_DEPTH:
        return "…"
    for plain in _PLAIN:
        if isinstance(value, plain):
            text = plain.__repr__(value)
            return text if kind is plain else f"{kind.__qualname__}({text})"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", kind.__qualname__))
    containers: typing.Any = ((list, "[]"), (tuple, "()"), (set, "{}"), (frozenset, "{}"))
    for container, brackets in containers:
        if isinstance(value, container):
            inner = [described(one, depth + 1) for one in islice(container.__iter__(value), _MOST_ITEMS)]
            text = ", ".join(sorted(inner) if brackets == "{}" else inner)
            text = f"{brackets[0]}{text}{brackets[1]}"
            return text if kind in (list, tuple, set) else f"{kind.__qualname__}({text})"
    if isinstance(value, dict):
        items = islice(dict.items(value), _MOST_ITEMS)
        text = ", ".join(f"{described(key, depth + 1)}: {described(one, depth + 1)}" for key, one in items)
        return f"{{{text}}}" if kind is dict else f"{kind.__qualname__}({{{text}}})"
    if hasattr(value, "__next__"):
        return f"iterator of {described(list(islice(value, _MOST_ITEMS)), depth + 1)}"
    if isinstance(value, BaseException):
        return f"{kind.__qualname__}{described(value.args, depth + 1)}"
    attributes = public_attributes(value)
    if attributes:
        shown = ", ".join(f"{name}={described(one, depth + 1)}" for name, one in attributes.items())
        return f"{kind.__qualname__}({shown})"
    return repr(value)


def public_attributes(value: object) -> dict[str, typing.Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        found.update(
            {
                name: getattr(value, name)
                for name in ([slots] if isinstance(slots, str) else slots)
                if hasattr(value, name)
            }
        )
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


class Target:
    """Function, class, or method of a class, as the code has it now.

    Raises:
        Exception: The code cannot be imported, or has no such function.
    """

    def __init__(self, one: dict[str, typing.Any]) -> None:
        module = one.get("module") or module_of(str(HERE.parent / one["path"]))
        owner, _, name = one["name"].rpartition(".")
        found: typing.Any = importlib.import_module(module)
        for part in filter(None, owner.split(".")):
            found = getattr(found, part)
        self.name = name
        self.cls = found if one["kind"] == "method" and name != "__init__" else None
        self.called = found if name == "__init__" else getattr(found, name)
        self.is_property = False
        if self.cls is not None:
            # `getattr` would call the property.
            static = inspect.getattr_static(found, name)
            self.is_property = not callable(static)
            # A property has its function as `fget`, a cached one as `func`.
            self.called = getattr(static, "fget", None) or getattr(static, "func", None) or static

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters but `self`."""
        return list(inspect.signature(self.called).parameters.values())[int(self.cls is not None) :]

    def constructor(self) -> list[inspect.Parameter]:
        if self.cls is None or (self.cls.__init__ is object.__init__ and self.cls.__new__ is object.__new__):
            return []
        return list(inspect.signature(self.cls).parameters.values())

    def without_defaults(self, call: dict[str, str]) -> dict[str, str]:
        """Leave out arguments that are defaults, so that the defaults after a change are used too."""
        left = dict(call)
        for prefix, parameters in (("", self.parameters()), (_INSTANCE, self.constructor())):
            # Without one of these, all positions after it would shift.
            if any(one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL) for one in parameters):
                continue
            for one in parameters:
                if one.default is not one.empty and literal(one.default) == left.get(prefix + one.name, ""):
                    del left[prefix + one.name]
        return left

    def make(self, call: dict[str, str]) -> list[str]:
        """Return the result or error of a call, with its arguments and the attributes of its instance afterwards."""
        values = {name: value_of(text) for name, text in call.items()}
        state = values.pop(STATE, None)
        made = {name[len(_INSTANCE) :]: values.pop(name) for name in list(values) if name.startswith(_INSTANCE)}
        # A call may change its arguments, which are compared afterwards.
        given = copy.deepcopy(values)
        try:
            signal.setitimer(signal.ITIMER_REAL, _CALL_SECONDS)
            function, instance = self.called, None
            if self.cls is not None:
                positional, named = bound(self.constructor(), copy.deepcopy(made))
                instance = self.cls(*positional, **named)
                if state is not None and set(vars(instance)) != set(state):
                    return ["raises", OTHER_STATE, ""]
                if state is not None:
                    vars(instance).update(state)
                function = None if self.is_property else getattr(instance, self.name)
            positional, named = bound(self.parameters(), given)
            result = getattr(instance, self.name) if function is None else function(*positional, **named)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            elif inspect.isasyncgen(result):
                result = iter(asyncio.run(collected(result)))
            after = {**given, **({} if instance is None else public_attributes(instance))}
            return ["value", described(result), described(after)]
        except BaseException as error:  # noqa: BLE001 - whatever the code raises
            return ["raises", type(error).__name__, ""]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def bound(parameters: list[inspect.Parameter], values: dict[str, typing.Any]) -> tuple[list[typing.Any], typing.Any]:
    """Return positional and named arguments for these values."""
    positional: list[typing.Any] = []
    named: dict[str, typing.Any] = {}
    left, is_by_name = dict(values), False
    for one in parameters:
        if one.name not in left:
            is_by_name = True
            continue
        value = left.pop(one.name)
        if one.kind is one.VAR_POSITIONAL:
            positional.extend(value)
        elif one.kind is one.VAR_KEYWORD:
            named.update(value)
        elif one.kind is one.KEYWORD_ONLY or (is_by_name and one.kind is not one.POSITIONAL_ONLY):
            named[one.name] = value
        else:
            positional.append(value)
    return positional, {**named, **left}


async def collected(generator: typing.Any) -> list[typing.Any]:
    found = []
    async for one in generator:
        found.append(one)
        if len(found) == _MOST_ITEMS:
            break
    return found


def module_of(path: str) -> str:
    """Return the module of a file that no test imported, by the directories in which Python looks."""
    # The longest directory first: the path may contain a directory and one inside it.
    for folder in sorted(sys.path, key=len, reverse=True):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :][: -len(".py")].replace("/__init__", "").replace(os.sep, ".")
    raise ImportError(path)


def begun(one: dict[str, typing.Any]) -> tuple[list[dict[str, str]], str | None]:
    """Return the calls of a function that can be compared, or why there are none."""
    target = Target(one)
    calls = [target.without_defaults(call) for call in one.get("calls", [])]
    clock = Clock()
    made = map(target.without_defaults, generated(target, calls, one.get("constants", []), clock))
    calls += [call for call in made if call not in calls]
    if not calls:
        return [], "no test calls it with plain values, and its parameters do not say which to generate"
    kept = []
    is_new_each_time = False
    for call in calls:
        if clock.is_over:
            break
        began, used = time.monotonic(), time.process_time()
        seen = target.make(call)
        is_quick = time.process_time() - used < _QUICK_SECONDS and time.monotonic() - began < _CALL_SECONDS / 2
        if seen[0] == "value" and is_quick:
            # An address, or a result that differs on the second call, cannot be compared between processes.
            if " at 0x" in seen[1] + seen[2] or target.make(call) != seen:
                is_new_each_time = True
            else:
                kept.append(call)
    if kept:
        return kept, None
    return [], "what it returns differs from call to call" if is_new_each_time else "each call of it fails, or is slow"


def repeat() -> None:
    """Make the calls in `calls.json`, and write the outcomes to `outcomes.json`. If it says so, generate others first."""
    asked = json.loads((HERE / "calls.json").read_text(encoding="utf-8"))
    # As in the recorded process, so that imports find the same modules.
    sys.path[:] = asked["path"]
    with contextlib.suppress(OSError):
        os.chdir(asked["directory"])

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    until, told = time.monotonic() + _ALL_SECONDS, []
    for one in asked["functions"]:
        calls, why = one.get("calls", []), None
        try:
            if asked["generate"]:
                is_late = time.monotonic() > until
                calls, why = ([], "there was no time left for it") if is_late else begun(one)
            outcomes = [Target(one).make(call) for call in calls]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the code raises
            calls, outcomes, why = [], [], f"it cannot be called ({type(error).__name__})"
        told.append({**one, "calls": calls, "outcomes": outcomes, "why": why})
    (HERE / "outcomes.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "sitecustomize":
    record()
elif __name__ == "__main__":
    repeat()
