"""What Codex says, in either of its dialects, as Helmsman's events and items.

`app_server` reads the notifications of `codex app-server`, `exec` the lines of `codex exec --json`; `items`
and `failures` hold what both have in common. Every function is pure and total: unknown types and fields become
`Unknown` and `UnknownItem`, and no input raises.
"""

from __future__ import annotations

from helmsman.agents.codex.normalise.app_server import PLAN_ITEM_ID, from_app_server, join_pieces, turn_as_events
from helmsman.agents.codex.normalise.exec import from_exec
from helmsman.agents.codex.normalise.failures import turn_failure
from helmsman.agents.codex.normalise.items import app_server_item, sub_agents

__all__ = [
    "PLAN_ITEM_ID",
    "app_server_item",
    "from_app_server",
    "from_exec",
    "join_pieces",
    "sub_agents",
    "turn_as_events",
    "turn_failure",
]
