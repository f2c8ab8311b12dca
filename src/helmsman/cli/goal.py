"""`helmsman goal`: set, show or remove the goal of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.command import cli_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.agents.protocol import Goal
    from helmsman.service import Helmsman


@cli_command(
    "goal",
    "Set, show or clear the goal of a session.",
    "helmsman goal 3b2d5c8e",
    'helmsman goal 3b2d5c8e "All tests pass on Python 3.14"',
    "helmsman goal 3b2d5c8e --clear",
)
@session_argument
@click.argument("goal", required=False)
@click.option("--clear", is_flag=True, help="Clear the goal.")
def command(session: str, goal: str | None, clear: bool, as_json: bool) -> None:
    """Set, show or clear the goal of a session.

    With a new goal Codex starts working at once, in the background, and continues turn after turn until it says
    that the goal is reached or blocked, or is interrupted. SESSION is a session's id or a part of it (`helmsman list` shows
    them).
    """
    if goal is not None and clear:
        raise click.UsageError("Give a goal or --clear, not both.")
    if goal is not None or clear:
        host().begin_change("once")

    async def set_or_show(helm: Helmsman, session_id: str) -> Goal | None:
        upkeep = helm.extras.upkeep
        if clear:
            await upkeep.clear_goal(session_id)
            return None
        if goal is None:
            return await upkeep.goal(session_id)
        if not host().outlives_commands and not await helm.goes_on_alone():
            raise InvalidInput(
                "A goal is worked on in the background, and here the engine ends with this command. Use an engine that "
                "outlives it (HELMSMAN_DETACH=1), or send a message with `helmsman run --session`."
            )
        return await upkeep.set_goal(session_id, goal)

    session_id, found = on_session(session, set_or_show)
    shown: dict[str, object] = {"sessionId": session_id, "goal": None}
    said = f"Session {session_id} has no goal."
    if found is not None:
        shown |= {"goal": found.objective, "goalStatus": found.status, "tokensUsed": found.tokens_used}
        said = f"Session {session_id}, {found.status}: {found.objective}"
    print_result(said, shown, as_json=as_json)
