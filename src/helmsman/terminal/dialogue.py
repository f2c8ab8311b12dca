"""Ask the user at the terminal to answer a question.

Shows the complete subject of the question and, after a moment, accepts one key per choice. If another client answers
first, the prompt is withdrawn and the terminal restored. Several questions are asked one after another.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.approvals.deadline import countdown
from helmsman.approvals.rule_book import rule_shown_for_always
from helmsman.base.sanitize import exact, one_line, visible
from helmsman.base.truncate import counted
from helmsman.model import questions
from helmsman.model.answered_by import PERSON_AT_TERMINAL, Answered
from helmsman.model.question_text import GUTTER
from helmsman.terminal.keyboard import Keyboard, has_terminal, open_keyboard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from helmsman.model.questions import Prompt, Question
    from helmsman.sessions.session import Session

CHOICES: Final = {
    questions.APPROVE: ("y", "approve"),
    questions.APPROVE_SESSION: ("s", "approve, and do not ask again in this session"),
    questions.APPROVE_ALWAYS: ("a", "always allow it from now on"),
    questions.DENY: ("n", "deny (you can say why)"),
    questions.ABORT: ("x", "deny and stop the turn"),
    questions.ACCEPT: ("y", "accept"),
    questions.DECLINE: ("n", "decline"),
    questions.CANCEL: ("x", "cancel"),
    questions.REVISE: ("r", "revise"),
    questions.STOP: ("x", "stop"),
    questions.WAIT: ("w", "wait"),
}
"""Key and label of each known answer. The dashboard and the full screen use the same keys."""
# Letters that no choice uses.
_TYPE: Final = "t"
_BACK: Final = "b"
_SHOW_ALL: Final = "d"
# Options are numbered with one digit, because one key must be enough.
_MOST_KEYS: Final = 9
_YES: Final = "y"
_NO: Final = ("n", "\n", "n\n", "no\n")  # a word with Enter may be pasted: a refusal needs no protection
_ROOM: Final = 6  # columns for an answer behind a question
_END: Final = "\x04"
"""Ctrl-D leaves the question to other clients."""
_BELL: Final = "\a"

# Several sessions may ask at the same moment, and the terminal has one line for answers.
_ONE_AT_A_TIME: Final = anyio.Lock()


async def ask_on_terminal(session: Session, question: Question, /) -> Answered | None:
    """`QuestionHandler` for the terminal. Returns None, which leaves the question to other clients, without a terminal.

    The deadline is paused while this process is in the terminal's foreground.
    """
    # Before the lock: the bell also rings for a question that waits behind another.
    _ring()
    async with _ONE_AT_A_TIME:
        with open_keyboard() as keyboard:
            if keyboard is None:
                return None
            from rich.console import Console

            # stderr, so that stdout stays the result for programs that read it.
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            try:
                # The deadline stands still only while this process can be seen: Ctrl-Z and a background job let it run.
                async with session.on_screen(question, keyboard.is_in_foreground):
                    answers = await _Dialogue(console, keyboard, session, question).ask()
                return Answered(answers, PERSON_AT_TERMINAL)
            except EOFError:
                # The hub keeps the question.
                again = f" Answer it with helmsman respond {session.id}" if session.is_copy else ""
                console.print(f"  Left unanswered.{again}", style="yellow")
                return None
            except anyio.get_cancelled_exc_class():
                is_open = any(one.id == question.id for one in session.questions)  # the caller has disconnected
                # Cancelled either because another client answered, or because this program ends.
                remark = "Left unanswered." if is_open else "No answer is needed now."
                console.print(f"\n  {remark}", style="yellow")
                raise


def _ring() -> None:
    """Ring the bell for a question, even if it has to wait for another one."""
    if has_terminal():
        with suppress(OSError):  # the terminal may just have been closed
            sys.stderr.write(_BELL)
            sys.stderr.flush()


class _Dialogue:
    def __init__(self, console: Console, keyboard: Keyboard, session: Session, question: Question) -> None:
        self._console = console
        self._keyboard = keyboard
        self._question = question
        self._directory = session.directory
        self._deadline = session.deadlines.get(question.id)

    async def ask(self) -> list[str]:
        from helmsman.terminal.question_view import is_in_view, prompt_lines, question_lines

        lines, left_out = question_lines(self._console, self._question, directory=self._directory)
        self._console.print(*lines, sep="\n")
        # Shown as paused, because it does not run while the question is on screen.
        if self._deadline is not None and self._deadline.has_end:
            self._console.print(f"  {countdown(self._deadline.seconds, paused=True)}", style="dim")
        answers: list[str] = []
        for number, prompt in enumerate(self._question.prompts):
            if not is_in_view(self._question, number):
                self._console.print()
                self._console.print(*prompt_lines(self._console, prompt), sep="\n")
            answers.append(await self._ask(prompt, left_out=left_out))
            if self._question.type == "mcp_elicitation" and answers[0] in questions.REFUSALS:
                break  # a declined form need not be filled in
        return answers

    async def _ask(self, prompt: Prompt, *, left_out: int = 0) -> str:
        if not prompt.options:
            if prompt is self._question.prompts[0]:
                # Only before the first part: later ones were expected, so typing on is no accident.
                await self._keyboard.quiet()  # a message that was being typed is not an answer
            return await self._line("  > ", secret=prompt.secret)
        keys = _keys(prompt.options)
        # More options than digits: a line with a number takes the place of a key.
        if keys is None:
            await self._keyboard.quiet()
            return await self._ask_by_number(prompt)
        choices = dict(keys)
        if prompt.free_text:
            choices[_TYPE] = "type another answer"
        if left_out:
            choices[_SHOW_ALL] = f"show {counted(left_out, 'more line')} first"
        await self._keyboard.quiet()
        self._show_choices(choices, prompt)
        while True:
            key = await self._key(choices)
            if key == _SHOW_ALL and left_out:
                self._show_whole_diff()
                self._show_choices(choices, prompt)
            elif key == _TYPE and prompt.free_text:
                return await self._line("  > ", secret=prompt.secret)
            else:
                answer = await self._complete(keys[key])
                if answer is not None:
                    self._console.print(f"  → {one_line(answer)}", style="bold")
                    return answer
                self._show_choices(choices, prompt)

    def _show_choices(self, choices: Mapping[str, str], prompt: Prompt) -> None:
        self._console.print()
        for key, option in choices.items():
            _, label = CHOICES.get(option, (key, option))
            self._show_choice(key, label, prompt.descriptions.get(option))

    async def _complete(self, option: str) -> str | None:
        """Return the option with its additional text; None to go back."""
        if option == questions.DENY:
            try:
                reason = await self._line("  Why? (Enter for no reason) ")
            except EOFError:
                # Ctrl-D at the reason denies without one: the decision was already made.
                reason = ""
            # Without a reason the bare word is sent, because what follows a colon reaches the agent.
            return f"{questions.DENY}: {reason.strip()}" if reason.strip() else questions.DENY
        if option == questions.APPROVE_ALWAYS:
            answer = await self._choose_prefix()
            # A rule decides all later commands, so the prefix alone is not consent.
            return answer if answer is not None and await self._wants_rule(answer) else None
        if option == questions.REVISE:
            words = await self._line("  What should change? (Enter to go back) ")
            return f"{questions.REVISE}: {words.strip()}" if words.strip() else None
        return option

    async def _choose_prefix(self) -> str | None:
        prefixes = _prefixes(self._question.details.get("prefixes"))
        if not prefixes:
            return questions.APPROVE_ALWAYS
        self._console.print("\n  Always allow commands that begin with", style="bold")
        choices = {str(number): prefix for number, prefix in enumerate(prefixes, start=1)}
        for key, prefix in choices.items():
            self._show_choice(key, prefix)
        choices[_BACK] = ""
        self._show_choice(_BACK, "back")
        key = await self._key(choices)
        return None if key == _BACK else f"{questions.APPROVE_ALWAYS}: {choices[key]}"

    async def _wants_rule(self, answer: str) -> bool:
        """Show the rule that the answer creates, and ask for confirmation."""
        from rich.text import Text

        from helmsman.terminal.layout import fold

        prefix = answer.partition(":")[2].strip() or None
        self._console.print("\n  This rule would be kept, and decide from now on without asking:\n", style="bold")
        for line in visible(rule_shown_for_always(self._question, prefix) or "").strip().split("\n"):
            self._console.print(*fold(self._console, Text(line), indent=4, below=Text(GUTTER, "dim")), sep="\n")
        await self._keyboard.quiet()  # keys pressed before the rule was shown do not count
        self._console.print()
        return await is_agreed(self._console, self._keyboard, "  Keep it, and approve?")

    async def _ask_by_number(self, prompt: Prompt) -> str:
        for number, option in enumerate(prompt.options, start=1):
            self._show_choice(f"{number:>2}", option, prompt.descriptions.get(option))
        while True:
            typed = (await self._line("  number > ")).strip()
            # `isdigit` alone accepts superscripts, which `int` refuses.
            if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(prompt.options):
                return prompt.options[int(typed) - 1]
            if typed and prompt.free_text:
                return typed
            self._console.print(f"  Type a number from 1 to {len(prompt.options)}.", style="yellow")

    def _show_choice(self, key: str, label: str, description: str | None = None) -> None:
        from rich.text import Text

        from helmsman.terminal.layout import fold

        choice = Text(exact(label))
        if description:
            choice.append(f"  {exact(description)}", "dim")
        self._console.print(*fold(self._console, choice, lead=Text.assemble("  ", (key, "bold cyan"), "  ")), sep="\n")

    def _show_whole_diff(self) -> None:
        from helmsman.terminal.question_view import whole_diff

        self._console.print(*whole_diff(self._console, self._question), sep="\n")

    async def _key(self, choices: Mapping[str, str]) -> str:
        while True:
            key = (await self._keyboard.key()).lower()
            if key in choices:
                return key
            if key == _END:
                raise EOFError
            self._console.print(f"  Press one of {', '.join(choices)}.", style="yellow")

    async def _line(self, prompt: str, *, secret: bool = False) -> str:
        from helmsman.terminal.line_editor import read_line

        return await read_line(self._console, self._keyboard.fd, prompt, secret=secret)


async def is_agreed(console: Console, keyboard: Keyboard, question: str) -> bool:
    """Ask for yes or no, by one key. Enter means no. A pasted yes does not count.

    Raises:
        EOFError: Ctrl-D was pressed, or the terminal is gone.
    """
    from rich.text import Text

    keyboard.listen()
    about, stop, asked = f"{question} [y/N]".rpartition(". ")
    width = max(1, console.width - _ROOM)
    if stop and len(about) + len(asked) > width:  # the question keeps its own line
        console.print(f"{about}.", style="bold")
    else:
        asked = f"{about}{stop}{asked}"
    console.print(Text("\n").join(Text(asked, "bold").wrap(console, width)), end=" ")
    # Enter means no: a held or repeated Enter must not agree.
    while (typed := (await keyboard.typed()).lower()) not in (_YES, *_NO):
        if typed == _END:
            raise EOFError
        console.print("\n  Press y or n.", style="yellow", end=" ")
    console.print("yes" if typed == _YES else "no")
    return typed == _YES


def _keys(options: Sequence[str]) -> dict[str, str] | None:
    """Return a key for each option: a letter for known ones, otherwise a number. None if there are too many."""
    letters = {CHOICES[option][0]: option for option in options if option in CHOICES}
    if len(letters) == len(options):
        return letters
    if len(options) > _MOST_KEYS:
        return None
    return {str(number): option for number, option in enumerate(options, start=1)}


def _prefixes(offered: object) -> list[str]:
    """Return the command prefixes offered for a permanent rule."""
    lists = offered if isinstance(offered, list | tuple) else ()
    # Details come from the agent, so they may have any shape.
    words = [
        entry for entry in lists if isinstance(entry, list | tuple) and all(isinstance(word, str) for word in entry)
    ]
    # One digit each, as for options.
    return [shlex.join(entry) for entry in words if entry][:_MOST_KEYS]
