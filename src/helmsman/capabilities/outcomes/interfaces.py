"""Compare the public interface before and after a change, for Python only, by its syntax tree.

Public are names without a leading underscore: modules, classes, functions and methods with their parameters, and
constants in capitals. A literal `__all__` takes precedence. Files in other languages are reported as unknown.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helmsman.capabilities.outcomes.check_files import own_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceChange:
    """Change of the public interface: names with their declarations. `unknown` lists files in other languages."""

    added: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    unknown: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Return whether no known declaration changed."""
        return not (self.added or self.removed or self.changed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "same": self.is_same,
            "added": dict(self.added),
            "removed": dict(self.removed),
            "changed": {name: {"before": before, "after": after} for name, (before, after) in self.changed.items()},
            "unknown": list(self.unknown),
        }


def compare_interfaces(
    changed: Iterable[str], before: Callable[[str], bytes | None], after: Callable[[str], bytes | None]
) -> InterfaceChange:
    """Compare the public interface of changed files, by their content before and after (None for no file)."""
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    unknown: list[str] = []
    for path in changed:
        if own_kind(path) is not None:
            continue
        if not path.endswith(".py"):
            unknown.append(path)
            continue
        try:
            for names, content in ((old, before(path)), (new, after(path))):
                names.update({} if content is None else public_names(path, content))
        except (SyntaxError, ValueError, RecursionError):
            unknown.append(path)
    return InterfaceChange(
        added={name: new[name] for name in sorted(new.keys() - old.keys())},
        removed={name: old[name] for name in sorted(old.keys() - new.keys())},
        changed={name: (old[name], new[name]) for name in sorted(old.keys() & new.keys()) if old[name] != new[name]},
        unknown=tuple(unknown),
    )


def public_names(path: str, content: bytes) -> dict[str, str]:
    """Return the public names of a Python module, qualified, with their declarations.

    Raises:
        SyntaxError: The content is not Python.
        ValueError: The content cannot be parsed.
    """
    module = path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
    if any(part.startswith("_") and part != "__init__" for part in module.split(".")):
        return {}
    tree = ast.parse(content)
    listed = _listed(tree)
    return {
        f"{module}.{name}": shown
        for name, shown in _declared(tree.body)
        if (name.partition(".")[0] in listed if listed is not None else not _is_private(name))
    }


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


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
                if not (inside and _is_private(node.name)):
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
            case ast.If():
                yield from _declared([*node.body, *node.orelse], inside)
            case _:
                pass
