"""Compare interfaces in Python, and what functions return, before and after a refactoring, in the clean room.

The tests of the repository run once on the code before, and `probe` records how they call the public functions and methods
that the change reaches. Then the recorded calls, and others that Hypothesis generates, run on the code before and after. A
call that returned something before and returns something else after is a counterexample. Calls that raised before do not
count: they may be outside of what the function promises. Parts that are not compared are named with the reason.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio.to_thread
import msgspec

from helmsman.base.structs import Value, replace
from helmsman.capabilities.outcomes.check_files import own_kind
from helmsman.capabilities.outcomes.claims import Evidence, Verdict, verdict
from helmsman.capabilities.outcomes.probe import OTHER_STATE, STATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from helmsman.capabilities.outcomes.experiments import Experiment

T = TypeVar("T")
_Outcome = tuple[str, str, str]
"""`value` or `raises`, the result or error, and the arguments after the call."""
_Kind = Literal["function", "static", "class", "method"]
_FOLDER: Final = ".helmsman-probe"
_PROBE: Final = Path(__file__).with_name("probe.py")
_SECONDS: Final = 120.0
_SLOW_SECONDS: Final = 60.0
"""Checks that take longer are not run once more with a recorder."""
_READ_BYTES: Final = 16 * 1024 * 1024
_SHOWN_CHARS: Final = 200
_MOST_SHOWN: Final = 5
_MOST_FUNCTIONS: Final = 60
_MOST_CONSTANTS: Final = 100
_CONSTANT_CHARS: Final = 40
_MISSING: Final = ("nothing", "", "")
_CODE: Final = frozenset(
    {".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".go", ".rs", ".java", ".kt", ".rb", ".c", ".cpp"}
)


class Function(Value, frozen=True, kw_only=True):
    """Function that a change reaches, with calls, and their outcomes once they were made.

    Attributes:
        path: Its file.
        name: Its name in the module, with its class.
        line: Its first line before the change.
        module: The module from which the tests imported it, if they did.
        constants: Texts and whole numbers in what changed, before and after.
        why: Why it is not compared.
    """

    path: str
    name: str
    kind: _Kind
    line: int
    module: str = ""
    constants: tuple[str | int, ...] = ()
    calls: list[dict[str, str]] = msgspec.field(default_factory=list[dict[str, str]])
    outcomes: tuple[_Outcome, ...] = ()
    why: str | None = None

    @property
    def label(self) -> str:
        """Name with its module, by its path."""
        return f"{_module_of(self.path)}.{self.name}"


class _Recording(Value, frozen=True, kw_only=True):
    """Calls that a process made, with its Python, the path of that and its directory."""

    python: str
    path: list[str]
    directory: str
    functions: list[Function]


class Comparison(Value, frozen=True, kw_only=True):
    """Result of a comparison.

    Attributes:
        functions: Compared functions, with the number of their calls.
        counterexamples: Calls that differ (`function`, `call`, `before`, `after`), one for each function.
        not_compared: Functions and files that were not compared, with the reasons.
    """

    functions: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    counterexamples: Sequence[Mapping[str, str]] = ()
    not_compared: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    @property
    def verdict(self) -> Verdict:
        """Evidence of the comparison; none if there was nothing to compare."""
        told = [
            Evidence(ok=False, what=f"`{one['call']}` {one['before']} before the change, and {one['after']} after it.")
            for one in self.counterexamples[:_MOST_SHOWN]
        ]
        if self.functions and not told:
            what = f"For {sum(self.functions.values())} calls, functions return what they returned before"
            told = [Evidence(ok=True, what=f"{what}: {_first([f'`{name}`' for name in self.functions])}.")]
        if self.not_compared:
            reasons = [f"`{name}`, as {why}" for name, why in self.not_compared.items()]
            told.append(Evidence(ok=True, what=f"Not compared before and after: {_first(reasons, '; ')}."))
        return verdict(told) if told else Verdict()


def _first(names: Sequence[str], between: str = ", ") -> str:
    more = f"{between}{len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return between.join(names[:_MOST_SHOWN]) + more


# --- compare the public interface, by the syntax tree ------------------------------------------------------------------

# Public are names without a leading underscore: modules, classes, functions and methods with their parameters, and
# constants in capitals. A literal `__all__` takes precedence. Files in other languages are reported as unknown.


class InterfaceChange(Value, frozen=True, kw_only=True):
    """Change of the public interface: names with their declarations.

    `same` says that no known declaration changed, `unknown` lists files in other languages.
    """

    same: bool
    added: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, Mapping[str, str]]
    unknown: tuple[str, ...] = ()


async def interfaces(checks: Experiment) -> InterfaceChange:
    """Compare the public interface before and after a change."""
    changed = sorted(await checks.changed())
    contents = {path: await checks.both(path) for path in changed if path.endswith(".py")}
    return await anyio.to_thread.run_sync(compare_interfaces, changed, contents)


def compare_interfaces(
    changed: Iterable[str], contents: Mapping[str, tuple[bytes | None, bytes | None]]
) -> InterfaceChange:
    """Compare the public interface of changed files, by the content of those in Python before and after."""
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    unknown: list[str] = []
    for path in (path for path in changed if own_kind(path) is None):
        if path not in contents:
            unknown.append(path)
            continue
        try:
            for names, content in zip((old, new), contents[path], strict=True):
                names.update({} if content is None else public_names(path, content))
        except (SyntaxError, ValueError, RecursionError):
            unknown.append(path)
    changed_names = (name for name in sorted(old.keys() & new.keys()) if old[name] != new[name])
    return InterfaceChange(
        same=old == new,
        added={name: new[name] for name in sorted(new.keys() - old.keys())},
        removed={name: old[name] for name in sorted(old.keys() - new.keys())},
        changed={name: {"before": old[name], "after": new[name]} for name in changed_names},
        unknown=tuple(unknown),
    )


def public_names(path: str, content: bytes) -> dict[str, str]:
    """Return the public names of a Python module, qualified, with their declarations.

    Raises:
        SyntaxError: The content is not Python.
        ValueError: The content cannot be parsed.
    """
    module = _module_of(path)
    if any(part.startswith("_") and part != "__init__" for part in module.split(".")):
        return {}
    tree = ast.parse(content)
    listed = _listed(tree)
    return {
        f"{module}.{name}": shown
        for name, shown in _declared(tree.body)
        if (name.partition(".")[0] in listed if listed is not None else _is_public(name))
    }


def _listed(tree: ast.Module) -> frozenset[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            try:
                return frozenset(map(str, ast.literal_eval(node.value)))
            except (ValueError, TypeError):
                return None
    return None


def _declared(body: Iterable[ast.stmt], inside: str = "") -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
                returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
                name = inside + node.name
                if not inside or _is_public(node.name):
                    yield name, f"{kind} {node.name}({ast.unparse(node.args)}){returns}"
            case ast.ClassDef():
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                yield inside + node.name, f"class {node.name}({bases})" if bases else f"class {node.name}"
                yield from _declared(node.body, f"{inside}{node.name}.")
            case ast.Assign():
                targets = (to.id for to in node.targets if isinstance(to, ast.Name))
                yield from ((inside + name, name) for name in targets if name.isupper() or inside)
            case ast.AnnAssign(target=ast.Name(id=name)) if name.isupper() or inside:
                yield inside + name, f"{name}: {ast.unparse(node.annotation)}"
            # A name may be declared under a condition, such as the version of Python.
            case ast.If():
                yield from _declared([*node.body, *node.orelse], inside)
            case _:
                pass


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")


def _is_public(name: str) -> bool:
    return all(not part.startswith("_") or (part.startswith("__") and part.endswith("__")) for part in name.split("."))


# --- find the functions that a change reaches ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Definition in a module: its content, the names that it uses, and the one by which others use it."""

    content: str
    uses: frozenset[str]
    used_as: str
    constants: frozenset[str | int] = frozenset()
    node: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    kind: _Kind = "function"


