"""Commands on one session: fork, hand, rename, archive, compact, goal, rollback, interrupt, steer."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.base.caller_context import environment
from helmsman.base.json_values import present
from helmsman.base.programs import available, environment_for
from helmsman.base.sanitize import one_line, visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, option, with_options, yes_option
from helmsman.cli.consoles import echo, is_terminal, result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import command_here, host
from helmsman.cli.hub import new_file
from helmsman.cli.on_session import (
    interactive_option,
    names_ways_out,
    session_and,
    session_argument,
    short_id,
    with_helmsman,
)
from helmsman.cli.output import (
    WAITING_FOR_YOU,
    agree,
    print_details,
    print_json,
    print_message,
    print_result,
    session_word,
    spent_by,
    standing,
)
from helmsman.cli.run import PERMISSION_OPTIONS, prompt_text
from helmsman.errors import (
    EngineTimeout,
    HelmsmanError,
    InvalidInput,
    OutcomeUnknown,
    SessionIdle,
    SessionLocked,
    Unsupported,
)
from helmsman.model.options import DEFAULT_AGENT, ApprovalPolicy, SandboxMode
from helmsman.tasks.call_key import done_before

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console
    from rich.text import Text

    from helmsman.agents.protocol import Goal, OwnTerminal
    from helmsman.capabilities.rewinding import Rewind, RewindPart
    from helmsman.cli.displays import Display
    from helmsman.cli.follow import Talk
    from helmsman.client import Helmsman
    from helmsman.model.options import TurnOptions
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session, WhenBusy
    from helmsman.shapes.contract import StatusOutput


@cli_command(
    "fork",
    "Branch off a new session from another.",
    "helmsman session fork 3b2d5c8e",
    'helmsman session fork 3b2d5c8e "Try it without the cache" --from-turn 2',
    changes=True,
)
@session_and("message", required=False)
@option("--from-turn N", "The last turn it shares: its number, counted from 1, or its id.  [default: the last]")
def fork_command(session: str, message: str | None, from_turn: str | None, as_json: bool) -> int:
    """Make a new session that shares the history of another, and run MESSAGE in it, if given.

    Without a message the new id goes to stdout; with one the turn is shown as in `helmsman run`, and its final
    message goes to stdout.
    """
    settings = settings_of_command()
    if message is not None:
        # The turn is shown on this terminal.
        host().require_own_process()

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
    changes=True,
)
@session_argument
@option("--to CLIENT", "The name that the client gives itself, e.g. claude-code.", to="client")
@option("--back", "Take it back: people answer its questions again.")
def hand_command(session: str, client: str | None, back: bool, as_json: bool) -> None:
    """Let the model of an MCP client act on a session: answer its questions, apply its changes, rewind it.

    A model acts on the sessions that its own client opened. Questions of all others are answered by people.
    """
    if (client is None) is not back:
        raise InvalidInput("Give either --to with a client, or --back.")
    with_helmsman(lambda helm: helm.hand(session, client))
    told = f"Handed session {session} to {client}." if client else f"Session {session} is yours again."
    print_result(told, {"sessionId": session, "handedTo": client}, as_json=as_json)


@cli_command("rename", "Give a session a name.", 'helmsman session rename 3b2d5c8e "Parser rewrite"', changes=True)
@session_and("name")
def rename_command(session: str, name: str, as_json: bool) -> None:
    """Give a session a name, which `helmsman list` then shows."""
    given = with_helmsman(lambda helm: helm.extras.upkeep.rename(session, name)).state.name or ""
    print_result(f"Session {session} is now called {given!r}.", {"sessionId": session, "name": given}, as_json=as_json)


@cli_command("archive", "Archive a session.", "helmsman session archive 3b2d5c8e", changes=True)
@session_argument
def archive_command(session: str, as_json: bool) -> None:
    """Archive a session: lists show it only with --all, and `helmsman session unarchive` brings it back.

    Nothing is deleted.
    """
    with_helmsman(lambda helm: helm.extras.upkeep.archive(session))
    print_result(f"Session {session} is archived.", {"sessionId": session, "archived": True}, as_json=as_json)


@cli_command(
    "unarchive",
    "Bring back an archived session.",
    "helmsman list --all",
    "helmsman session unarchive 3b2d5c8e",
    changes=True,
)
@session_argument
def unarchive_command(session: str, as_json: bool) -> None:
    """Bring back a session that was archived.

    `helmsman list --all` shows archived ones.
    """
    with_helmsman(lambda helm: helm.extras.upkeep.unarchive(session))
    print_result(f"Session {session} is back.", {"sessionId": session, "archived": False}, as_json=as_json)


_SECONDS: Final = 900


@cli_command(
    "compact", "Replace a session's history with a summary.", "helmsman session compact 3b2d5c8e", changes=True
)
@session_argument
def compact_command(session: str, as_json: bool) -> int:
    """Let the agent replace the history of a long session with a summary, and wait until it has."""

    async def compact(helm: Helmsman) -> Session:
        compacting = await helm.extras.upkeep.compact(session)
        # Compacting is a turn, and may hang like any other.
        if not await compacting.wait(until="end", timeout=_SECONDS):
            await compacting.interrupt()
            raise EngineTimeout(
                f"The agent did not compact the session within {_SECONDS} s and was stopped. Try it again."
            )
        return compacting

    done = with_helmsman(compact)
    shown: dict[str, object] = {"sessionId": session, "status": done.status}
    said = f"Session {session} is compacted."
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
@option("--clear", "Clear the goal.")
def goal_command(session: str, goal: str | None, clear: bool, as_json: bool) -> None:
    """Set, show or clear the goal of a session.

    With a new goal Codex starts working at once, in the background, and continues turn after turn until it says
    that the goal is reached or blocked, or is interrupted.
    """
    if goal is not None and clear:
        raise click.UsageError("Give a goal or --clear, not both.")
    if goal is not None or clear:
        host().begin_change()

    async def set_or_show(helm: Helmsman) -> Goal | None:
        upkeep = helm.extras.upkeep
        if clear:
            await upkeep.clear_goal(session)
            return None
        if goal is None:
            return await upkeep.goal(session)
        # The goal is worked on after this command has ended.
        if not await helm.goes_on_alone():
            raise InvalidInput(
                "A goal is worked on in the background, and here the engine ends with this command. Use an engine that "
                "outlives it (HELMSMAN_DETACH=1), or send a message with `helmsman run --session`."
            )
        return await upkeep.set_goal(session, goal)

    found = with_helmsman(set_or_show)
    shown: dict[str, object] = {"sessionId": session, "goal": None}
    said = f"Session {session} has no goal."
    if found is not None:
        shown |= {"goal": found.objective, "goalStatus": found.status, "tokensUsed": found.tokens_used}
        said = f"Session {session}, {found.status}: {found.objective}"
    print_result(said, shown, as_json=as_json)


@cli_command(
    "rollback",
    "Forget the last turns of a session.",
    "helmsman session rollback 3b2d5c8e",
    "helmsman session rollback 3b2d5c8e --turns 3 --yes",
    changes=True,
)
@session_argument
@option("--turns N", "How many turns to forget.", type=click.IntRange(min=1), default=1)
@yes_option
def rollback_command(session: str, turns: int, agreed: bool, as_json: bool) -> None:
    """Forget the last turns of a session: the agent no longer knows about them. Files stay as those turns left them.

    This cannot be undone, so you are asked first; without a terminal to ask on, it needs --yes.
    """
    forgotten = "its last turn" if turns == 1 else f"its last {turns} turns"
    agree(
        f"Session {session} forgets {forgotten}, for good. Continue?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"Session {session} would forget {forgotten}, for good.",
    )
    with_helmsman(lambda helm: helm.extras.upkeep.roll_back(session, turns))
    shown = {"sessionId": session, "turns": turns}
    print_result(f"Session {session} has forgotten {forgotten}.", shown, as_json=as_json)


@cli_command("interrupt", "Stop a running turn.", "helmsman interrupt 3b2d5c8e", changes=True)
@session_argument
def interrupt_command(session: str, as_json: bool) -> None:
    """Stop the running turn of a session, its sub-agents and the commands it left running, and wait until they have stopped.

    In an idle session only commands it left running are stopped. Queued messages are dropped.
    """

    async def stop(helm: Helmsman) -> tuple[str, int]:
        # Counted before, because interrupting drops them.
        queued = len((await helm.session(session)).queue)
        return (await helm.interrupt(session)).status, queued

    status, queued = with_helmsman(stop)
    dropped = f" {counted(queued, 'queued message')} dropped." if queued else ""
    sentence = f"Session {session} {standing(status)}.{dropped}"
    print_result(sentence, {"sessionId": session, "status": status}, as_json=as_json)


@cli_command(
    "steer",
    "Put a message into a running turn.",
    'helmsman steer 3b2d5c8e "Leave the tests as they are"',
    changes=True,
)
@session_and("message")
def steer_command(session: str, message: str, as_json: bool) -> None:
    """Send a message into the running turn of a session; the agent reads it after its current step.

    MESSAGE `-` reads it from stdin.
    """
    text = prompt_text(message)

    async def steer(helm: Helmsman) -> None:
        steered = await helm.session(session)
        # Only the process that runs the turn can put a message into it.
        steered.require_here()
        if not steered.state.is_running:
            raise SessionIdle(
                f"No turn is running in session {session}. Send it the message with `{command_here('say')}`."
            )
        await steered.steer(text)

    with_helmsman(steer)
    print_result(f"Session {session} has the message.", {"sessionId": session, "steered": True}, as_json=as_json)


@cli_command(
    "attach",
    "Join a session in its agent's own terminal program.",
    "helmsman session attach 3b2d5c8e",
    "helmsman session attach 3b2d5c8e --json | jq -r .shell",
)
@session_argument
def attach_command(session: str, as_json: bool) -> int | None:
    """Open a session in its agent's own terminal program, while Helmsman keeps running it.

    Both see everything, either can answer, and the first answer counts. Leaving the program stops nothing; pressing
    Esc or Ctrl-C in it while a turn runs stops that turn. Works with Codex 0.163 and newer. With --json the command
    is shown and not run.
    """
    from helmsman.terminal import has_terminal

    # With --json the command is only shown.
    if not as_json:
        host().require_own_process()
        if not has_terminal():
            raise InvalidInput("This needs a terminal. `helmsman session attach --json` shows what to run in one.")
        # On another machine the program runs there, on an SSH terminal.
        if (code := host().run_there("session", "attach", session)) is not None:
            return code
    found = with_helmsman(lambda helm: _own_terminal(helm, session))
    if as_json:
        shell = shlex.join(("env", *(f"{name}={value}" for name, value in found.variables.items()), *found.command))
        shown = {"sessionId": session, "command": list(found.command), "variables": dict(found.variables)}
        print_result(shell, {**shown, "shell": shell}, as_json=True)
        return None
    code = _run_terminal(found)
    name = short_id(session)
    print_message(f"Left. Session {name} is still there: helmsman watch {name}, helmsman session attach {name}")
    return code


async def _own_terminal(helm: Helmsman, session_id: str) -> OwnTerminal:
    name = short_id(session_id)
    instead = f"`helmsman watch {name}` follows it, `helmsman say {name}` writes to it"
    try:
        return await helm.extras.upkeep.own_terminal(session_id)
    except (SessionLocked, Unsupported) as error:
        message = error.message.replace(" ID`", f" {session_id}`")
        raise type(error)(f"{message} Meanwhile {instead}.", **error.details) from error


def _run_terminal(found: OwnTerminal) -> int:
    """Run the program on this terminal, keep its engine alive in parallel, and return the exit code."""
    from helmsman.agents.registry import engine_in_use

    # The hub must not end the engine while the program uses it.
    with engine_in_use(settings_of_command().state_dir, found.engine):
        before = signal.signal(signal.SIGINT, lambda *_: None)  # leave Ctrl-C to the program
        try:
            with subprocess.Popen(found.command, env={**environment(), **found.variables}) as program:
                return program.wait()
        except OSError as error:
            raise HelmsmanError(f"{found.command[0]} cannot be started: {error}. Is it installed?") from error
        finally:
            signal.signal(signal.SIGINT, before)


@cli_command(
    "open",
    "Open the directory of a session in your editor.",
    "helmsman session open 3b2d5c8e",
    'cd "$(helmsman session open 3b2d5c8e --path)"',
)
@session_argument
@option("--path", "Print the directory, and open nothing.", to="only_path")
def open_command(session: str, only_path: bool, as_json: bool) -> int | None:
    """Open the worktree of a session, or the directory that it works in, in your editor ($VISUAL or $EDITOR).

    In a pipe the directory is printed.
    """
    if host().is_elsewhere:
        raise InvalidInput("Its directory is on another machine. Log in there with ssh.")

    async def look(helm: Helmsman) -> str | None:
        return (await helm.session(session)).directory

    directory = with_helmsman(look)
    if directory is None or not Path(directory).is_dir():
        raise InvalidInput(f"The directory of session {session} is gone: {directory or 'it is not known'}.")
    if as_json:
        print_json({"sessionId": session, "directory": directory})
        return None
    # In a pipe, for `cd "$(…)"`.
    if only_path or not sys.stdout.isatty():
        click.echo(directory)
        return None
    host().require_own_process()
    known = environment()
    # EDITOR may have options.
    words = shlex.split(known.get("VISUAL") or known.get("EDITOR") or "")
    # An editor that a session could have written must not run.
    program = available(words[0], known) if words else None
    if program is None:
        raise InvalidInput(f"No editor is set. Set EDITOR, or go there: cd {shlex.quote(directory)}")
    try:
        done = subprocess.run([program, *words[1:], directory], cwd=directory, env=environment_for(known), check=False)
    except OSError as error:
        raise HelmsmanError(f"{words[0]} could not be started: {error}.") from error
    return done.returncode


@cli_command(
    "rewind",
    "Take a session back to before a turn.",
    "helmsman session rewind 3b2d5c8e",
    "helmsman session rewind 3b2d5c8e --to 2 --files",
    "helmsman session rewind 3b2d5c8e --undo",
)
@session_argument
@option("--to TURN", "Before this turn: its number from 1 on, or its id.  [default: the last]")
@option("--files", "Only the files.", to="only_files")
@option("--conversation", "Only what the agent knows.", to="only_conversation")
@option("--undo", "Revert the last rewind of the session.")
@option("--show", "Only show what would be lost.", to="only_show")
@option("--digest DIGEST", "Do not ask: do what was shown with this digest, and nothing else.")
@yes_option
def rewind_command(
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

    What would be lost is shown first, including files that you changed yourself after the last turn; without a
    terminal to ask on, this needs --yes. Ignored files, commits and what is staged stay as they are. --undo reverts
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
        _print_rewind(shown, done=False, as_json=as_json)
        return
    if digest is None:
        if not (agreed or as_json):
            _print_rewind(shown, done=False, as_json=False)
        agree(
            "Do it?",
            agreed=agreed,
            as_json=as_json,
            otherwise=f"Session {shown.session_id} would be taken back, and --show shows what is lost by it.",
        )
        # Exactly what was shown is done: otherwise the digest does not match.
        digest = shown.digest
    agreed_to = digest
    done = with_helmsman(
        lambda helm: helm.extras.rewinding.rewind(shown.session_id, digest=agreed_to, to=to, part=part, undo=undo)
    )
    _print_rewind(done, done=True, as_json=as_json)


def _print_rewind(rewind: Rewind, *, done: bool, as_json: bool) -> None:
    from helmsman.shapes.rewinds import rewind_as_dict, rewind_in_words

    shown = rewind_as_dict(rewind, done=done)
    if as_json:
        print_json(shown)
        return
    for line in rewind_in_words(shown):
        print_message(line)


_FORMATS = ("md", "html", "json")
_CONTINUE = "Say what was done so far and what is left. Change nothing yet."


@cli_command(
    "export",
    "Write a session to a file: Markdown, a web page or JSON.",
    "helmsman session export 3b2d5c8e --output session.html",
    "helmsman session export 3b2d5c8e --format json > session.json",
)
@session_argument
@option("--format", "By default as the file is called, else md (json with --json).", to="form", choices=_FORMATS)
@option("--output FILE", "Write to a new file, for you alone.  [default: stdout]", type=click.Path())
def export_command(session: str, form: str | None, output: str | None, as_json: bool) -> None:
    """Write a session with all its turns: prompts, messages, commands with their output, changes, questions and answers.

    Secrets that Helmsman recognises are redacted; read the file before you pass it on. The page is one file that loads and
    runs nothing. `helmsman session import` continues a JSON file, on any machine and with any agent.
    """
    from helmsman.shapes.exported_session import as_document, as_markdown, as_page
    from helmsman.web.markdown import as_html

    host().require_own_process()
    suffix = "" if output is None else Path(output).suffix.removeprefix(".")
    form = form or (suffix if suffix in _FORMATS else "json" if as_json else "md")

    async def render(helm: Helmsman) -> str:
        looked_at, turns = await helm.session(session), await helm.history(session)
        if form == "json":
            return json.dumps(as_document(looked_at, turns), indent=1, ensure_ascii=False) + "\n"
        return as_markdown(looked_at, turns) if form == "md" else as_page(looked_at, turns, as_html)

    # A model's text may have lone surrogates.
    content = with_helmsman(render).encode("utf-8", "backslashreplace").decode()
    with new_file(output) as file:
        file.write(content)
    if output is not None:
        shown = {"sessionId": session, "file": output, "format": form}
        print_result(f"Wrote session {session} to {output}.", shown, as_json=as_json)


@cli_command(
    "import",
    "Continue an exported session here, with any agent.",
    "helmsman session import session.json",
    'helmsman session import session.json "Finish the tests" --agent claude',
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("message", required=False, default=_CONTINUE, metavar="[MESSAGE]")
@option("--agent NAME", "The agent that continues.  [default: as configured]")
@option("--worktree", "Let it work in a new git worktree.")
def import_command(file: str, message: str, agent: str | None, worktree: bool, as_json: bool) -> int:
    """Start a new session in this directory that knows what was said and done in an exported one.

    Its first prompt is MESSAGE, followed by a summary of the turns of the file, as a record. Files, permissions and rules do
    not come along: the session works on what is in this directory, and may do what you configured for new sessions.
    """
    from helmsman.cli.displays import new_display
    from helmsman.cli.follow import Talk, follow
    from helmsman.shapes.exported_session import MOST_BYTES, read_document
    from helmsman.step import run_step

    settings = settings_of_command()
    path = Path(file)
    # Looked at before reading, because the file is read whole.
    if path.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{file} is larger than {MOST_BYTES // 1024**2} MiB, which no exported session is.")
    prompt = read_document(path.read_bytes()).prompt(message)

    async def start(helm: Helmsman) -> int:
        options: TurnOptions = {} if agent is None else {"agent": agent}
        step = partial(run_step, prompt, helm=helm, worktree=worktree, **options)
        return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code

    return with_helmsman(start, settings=settings)


@cli_command(
    "say",
    "Send a session its next message.",
    'helmsman say 3b2d5c8e "Now add a test for it"',
    'helmsman say 3b2d5c8e "Only the parser, please" --steer',
    "git diff | helmsman say 3b2d5c8e - --wait",
    'helmsman say 3b2d5c8e "Go on with that" --agent claude',
    changes=True,
)
@session_and("message")
@option("--steer", "While a turn is running: put the message into it.", to="when_busy", flag_value="steer")
@option(
    "--queue",
    "While a turn is running: send it when that has ended; Ctrl-C leaves it queued.",
    to="when_busy",
    flag_value="queue",
)
@option("--agent NAME", "Hand it over to this agent, in a new session with a summary of the work.")
@option("-s --sandbox", "From now on: what commands may do.", choices=get_args(SandboxMode))
@option("-a --approval-policy", "From now on: when it asks first.", choices=get_args(ApprovalPolicy))
@with_options(*PERMISSION_OPTIONS)
@option("--image FILE...", "A file to show to the model.", to="images")
@option("--wait", "Follow the turn live until it ends.")
def say_command(
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

    MESSAGE `-` reads it from stdin. Returns at once and the turn keeps running. With --wait, or if the turn needs
    this process, it is followed to its end, and the exit code is that of the turn. While a turn is running it is an
    error, unless --steer sends the message into that turn or --queue waits for its end. With --agent another agent
    continues in the same directory or worktree, in a new session that gets a summary of what was said and done. It
    may do no more than this one, unless --sandbox or --approval-policy says so.
    """
    if wait:
        host().require_own_process()
    text = prompt_text(message)
    given = {"agent": agent, "sandbox": sandbox, "approval_policy": approval_policy}
    options: Any = present({**given, **{name: value or None for name, value in permissions.items()}})

    async def send(helm: Helmsman, display: Display) -> int:
        known = await helm.session(session)
        # This very message was already sent by a hub that died.
        if (before := done_before()) is not None:
            if before.status in ("canceled", "failed", "unknown"):
                raise OutcomeUnknown(
                    f"The hub that should have sent this has died, and {before.id} is {before.status}."
                )
            # It was sent, so it is not repeated.
            return print_sent(known, await helm.session(before.session_id or known.id), before.id)
        if when_busy is not None:
            known.require_here()
        with names_ways_out(known.id):
            sent = await helm.say(known.id, text, images=images, when_busy=when_busy or "error", **options)
        from helmsman.cli.follow import Talk, until_sent

        # A queued message is followed until it is sent, since Ctrl-C leaves it queued.
        if when_busy == "queue" and (not_sent := await until_sent(helm, sent, sent.task_id)) is not None:
            reason = not_sent.note or "It was dropped."
            shown = {"sessionId": sent.id, "status": sent.status, "taskId": not_sent.id, "note": reason}
            print_result(f"Not sent. {reason}", shown, as_json=as_json)
            return ExitCode.INTERRUPTED
        # Its turn has begun, so that its status is the one of this message.
        await sent.begun.wait()
        # Without a hub the turn ends with this process, so it is followed to its end.
        if wait or not (sent.goes_on_alone or await helm.goes_on_alone()):
            from helmsman.cli.follow import Talk

            return await follow_session(sent, display, Talk(helm=helm))
        return print_sent(known, sent, sent.task_id)

    def print_sent(known: Session, sent: Session, task_id: str | None) -> int:
        shown = {"sessionId": sent.id, "status": sent.status, "taskId": task_id}
        words = "Sent."
        if agent is not None and sent.id != known.id and sent.state.handed_over_from is not None:
            shown |= {"handedOverFrom": sent.state.handed_over_from, "note": " ".join(sent.notes) or None}
            words = f"Handed over to {agent}."
        print_result(f"{words} Follow it: helmsman watch {short_id(sent.id)}", present(shown), as_json=as_json)
        return ExitCode.OK

    return with_display(send, as_json=as_json)


