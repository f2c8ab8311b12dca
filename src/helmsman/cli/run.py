"""`helmsman run`: run one step live."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.base.config_values import pair
from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, visible
from helmsman.base.structs import replace
from helmsman.cli.command import POSITIVE, cli_command, option, with_options
from helmsman.cli.completing import SHORT, complete_session
from helmsman.cli.consoles import result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import TreeElsewhere, host, hosted
from helmsman.cli.on_session import full_session_id, interactive_option, names_ways_out, short_id, with_helmsman
from helmsman.cli.output import markdown_or_text, print_json, print_result
from helmsman.errors import InvalidInput, SessionNotFound, StepFailed, StepInterrupted, StepTimedOut
from helmsman.model.options import ApprovalPolicy, OnMachineLoss, Placement, ReviewTarget, SandboxMode, TurnLimits
from helmsman.model.questions import STOP
from helmsman.settings import OnLimit, ensure_state_dir
from helmsman.shapes.rendering import fields_as_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.text import Text

    from helmsman.agents.protocol import Finding
    from helmsman.capabilities.reviews import VerifiedReview
    from helmsman.client import Helmsman
    from helmsman.model.events import Event
    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Reply, Session
    from helmsman.step import StepResult

# --- Options that select where and when a fleet runs work -------------------------------------------------------------

placement_options: Final = with_options(
    option("--machine NAME", "Fleet: the machine that is to do it."),
    option("--label LABEL...", "Fleet: a label its machine must have. Repeatable.", to="labels"),
    option("--priority N", "Fleet: 1 comes first.  [default: 100]", type=click.IntRange(1, 1000)),
    option("--delay SECONDS", "Fleet: start this much later.", type=click.FloatRange(min=0)),
    option("--deadline SECONDS", "Fleet: stop it after this long.", type=POSITIVE),
    option(
        "--on-machine-loss", "Fleet: what to do with a turn whose machine was lost.", choices=get_args(OnMachineLoss)
    ),
    option("--in-place", "Fleet: work in the directory of this path there, and copy nothing."),
)


def take_placement(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the placement options from `options` and return them as a keyword argument for the library."""
    # The names of the options are those of the fields.
    names = Placement.__struct_fields__
    placement = Placement(**{name: options.pop(name) for name in names})
    return {} if placement == Placement() else {"placement": placement}


_STDIN: Final = "-"


# permissions of every command that starts or reviews work
PERMISSION_OPTIONS: Final = (
    option("--unenforced", "Start an agent even if no sandbox can confine it."),
    option("--trust-repository", "Let it also run what the repository tells it to run."),
)

# options of every command that starts work, now or later
WORK_OPTIONS: Final = (
    option("-C --cd --cwd DIR", "Work in this directory, not the current one.", to="directory"),
    option("--agent NAME", "Who does it (`helmsman agents` lists them)."),
    option("-m --model MODEL", "The model, by the agent's name for it."),
    option(
        "-s --sandbox",
        "What it may write: nothing, its directory, or anything.  [default: as the agent is configured]",
        choices=get_args(SandboxMode),
    ),
    option("-a --approval-policy", "When it asks before it acts.", choices=get_args(ApprovalPolicy)),
    *PERMISSION_OPTIONS,
    option("--full-auto", "The same as -s workspace-write -a on-request."),
    option("--profile NAME", "A profile of your Codex configuration."),
    option("-c --config KEY=VALUE...", "Set a key of Codex's configuration. Repeatable."),
    option("--output-schema FILE", "A JSON schema that the final message must match.", to="schema_file"),
    option("--effort LEVEL", "How hard the model thinks: low, medium, high, …"),
    option("--max-cost-usd USD", "Stop it when it has cost more than this.", type=POSITIVE),
)

# options of every command that starts a step
STEP_OPTIONS: Final = (
    *WORK_OPTIONS,
    option("--image FILE...", "Show the model an image. Repeatable.", to="images"),
)


def step_options(command: Callable[..., Any], *, prompt_required: bool = True) -> Callable[..., Any]:
    """Add a prompt and these options to a command."""
    return with_options(click.argument("prompt", required=prompt_required), *STEP_OPTIONS)(command)


