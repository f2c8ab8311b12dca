"""The import directions of docs/architecture.md hold. Imports for types alone and inside functions count like all others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from helmsman.sessions.session import Session
from helmsman.sessions.state import StateView
from tests.architecture import (
    FRONT_ENDS,
    PACKAGES,
    PAGE,
    SOURCE,
    graph,
    imports,
    modules,
    nodes,
    package_of,
    page_with_drawing,
    started_programs,
    tree,
)

FILES = sorted(SOURCE.rglob("*.py"))
AGENTS = frozenset(path.parent.name for path in SOURCE.glob("agents/*/__init__.py")) - {"supervisor"}
"""Each has a package of its own, or the protocol that several speak. Supervisors hold any of them."""


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, however far around."""

    def reach(start: str) -> set[str]:
        found: set[str] = set()
        open_ = [start]
        while open_:
            fresh = graph[open_.pop()] - found
            found |= fresh
            open_ += fresh
        return found

    around = {module: reach(module) for module in graph}
    return [
        {module, *(other for other in around[module] if module in around[other])}
        for module in graph
        if module in around[module]
    ]


def test_imports_point_downwards() -> None:
    def rank(module: str) -> int:
        return PACKAGES.index(package_of(module))

    upwards = {module: {other for other in used if rank(other) < rank(module)} for module, used in graph().items()}
    assert {module: used for module, used in upwards.items() if used} == {}


def test_no_module_is_part_of_a_cycle() -> None:
    assert cycles(graph()) == []


def test_no_import_is_relative() -> None:
    """The graph would not see it."""
    relative = {
        f"{module}:{node.lineno}"
        for module, file in modules().items()
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    }
    assert relative == set()


def test_every_program_that_is_started_is_there() -> None:
    started = {name for file in FILES for name in started_programs(file)}
    assert {"hub.launch", "cli.hub_process", "agents.supervisor.process"} <= started <= modules().keys()


def test_a_module_named_in_a_string_is_imported_and_a_program_is_not(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('run(["python", "-m", "helmsman.program"])\nload("helmsman.plain", "helmsman.watching:Class")\n')
    assert started_programs(file) == {"program"}
    assert imports(file, dict.fromkeys(("plain", "program", "watching"), file)) == {"plain", "watching"}


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}] * 3


def test_no_front_end_imports_another() -> None:
    meeting = {
        (module, other)
        for module, used in graph().items()
        for other in used
        if {package_of(module), package_of(other)} <= FRONT_ENDS and package_of(module) != package_of(other)
    }
    assert meeting == set()


def test_an_agents_package_is_imported_only_by_what_is_about_that_agent() -> None:
    about_one = {
        "agents.registry",  # which lists them all
        "agents.sandbox",  # Codex's, which the others run in
        "capabilities.cloud_tasks",  # the cloud is Codex's
        "cli.checks",  # the doctor looks at Codex itself
        "cli.demo",  # which starts a real Codex on the scripted model
    }
    meeting = {
        module
        for module, used in graph().items()
        if _agent_of(module) is None and any(_agent_of(other) is not None for other in used)
    }
    assert meeting == about_one


def test_no_agents_package_imports_anothers() -> None:
    meeting = {
        (module, other)
        for module, used in graph().items()
        for other in used
        if None not in (_agent_of(module), _agent_of(other)) and _agent_of(module) != _agent_of(other)
    }
    assert meeting == set()


def _agent_of(module: str) -> str | None:
    """The agent, or the protocol of agents, that a module has all its knowledge of."""
    top, _, rest = module.partition(".")
    package = rest.partition(".")[0]
    return package if top == "agents" and package in AGENTS else None


def test_in_the_root_is_only_what_a_user_of_the_library_looks_for() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "_version.py",
        "client.py",
        "errors.py",
        "service.py",
        "settings.py",
        "step.py",
        "sync.py",
    }


def test_the_drawing_is_that_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_drawing(page), "Draw it anew: make architecture."


