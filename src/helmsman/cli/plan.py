"""`helmsman plan`: Codex plans first, and works once the plan is approved at the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.run import config_values, given, prompt_text, schema_in, step_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.model.events import Event
    from helmsman.model.inputs import StartOptions
    from helmsman.model.options import ApprovalPolicy, SandboxMode
    from helmsman.model.questions import Question
    from helmsman.service import Helmsman
    from helmsman.sessions.session import QuestionHandler, Reply, Session
    from helmsman.settings import Settings
    from helmsman.step import StepResult


@click.command(
    "plan",
    short_help="Plan first, and work once you approve.",
    epilog="""\b
Examples:
  helmsman plan "Split the parser in two" --full-auto
  helmsman plan "Move to Python 3.13" > plan.md
""",
)
@step_options
@json_option
@reports_errors
def command(
    prompt: str,
    directory: str | None,
    model: str | None,
    sandbox: SandboxMode | None,
    approval_policy: ApprovalPolicy | None,
    full_auto: bool,
    profile: str | None,
    config: Sequence[str],
    images: Sequence[str],
    schema_file: str | None,
    effort: str | None,
    as_json: bool,
) -> int:
    """Let Codex plan what PROMPT asks for (`-` reads it from stdin), and ask whether it is to carry the plan out.

    Until you approve, it can read and change nothing, whatever the sandbox. Approve and it works with the options given
    here; revise and say what is to be different; or stop (exit code 130). Without a terminal to ask on, the plan goes to
    stdout and nothing is done.
    """
    options: StartOptions = {
        "model": model,
        "sandbox": sandbox,
        "approval_policy": approval_policy,
        "full_auto": full_auto,
        "profile": profile,
        "config": config_values(config),
    }
    turn = {"cwd": directory, "images": images, "output_schema": schema_in(schema_file), "effort": effort}
    text = prompt_text(prompt)

    import anyio

    from helmsman.settings import load_settings

    settings = load_settings(cwd=None if directory is None else Path(directory))
    return anyio.run(_plan, text, settings, turn | given(options), as_json)


async def _plan(prompt: str, settings: Settings, arguments: dict[str, Any], as_json: bool) -> int:
    from dataclasses import replace

    from helmsman.cli.consoles import configure_logs, logs_wanted
    from helmsman.cli.displays import HumanDisplay, JsonDisplay
    from helmsman.cli.follow import follow
    from helmsman.service import Helmsman

    configure_logs(settings)
    async with Helmsman(replace(settings, detach=False)) as helm:
        display = JsonDisplay() if as_json else HumanDisplay(live=not logs_wanted(settings))
        outcome = await follow(_PlanStep(helm, prompt, arguments), display)
    return outcome.exit_code


class _PlanStep:
    """The step; where there is nobody to approve the plan, the plan is its result."""

    def __init__(self, helm: Helmsman, prompt: str, arguments: dict[str, Any]) -> None:
        self._helm = helm
        self._prompt = prompt
        self._arguments = arguments
        self._plan: str | None = None

    async def __call__(self, *, on_event: Callable[[Session, Event], None], on_question: QuestionHandler) -> StepResult:
        from dataclasses import replace

        from helmsman.errors import StepInterrupted
        from helmsman.model.questions import STOP
        from helmsman.step import StepResult, run_step
        from helmsman.terminal import has_terminal

        async def answer(session: Session, question: Question, /) -> Reply:
            plan = question.details.get("plan")
            if plan is None:
                return await on_question(session, question)
            if not has_terminal():
                self._plan = str(plan)
                return [STOP]
            return await on_question(session, replace(question, details={}))  # the plan has just been shown

        try:
            return await run_step(
                self._prompt, plan=True, helm=self._helm, on_event=on_event, on_question=answer, **self._arguments
            )
        except StepInterrupted as error:
            session = self._helm.sessions.get(str(error.details.get("session_id")))
            if self._plan is None or session is None:
                raise
            return StepResult(text=self._plan, output=None, session_id=session.id, usage=session.usage, attempts=1)