@cli_command(
    "run",
    "Run one step of an agent, live.",
    'helmsman run "Fix the failing test" --full-auto',
    'helmsman run -s read-only "Where is the port read from?" > answer.txt',
    "git diff | helmsman run - --output-schema review.json --json",
    'helmsman run --continue "Now add a test for it"',
    'helmsman run --detach --worktree "Try the other parser"',
)
@partial(step_options, prompt_required=False)
@option(
    "--session SESSION",
    "Continue this session (`helmsman list` shows them).",
    to="session_id",
    shell_complete=complete_session,
)
@option("--continue --last", "Continue the newest session of this directory.", to="go_on")
@option(
    "--on-limit", "What to do when the account's usage limit is reached.  [default: ask]", choices=get_args(OnLimit)
)
@option(
    "--bring-to NAME",
    "Bring the tree to this machine of yours and work there; `helmsman apply` brings it back.",
    to="to_host",
)
@option("--issue URL|#N", "Take the task from this issue, in a worktree. PROMPT, if given, comes before it.")
@option("--worktree", "Work in a git worktree of its own; `helmsman apply` brings it back.")
@option(
    "--from WHAT",
    "Start its worktree from a branch, a commit, a pull request (pr:17), or with your uncommitted changes (dirty).",
    to="start",
)
@option(
    "--add-dir DIR...", "Work in this repository too, with --worktree in a worktree of it. Repeatable.", to="add_dirs"
)
@placement_options
@interactive_option
@option("--detach", "Start it and return immediately; questions wait for an answer.")
@option("--bound", "Run it in this process: it ends when this process does.")
@option("--engine", "How to run Codex.  [default: auto]", choices=["auto", "app-server", "exec"])
@option(
    "--timeout SECONDS",
    "Give up on an attempt in which the agent shows no sign of life for this long.  [default: 60 at first, then 600]",
    type=POSITIVE,
)
@option(
    "--attempts N",
    "How many times to try; a retry continues where the last one stopped.  [default: 3]",
    type=click.IntRange(min=1),
)
def command(
    prompt: str | None,
    directory: str | None,
    session_id: str | None,
    go_on: bool,
    to_host: str | None,
    issue: str | None,
    worktree: bool,
    start: str | None,
    add_dirs: tuple[str, ...],
    interactive: bool,
    detach: bool,
    bound: bool,
    engine: str | None,
    timeout: float | None,
    attempts: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run one step of an agent and show it as it happens.

    PROMPT is what to do; `-` reads it from stdin, and on a terminal you can leave it out and type it. Questions are asked on
    the terminal; without one they are denied. The final message goes to stdout and everything else to stderr, so the answer
    can be piped. It is a session like any other: the dashboard shows it, `helmsman watch` comes back to it. On a terminal
    you can type while it works: Enter sends your message into the turn, Tab queues it, Esc twice or Ctrl-C stops the turn,
    Ctrl-D leaves it running, `?` shows the keys. With --issue the task comes from an issue at GitHub (by `gh`) or GitLab
    (by `glab`): its text is quoted to the agent as data of others. Once you have typed, or with -i, it stays open after
    the turn for the next message.
    """
    from helmsman.terminal import has_terminal

    in_worktree = worktree or start is not None
    _check_combination(session_id, directory, go_on=go_on, worktree=in_worktree, detach=detach, bound=bound)
    placement = take_placement(options)
    arguments = step_arguments(**options) | placement
    if to_host is not None:
        # Checked before anything is sent to the other machine.
        _check_away(session_id, go_on=go_on, bound=bound, engine=engine)
        context = click.get_current_context()
        # From here on, directories mean this machine and sessions the other one.
        context.with_resource(hosted(TreeElsewhere(to_host)))
        arguments["bring"] = str(host().place(directory))
        directory = None
    if issue is not None and (session_id is not None or go_on or to_host is not None):
        raise click.UsageError("--issue is for a new session on this machine.")
    worktree = worktree or issue is not None or start is not None
    if add_dirs and (session_id is not None or go_on):
        raise click.UsageError("A session stays in its directories: --add-dir is for a new one.")
    if worktree or add_dirs:
        from helmsman.model.inputs import worktree_words

        places = [str(host().place(place)) for place in add_dirs]
        arguments |= worktree_words(places, start, worktree=worktree)
    # Without a terminal nothing can be typed.
    if prompt is None and issue is None and (as_json or detach or not has_terminal()):
        raise click.UsageError("Missing argument 'PROMPT': what to do. It can be left out only on a terminal.")
    text = None if prompt is None else prompt_text(prompt)
    place = host().place(directory) if go_on else None
    if (bound or engine is not None) and host().is_elsewhere:
        raise click.UsageError("Another machine runs it as its own settings say: leave out --bound and --engine.")
    settings = settings_of_command({"engine": engine}, None if directory is None else Path(directory))

    async def run(helm: Helmsman) -> int:
        from helmsman.cli.displays import new_display
        from helmsman.cli.follow import Talk, follow, talk_from_start
        from helmsman.step import run_step

        resumed = None if session_id is None else await full_session_id(helm, session_id)
        if place is not None:
            resumed = await _newest(helm, place)
        message, linked = text, None
        if issue is not None:
            found, linked = await helm.extras.publishing.issue_prompt(issue, host().place(directory))
            message = f"{text}\n\n{found}" if text else found
        # With nothing typed yet, there is nothing to detach.
        if detach and message is not None:
            with names_ways_out(resumed):
                return await start_detached(
                    helm,
                    message,
                    directory,
                    arguments,
                    resumed=resumed,
                    timeout=timeout,
                    as_json=as_json,
                    issue=linked,
                )
        further: dict[str, Any] = {}
        if timeout is not None:
            further.update(first_event_timeout=timeout, inactivity_timeout=timeout)
        if attempts is not None:
            further["attempts"] = attempts
        arguments.update(further)
        # A turn ends with this process only if it has no hub.
        arguments.update(cwd=directory, session_id=resumed, helm=helm, bound=not helm.asks_hub)

        async def step(prompt: str, **callbacks: Any) -> StepResult:
            with names_ways_out(resumed):
                return await run_step(prompt, **arguments, **callbacks)

        talk = Talk(helm=helm, stay=interactive, options=further)
        display = new_display(settings, as_json=as_json)
        if message is None:
            ensure_state_dir(settings.state_dir)  # the input history is stored there
            outcome = await talk_from_start(lambda typed: partial(step, typed), display, talk=talk)
        else:
            outcome = await follow(partial(step, message), display, talk=talk)
        # After the turn has begun, because the session has no id before.
        if linked is not None and outcome.session is not None:
            await helm.extras.publishing.link(outcome.session.id, linked)
        if (worktree or to_host) and outcome.result is not None and outcome.session is not None and not as_json:
            name = outcome.session.id[-SHORT:] if to_host else short_id(outcome.session.id)  # for the local tree
            click.echo(f"  apply its changes with helmsman apply {name}", err=True)
            if not to_host:
                click.echo(f"  or publish them with helmsman session pr {name}", err=True)
        return outcome.exit_code

    return with_helmsman(run, settings=settings, detach=not bound)


def _check_combination(
    session_id: str | None, directory: str | None, *, go_on: bool, worktree: bool, detach: bool, bound: bool
) -> None:
    if session_id is not None and directory is not None:
        raise click.UsageError("A session stays in its directory: --cd and --session cannot go together.")
    if go_on and session_id is not None:
        raise click.UsageError("Name a session with --session, or take the newest with --continue, not both.")
    if worktree and (go_on or session_id is not None):
        raise click.UsageError("A session stays in its directory: --worktree is for a new one.")
    if detach and bound:
        raise click.UsageError("--detach leaves it running, --bound ends it with this process: give one of them.")


def _check_away(session_id: str | None, *, go_on: bool, bound: bool, engine: str | None) -> None:
    if host().is_elsewhere:
        raise click.UsageError("--host is for a tree that is there, --bring-to takes yours along. Give one of them.")
    if session_id is not None or go_on:
        raise click.UsageError("A session stays in its directory: --bring-to is for a new one.")
    if bound or engine is not None:
        raise click.UsageError("--bound and --engine are for work on this machine.")


def _is_there(directory: str | None) -> bool:
    """Return whether the session's directory still exists; its worktree may have been discarded."""
    return directory is not None and Path(directory).is_dir()


async def _newest(helm: Helmsman, place: Path) -> str:
    """Return the most recently active session of this directory."""
    found, _ = await helm.list(directory=place)
    # A worktree that was discarded cannot be continued in.
    found = [info for info in found if host().is_elsewhere or _is_there(info.directory)]
    # The candidates of a job are what it has verified.
    tasks = await helm.tasks.of_sessions([info.session_id for info in found])
    found = [info for info in found if not any(task.of_job for task in tasks[info.session_id])]
    if not found:
        raise SessionNotFound(f"There is no session in {place} yet. Leave out --continue to start one.")
    return found[0].session_id


async def start_detached(
    helm: Helmsman,
    text: str,
    directory: str | None,
    arguments: dict[str, Any],
    *,
    resumed: str | None = None,
    timeout: float | None = None,
    as_json: bool,
    issue: str | None = None,
) -> int:
    """Start a turn and leave it running. `issue` is the address of the issue that it works on."""
    # Work without a hub would end with this command.
    if not await helm.goes_on_alone():
        raise InvalidInput(
            "The agent ends with this command, so there is nothing to leave running. Use `helmsman run` without --detach, "
            "or do without HELMSMAN_DETACH=0."
        )
    limits = None if timeout is None else TurnLimits(timeout, timeout)
    if resumed is not None:
        session = await helm.say(resumed, text, limits=limits, **arguments)
    else:
        session = await helm.start(text, cwd=directory, limits=limits, **arguments)
    if issue is not None:
        await helm.extras.publishing.link(session.id, issue)
    shown = {"sessionId": session.id, "status": session.status, "taskId": session.task_id}
    print_result(f"Started. Follow it: helmsman watch {short_id(session.id)}", shown, as_json=as_json)
    return ExitCode.OK


def step_arguments(
    *, config: Sequence[str], images: Sequence[str], schema_file: str | None, **options: Any
) -> dict[str, Any]:
    """Return the arguments for `run_step`. Omitted options are not passed, so that a continued session keeps its own."""
    given = {key: value for key, value in (options | {"config": config_values(config)}).items() if value}
    return {"images": images, "output_schema": schema_in(schema_file)} | given


def prompt_text(prompt: str) -> str:
    """Return the prompt, from the argument or from stdin."""
    if prompt != _STDIN:
        return prompt
    host().require_own_process()
    try:
        # Bytes, so that the terminal's encoding plays no part.
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("stdin is not UTF-8 text. Give the prompt as text.") from None


def config_values(pairs: Sequence[str]) -> dict[str, str]:
    """Return Codex settings given as KEY=VALUE, with unparsed values."""
    try:
        return dict(map(pair, pairs))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--config") from None


def schema_in(file: str | None) -> dict[str, Any] | None:
    """Return the JSON schema in a file."""
    if file is None:
        return None
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be read: {error.strerror}.", param_hint="--output-schema") from None
    except (ValueError, RecursionError) as error:
        # A deeply nested file raises RecursionError.
        raise click.BadParameter(f"{file} is not JSON: {error}.", param_hint="--output-schema") from None
    if not isinstance(schema, dict):
        raise click.BadParameter(f"{file} is not a JSON schema: it must be an object.", param_hint="--output-schema")
    return schema


@cli_command(
    "plan",
    "Plan first, and work once you approve.",
    'helmsman plan "Split the parser in two" --full-auto',
    'helmsman plan "Move to Python 3.13" > plan.md',
)
@step_options
def plan_command(
    prompt: str,
    directory: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Let an agent plan what PROMPT asks for (`-` reads it from stdin), then ask whether to carry the plan out.

    Until you approve, it can only read, whatever the sandbox. Approve and it works with the options given
    here; revise and say what should be different; or stop (exit code 130). Before you are asked, Helmsman checks
    that nothing was changed and that the files the plan names exist. Without a terminal to ask on, the plan goes to
    stdout and nothing is done. `helmsman job plan` checks each step separately.
    """
    arguments = step_arguments(**options) | {"cwd": directory}
    text = prompt_text(prompt)
    settings = settings_of_command(directory=None if directory is None else Path(directory))

    async def plan(helm: Helmsman) -> int:
        from helmsman.cli.displays import new_display
        from helmsman.cli.follow import Talk, follow

        step = partial(_plan_and_work, helm, text, arguments)
        return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code

    return with_helmsman(plan, settings=settings)


async def _plan_and_work(
    helm: Helmsman,
    prompt: str,
    arguments: dict[str, Any],
    *,
    on_event: Callable[[Session, Event], None],
    on_question: QuestionHandler,
) -> StepResult:
    """Run the step. Without a user to approve the plan, the plan is the result."""
    from helmsman.step import StepResult, run_step
    from helmsman.terminal import has_terminal

    not_approved: str | None = None

    async def answer(session: Session, question: Question, /) -> Reply:
        nonlocal not_approved
        plan = question.details.get("plan")
        if plan is None:
            return await on_question(session, question)
        if not has_terminal():
            # The plan is the result if it cannot be approved.
            not_approved = str(plan)
            for seen in question.details.get("evidence", ()):
                if not seen["ok"]:
                    click.echo(f"Not verified: {one_line(seen['what'])}", err=True)
            return [STOP]
        details = {name: value for name, value in question.details.items() if name in ("verified", "evidence")}
        return await on_question(session, replace(question, details=details))  # the plan is already on screen

    try:
        return await run_step(prompt, plan=True, helm=helm, on_event=on_event, on_question=answer, **arguments)
    except StepInterrupted as error:
        session = helm.sessions.get(str(error.details.get("session_id")))
        if not_approved is None or session is None:
            # Interrupted for another reason.
            raise
        return StepResult(text=not_approved, output=None, session_id=session.id, usage=session.usage, attempts=1)


fail_on_option: Final = option(
    "--fail-on",
    "Exit with 1 if there is a finding of this priority or a higher one, or one without a priority.",
    choices=["P0", "P1", "P2", "P3"],
)

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
@option("--uncommitted", "Review what is not committed yet. This is the default.")
@option("--base BRANCH", "Review everything that differs from this branch.")
@option("--commit COMMIT", "Review one commit.")
@option("--instructions TEXT", "What to look at; without another target, the whole review.")
@option("-C --cd DIR", "The repository, if not the current directory.", to="directory")
@option("--agent NAME", "Who reviews (`helmsman agents` lists them).")
@option("-m --model MODEL", "The model, by the agent's name for it.")
@with_options(*PERMISSION_OPTIONS)
@option(
    "--session SESSION",
    "Review what this session did, in a worktree also what it committed: in it, or by another agent.",
    to="session_id",
    shell_complete=complete_session,
)
@fail_on_option
@option("--timeout SECONDS", "Give up after this long.", type=POSITIVE, default=_SECONDS)
def review_command(
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
    something was). `helmsman job review` lets several agents look, and checks the worst findings again.
    Findings alone do not make the exit code 1: that is what --fail-on is for.
    """
    if sum((uncommitted, base is not None, commit is not None)) > 1:
        raise click.UsageError("Review one thing: --uncommitted, --base or --commit.")
    if session_id is not None and (directory is not None or (model is not None and agent is None)):
        raise click.UsageError("A session has its directory and its model: leave out --cd and --model.")
    from helmsman.terminal import ask_on_terminal

    # A session is reviewed for what it did; without one, for what is uncommitted.
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
            about = {"sessionId": begun.session.id, "taskId": begun.session.task_id, "status": begun.session.status}
            print_json(present(about | fields_as_dict(report)))
        else:
            _print_review(report, begun.session)
        if report.verified is False:
            return ExitCode.NOT_VERIFIED
        return code_of_findings((finding.priority for finding in report.findings), fail_on)

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
            # Shielded: Ctrl-C has cancelled this task.
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


def code_of_findings(priorities: Iterable[int | None], fail_on: str | None) -> ExitCode:
    """Return the exit code of a review for `--fail-on`. A finding without a priority may be serious."""
    is_serious = fail_on is not None and any(one is None or one <= int(fail_on[1]) for one in priorities)
    return ExitCode.FAILED if is_serious else ExitCode.OK


def _print_review(report: VerifiedReview, session: Session) -> None:
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