_LEFT: Final = "You left before the turn had ended. `helmsman status` shows its progress."


@cli_command("watch", "Follow a session live.", "helmsman watch 3b2d5c8e", "helmsman watch 3b2d5c8e --json | jq .type")
@session_argument
@interactive_option
def watch_command(session: str, interactive: bool, as_json: bool) -> int:
    """Follow a session live until its turn ends, no matter who started it, and answer its questions on the terminal.

    What you type goes into the turn (Enter) or is queued after it (Tab); Esc twice stops the turn, `q` and Ctrl-C
    leave and stop nothing. Without a terminal its questions are left to others. The exit code is that of the turn.
    """
    return watch(session, interactive=interactive, as_json=as_json)


def watch(session_id: str, *, interactive: bool, as_json: bool) -> int:
    """Follow a session until its turn ends; return the turn's exit code."""

    async def find_and_follow(helm: Helmsman, display: Display) -> int:
        from helmsman.cli.follow import Talk

        found = await helm.session(session_id)
        return await follow_session(found, display, Talk(helm=helm, stay=interactive, leaves=True))

    return with_display(find_and_follow, as_json=as_json)


def with_display(do: Callable[[Helmsman, Display], Awaitable[int]], *, as_json: bool) -> int:
    """Call `do` with a Helmsman that asks its questions on the terminal; return the exit code.

    Without a terminal, questions are left to other clients, which `run` does not have.
    """
    from helmsman.cli.displays import new_display
    from helmsman.terminal import has_terminal

    settings = settings_of_command()
    # Others can answer in a session of the hub; refusing here would answer for them.
    display = new_display(settings, as_json=as_json, answer=None if has_terminal() else _leave_to_others)
    return with_helmsman(lambda helm: do(helm, display), settings=settings, on_question=display.on_question)


