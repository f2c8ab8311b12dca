"""Commands on open questions: list them, show one, answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from helmsman.base.caller_context import environment
from helmsman.base.concurrency import background_tasks
from helmsman.base.sanitize import one_line, visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, yes_option
from helmsman.cli.completing import SHORT, complete_session
from helmsman.cli.consoles import echo, message_console, result_console
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import command_here, host
from helmsman.cli.on_session import short_id, the_session, there, with_helmsman
from helmsman.cli.output import agree, can_ask, print_json, print_message, print_result, standing
from helmsman.errors import HelmsmanError, QuestionNotOpen
from helmsman.hub.hosts import HostFailed, known_hosts
from helmsman.model.answered_by import COMMAND_LINE
from helmsman.model.question_text import question_as_dict
from helmsman.model.questions import APPROVE_ALWAYS, read_answers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.client import Helmsman
    from helmsman.hub.service_client import ServiceClient
    from helmsman.model.answered_by import Answered
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

# --- Query the user's other machines in parallel, with a timeout ------------------------------------------------------

# Machines that do not answer in time are listed on stderr.

ResultT = TypeVar("ResultT")

SECONDS: Final = 5.0  # timeout for all machines together
GLANCE_SECONDS: Final = 2.0  # the same, if they are not the main subject of the command


async def ask_others(
    helm: Helmsman, ask: Callable[[ServiceClient], Awaitable[ResultT]], away: dict[str, str], seconds: float = SECONDS
) -> dict[str, ResultT]:
    """Return the answers of the other machines by name. Machines in `away` are skipped; those that do not answer are
    added to it.
    """
    import anyio

    if not host().sees_others:
        return {}
    answers: dict[str, ResultT] = {}

    async def look(name: str) -> None:
        # Each machine has the whole time, because all are asked in parallel.
        with anyio.move_on_after(seconds) as waiting:
            try:
                answers[name] = await ask(await helm.hosts.get(name))
            except HelmsmanError as error:
                away[name] = error.message
            except (TypeError, ValueError, KeyError, AttributeError):
                # Another version may answer in another form.
                away[name] = f"{name} gives an invalid answer. Install the same version of Helmsman there."
        if waiting.cancelled_caught:
            away[name] = f"{name} does not answer within {seconds:.0f} seconds."

    async with anyio.create_task_group() as tasks:
        for name in sorted(helm.hosts.known().keys() - away.keys()):
            tasks.start_soon(look, name)
    return dict(sorted(answers.items()))


def print_unreachable(away: dict[str, str]) -> None:
    """Name the machines that are missing from the output."""
    for name, why in sorted(away.items()):
        print_message(f"{name} is away, so nothing from there is shown: {one_line(why)[:500]}")


def _answer_everything() -> int:
    """Go through the open questions of all sessions at the terminal."""
    left = with_helmsman(_answer_all)
    if left:
        are = "is" if left == 1 else "are"
        # Scripts see by the exit code that something is open.
        print_message(f"{counted(left, 'question')} {are} still open. Come back with {command_here('respond')}.")
    return ExitCode.ASKED if left else ExitCode.OK


async def _answer_all(helm: Helmsman) -> int:
    """Ask the user every open question, including new ones; return how many stayed open."""
    seen: set[tuple[str, str]] = set()
    away: dict[str, str] = {}
    while True:
        # Read again after each round: answers lead to new questions.
        asking = await asking_everywhere(helm, away)
        fresh = [
            (one, question) for one in asking for question in one.session.questions if (one.id, question.id) not in seen
        ]
        if not fresh:
            print_unreachable(away)
            # A session whose questions are unreadable here still counts as one.
            left = sum(max(1, len(one.session.questions)) for one in asking)
            if not left and not seen:
                print_message("There are no open questions.")
            for one in asking:
                if one.session.elsewhere is not None:
                    print_message(visible(one.session.elsewhere))
            return left
        for one, question in fresh:
            seen.add((one.id, question.id))
            # The other client may have been faster in the meantime.
            if any(still.id == question.id for still in one.session.questions):
                await _answer(one, question)


async def _answer(one: AskingSession, question: Question) -> None:
    """Ask the user a question, until it is answered here or elsewhere."""
    import anyio
    from rich.text import Text

    from helmsman.sessions.question_broker import cancel_when_closed
    from helmsman.terminal import ask_on_terminal

    console = message_console()
    console.print(Text.assemble("\n", (one.short_id, "bold"), f"  {one_line(one.instruction)[:200]}"), soft_wrap=True)
    answered: Answered | None = None
    with anyio.CancelScope() as scope:
        async with background_tasks() as tasks:
            # An answer by another client withdraws this dialog.
            tasks.start_soon(cancel_when_closed, one.session, question, scope)
            answered = await ask_on_terminal(one.session, question)
    if answered is None:
        return
    try:
        await one.session.respond(question.id, *answered.answers, by=answered.by)
    except HelmsmanError as error:  # answered elsewhere, or the session is gone; continue with the next question
        console.print(f"  {visible(error.message)}", style="yellow")


_MOST: Final = 1000  # running tasks that are checked for questions


@cli_command(
    "respond",
    "Answer what sessions ask.",
    "helmsman respond",
    "helmsman respond 3b2d5c8e",
    "helmsman respond 3b2d5c8e q_1f3a9c0b2d approve",
    'helmsman respond 3b2d5c8e q_1f3a9c0b2d "deny: touches production"',
)
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete_session)
@click.argument("question", required=False)
@click.argument("answers", nargs=-1, metavar="[ANSWER]...")
@yes_option
def respond_command(
    session: str | None, question: str | None, answers: tuple[str, ...], agreed: bool, as_json: bool
) -> int:
    """Answer a question of a session, or show what it asks when no answer is given.

    Without a session, go through the open questions of all sessions, oldest first, no matter who started them; then those on
    your other machines (`helmsman config hosts`). Each looks as in `helmsman run`; Ctrl-D skips one, Ctrl-C leaves. Without
    a terminal they are listed with the commands that answer them.

    SESSION is a part of an id or title, or `-` for the last one; QUESTION is the question's id, and there is one ANSWER
    for each of its parts: an option, with a reason after a colon if you like, or free text if it has no options. The exit
    code is 5 if a question is left open. `approve_always` shows the rule it would make and asks; without a
    terminal, it needs --yes.
    """
    if session is None:
        return _answer_everything() if can_ask(as_json=as_json) else _show_all(as_json=as_json)
    session = the_session(session, as_json=as_json)
    if question is None or not answers:
        return _show(session, question, as_json=as_json)
    # An answer that makes a rule needs the rule to be seen.
    if answers[0].partition(":")[0].strip() == APPROVE_ALWAYS and not agreed:
        _agree_to_rule(session, question, answers, as_json=as_json)

    host().begin_change()

    async def respond(helm: Helmsman) -> str:
        asking = await helm.session(session)
        # Only its own process can answer in a session that another one runs.
        asking.require_here()
        await asking.respond(question, *answers, by=COMMAND_LINE)
        return asking.status

    status = with_helmsman(respond)
    shown = {"sessionId": session, "question": question, "status": status}
    print_result(f"Answered. Session {session} {standing(status)}.", shown, as_json=as_json)
    return ExitCode.OK


def _agree_to_rule(session: str, question: str, answers: tuple[str, ...], *, as_json: bool) -> None:
    """Ask the user to confirm the rule that the answer creates. Invalid answers are refused later."""
    from helmsman.approvals.rule_book import rule_shown_for_always

    async def look(helm: Helmsman) -> str | None:
        asking = await helm.session(session)
        found = next((one for one in asking.questions if one.id == question), None)
        return None if found is None else rule_shown_for_always(found, read_answers(found, answers)[0].reason)

    rule = with_helmsman(look)
    if rule is None:
        return
    shown = visible(rule).strip()
    if can_ask(as_json=as_json):
        # Exactly: wrapping would drop spaces.
        echo(f"{shown}\n", err=True)
    agree(
        "This rule would decide from now on without asking. Keep it, and approve?",
        agreed=False,
        as_json=as_json,
        otherwise=f"This answer keeps a rule that decides from now on without asking:\n\n{shown}\n\n",
    )


def _show(session: str, question: str | None, *, as_json: bool) -> int:
    from helmsman.terminal.question_view import answerable_lines

    async def look(helm: Helmsman) -> tuple[Session, list[Question]]:
        asking = await helm.session(session)
        return asking, [one for one in asking.questions if question in (None, one.id)]

    asking, questions = with_helmsman(look)
    if question is not None and not questions:
        # With the words swapped, the answer was taken for the id.
        raise QuestionNotOpen(
            f"Session {session} has no open question {visible(question)}. The question's id comes before the answer: "
            f"`helmsman respond {short_id(session)}` shows what is asked."
        )
    if as_json:
        print_json({"sessionId": session, "questions": [question_as_dict(one) for one in questions]})
    elif not questions:
        asking.require_here()
        echo(
            f"Session {session} has no open question. See what it is doing: helmsman status {short_id(session)}",
            err=True,
        )
    else:
        console = result_console()
        for one in questions:
            console.print(*answerable_lines(console, asking, one, name=short_id(session)), sep="\n", soft_wrap=True)
    return ExitCode.ASKED if questions else ExitCode.OK


def _show_all(*, as_json: bool) -> int:
    """Show all open questions, oldest first, then those of other machines. Name the place of those that need another
    client.
    """
    from rich.text import Text

    from helmsman.terminal.question_view import answerable_lines

    away: dict[str, str] = {}
    asking = with_helmsman(lambda helm: asking_everywhere(helm, away))
    print_unreachable(away)
    if as_json:
        shown = [
            {
                "sessionId": one.id,
                **({"host": one.machine} if one.machine else {}),
                "questions": [question_as_dict(question) for question in one.session.questions],
            }
            for one in asking
        ]
        print_json({"sessions": shown})
        return ExitCode.ASKED if asking else ExitCode.OK
    if not asking:
        print_message("There are no open questions.")
    console = result_console()
    for one in asking:
        console.print(Text.assemble((one.id, "bold"), f"  {one_line(one.instruction)[:200]}"), soft_wrap=True)
        if one.session.elsewhere is not None:
            console.print(Text(f"  {visible(one.session.elsewhere)}"), soft_wrap=True)
        for question in one.session.questions:
            lines = answerable_lines(console, one.session, question, name=one.short_id)
            console.print(*lines, sep="\n", soft_wrap=True)
        console.print()
    return ExitCode.ASKED if asking else ExitCode.OK


class AskingSession(NamedTuple):
    """Session with an open question."""

    session: Session
    instruction: str  # its task
    machine: str = ""  # name of another machine

    @property
    def id(self) -> str:
        """Session's id for commands on this machine."""
        return there(one_line(self.session.id), self.machine)

    @property
    def short_id(self) -> str:
        return there(one_line(self.session.id[-SHORT:]), self.machine or None)


