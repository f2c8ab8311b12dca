"""`helmsman session rewind`: return a session to the state before one of its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from helmsman.base.sanitize import visible
from helmsman.cli.command import cli_command
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.host import host
from helmsman.cli.on_session import session_argument, with_helmsman
from helmsman.cli.output import print_json
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.capabilities.rewinding import Rewind, RewindPart
    from helmsman.client import Helmsman


@cli_command(
    "rewind",
    "Take a session back to before a turn.",
    "helmsman session rewind 3b2d5c8e",
    "helmsman session rewind 3b2d5c8e --to 2 --files",
    "helmsman session rewind 3b2d5c8e --undo",
)
@session_argument
@click.option("--to", metavar="TURN", help="Before this turn: its number from 1 on, or its id.  [default: the last]")
@click.option("--files", "only_files", is_flag=True, help="Only the files.")
@click.option("--conversation", "only_conversation", is_flag=True, help="Only what the agent knows.")
@click.option("--undo", is_flag=True, help="Revert the last rewind of the session.")
@click.option("--show", "only_show", is_flag=True, help="Only show what would be lost.")
@click.option("--digest", metavar="DIGEST", help="Do not ask: do what was shown with this digest, and nothing else.")
@yes_option
def command(
    session: str,
    to: str | None,
    only_files: bool,
    only_conversation: bool,
    undo: bool,
    only_show: bool,
    digest: str | None,
    agreed: bool,
    as_json: bool,
) -> None:
    """Take a session back to before one of its turns: files are as they were then, and the agent forgets that turn and
    those after it.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. What would be lost is shown first, including files that you changed yourself after the last turn; without
    a terminal to ask on, this needs --yes. Ignored files, commits and what is staged stay as they are. --undo reverts
    it.
    """
    if (only_files and only_conversation) or (undo and (to or only_files or only_conversation)):
        raise InvalidInput("--files, --conversation and --undo exclude each other. Choose one.")
    part: RewindPart | None = "files" if only_files else "conversation" if only_conversation else None
    if not only_show:
        host().begin_change()

    async def look(helm: Helmsman) -> Rewind:
        return await helm.extras.rewinding.preview(session, to=to, part=part, undo=undo)

    shown = with_helmsman(look)
    if only_show or shown.is_nothing:
        _print(shown, done=False, as_json=as_json)
        return
    if digest is None:
        if not (agreed or as_json):
            _print(shown, done=False, as_json=False)
        agree(
            "Do it?",
            agreed=agreed,
            as_json=as_json,
            otherwise=f"Session {shown.session_id} would be taken back, and --show shows what is lost by it.",
        )
        digest = shown.digest
    agreed_to = digest
    done = with_helmsman(
        lambda helm: helm.extras.rewinding.rewind(shown.session_id, digest=agreed_to, to=to, part=part, undo=undo)
    )
    _print(done, done=True, as_json=as_json)


def _print(rewind: Rewind, *, done: bool, as_json: bool) -> None:
    from helmsman.shapes.rewinds import rewind_as_dict, rewind_in_words

    shown = rewind_as_dict(rewind, done=done)
    if as_json:
        print_json(shown)
        return
    for line in rewind_in_words(shown):
        click.echo(visible(line), err=True)