def affected_functions(path: str, before: bytes, after: bytes) -> list[Function]:
    """Return the public functions and methods of a module that a change reaches, also through what they use.

    Those that cannot be compared have a reason.
    """
    try:
        old, new = dict(_parts(ast.parse(before).body)), dict(_parts(ast.parse(after).body))
    except (SyntaxError, ValueError, RecursionError):
        return []
    changed = {
        name for name in {*old, *new} if name not in old or name not in new or old[name].content != new[name].content
    }
    differing = [part for name in changed for part in (old.get(name), new.get(name)) if part is not None]
    reached = {part.used_as for part in differing}
    constants = sorted(frozenset().union(*(one.constants for one in differing)), key=repr)[:_MOST_CONSTANTS]
    # Until nothing new is reached: a changed helper affects all that uses it, directly or not.
    while more := {one.used_as for one in (*old.values(), *new.values()) if one.uses & reached} - reached:
        reached |= more
    return [
        Function(
            path=path,
            name=name,
            kind=part.kind,
            line=_first_line(part.node),
            constants=tuple(constants),
            why=_why_not(part.node, new.get(name)),
        )
        # Only functions that existed before: a new one has nothing to be compared with.
        for name, part in old.items()
        if part.node is not None and _is_public(name) and (name in changed or part.uses & reached)
    ]


