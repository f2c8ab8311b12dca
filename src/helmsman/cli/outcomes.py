"""Commands of jobs with a verified outcome: debug, refactor, test; and how they are shown."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import click

from helmsman.base.concurrency import background_tasks
from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line, visible
from helmsman.capabilities.outcomes.request import AUTO, DEFAULT_SECONDS, EXAMPLE_LOOP, MOST_CANDIDATES, Apply, Wanted
from helmsman.cli.command import POSITIVE, cli_command, option, with_options
from helmsman.cli.consoles import is_terminal, logs_wanted, message_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import short_id, with_helmsman
from helmsman.cli.output import print_json, print_markdown, print_result
from helmsman.cli.run import code_of_findings, fail_on_option, prompt_text
from helmsman.cli.signals import exit_after, handle_signals
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from anyio.abc import TaskGroup
    from rich.text import Text

    from helmsman.capabilities.outcomes.agent_selection import Chosen
    from helmsman.capabilities.outcomes.request import Kind
    from helmsman.client import Helmsman
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Reply, Session
    from helmsman.tasks.model import Task

    ExitCodeOf = Callable[[Mapping[str, Any]], int]


_LOOK_SECONDS: Final = 0.5


_STOP_SECONDS: Final = 40.0


_LEAVE_SECONDS: Final = 3.0


_NOT_VERIFIED: Final = "not_verified"


# options of all jobs
_JOB_OPTIONS: Final = (
    option("-C --cd DIR", "Work in this directory instead of the current one.", to="directory"),
    option(
        "--agent NAME...",
        "Who does it (`helmsman agents` lists them); several work side by side.  [default: auto]",
        to="agents",
    ),
    option(
        "--timeout SECONDS",
        "How long all of it may take.",
        type=POSITIVE,
        default=DEFAULT_SECONDS,
    ),
    option("--budget USD", "What all of it may cost.", type=POSITIVE),
    option("--detach", "Start it and return immediately; questions wait for an answer."),
)
# of jobs that make a change
_SOLVED_OPTIONS: Final = (
    click.argument("request"),
    *_JOB_OPTIONS,
    option("--check COMMAND", "The command that tells whether it works.  [default: the repository's]"),
    option(
        "--candidates N",
        "Solutions made side by side; the best is offered.",
        type=click.IntRange(1, MOST_CANDIDATES),
        default=1,
    ),
    option("--apply", "Whether a verified change comes into your tree.", choices=get_args(Apply), default="ask"),
)


outcome_options: Final = with_options(
    *_SOLVED_OPTIONS,
    option(
        "--judge NAME",
        "Who judges a verified change: auto (another agent, if there is one), never, or an agent.",
        default=AUTO,
    ),
)


def run_outcome(
    kind: Kind,
    request: str,
    *,
    directory: str | None,
    detach: bool,
    as_json: bool,
    timeout: float,
    budget: float | None,
    agents: Sequence[str],
    more: Mapping[str, Any] | None = None,
    exit_code: ExitCodeOf | None = None,
    **given: Any,
) -> int:
    """Start an outcome job and follow it to its end. `exit_code` maps the report of a verified job to an exit code.

    `given` are other fields of `Wanted`.
    """
    wanted = Wanted(
        kind=kind,
        request=prompt_text(request),
        directory=str(host().place(directory)),
        agents=tuple(agents),
        budget_usd=budget,
        seconds=timeout,
        more=more or {},
        **given,
    )
    return run_wanted(wanted, has_directory=directory is not None, detach=detach, as_json=as_json, exit_code=exit_code)


def run_wanted(
    wanted: Wanted, *, has_directory: bool, detach: bool, as_json: bool, exit_code: ExitCodeOf | None = None
) -> int:
    """Start a job and follow it to its end."""
    settings = settings_of_command(directory=Path(wanted.directory) if has_directory else None)
    view = (JsonJobView if as_json else JobView)(is_live=not as_json and not logs_wanted(settings))

    async def run(helm: Helmsman) -> int:
        from helmsman.capabilities.outcomes.agent_selection import selected_agents

        # Checked before work begins.
        if detach and not await helm.goes_on_alone():
            raise InvalidInput(
                "Here it ends with this command, so there is nothing to leave running. Leave out --detach, or do without "
                "HELMSMAN_DETACH=0."
            )
        task = await helm.extras.outcomes.start(wanted)
        chosen, *_ = selected_agents(task)
        if detach:
            shown = {"taskId": task.id, "status": task.status, "agent": chosen.agent, "why": chosen.why}
            print_result(f"Started. Follow it: helmsman tasks wait {task.id}", shown, as_json=as_json)
            return ExitCode.OK
        return await _Following(helm, task, view, exit_code).to_its_end(chosen)

    return with_helmsman(run, settings=settings, on_question=view.on_question)


class _Following:
    """Job that is followed on a display."""

    def __init__(self, helm: Helmsman, task: Task, view: JobView, exit_code: ExitCodeOf | None) -> None:
        self._helm = helm
        self._task = task
        self._view = view
        self._exit_code = exit_code
        self._heard = 0
        self._left: ExitCode | None = None

    async def to_its_end(self, chosen: Chosen) -> int:
        with self._view as view:
            view.begin(self._task, chosen)
            with anyio.CancelScope() as scope:
                async with background_tasks() as tasks:
                    await tasks.start(handle_signals, lambda code: self._on_signal(code, scope, tasks))
                    tasks.start_soon(view.animate)
                    await self._follow()
            if self._left is not None:
                view.left(self._task, goes_on=self._left is ExitCode.OK)
                return self._left
            results = await self._helm.tasks.results(self._task)
            report: Mapping[str, Any] = results.report or {}
            # The report decides; a cancelled job may have none.
            code: int = exit_code_of_job(self._task)
            # Verified, but it did not reach the user's tree.
            if code == ExitCode.OK and report.get("applied") == "failed":
                code = ExitCode.FAILED
            elif code == ExitCode.OK and self._exit_code is not None:
                code = self._exit_code(report)
            view.finish(results.task, report, code)
            return code

    async def _follow(self) -> None:
        known: set[str] = set()
        # A job opens its sessions one after another.
        while self._task.is_running:
            for session_id in self._task.job_sessions:
                if session_id not in known:
                    with suppress(HelmsmanError):  # its worktree is already gone
                        self._view.session = await self._helm.session(session_id)  # later questions are asked here
                    known.add(session_id)
            self._view.show(self._task)
            # The answer is given in a session, which does not change the task.
            if self._task.input_required:
                await anyio.sleep(_LOOK_SECONDS)
            # Looks again even without a change: new sessions and questions have no event here.
            self._task = await self._helm.tasks.wait(self._task, timeout=_LOOK_SECONDS)

    def _on_signal(self, code: ExitCode, scope: anyio.CancelScope, tasks: TaskGroup) -> None:
        if code is ExitCode.OK and not self._helm.asks_hub:
            return  # it would end with this process
        self._heard += 1
        if code is not ExitCode.OK and self._heard == 1:
            self._view.stopping()
            tasks.start_soon(self._stop, code, scope)
            return
        self._left = code
        scope.cancel()
        exit_after(_LEAVE_SECONDS, code)

    async def _stop(self, code: ExitCode, scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(_STOP_SECONDS), suppress(HelmsmanError):
            await self._helm.tasks.cancel(self._task)
            return  # its end is handled like any other
        self._left = code
        scope.cancel()


def exit_code_of_job(task: Task) -> ExitCode:
    """Return the exit code for a finished job."""
    if task.status == "canceled":
        return ExitCode.INTERRUPTED
    if (task.error or {}).get("code") == _NOT_VERIFIED:
        return ExitCode.NOT_VERIFIED
    return ExitCode.OK if task.status == "completed" else ExitCode.FAILED


class JobView:
    """Print progress line by line, with a live line on a terminal; the report goes to stdout."""

    session: Session | None = None  # most recently started session

    def __init__(self, *, is_live: bool) -> None:
        from helmsman.cli.screen import Screen, StatusLine

        self._console = message_console()
        self._status = StatusLine(self._console)
        self._screen = Screen(self._console, self._changing if is_live and is_terminal(self._console) else None)
        self._said: str | None = None

    def __enter__(self) -> JobView:
        self._screen.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.close()

    def _changing(self) -> list[Text]:
        return [self._status.text(self.session)]

    async def on_question(self, session: Session, question: Question, /) -> Reply:
        from helmsman.cli.displays import refuse
        from helmsman.terminal import ask_on_terminal, has_terminal

        # The live part would be drawn over the question.
        with self._screen.paused():
            return await (ask_on_terminal if has_terminal() else refuse)(session, question)

    async def animate(self) -> None:
        await self._screen.animate()

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        from helmsman.terminal.layout import fold

        line = Text(visible(text), style)
        self._screen.print(fold(self._console, line, indent=0) if is_terminal(self._console) else [line])

    def begin(self, task: Task, chosen: Chosen) -> None:
        self._print(f"{task.id}: {task.job} by {chosen.agent} ({chosen.why})")
        if is_terminal(self._console):
            self._print("Ctrl-C stops it, Ctrl-\\ leaves it running.", "dim")

    def show(self, task: Task) -> None:
        said = (task.progress or {}).get("text")
        if said is not None and said != self._said:
            self._said = said
            self._progress(task, said)

    def _progress(self, _task: Task, said: str) -> None:
        self._print(f"• {one_line(said)}")

    def stopping(self) -> None:
        self._print("Stopping it. Press Ctrl-C again to leave immediately.", "yellow")

    def left(self, task: Task, *, goes_on: bool) -> None:
        if goes_on:
            self._print(f"It keeps running without you. Come back with helmsman tasks wait {task.id}")

    def finish(self, task: Task, report: Mapping[str, Any], code: int) -> None:
        self._screen.close()
        if task.result:
            print_markdown(task.result)
        session_id = report.get("workSessionId") or report.get("sessionId") or ""
        # Attempts show whether there is something to look at.
        if code == ExitCode.NOT_VERIFIED and not report.get("attempts"):
            self._print("✗ Not verified: nothing was tried.", "red")
        elif code == ExitCode.NOT_VERIFIED and report.get("applied") == "applied":
            self._print("✗ Not verified. It was applied because you decided so.", "yellow")
        elif code == ExitCode.NOT_VERIFIED:
            self._print(f"✗ Not verified. What was tried is in helmsman tasks results {task.id} --diff", "red")
        elif task.status != "completed":
            self._print(f"✗ {(task.error or {}).get('message') or task.note or task.status}", "red")
        elif report.get("applied") == "failed":
            self._print(f"✗ Verified, but not applied. Then: helmsman apply {short_id(session_id)}", "red")
        elif report.get("applied") in ("not_asked", "refused"):
            self._print(f"✓ Verified. Apply it with helmsman apply {short_id(session_id)}", "green")
        else:
            self._print("✓ Verified", "green")


class JsonJobView(JobView):
    """Print one JSON object per line: each change of progress, then the result."""

    def stopping(self) -> None:
        return

    def begin(self, task: Task, chosen: Chosen) -> None:
        about = {"taskId": task.id, "kind": task.job, "agent": chosen.agent, "why": chosen.why}
        print_json({"type": "begun", **about})

    def _progress(self, task: Task, said: str) -> None:
        print_json({"type": "progress", "taskId": task.id, "text": said})

    def finish(self, task: Task, report: Mapping[str, Any], code: int) -> None:
        shown = {
            "type": "result",
            "taskId": task.id,
            "status": task.status,
            "verified": task.status == "completed",
            "report": report or None,
            "error": None if report else task.error,
            "note": task.note,
            "exitCode": int(code),
        }
        print_json(present(shown))

    def left(self, task: Task, *, goes_on: bool) -> None:
        print_json({"type": "result", "taskId": task.id, "status": "working" if goes_on else "interrupted"})


@cli_command(
    "debug",
    "Find and fix a failure, and verify the fix.",
    'helmsman job debug "test_parse fails: KeyError" --check "make test"',
    'helmsman job debug "The second login hangs" --agent codex --agent claude',
    "gh issue view 17 --json title,body -q '.title+\"\\n\"+.body' | helmsman job debug - --json",
)
@outcome_options
@option("--test NAME", "The failing test.")
def debug_command(request: str, test: str | None, **options: Any) -> int:
    """Reproduce a failure, find its cause and fix it, in a git worktree; REQUEST says what fails (`-` reads it from
    stdin).

    Helmsman runs the check itself: before the change, when it must show that failure, and after it, when it must pass. A
    change that does not verify goes back to the agent with the evidence, at most three times, and is never applied.
    """
    return run_outcome("debug", request, more=None if test is None else {"test": test}, **options)


@cli_command(
    "refactor",
    "Improve code, with its check green before and after.",
    'helmsman job refactor "Split the parser in two" --scope src/parser --check "make test"',
    'helmsman job refactor "Less nesting in billing.py" --candidates 3 --apply never',
)
@outcome_options
@option("--scope PATH...", "Only this file or directory may change. Repeatable.  [default: all]")
def refactor_command(request: str, scope: tuple[str, ...], **options: Any) -> int:
    """Improve code without changing what it does, in a git worktree; REQUEST says what to improve (`-`
    reads it from stdin).

    Helmsman runs the check itself, before and after, checks that nothing outside the scope was touched, compares what Python
    functions return, and reports what changed in the public interface.
    """
    return run_outcome("refactor", request, more={"scope": list(scope)} if scope else None, **options)


@cli_command(
    "test",
    "Write tests, and prove that they catch bugs.",
    'helmsman job test "The date parser, with leap years"',
    'helmsman job test "What the last commit added" --check "pytest -q" --apply verified',
)
@outcome_options
@option("--base COMMIT", "A commit whose code the new tests are to fail with.")
def test_command(request: str, base: str | None, **options: Any) -> int:
    """Write tests, in a git worktree; REQUEST says what to test (`-` reads it from stdin).

    Helmsman runs them itself, three times, and then against the code of --base and small mutations of the code under test:
    each new test has to fail at least once.
    """
    return run_outcome("test", request, more=None if base is None else {"base": base}, **options)


@cli_command(
    "plan",
    "Make a plan, check it against the repository, and carry it out.",
    'helmsman job plan "Split the parser in two" --check "make test"',
    'helmsman job plan "Move to Python 3.13" --candidates 2 --apply never',
)
@with_options(*_SOLVED_OPTIONS)
def plan_command(request: str, **options: Any) -> int:
    """Plan how to reach a goal, and carry the plan out once you approve it; REQUEST is the goal (`-` reads it from stdin).

    Every file that it names must exist or be marked as new. Each step is then done in a git worktree and checked separately.
    With --apply never it is only planned.
    """
    return run_outcome("plan", request, **options)


@cli_command(
    "review",
    "Review a change with several agents, and check their findings.",
    "helmsman job review --agent codex --agent claude --base main",
    "helmsman job review --fail-on P1",
)
@click.argument("request", required=False)
@with_options(*_JOB_OPTIONS)
@option("--base BRANCH", "Everything that differs from this branch.  [default: what is uncommitted]")
@option("--commit COMMIT", "One commit.")
@fail_on_option
def review_command(
    request: str | None, base: str | None, commit: str | None, fail_on: str | None, **options: Any
) -> int:
    """Review a change; REQUEST says what to look at, and can be left out.

    Each finding of several agents is reported once, and another look tries to refute those of P0 and P1. Helmsman itself
    checks that they are about lines of that change, and that nothing was changed.
    """
    from helmsman.shapes.outcomes import WHOLE_REVIEW, reviewed

    if base is not None and commit is not None:
        raise click.UsageError("Review one thing: --base or --commit.")

    def exit_code(report: Mapping[str, Any]) -> int:
        return code_of_findings((one.get("priority") for one in report.get("findings", ())), fail_on)

    more = reviewed(branch=base, commit=commit, diff=None)
    return run_outcome("review", request or WHOLE_REVIEW, more=more, exit_code=exit_code, **options)


@cli_command(
    "loop",
    "Repeat steps until their checks hold.",
    "helmsman loop --example > loop.toml",
    'helmsman loop loop.toml "Add an option --json to the list"',
    'helmsman loop example "Add an option --json to the list" --budget 2',
)
@click.argument("file", required=False)
@click.argument("request", required=False)
@option("-C --cd DIR", "Work in this directory instead of the current one.", to="directory")
@option("--agent NAME", "Who does it.  [default: auto]")
@option("--apply", "Whether a verified change comes into your tree.", choices=get_args(Apply))
@option("--budget USD", "What all of it may cost.", type=POSITIVE)
@option("--timeout SECONDS", "How long it may take.", type=POSITIVE)
@option("--detach", "Start it and return immediately; questions wait for an answer.")
@option("--example", "Print the built-in example: implement, test, review, fix.")
def loop_command(
    file: str | None,
    request: str | None,
    directory: str | None,
    agent: str | None,
    apply: Apply | None,
    budget: float | None,
    timeout: float | None,
    detach: bool,
    example: bool,
    as_json: bool,
) -> int:
    """Do the steps of FILE with an agent, in a git worktree, and verify each. `example` is the built-in file.

    Helmsman runs the check of each step in a fresh checkout. A step that fails goes back to the agent with the evidence,
    until its check passes, or its attempts or the budget are used up. A step can also have a judge: another agent that reads
    the change and must not object. REQUEST is the goal (`-` reads it from stdin). Only --apply, not FILE, can say that a
    change is applied without asking. The loop survives a killed hub and resumes at its step.
    """
    # The example alone needs no file.
    if example or file is None:
        if not example:
            raise click.UsageError("Name a file. `helmsman loop --example` prints one.")
        click.echo(EXAMPLE_LOOP.read_text(encoding="utf-8"), nl=False)
        return ExitCode.OK
    given = {"apply": apply, "budget_usd": budget, "seconds": timeout, "agents": None if agent is None else (agent,)}
    wanted = Wanted.from_loop(
        file,
        str(host().place(directory)),
        None if request is None else prompt_text(request),
        **{name: value for name, value in given.items() if value is not None},
    )
    return run_wanted(wanted, has_directory=directory is not None, detach=detach, as_json=as_json)
