"""`helmsman say`: send a session its next message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.on_session import session_argument, tell

if TYPE_CHECKING:
    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session, WhenBusy


@click.command(
    "say",
    short_help="Send a session its next message.",
    epilog="""\b
Examples:
  helmsman say 3b2d5c8e "Now add a test for it"
  helmsman say 3b2d5c8e "Only the parser, please" --steer
  git diff | helmsman say 3b2d5c8e - --wait
""",
)
@session_argument
@click.argument("message")
@click.option("--steer", "when_busy", flag_value="steer", help="While a turn is running: put the message into it.")
@click.option("--queue", "when_busy", flag_value="queue", help="While a turn is running: send it as the next turn.")
@click.option("--image", "images", metavar="FILE", multiple=True, help="A file to show to the model.")
@click.option("--wait", is_flag=True, help="Follow the turn live until it ends.")
@json_option
@reports_errors
def command(
    session: str, message: str, when_busy: WhenBusy | None, images: tuple[str, ...], wait: bool, as_json: bool
) -> int | None:
    """Send a session its next message: one of Helmsman's, of an earlier run, or one a person made in the terminal.

    SESSION is a session's id or a part of it (`helmsman list` shows them); MESSAGE `-` reads it from stdin. Returns at once
    and the turn goes on; where Codex cannot go on without this process, or with --wait, it is followed to its end. While a
    turn is running it is an error, unless --steer or --queue says what to do.
    """
    from helmsman.cli.run import prompt_text
    from helmsman.cli.watch import watch

    text = prompt_text(message)

    async def send(helm: Helmsman) -> Session:
        from helmsman.cli.session_ids import full_session_id

        known = await full_session_id(helm, session)
        return await helm.say(known, text, images=images, when_busy=when_busy or "error")

    if wait:
        return watch(send, as_json=as_json)
    from helmsman.cli.on_session import with_helmsman

    async def leave(helm: Helmsman) -> tuple[str, str, str | None, bool]:
        sent = await send(helm)
        goes_on = sent.engine is not None and sent.engine.id is not None
        if not goes_on and sent.state.is_running and when_busy is None:
            await sent.wait(until="end")
        return sent.id, sent.status, sent.result, goes_on

    session_id, status, result, goes_on = with_helmsman(leave)
    shown = {"sessionId": session_id, "status": status, "result": result}
    sentence = f"{session_id}: {status}" + (f"\nFollow it: helmsman watch {session_id}" if goes_on else "")
    tell(
        sentence if result is None else f"{sentence}\n{result}",
        {k: v for k, v in shown.items() if v is not None},
        as_json=as_json,
    )
    return None