def _why_not(before: ast.FunctionDef | ast.AsyncFunctionDef, after: _Part | None) -> str | None:
    if after is None or after.node is None:
        return "it is no longer there"
    old, new = _parameters(before.args), _parameters(after.node.args)
    given = after.node.args
    # `kw_defaults` has None for each keyword without a default.
    required = len([*given.posonlyargs, *given.args]) - len(given.defaults) + given.kw_defaults.count(None)
    if new[: len(old)] != old or (len(new) > len(old) and required > len(old)):
        return "its parameters are others"
    return None


def _parameters(args: ast.arguments) -> list[str]:
    plain = [one.arg for one in (*args.posonlyargs, *args.args)]
    many = [f"*{one.arg}" for one in (args.vararg, args.kwarg) if one is not None]
    return [*plain, *many, *(one.arg for one in args.kwonlyargs)]


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    # The first line of a code object is that of its first decorator.
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _parts(body: Sequence[ast.stmt], inside: str = "") -> Iterator[tuple[str, _Part]]:
    """Yield the parts of a module or class. Statements that define nothing belong to the module or class."""
    rest: list[ast.AST] = []
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                # They have the name of their property, and would be taken for another version of it.
                if any(
                    isinstance(one, ast.Attribute) and one.attr in ("setter", "deleter") for one in node.decorator_list
                ):
                    rest.append(node)
                    continue
                # Special methods are used through their class, not by name.
                is_special = bool(inside) and node.name.startswith("__")
                yield (
                    f"{inside}.{node.name}" if inside else node.name,
                    _Part(
                        content=_content(node),
                        uses=_names(node) | ({inside} if inside else frozenset()),
                        used_as=inside if is_special else node.name,
                        constants=_constants(node),
                        node=node,
                        kind=_kind(node) if inside else "function",
                    ),
                )
            case ast.ClassDef() if not inside:
                yield from _parts(node.body, node.name)
                around: list[ast.AST] = [*node.bases, *node.keywords, *node.decorator_list]
                yield (
                    f"class {node.name}",
                    _Part(
                        content="".join(map(ast.dump, around)),
                        uses=frozenset().union(*map(_names, around)),
                        used_as=node.name,
                    ),
                )
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not inside:
                yield name, _Part(content=ast.dump(node), uses=_names(node), used_as=name, constants=_constants(node))
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
                pass
            case _:
                rest.append(node)
    if rest:
        yield (
            f"rest of {inside}",
            _Part(content="".join(map(ast.dump, rest)), uses=frozenset().union(*map(_names, rest)), used_as=inside),
        )


def _kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Kind:
    names = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
    return "static" if "staticmethod" in names else "class" if "classmethod" in names else "method"


