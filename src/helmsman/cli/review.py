"""`helmsman review`: let an agent review a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command, with_options
from helmsman.cli.completing import complete_session
from helmsman.cli.consoles import result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import markdown_or_text, print_json
from helmsman.cli.run import PERMISSION_OPTIONS
from helmsman.cli.session_ids import full_session_id
from helmsman.errors import StepFailed, StepInterrupted, StepTimedOut

if TYPE_CHECKING:
    from rich.text import Text

    from helmsman.agents.protocol import Finding
    from helmsman.capabilities.reviews import VerifiedReview
    from helmsman.client import Helmsman
    from helmsman.sessions.session import Session

_SECONDS: Final = 3600.0
_STOP_SECONDS: Final = 10.0
_COLOURS: Final = {0: "bold red", 1: "red", 2: "yellow"}


@cli_command(
    "review",
    "Let Codex, or another agent, review a change.",
    "helmsman review",
    'helmsman review --base main --instructions "Look only at security"',
    "helmsman review --commit HEAD --fail-on P1 --json",
    "helmsman review --agent claude --session 3b2d5c8e",
)
@click.option(
    "--uncommitted",
    is_flag=True,
    help="Review what is not committed yet. This is the default.",
)
@click.option("--base", metavar="BRANCH", help="Review everything that differs from this branch.")
@click.option("--commit", metavar="COMMIT", help="Review one commit.")
@click.option("--instructions", metavar="TEXT", help="What to look at; without another target, the whole review.")
@click.option("-C", "--cd", "directory", metavar="DIR", help="The repository, if not the current directory.")
@click.option("--agent", metavar="NAME", help="Who reviews (`helmsman agents` lists them).")
@click.option("-m", "--model", metavar="MODEL", help="The model, by the agent's name for it.")
@with_options(*PERMISSION_OPTIONS)
@click.option(
    "--session",
    "session_id",
    metavar="SESSION",
    shell_complete=complete_session,
    help="Review what this session did, in a worktree also what it committed: in it, or by another agent.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["P0", "P1", "P2", "P3"]),
    help="Exit with 1 if there is a finding of this priority or a higher one, or one without a priority.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this long.",
)
def command(
    uncommitted: bool,
    base: str | None,
    commit: str | None,
    instructions: str | None,
    directory: str | None,
    agent: str | None,
    model: str | None,
    session_id: str | None,
    fail_on: str | None,
    timeout: float,
    as_json: bool,
    **permissions: Any,
) -> int:
    """Let Codex review a change, or with --agent another agent, and show what it found: priority, place, what is wrong, how
    sure it is.

    Helmsman itself checks that the findings are about lines of that change, and that nothing was changed (exit code 6 if
    something was). `helmsman job review` has several agents look, and the worst findings refuted.
    Findings alone do not make the exit code 1: that is what --fail-on is for.
    """
    if sum((uncommitted, base is not None, commit is not None)) > 1:
        raise click.UsageError("Review one thing: --uncommitted, --base or --commit.")
    if session_id is not None and (directory is not None or (model is not None and agent is None)):
        raise click.UsageError("A session has its directory and its model: leave out --cd and --model.")
    from helmsman.model.options import ReviewTarget
    from helmsman.terminal import ask_on_terminal

    target: ReviewTarget | None = None
    if base is not None:
        target = ReviewTarget(kind="base", value=base)
    elif commit is not None:
        target = ReviewTarget(kind="commit", value=commit)
    elif uncommitted or instructions is not None or session_id is None:
        target = ReviewTarget(kind="uncommitted" if uncommitted or instructions is None else "custom")
    place = None if directory is None else Path(directory)

    async def review(helm: Helmsman) -> int:
        where = None if session_id is None else await full_session_id(helm, session_id)
        begun = await helm.extras.reviews.start(
            target,
            session_id=where,
            cwd=place,
            instructions=instructions,
            agent=agent,
            model=model,
            **permissions,
        )
        if begun.session is None:
            shown = {"status": "done", "nothingToReview": True, "findings": [], "text": begun.nothing, "verified": True}
            if as_json:
                print_json(shown)
            else:
                click.echo(begun.nothing)
            return ExitCode.OK
        if not as_json:
            what = (begun.session.state.prompt or "").partition("\n")[0]
            click.echo(f"{what} Ctrl-C stops it.", err=True)
        report = await _report(helm, begun.session, timeout)
        if as_json:
            print_json(_as_dict(begun.session, report))
        else:
            _print(report, begun.session)
        if report.verified is False:
            return ExitCode.NOT_VERIFIED
        return ExitCode.FAILED if fail_on is not None and _is_serious(report, int(fail_on[1])) else ExitCode.OK

    return with_helmsman(
        review,
        settings=settings_of_command(directory=place),
        on_question=ask_on_terminal,
    )


async def _report(helm: Helmsman, session: Session, timeout: float) -> VerifiedReview:
    import anyio

    try:
        in_time = await session.wait(until="end", timeout=timeout)
    finally:
        if session.state.is_running:  # also on Ctrl-C: a detached engine would continue
            with anyio.move_on_after(_STOP_SECONDS, shield=True):
                await session.interrupt()
    if not in_time:
        raise StepTimedOut(f"The review did not end within {timeout:g} s. Give it longer with --timeout.")
    report = await helm.extras.reviews.report(session.id)
    if session.status == "interrupted":
        raise StepInterrupted("The review was interrupted. Run it again.", session_id=session.id)
    if session.status == "error" or report is None:
        message = session.error.message if session.error is not None else "The review gave no findings. Run it again."
        raise StepFailed(message, session_id=session.id)
    return report


def _is_serious(report: VerifiedReview, priority: int) -> bool:
    return any(finding.priority is None or finding.priority <= priority for finding in report.findings)


def _as_dict(session: Session, report: VerifiedReview) -> dict[str, Any]:
    from helmsman.shapes.rendering import fields_as_dict

    about = {"sessionId": session.id, "taskId": session.task_id, "status": session.status}
    return present(about | fields_as_dict(report))


def _print(report: VerifiedReview, session: Session) -> None:
    from rich.text import Text

    from helmsman.terminal.layout import fold

    console = result_console()
    for finding in report.findings:
        body = markdown_or_text(console, finding.body, indent=4) if finding.body else []
        console.print(*fold(console, _heading(finding, session.directory), indent=0), *body, "", sep="\n")
    for finding in report.rejected:
        console.print(*fold(console, _heading(finding, session.directory), indent=0), sep="\n")
        console.print(*fold(console, Text(f"    Dropped: {visible(finding.why)}", "yellow"), indent=4), "", sep="\n")
    if report.explanation:
        console.print(*markdown_or_text(console, report.explanation), sep="\n")
    for seen in report.evidence:
        if not seen.ok:
            console.print(*fold(console, Text(f"Not verified: {visible(seen.what)}", "red"), indent=0), sep="\n")
    if not report.findings:
        console.print(Text("No findings.", "green"))
    elif report.verdict:
        console.print(Text(f"Verdict: {visible(report.verdict)}{_sureness(report.confidence)}", "dim"))


def _heading(finding: Finding, directory: str | None) -> Text:
    from rich.text import Text

    rank = "P?" if finding.priority is None else f"P{finding.priority}"
    place = one_line(finding.file or "")
    if directory is not None:
        place = place.removeprefix(f"{directory}/")
    if finding.start_line is not None:
        last = finding.end_line if finding.end_line not in (None, finding.start_line) else None
        place += f":{finding.start_line}" + (f"-{last}" if last is not None else "")
    return Text.assemble(
        (rank, _COLOURS.get(3 if finding.priority is None else finding.priority, "cyan")),
        "  ",
        (place, "cyan"),
        "  " if place else "",
        (one_line(finding.title), "bold"),
        (_sureness(finding.confidence), "dim"),
    )


def _sureness(confidence: float | None) -> str:
    return "" if confidence is None else f"  ({confidence:.0%} sure)"
