"""Format a question for the terminal, with everything needed for the decision and nothing hidden.

The text comes from `question_text`. Every line except the first line of a label has a bar in front, including wrapped
lines, so that agent output cannot imitate a label.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.approvals.deadline import countdown
from helmsman.base.sanitize import exact
from helmsman.base.truncate import counted
from helmsman.model.question_text import GUTTER, Line, describe, value_lines
from helmsman.terminal.diffs import diff_lines
from helmsman.terminal.layout import INDENT, fold

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.model.questions import Prompt, Question
    from helmsman.sessions.session import Session

DIFF_LINES: Final = 120
"""Lines of a diff shown initially; the rest is shown on request."""
_BAR: Final = Text(GUTTER, "dim")
_STYLES: Final = {"Command": "bold", "Permission": "yellow", "Network": "yellow", "Environment": "yellow"}


def question_lines(console: Console, question: Question, *, directory: str | None = None) -> tuple[list[Text], int]:
    """Return the lines of a question relative to a session's directory, and the number of omitted diff lines."""
    words = describe(question)
    diff = diff_lines(words.diff) if words.diff else []
    left_out = max(0, len(diff) - DIFF_LINES)
    lines = [Text(), Text(f"? {words.title}", "bold yellow")]
    style = ""
    for line in words.lines:
        if line.label:
            # A directory other than the session's is what a reader has to notice.
            elsewhere = directory is not None and question.details.get("directory") != directory
            style = "yellow" if line.label == "Directory" and elsewhere else _STYLES.get(line.label, "")
        lines += _rows(console, line, style)
    # Each row gets the bar, also those that result from folding.
    lines += [row for line in diff[:DIFF_LINES] for row in _behind_bar(console, line)]
    if left_out:
        lines.append(Text(f"  … {counted(left_out, 'more line')}", "yellow"))
    return lines, left_out


def answerable_lines(console: Console, session: Session, question: Question, *, name: str) -> list[Text]:
    """Return the lines of an open question with all options and the command to answer.

    `name` is the session's name in commands.
    """
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
    command = shlex.join(["helmsman", "respond", name, question.id, *answers])
    deadline = session.deadlines.get(question.id)
    if deadline is not None:
        left = Text(countdown(deadline.seconds, paused=deadline.is_paused), "yellow")
        lines += [Text(), *fold(console, left)]
    return [*lines, Text(), Text.assemble(("Answer it: ", "dim"), exact(command))]


def whole_diff(console: Console, question: Question) -> list[Text]:
    """Return the complete diff of a patch."""
    diff = describe(question).diff
    return [row for line in diff_lines(diff or "") for row in _behind_bar(console, line)]


def is_in_view(question: Question, number: int) -> bool:
    """Return whether `question_lines` shows the text of this prompt."""
    # Prompts of a `user_input` with several have options each, so each is shown when it is asked.
    return number == 0 and (question.type != "user_input" or len(question.prompts) == 1)


def prompt_lines(console: Console, prompt: Prompt) -> list[Text]:
    """Format the text of one prompt."""
    return fold(console, Text("\n".join(value_lines(prompt.text)), "bold"), lead=Text(" " * INDENT), below=_BAR)


def _rows(console: Console, line: Line, style: str) -> list[Text]:
    lead = Text.assemble(" " * INDENT, (f"{line.label}: ", "dim")) if line.label else _BAR
    return fold(console, Text(line.text, style), lead=lead, below=_BAR)


def _behind_bar(console: Console, line: Text) -> list[Text]:
    return fold(console, line, lead=_BAR, below=_BAR)