def test_no_public_name_of_a_class_or_type_exists_twice() -> None:
    places: dict[str, set[str]] = {}
    for module, file in modules().items():
        for name in _types_in(tree(file)):
            places.setdefault(name, set()).add(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _types_in(module: ast.Module) -> Iterator[str]:
    """The public classes and type aliases of a module; type variables (calls) are everybody's own."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(value, ast.Call):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                pass
            case _:
                continue
        if name[0].isupper() and not name.isupper():
            yield name


def test_a_session_changes_by_events_alone() -> None:
    """Whoever holds a session gets a state to read, so that mypy lets nobody write to it: `Session.apply` does."""
    state = vars(Session)["state"]
    assert (state.fset, state.fget.__annotations__) == (None, {"return": "StateView"})
    members = {name: member for name, member in vars(StateView).items() if not name.startswith("_")}
    fields = {name: member for name, member in members.items() if isinstance(member, property)}
    assert all(field.fset is None for field in fields.values())
    assert not re.search("dict|set", " ".join(field.fget.__annotations__["return"] for field in fields.values()))
    assert members.keys() - fields.keys() == {"decisions", "snapshot"}
    source = (SOURCE / "sessions" / "session.py").read_text()
    assert re.findall(r"self\._state\.\w+(?:\[.*\])? \+?= ", source) == [], (
        "the session itself changes it by `apply` too"
    )
    resources = {name.removeprefix("_") for name in re.findall(r"self\.(_\w+)(?::[^=\n]+)? = ", source)}
    assert resources & fields.keys() == set(), "a fact is a part of the state, and no attribute beside it"


def test_no_module_outside_sessions_assigns_an_attribute_of_a_session() -> None:
    """Properties have no setter, so mypy rejects an assignment and `setattr` raises. Names catch untyped values here."""
    properties = {name: member for name, member in vars(Session).items() if isinstance(member, property)}
    assert [name for name, member in properties.items() if member.fset is not None] == []
    assert "options" in properties
    assert "self.options =" not in (SOURCE / "sessions" / "session.py").read_text()
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(target)}"
        for path in FILES
        if path.parent != SOURCE / "sessions"
        for node in nodes(path)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete)
        for target in assigned(node)
        if is_of_a_session(target, properties)
    ]
    # Engines of agents have sessions of their own, which are other classes.
    assert [place for place in found if not place.startswith("agents/")] == []


def assigned(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete) -> Iterator[ast.expr]:
    """Yield the single targets of a statement."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def is_of_a_session(target: ast.expr, properties: Mapping[str, property]) -> bool:
    """Return whether a target is an attribute of a variable or attribute named `session`, or a part of one."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(target, ast.Attribute) or target.attr not in properties:
        return False
    owner = target.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name in ("session", "_session", "forked")


def test_git_is_started_in_one_place() -> None:
    """The one that keeps it from running what a repository names. The doctor asks for its version only."""
    starting = {str(file.relative_to(SOURCE)) for file in FILES if any(map(_names_git, nodes(file)))}
    assert starting == {"git/command.py", "cli/checks.py", "testing/repository.py"}


def _names_git(node: ast.AST) -> bool:
    """Whether this is a call that takes git, or a command that begins with it: `which("git")`, `run(["git", …])`."""
    if not isinstance(node, ast.Call):
        return False
    first = [given.elts[0] if isinstance(given, ast.List | ast.Tuple) and given.elts else given for given in node.args]
    return any(isinstance(given, ast.Constant) and given.value == "git" for given in first)


_STARTERS = frozenset(
    [
        *("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen"),
        *("open_process", "run_process", "create_subprocess_exec", "create_subprocess_shell"),
        *(
            "execv",
            "execve",
            "execvp",
            "execvpe",
            "execl",
            "execlp",
            "execle",
            "posix_spawn",
            "posix_spawnp",
            "startfile",
        ),
        *("spawnl", "spawnle", "spawnlp", "spawnv", "spawnve", "spawnvp", "echo_via_pager", "edit", "launch"),
    ]
)
_OF_MODULES = frozenset({"subprocess", "os", "anyio", "asyncio", "click", "webbrowser"})
_BY_NAME = frozenset(
    {"system", "popen", "execvp", "execvpe", "execlp", "posix_spawnp", "spawnlp", "spawnvp", "startfile"}
)
"""They look a program up on PATH, or ask a shell."""
_LOOKED_UP = {
    *("clients/configuration.py", "cli/demo.py"),
    *("capabilities/outcomes/check_files.py", "capabilities/outcomes/checks.py"),
}
"""They only tell whether something is there, and start nothing."""


def _shipped() -> list[Path]:
    """The test kit starts what tests name."""
    return [file for file in FILES if not file.is_relative_to(SOURCE / "testing")]


def _starts(file: Path) -> Iterator[ast.Call]:
    for node in nodes(file):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STARTERS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in _OF_MODULES:
                yield node


def test_no_program_is_started_by_a_bare_name() -> None:
    """A session can put a program of any name on PATH: `base/programs.py` says which file is meant."""
    bare = set()
    for file in _shipped():
        for call in _starts(file):
            assert isinstance(call.func, ast.Attribute)
            first = call.args[0] if call.args else None
            while isinstance(first, ast.List | ast.Tuple) and first.elts:
                first = first.elts[0]
            named = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "/"
            if call.func.attr in _BY_NAME or "/" not in named:
                bare.add(f"{file.relative_to(SOURCE)}:{call.lineno}")
    assert bare == set()


def test_no_shell_is_started_but_for_the_users_own_pager_and_a_fixed_script() -> None:
    shells = {
        str(file.relative_to(SOURCE))
        for file in _shipped()
        for node in nodes(file)
        if (isinstance(node, ast.keyword) and node.arg == "shell")
        or (isinstance(node, ast.Constant) and node.value == "/bin/sh")
        or (isinstance(node, ast.Attribute) and node.attr in ("echo_via_pager", "create_subprocess_shell"))
    }
    # Commands of a repository are shown to the user first, and run in a sandbox; the others try out a sandbox.
    allowed = {"capabilities/repository_commands.py", "agents/sandbox.py", "agents/codex/sandbox.py"}
    assert shells - allowed == {"cli/host.py", "cli/tailscale.py"}


def test_programs_are_looked_up_in_one_place() -> None:
    """`shutil.which` finds what a session has put on PATH. `webbrowser` uses it, so it has a process with a safe PATH."""
    looking = {
        str(file.relative_to(SOURCE))
        for file in _shipped()
        for node in nodes(file)
        if (isinstance(node, ast.Attribute) and node.attr == "which" and isinstance(node.value, ast.Name))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "shutil"
            and any(one.name == "which" for one in node.names)
        )
        or (isinstance(node, ast.Import | ast.ImportFrom) and any(one.name == "webbrowser" for one in node.names))
    }
    assert looking == _LOOKED_UP


def test_no_module_needs_posix_to_be_imported() -> None:
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
    for file in FILES:
        body = tree(file).body
        top = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        top |= {node.module for node in body if isinstance(node, ast.ImportFrom) and node.module}
        assert not top & posix, file