async def follow_session(session: Session, display: Display, talk: Talk) -> int:
    """Show the running or last turn of a session to its end; return the turn's exit code."""
    from helmsman.cli.follow import follow, followed

    return (await follow(followed(session), display, session=session, left=_LEFT, talk=talk)).exit_code


async def _leave_to_others(_session: Session, _question: Question, /) -> None:
    return None


@cli_command(
    "status", "Show what a session is doing.", "helmsman status 3b2d5c8e", "helmsman status 3b2d5c8e --lines 200 --json"
)
@session_argument
@option("--lines N", "How many lines of recent output to show.", type=click.IntRange(0, 2000), default=20)
def status_command(session: str, lines: int, as_json: bool) -> int:
    """Show what a session is doing right now: its status, its recent output, what it asks, its result.

    A session that waits for an answer gives exit code 5, one that failed 1.
    """
    from helmsman.shapes.session_status import session_status

    async def look(helm: Helmsman) -> tuple[Session, StatusOutput]:
        looked_at = await helm.session(session)
        return looked_at, session_status(looked_at, output_lines=lines)

    looked_at, status = with_helmsman(look)
    if as_json:
        print_json(status.as_dict())
    else:
        _print_status(looked_at, status, lines)
    return {"awaiting_approval": ExitCode.ASKED, "error": ExitCode.FAILED}.get(status.status, ExitCode.OK)


