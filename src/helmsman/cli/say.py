"""`helmsman say`: send a session its next message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from helmsman.base.json_values import present
from helmsman.cli.command import cli_command, with_options
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.followed_turn import until_sent
from helmsman.cli.host import host
from helmsman.cli.on_session import names_ways_out, session_and
from helmsman.cli.output import print_result
from helmsman.cli.run import PERMISSION_OPTIONS, prompt_text
from helmsman.cli.session_ids import short_id
from helmsman.cli.watch import follow_session, with_display
from helmsman.errors import OutcomeUnknown
from helmsman.model.options import ApprovalPolicy, SandboxMode
from helmsman.tasks.call_key import done_before

if TYPE_CHECKING:
    from helmsman.cli.displays import Display
    from helmsman.client import Helmsman
    from helmsman.sessions.session import Session, WhenBusy


@cli_command(
    "say",
    "Send a session its next message.",
    'helmsman say 3b2d5c8e "Now add a test for it"',
    'helmsman say 3b2d5c8e "Only the parser, please" --steer',
    "git diff | helmsman say 3b2d5c8e - --wait",
    'helmsman say 3b2d5c8e "Go on with that" --agent claude',
)
@session_and("message")
@click.option("--steer", "when_busy", flag_value="steer", help="While a turn is running: put the message into it.")
@click.option(
    "--queue",
    "when_busy",
    flag_value="queue",
    help="While a turn is running: send it when that has ended; Ctrl-C leaves it queued.",
)
@click.option(
    "--agent", metavar="NAME", help="Hand it over to this agent, in a new session with a summary of the work."
)
@click.option("-s", "--sandbox", type=click.Choice(get_args(SandboxMode)), help="From now on: what commands may do.")
@click.option(
    "-a", "--approval-policy", type=click.Choice(get_args(ApprovalPolicy)), help="From now on: when it asks first."
)
@with_options(*PERMISSION_OPTIONS)
@click.option("--image", "images", metavar="FILE", multiple=True, help="A file to show to the model.")
@click.option("--wait", is_flag=True, help="Follow the turn live until it ends.")
def command(
    session: str,
    message: str,
    when_busy: WhenBusy | None,
    agent: str | None,
    sandbox: SandboxMode | None,
    approval_policy: ApprovalPolicy | None,
    images: tuple[str, ...],
    wait: bool,
    as_json: bool,
    **permissions: Any,
) -> int:
    """Send the next message to a session: Helmsman's own, one from an earlier run, or one made in the agent's terminal.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory; MESSAGE `-` reads it from stdin. Returns at once and the turn keeps running. With --wait, or if the turn
    needs this process, it is followed to its end, and the exit code is that of the turn. While a turn is running it is
    an error, unless --steer sends the message into that turn or --queue waits for its end. With --agent another agent
    continues in the same directory or worktree, in a new session that gets a summary of what was said and done. It may
    do no more than this one, unless --sandbox or --approval-policy says so.
    """
    if wait:
        host().require_own_process()
    text = prompt_text(message)
    given = {"agent": agent, "sandbox": sandbox, "approval_policy": approval_policy}
    options: Any = present({**given, **{name: value or None for name, value in permissions.items()}})
    host().begin_change()

    async def send(helm: Helmsman, display: Display) -> int:
        known = await helm.session(session)
        if (before := done_before()) is not None:
            if before.status in ("canceled", "failed", "unknown"):
                raise OutcomeUnknown(
                    f"The hub that should have sent this has died, and {before.id} is {before.status}."
                )
            return print_sent(known, await helm.session(before.session_id or known.id), before.id)
        if when_busy is not None:
            known.require_here()
        with names_ways_out(known.id):
            sent = await helm.say(known.id, text, images=images, when_busy=when_busy or "error", **options)
        if when_busy == "queue" and (not_sent := await until_sent(helm, sent, sent.task_id)) is not None:
            reason = not_sent.note or "It was dropped."
            shown = {"sessionId": sent.id, "status": sent.status, "taskId": not_sent.id, "note": reason}
            print_result(f"Not sent. {reason}", shown, as_json=as_json)
            return ExitCode.INTERRUPTED
        await sent.begun.wait()
        if wait or not (sent.goes_on_alone or await helm.goes_on_alone()):
            from helmsman.cli.follow import Talk

            return await follow_session(sent, display, Talk(helm=helm))
        return print_sent(known, sent, sent.task_id)

    def print_sent(known: Session, sent: Session, task_id: str | None) -> int:
        shown = {"sessionId": sent.id, "status": sent.status, "taskId": task_id}
        words = "Sent."
        if agent is not None and sent.id != known.id and sent.handed_over_from is not None:
            shown |= {"handedOverFrom": sent.handed_over_from, "note": " ".join(sent.notes) or None}
            words = f"Handed over to {agent}."
        print_result(f"{words} Follow it: helmsman watch {short_id(sent.id)}", present(shown), as_json=as_json)
        return ExitCode.OK

    return with_display(send, as_json=as_json)
