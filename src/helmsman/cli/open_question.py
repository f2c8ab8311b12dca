"""Text of an open question for `status` and `respond`: subject, options and the command to answer."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from helmsman.approvals.deadline import countdown
from helmsman.base.sanitize import exact
from helmsman.cli.on_session import short_id
from helmsman.terminal.layout import fold
from helmsman.terminal.question_view import is_in_view, prompt_lines, question_lines

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session


def open_question_lines(console: Console, session: Session, question: Question, name: str | None = None) -> list[Text]:
    """Return the lines of the question. `name` is the session's name in commands."""
    lines, left_out = question_lines(console, question, directory=session.directory)
    if left_out:
        lines.append(Text("  `helmsman watch` shows all of it.", "dim"))
    for number, prompt in enumerate(question.prompts):
        lines.append(Text())
        if not is_in_view(question, number):
            lines += prompt_lines(console, prompt)
        for option in prompt.options:
            choice = Text.assemble(
                (exact(option), "cyan"), (f"  {exact(prompt.descriptions.get(option, ''))}".rstrip(), "dim")
            )
            lines += fold(console, choice, indent=4, below=Text("      │ ", "dim"))
        if prompt.free_text or not prompt.options:
            lines += fold(console, Text("any text", "dim"), indent=4)
    # A command that can be copied, with an answer that the question offers.
    answers = [prompt.options[0] if prompt.options else "…" for prompt in question.prompts]
    command = shlex.join(["helmsman", "respond", name or short_id(session.id), question.id, *answers])
    deadline = session.deadlines.get(question.id)
    if deadline is not None:
        left = Text(countdown(deadline.seconds, paused=deadline.is_paused), "yellow")
        lines += [Text(), *fold(console, left)]
    return [*lines, Text(), Text.assemble(("Answer it: ", "dim"), exact(command))]