def _content(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    # Another docstring is no other behaviour.
    has_text = ast.get_docstring(node, clean=False) is not None
    body = [ast.dump(one) for one in node.body[int(has_text) :]]
    return "".join([type(node).__name__, ast.dump(node.args), *map(ast.dump, node.decorator_list), *body])


def _constants(node: ast.AST) -> frozenset[str | int]:
    values = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    plain = (one for one in values if isinstance(one, str | int) and not isinstance(one, bool))
    return frozenset(one for one in plain if len(str(one)) <= _CONSTANT_CHARS)


def _names(node: ast.AST) -> frozenset[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return frozenset(names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)})


# --- compare ---------------------------------------------------------------------------------------------------------


async def compare(checks: Experiment, command: str, seconds: float) -> Comparison:
    """Compare the functions that a change reaches; `seconds` is how long the check takes."""
    changed = [path for path, status in (await checks.changed()).items() if own_kind(path) is None and status != "A"]
    reached = [
        one
        for path in changed
        if path.endswith(".py")
        for one in affected_functions(path, *[content or b"" for content in await checks.both(path)])
    ]
    others = {path: "only Python is compared" for path in changed if PurePosixPath(path).suffix in _CODE}
    wanted = [one for one in reached if one.why is None]
    if seconds > _SLOW_SECONDS:
        slow = f"the check takes {seconds:.0f} s, more than the {_SLOW_SECONDS:.0f} s in which calls are recorded"
        return _compared([replace(one, why=one.why or slow) for one in reached], [], others)
    if not wanted:
        return _compared(reached, [], others)
    skipped = [one for one in reached if one.why is not None]
    most = f"only the first {_MOST_FUNCTIONS} functions are compared"
    skipped += [replace(one, why=most) for one in wanted[_MOST_FUNCTIONS:]]
    return await _compare(checks, command, wanted[:_MOST_FUNCTIONS], skipped, others)


async def _compare(
    checks: Experiment, command: str, wanted: Sequence[Function], skipped: Sequence[Function], others: Mapping[str, str]
) -> Comparison:
    probe = await anyio.to_thread.run_sync(_PROBE.read_bytes)
    # Python imports a module of this name as it starts.
    put = {"sitecustomize.py": probe, "targets.json": msgspec.json.encode(wanted)}
    # A path that the environment sets already stays in force.
    path = f"{checks.room_path / _FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"
    recorded = await _run(
        checks, "before", f'export PYTHONPATH="{path}"; {command}', command, put, "calls-*.json", _Recording
    )
    if not recorded:
        none = "the check runs no Python in which calls can be recorded"
        return _compared([*skipped, *(replace(one, why=none) for one in wanted)], [], others)
    # The process that reached the most functions: its Python and its path are those of the tests.
    process = max(recorded, key=lambda one: len(one.functions))
    seen = {(one.path, one.name): one for one in chain.from_iterable(each.functions for each in recorded) if one.calls}
    functions = [replace(seen.get((one.path, one.name), one), outcomes=()) for one in wanted]

    async def made(place: str, *, seed: int, generate: bool = False) -> list[Function]:
        # Without the outcomes before the change, which the code after it could repeat.
        calls = [msgspec.to_builtins(replace(one, outcomes=())) for one in functions]
        asked = {"path": process.path, "directory": process.directory, "functions": calls, "generate": generate}
        put = {"probe.py": probe, "calls.json": json.dumps(asked).encode()}
        where = shlex.quote(str(checks.room_path))
        once = f"cd {where} && PYTHONHASHSEED={seed} {shlex.quote(process.python)} {_FOLDER}/probe.py"
        found = await _run(checks, place, once, command, put, "outcomes.json", list[Function])
        return found[0] if found else []

    # Calls are generated once, so that the code before and after gets the same ones.
    functions = await made("before", seed=0, generate=True)
    told = {(one.path, one.name) for one in functions}
    skipped = [
        *skipped,
        *(one for one in functions if one.why is not None),
        *(replace(one, why="its calls did not end in time") for one in wanted if (one.path, one.name) not in told),
    ]
    functions = [one for one in functions if one.why is None]
    if not functions:
        return _compared(skipped, [], others)
    before = functions
    # With another seed, sets have another order.
    again = _outcomes(await made("before", seed=1))
    before = [_steady(one, again.get((one.path, one.name), ())) for one in before]
    functions = [one for one in before if one.calls]
    after = await made("after", seed=0) if functions else []
    return _compared([*skipped, *before], after, others)


