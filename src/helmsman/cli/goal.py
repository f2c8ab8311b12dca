"""`helmsman goal`: what a session is to reach; set it, read it, take it away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import on_session, session_argument, tell
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.agents.protocol import Goal
    from helmsman.service import Helmsman


@click.command(
    "goal",
    short_help="Set, show or clear the goal of a session.",
    epilog="""\b
Examples:
  helmsman goal 3b2d5c8e
  helmsman goal 3b2d5c8e "All tests pass on Python 3.14"
  helmsman goal 3b2d5c8e --clear
""",
)
@session_argument
@click.argument("goal", required=False)
@click.option("--clear", is_flag=True, help="Take the goal away.")
@json_option
@reports_errors
def command(session: str, goal: str | None, clear: bool, as_json: bool) -> None:
    """Set, show or clear the goal of a session.

    With a new goal Codex sets to work at once, in the background, and goes on by itself, turn after turn, until it says
    that the goal is reached or blocked, or is interrupted. SESSION is a session's id or a part of it (`helmsman list` shows
    them).
    """
    if goal is not None and clear:
        raise click.UsageError("Give a goal or --clear, not both.")

    async def see_to(helm: Helmsman, session_id: str) -> tuple[str, Goal | None]:
        upkeep = helm.extras.upkeep
        if goal is not None:
            if (await helm.engine()).id is None:
                raise InvalidInput(
                    "A goal is worked on in the background, and here the engine ends with this command. Use an engine that "
                    "outlives it (HELMSMAN_DETACH=1), or send a message with `helmsman run --session`."
                )
            return session_id, await upkeep.set_goal(session_id, goal)
        if clear:
            await upkeep.clear_goal(session_id)
            return session_id, None
        return session_id, await upkeep.goal(session_id)

    session_id, found = on_session(session, see_to)
    shown: dict[str, object] = {"sessionId": session_id, "goal": None}
    if found is not None:
        shown |= {"goal": found.objective, "goalStatus": found.status, "tokensUsed": found.tokens_used}
        tell(f"Session {session_id}, {found.status}: {found.objective}", shown, as_json=as_json)
    else:
        tell(f"Session {session_id} has no goal.", shown, as_json=as_json)