async def asking_everywhere(helm: Helmsman, away: dict[str, str]) -> list[AskingSession]:
    """Return all sessions with open questions, longest waiting first, then those of other machines. Unreachable
    machines are added to `away`.
    """
    found = await _asking(helm)
    others = await ask_others(helm, _asking, away)
    return [*found, *(one._replace(machine=name) for name, asking in others.items() for one in asking)]


def show_asking_elsewhere() -> None:
    """List sessions with open questions on other machines. They come last, because a machine may be slow."""
    from rich.text import Text

    try:
        if not host().sees_others or not known_hosts(environment()):
            return
    except HostFailed as error:
        print_message(f"Your other machines are not asked: {error}")
        return
    away: dict[str, str] = {}
    others = with_helmsman(lambda helm: ask_others(helm, _asking, away, GLANCE_SECONDS))
    asking = [one._replace(machine=name) for name, found in others.items() for one in found]
    if asking:
        console = result_console()
        console.print(Text("\nWaits for you on other machines (helmsman respond)", "bold yellow"))
        for one in asking:
            line = Text.assemble("  ", (one.short_id, "cyan"), f"  {one_line(one.instruction)[:200]}")
            console.print(line, overflow="ellipsis", no_wrap=True)
    print_unreachable(away)


async def _asking(helm: ServiceClient) -> list[AskingSession]:
    working, _ = await helm.tasks.list(status=["working"], limit=_MOST)
    # Tasks come newest first; the longest wait comes first here.
    asking = [task for task in reversed(working) if task.input_required and task.session_id is not None]
    return [
        AskingSession(await helm.session(task.session_id), task.instruction)
        for task in asking
        if task.session_id is not None
    ]