def _steady(one: Function, again: Sequence[_Outcome]) -> Function:
    """Leave out calls that return something else in another process, such as those that depend on the order of a set."""
    pairs = [
        (call, seen)
        for call, seen, other in zip(one.calls, one.outcomes, again, strict=False)
        if seen == other and seen[0] == "value"
    ]
    why = None if pairs else "what it returns differs from process to process"
    return replace(one, calls=[call for call, _ in pairs], outcomes=tuple(seen for _, seen in pairs), why=why)


async def _run(
    checks: Experiment, place: str, once: str, command: str, files: Mapping[str, bytes], written: str, kind: type[T]
) -> list[T]:
    """Run a command in the room with files of the probe, as part of the check; return its output, as this type."""
    await checks.with_files(
        place, once, {f"{_FOLDER}/{name}": one for name, one in files.items()}, allowed_as=command, timeout=_SECONDS
    )

    def read() -> list[T]:
        folder = checks.room_path / _FOLDER
        # The code of the repository could have put a link there.
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


def _outcomes(functions: Sequence[Function]) -> dict[tuple[str, str], tuple[_Outcome, ...]]:
    return {(one.path, one.name): one.outcomes for one in functions}


def _compared(before: Sequence[Function], after: Sequence[Function], others: Mapping[str, str]) -> Comparison:
    new = _outcomes(after)
    functions: dict[str, int] = {}
    not_compared: dict[str, str] = {}
    differing: list[dict[str, str]] = []
    for one in before:
        if one.why is not None:
            not_compared[one.label] = one.why
            continue
        # After a call that did not end, the outcomes of all others are missing.
        outcomes = chain(new.get((one.path, one.name), ()), repeat(_MISSING))
        # A call that could not restore the attributes of its instance says nothing about the function.
        pairs = [
            (call, old, now)
            for call, old, now in zip(one.calls, one.outcomes, outcomes, strict=False)
            if STATE not in call or now[:2] != ("raises", OTHER_STATE)
        ]
        if not pairs:
            not_compared[one.label] = "its instances have other attributes than before"
            continue
        functions[one.label] = len(pairs)
        shortest = min((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: len(str(pair[0])), default=None)
        if shortest is not None:
            call, old, now = shortest
            said = {"call": _called(one, call), "before": _said(old, now), "after": _said(now, old)}
            differing.append({"function": one.label, **said})
    return Comparison(functions=functions, counterexamples=differing, not_compared={**not_compared, **others})


def _called(one: Function, call: Mapping[str, str]) -> str:
    """Return a call as text, such as `shop.Cart(tax=2).total(at=3)`."""

    def given(names: Mapping[str, str]) -> str:
        return ", ".join(f"{name}={text}" for name, text in names.items())

    made = {name.removeprefix("self."): text for name, text in call.items() if name.startswith("self.")}
    state = made.pop(STATE.removeprefix("self."), None)
    values = {name: text for name, text in call.items() if not name.startswith("self.")}
    owner, _, name = one.label.rpartition(".")
    if one.kind != "method":
        return f"{one.label}({given(values)})"
    if name == "__init__":
        return f"{owner}({given(values)})"
    with_state = "" if state is None else f" with {state[:_SHOWN_CHARS]}"
    return f"{owner}({given(made)}){with_state}.{name}({given(values)})"


def _said(one: _Outcome, other: _Outcome) -> str:
    if one[0] == "nothing":
        return "does not come to an end"
    if one[0] == "raises":
        return f"raises {one[1]}"
    same_result = one[:2] == other[:2]
    return f"leaves its arguments as {one[2][:_SHOWN_CHARS]}" if same_result else f"returns {one[1][:_SHOWN_CHARS]}"
