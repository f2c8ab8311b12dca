"""Commands on one session: fork, hand, rename, archive, compact, goal, rollback, interrupt, steer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import command_here, host
from helmsman.cli.on_session import on_session, session_and, session_argument, with_helmsman
from helmsman.cli.output import counted, print_json, print_result, standing
from helmsman.cli.run import prompt_text
from helmsman.errors import EngineTimeout, InvalidInput, SessionIdle

if TYPE_CHECKING:
    from helmsman.agents.protocol import Goal
    from helmsman.client import Helmsman
    from helmsman.sessions.session import Session


@cli_command(
    "fork",
    "Branch off a new session from another.",
    "helmsman fork 3b2d5c8e",
    'helmsman fork 3b2d5c8e "Try it without the cache" --from-turn 2',
)
@session_and("message", required=False)
@click.option(
    "--from-turn",
    metavar="N",
    help="The last turn it shares: its number, counted from 1, or its id.  [default: the last]",
)
def fork_command(session: str, message: str | None, from_turn: str | None, as_json: bool) -> int:
    """Make a new session that shares the history of another, and run MESSAGE in it, if given.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. Without a message the new id goes to stdout; with one the turn is shown as in `helmsman run`, and its
    final message goes to stdout.
    """
    settings = settings_of_command()
    if message is not None:
        host().require_own_process()
    host().begin_change()

    async def fork(helm: Helmsman) -> int:
        from helmsman.cli.displays import new_display
        from helmsman.cli.follow import Talk, follow
        from helmsman.step import run_step

        made = await helm.fork(session, from_turn=from_turn)
        if message is not None:
            step = partial(run_step, message, session_id=made.id, helm=helm)
            return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code
        if as_json:
            print_json({"sessionId": made.id, "forkedFrom": session})
        else:
            click.echo(made.id)
        return ExitCode.OK

    return with_helmsman(fork, settings=settings)


@cli_command(
    "hand",
    "Hand a session to an MCP client, or take it back.",
    "helmsman session hand 3b2d5c8e --to claude-code",
    "helmsman session hand 3b2d5c8e --back",
)
@session_argument
@click.option("--to", "client", metavar="CLIENT", help="The name that the client gives itself, e.g. claude-code.")
@click.option("--back", is_flag=True, help="Take it back: people answer its questions again.")
def hand_command(session: str, client: str | None, back: bool, as_json: bool) -> None:
    """Let the model of an MCP client act on a session: answer its questions, apply its changes, rewind it.

    A model acts on the sessions that its own client opened. Questions of all others are answered by people. SESSION is
    a part of an id or title, or `-` for the last one; without it, the one running here or the last of this directory.
    """
    if (client is None) is not back:
        raise InvalidInput("Say either whom to hand it to, with --to, or --back.")
    host().begin_change()
    session_id, _ = on_session(session, lambda helm, session_id: helm.hand(session_id, client))
    told = f"Handed session {session_id} to {client}." if client else f"Session {session_id} is yours again."
    print_result(told, {"sessionId": session_id, "handedTo": client}, as_json=as_json)


@cli_command("rename", "Give a session a name.", 'helmsman session rename 3b2d5c8e "Parser rewrite"')
@session_and("name")
def rename_command(session: str, name: str, as_json: bool) -> None:
    """Give a session a name, which `helmsman list` then shows.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory.
    """
    host().begin_change()
    session_id, named = on_session(session, lambda helm, session_id: helm.extras.upkeep.rename(session_id, name))
    given = named.state.name or ""
    shown = {"sessionId": session_id, "name": given}
    print_result(f"Session {session_id} is now called {given!r}.", shown, as_json=as_json)


@cli_command("archive", "Archive a session.", "helmsman session archive 3b2d5c8e")
@session_argument
def archive_command(session: str, as_json: bool) -> None:
    """Archive a session: lists show it only with --all, and `helmsman session unarchive` brings it back. Nothing is deleted.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory.
    """
    host().begin_change()
    session_id, _ = on_session(session, lambda helm, session_id: helm.extras.upkeep.archive(session_id))
    print_result(f"Session {session_id} is archived.", {"sessionId": session_id, "archived": True}, as_json=as_json)


@cli_command(
    "unarchive", "Bring back an archived session.", "helmsman list --all", "helmsman session unarchive 3b2d5c8e"
)
@session_argument
def unarchive_command(session: str, as_json: bool) -> None:
    """Bring back a session that was archived.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory (`helmsman list --all` shows archived ones).
    """
    host().begin_change()
    session_id, _ = on_session(session, lambda helm, session_id: helm.extras.upkeep.unarchive(session_id))
    print_result(f"Session {session_id} is back.", {"sessionId": session_id, "archived": False}, as_json=as_json)


_SECONDS: Final = 900


@cli_command("compact", "Replace a session's history with a summary.", "helmsman session compact 3b2d5c8e")
@session_argument
def compact_command(session: str, as_json: bool) -> int:
    """Let the agent replace the history of a long session with a summary, and wait until it has.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory.
    """
    host().begin_change()

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


@cli_command(
    "goal",
    "Set, show or clear the goal of a session.",
    "helmsman session goal 3b2d5c8e",
    'helmsman session goal 3b2d5c8e "All tests pass on Python 3.14"',
    "helmsman session goal 3b2d5c8e --clear",
)
@session_and("goal", required=False)
@click.option("--clear", is_flag=True, help="Clear the goal.")
def goal_command(session: str, goal: str | None, clear: bool, as_json: bool) -> None:
    """Set, show or clear the goal of a session.

    With a new goal Codex starts working at once, in the background, and continues turn after turn until it says that
    the goal is reached or blocked, or is interrupted. SESSION is a part of an id or title, or `-` for the last one;
    without it, the one running here or the last of this directory.
    """
    if goal is not None and clear:
        raise click.UsageError("Give a goal or --clear, not both.")
    if goal is not None or clear:
        host().begin_change()

    async def set_or_show(helm: Helmsman, session_id: str) -> Goal | None:
        upkeep = helm.extras.upkeep
        if clear:
            await upkeep.clear_goal(session_id)
            return None
        if goal is None:
            return await upkeep.goal(session_id)
        if not await helm.goes_on_alone():
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


@cli_command(
    "rollback",
    "Forget the last turns of a session.",
    "helmsman session rollback 3b2d5c8e",
    "helmsman session rollback 3b2d5c8e --turns 3 --yes",
)
@session_argument
@click.option(
    "--turns", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="How many turns to forget."
)
@yes_option
def rollback_command(session: str, turns: int, agreed: bool, as_json: bool) -> None:
    """Forget the last turns of a session: the agent no longer knows about them. Files stay as those turns left them.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. This cannot be undone, so you are asked first; without a terminal to ask on, it needs --yes.
    """
    host().begin_change()
    session_id = session
    forgotten = "its last turn" if turns == 1 else f"its last {turns} turns"
    agree(
        f"Session {session_id} forgets {forgotten}, for good. Continue?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"Session {session_id} would forget {forgotten}, for good.",
    )
    with_helmsman(lambda helm: helm.extras.upkeep.roll_back(session_id, turns))
    shown = {"sessionId": session_id, "turns": turns}
    print_result(f"Session {session_id} has forgotten {forgotten}.", shown, as_json=as_json)


@cli_command("interrupt", "Stop a running turn.", "helmsman interrupt 3b2d5c8e")
@session_argument
def interrupt_command(session: str, as_json: bool) -> None:
    """Stop the running turn of a session, its sub-agents and the commands it left running, and wait until they have stopped.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory. In an idle session only commands it left running are stopped. Queued messages are dropped.
    """
    host().begin_change()

    async def stop(helm: Helmsman, session_id: str) -> tuple[str, int]:
        queued = len((await helm.session(session_id)).queue)
        return (await helm.interrupt(session_id)).status, queued

    session_id, (status, queued) = on_session(session, stop)
    dropped = f" {counted(queued, 'queued message')} dropped." if queued else ""
    sentence = f"Session {session_id} {standing(status)}.{dropped}"
    print_result(sentence, {"sessionId": session_id, "status": status}, as_json=as_json)


@cli_command("steer", "Put a message into a running turn.", 'helmsman steer 3b2d5c8e "Leave the tests as they are"')
@session_and("message")
def steer_command(session: str, message: str, as_json: bool) -> None:
    """Send a message into the running turn of a session; the agent reads it after its current step.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory; MESSAGE `-` reads it from stdin.
    """
    text = prompt_text(message)
    host().begin_change()

    async def steer(helm: Helmsman, session_id: str) -> None:
        steered = await helm.session(session_id)
        steered.require_here()
        if not steered.state.is_running:
            raise SessionIdle(
                f"No turn is running in session {session_id}. Send it the message with `{command_here('say')}`."
            )
        await steered.steer(text)

    session_id, _ = on_session(session, steer)
    print_result(f"Session {session_id} has the message.", {"sessionId": session_id, "steered": True}, as_json=as_json)
