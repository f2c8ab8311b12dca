"""`helmsman compact`: let Codex replace a session's history by a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import on_session, session_argument, tell
from helmsman.errors import EngineTimeout

if TYPE_CHECKING:
    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session

_SECONDS: Final = 900


@click.command(
    "compact",
    short_help="Replace a session's history by a summary.",
    epilog="""\b
Example:
  helmsman compact 3b2d5c8e
""",
)
@session_argument
@json_option
@reports_errors
def command(session: str, as_json: bool) -> int:
    """Let Codex replace the history of a long session by a summary, and wait until it has.

    SESSION is a session's id or a part of it (`helmsman list` shows them).
    """

    async def compact(helm: Helmsman, session_id: str) -> Session:
        compacting = await helm.extras.upkeep.compact(session_id)
        if not await compacting.wait(until="end", timeout=_SECONDS):
            await compacting.interrupt()
            raise EngineTimeout(f"Codex did not compact the session within {_SECONDS} s and was stopped. Try it again.")
        return compacting

    done = on_session(session, compact)
    shown: dict[str, object] = {"sessionId": done.id, "status": done.status}
    if done.error is not None:
        shown["error"] = {"code": done.error.code, "message": done.error.message}
        tell(f"Error: {done.error.message}", shown, as_json=as_json)
    else:
        tell(f"Session {done.id} is compacted.", shown, as_json=as_json)
    return ExitCode.OK if done.status == "done" else ExitCode.FAILED
