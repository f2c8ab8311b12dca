"""An open question as `status` and `respond` show it: what there is to judge, the answers, and how to give one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from helmsman.cli.session_ids import short_id
from helmsman.events import FileChange
from helmsman.sessions.deadline import countdown
from helmsman.terminal.layout import fold
from helmsman.terminal.question_view import question_lines
from helmsman.terminal.text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.questions import Question
    from helmsman.sessions.session import Session


def open_question_lines(console: Console, session: Session, question: Question) -> list[Text]:
    """The question in lines for a console."""
    changes = next(
        (item.changes for item in session.items if isinstance(item, FileChange) and item.id == question.item_id), ()
    )
    lines, left_out = question_lines(console, question, directory=session.directory, changes=changes)
    if left_out:
        lines.append(Text("  `helmsman watch` shows all of it.", "dim"))
    for number, prompt in enumerate(question.prompts):
        lines.append(Text())
        if number or question.type == "user_input":  # the first prompt of the others is the view itself
            lines += fold(console, Text(one_line(prompt.text), "bold"))
        for option in prompt.options:
            choice = Text.assemble(
                (one_line(option), "cyan"), (f"  {prompt.descriptions.get(option, '')}".rstrip(), "dim")
            )
            lines += fold(console, choice, indent=4)
        if prompt.free_text or not prompt.options:
            lines += fold(console, Text("any text", "dim"), indent=4)
    answers = [prompt.options[0] if prompt.options else "…" for prompt in question.prompts]
    command = shlex.join(["helmsman", "respond", short_id(session.id), question.id, *answers])
    deadline = session.deadlines.get(question.id)
    if deadline is not None:
        left = Text(countdown(deadline.seconds, paused=deadline.is_paused), "yellow")
        lines += [Text(), *fold(console, left)]
    return [*lines, Text(), Text.assemble(("Answer it: ", "dim"), one_line(command))]
