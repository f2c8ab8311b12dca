"""`helmsman plan`: let Codex plan first, and work when the plan is approved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from helmsman.base.sanitize import one_line
from helmsman.base.structs import replace
from helmsman.capabilities.outcomes.request import MOST_CANDIDATES, Apply
from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.outcomes import run_outcome
from helmsman.cli.run import prompt_text, step_arguments, step_options
from helmsman.errors import StepInterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helmsman.client import Helmsman
    from helmsman.model.events import Event
    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Reply, Session
    from helmsman.step import StepResult


@cli_command(
    "plan",
    "Plan first, and work once you approve.",
    'helmsman plan "Split the parser in two" --full-auto',
    'helmsman plan "Move to Python 3.13" > plan.md',
    'helmsman plan "Split the parser in two" --verify --check "make test"',
)
@step_options
@click.option(
    "--verify",
    is_flag=True,
    help="Check the plan against the repository, carry it out in a worktree, and check each step.",
)
@click.option("--check", metavar="COMMAND", help="With --verify: the command that tells whether it works.")
@click.option(
    "--apply",
    type=click.Choice(get_args(Apply)),
    help="With --verify: whether the change comes into your tree; never: only plan.  [default: ask]",
)
@click.option(
    "--candidates",
    type=click.IntRange(1, MOST_CANDIDATES),
    metavar="N",
    help="With --verify: plans made side by side; the best is offered.",
)
@click.option("--detach", is_flag=True, help="With --verify: start it and return immediately.")
def command(
    prompt: str,
    directory: str | None,
    verify: bool,
    check: str | None,
    apply: Apply | None,
    candidates: int | None,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Let an agent plan what PROMPT asks for (`-` reads it from stdin), then ask whether to carry the plan out.

    Until you approve, it can only read, whatever the sandbox. Approve and it works with the options given
    here; revise and say what should be different; or stop (exit code 130). Before you are asked, Helmsman checks
    that nothing was changed and that the files the plan names exist. Without a terminal to ask on, the plan goes to
    stdout and nothing is done. With --verify it is a job: every file the plan names must exist or be marked as new, and each
    step is done and checked separately.
    """
    if verify:
        job: dict[str, Any] = {"check": check, "apply": apply or "ask", "candidates": candidates or 1}
        return _verified(prompt, directory, job | {"detach": detach, "as_json": as_json}, **options)
    if check is not None or apply is not None or candidates is not None or detach:
        raise click.UsageError("--check, --apply, --candidates and --detach need --verify.")
    arguments = step_arguments(**options) | {"cwd": directory}
    text = prompt_text(prompt)
    settings = settings_of_command(directory=None if directory is None else Path(directory))

    async def plan(helm: Helmsman) -> int:
        from helmsman.cli.displays import new_display
        from helmsman.cli.follow import Talk, follow

        step = partial(_plan_and_work, helm, text, arguments)
        return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code

    return with_helmsman(plan, settings=settings)


def _verified(prompt: str, directory: str | None, job: Mapping[str, Any], *, agent: str | None, **options: Any) -> int:
    """Run the plan as a verified job, which has fixed permissions."""
    if any(options.values()):
        raise click.UsageError(
            "With --verify a plan takes --cd, --agent, --check, --apply, --candidates, --detach and --json alone."
        )
    return run_outcome(
        "plan",
        prompt,
        directory=directory,
        agents=() if agent is None else (agent,),
        **job,
    )


async def _plan_and_work(
    helm: Helmsman,
    prompt: str,
    arguments: dict[str, Any],
    *,
    on_event: Callable[[Session, Event], None],
    on_question: QuestionHandler,
) -> StepResult:
    """Run the step. Without a user to approve the plan, the plan is the result."""
    from helmsman.model.questions import STOP
    from helmsman.step import StepResult, run_step
    from helmsman.terminal import has_terminal

    not_approved: str | None = None

    async def answer(session: Session, question: Question, /) -> Reply:
        nonlocal not_approved
        plan = question.details.get("plan")
        if plan is None:
            return await on_question(session, question)
        if not has_terminal():
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
            raise
        return StepResult(text=not_approved, output=None, session_id=session.id, usage=session.usage, attempts=1)
