"""The import graph of the package: which package uses which, drawn into docs/architecture.md (`make architecture`).

Every import counts, also those for types alone, those inside functions and those by a name in a string. A program that is
started (`python -m helmsman.…`) is no import: it is another process, which shares nothing with whoever starts it.
`tests/test_architecture.py` holds the graph to `PACKAGES`: imports point downwards, and no module is part of a cycle.
"""

from __future__ import annotations

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "helmsman"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by tests/architecture.py -->", "<!-- end of the drawing -->"

PACKAGES = (
    *("cli", "acp_server", "httpd", "web", "mcp", "terminal", "testing", "clients"),
    *(
        "sync",
        "step",
        "fleet",
        "client",
        "service",
        "hub",
        "operations",
        "shapes",
        "router",
        "capabilities",
        "steering",
        "notices",
        "schedules",
        "tasks",
        "sessions",
        "approvals",
        "agents",
    ),
    *("store", "model", "git", "base"),
)
"""From top to bottom. A package may use those below it."""

FRONT_ENDS = frozenset({"acp_server", "mcp", "web", "terminal"})
"""None of them uses another; the command line starts them, and the HTTP server has two of them behind it."""

_GROUND = frozenset({"errors", "settings", "_version"})
"""Part of the ground, and in the root because users of the library look for them there."""


def modules() -> dict[str, Path]:
    """Every module by its name without `helmsman.`; the package itself is left out."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {name: file for name, file in found.items() if name not in ("", "__main__")}


@cache
def tree(file: Path) -> ast.Module:
    """Content of a file. Cached: reading all of them takes a second."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file. Cached, because a dozen tests look at all of them."""
    return tuple(ast.walk(tree(file)))


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    started = started_programs(file)
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "helmsman":
            base = node.module.removeprefix("helmsman").removeprefix(".")
            named = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {name if name in known else base for name in named}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("helmsman.") for alias in node.names if alias.name.startswith("helmsman.")
            }
        elif (name := _module_in(node)) is not None and name not in started:
            found.add(name)
    return found & known.keys()


@cache
def started_programs(file: Path) -> set[str]:
    """Return the modules that a file runs as programs: the words after `-m` in its commands."""
    commands = [node.elts for node in nodes(file) if isinstance(node, ast.List | ast.Tuple)]
    pairs = [pair for words in commands for pair in pairwise(words)]
    named = [_module_in(word) for flag, word in pairs if isinstance(flag, ast.Constant) and flag.value == "-m"]
    return {name for name in named if name is not None}


def _module_in(node: ast.AST) -> str | None:
    """The module that a string names, alone or with something in it (`helmsman.module:Name`)."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    name, _, _ = node.value.partition(":")
    return name.removeprefix("helmsman.") if name.startswith("helmsman.") else None


def package_of(module: str) -> str:
    first = module.partition(".")[0]
    return "base" if first in _GROUND else first


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    known = modules()
    return {name: imports(file, known) - {name} for name, file in known.items()}


def drawing() -> str:
    """Return a Markdown table of each package and the packages it imports."""
    uses: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for module, used in graph().items():
        package = package_of(module)
        uses[package] |= {package_of(other) for other in used} - {package}
    lines = ["| package | uses |", "| --- | --- |"]
    for package in PACKAGES:
        below = ", ".join(other for other in PACKAGES if other in uses[package])
        lines.append(f"| {package} | {below or 'nothing of ours'} |")
    return "\n".join(lines)


def page_with_drawing(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_drawing(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
