"""The sandbox that is put around agents, for engines that tests open themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from helmsman import load_settings
from helmsman.agents.sandbox import find_sandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from helmsman.agents.sandbox import Sandbox


def sandbox_for(places: Path) -> Callable[[], Awaitable[Sandbox]]:
    """Finds the sandbox of this machine, for an engine with these places, which are in its state directory."""
    return partial(find_sandbox, load_settings({"state_dir": str(places.parent)}), None)