def _print_status(session: Session, status: StatusOutput, lines: int) -> None:
    from helmsman.shapes.session_status import how_long
    from helmsman.shapes.sub_agents import sub_agents_output
    from helmsman.tasks.prices import Prices  # not needed by programs
    from helmsman.terminal.question_view import answerable_lines

    word = session_word(status.status)
    progress = status.progress
    if progress is not None and word == WAITING_FOR_YOU and not progress.done:
        progress = None  # "nothing finished yet" does not help with the question
    standing = word if progress is None else f"{word}: {progress.text}"
    if status.timed_out and status.pending_question is None:
        standing += ", but not everything was answered"
    usage = status.usage
    details = {
        "session": status.session_id,
        "status": standing,
        "note": status.note,
        "waits": how_long(status),
        "error": None if status.error is None else f"{status.error.code}: {status.error.message}",
        "agent": None if status.agent == DEFAULT_AGENT else status.agent,
        "name": session.state.name,
        "directory": status.working_directory,
        "sandbox": _held(session, status),
        "worktree": None if status.worktree is None else status.worktree.branch,
        "model": status.model,
        "tokens": None if usage is None else f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
    }
    print_details({label: one_line(text or "") for label, text in details.items()})
    for agent in sub_agents_output(session, Prices.load(settings_of_command().files)) or ():
        parts = (agent.get("name"), agent["status"], spent_by(agent), short_id(agent["id"]))
        echo("  " * (agent["depth"] + 1) + "↳ " + "  ".join(one_line(part) for part in parts if part))
    console = result_console()
    if not is_terminal(console):
        if status.recent_output:
            echo("\n" + visible("\n".join(status.recent_output)))
    elif recent := recent_lines(console, session, lines):
        console.print("", *recent, sep="\n", soft_wrap=True)
    for question in session.questions:
        for text in answerable_lines(console, session, question, name=short_id(session.id)):
            console.print(text, soft_wrap=True)


def _held(session: Session, status: StatusOutput) -> str | None:
    """Return the sandbox of the agent. Codex has its own, so for Codex only its absence is shown."""
    if status.enforced is None or (status.enforced and status.agent == DEFAULT_AGENT):
        return None
    return f"{session.state.sandbox}, enforced" if status.enforced else "unenforced: nothing limits approved actions"


def recent_lines(console: Console, session: Session, count: int) -> list[Text]:
    """Return the last lines of the session's output, with rendered Markdown."""
    from rich.text import Text

    from helmsman.model.events import AgentMessage, ProposedPlan, Review
    from helmsman.shapes.session_status import item_lines
    from helmsman.terminal.markdown import markdown_lines

    shown: list[Text] = []
    for item in reversed(session.items):
        if len(shown) >= count:
            break
        match item:
            case AgentMessage() | ProposedPlan() | Review():
                lines = markdown_lines(console, item.text)
            case _:
                lines = [Text(visible(line)) for line in item_lines(item)]
        shown[:0] = lines
    return shown[-count:] if count else []
