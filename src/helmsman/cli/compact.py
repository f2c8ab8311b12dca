"""`helmsman compact`: replace a session's history with a summary by Codex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.cli.command import cli_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument
from helmsman.cli.output import print_result
from helmsman.errors import EngineTimeout

if TYPE_CHECKING:
    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session

_SECONDS: Final = 900


@cli_command("compact", "Replace a session's history with a summary.", "helmsman compact 3b2d5c8e")
@session_argument
def command(session: str, as_json: bool) -> int:
    """Let the agent replace the history of a long session with a summary, and wait until it has.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """
    host().begin_change("once")

    async def compact(helm: Helmsman, session_id: str) -> Session:
        compacting = await helm.extras.upkeep.compact(session_id)
        if not await compacting.wait(until="end", timeout=_SECONDS):
            await compacting.interrupt()
            raise EngineTimeout(
                f"The agent did not compact the session within {_SECONDS} s and was stopped. Try it again."
            )
        return compacting

    session_id, done = on_session(session, compact)
    shown: dict[str, object] = {"sessionId": session_id, "status": done.status}
    said = f"Session {session_id} is compacted."
    if done.error is not None:
        shown["error"] = {"code": done.error.code, "message": done.error.message}
        said = f"Error: {done.error.message}"
    print_result(said, shown, as_json=as_json)
    return ExitCode.OK if done.status == "done" else ExitCode.FAILED
