"""Operations of each toolset, and the instructions that teach a model to use them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from helmsman.operations.table import operations_in

if TYPE_CHECKING:
    from helmsman.operations.table import Operation

# `agents` has no extras of Codex, but reviews, which every agent can do.
_MODULES: Final = {
    "sessions": ("sessions", "changes"),
    "agents": ("sessions", "changes", "reviews"),
    "extras": ("upkeep", "account", "reviews", "plans", "changes", "rewinds", "usage", "schedules"),
    "capabilities": ("outcomes",),
}


def operations_of(toolset: str) -> tuple[Operation[Any], ...]:
    """Return the operations of a toolset, in the order of its list.

    Imports only the modules of this toolset, because a client waits for its server to start.
    """
    modules = (import_module(f"helmsman.operations.{name}") for name in _MODULES[toolset])
    return tuple(one for module in modules for one in operations_in(module))
