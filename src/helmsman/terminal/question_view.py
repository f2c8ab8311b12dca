"""Format a question for the terminal, with everything needed for the decision and nothing hidden.

The text comes from `question_text`. Every line except the first line of a label has a bar in front, including wrapped
lines, so that agent output cannot imitate a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from helmsman.model.question_text import GUTTER, Line, describe, value_lines
from helmsman.terminal.diffs import diff_lines
from helmsman.terminal.layout import INDENT, fold

if TYPE_CHECKING:
    from rich.console import Console

    from helmsman.model.questions import Prompt, Question

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
        lines.append(Text(f"  … {left_out} more lines", "yellow"))
    return lines, left_out


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
