"""Questions on a terminal: a pseudo-terminal on which keys are really pressed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO, Any, cast

import anyio
import pytest

from helmsman.model.change_diff import file_change_diff
from helmsman.model.events import PathChange
from helmsman.model.questions import Prompt, Question, QuestionType
from helmsman.sessions.feed import Feed
from helmsman.sessions.session import Session, Verbs
from helmsman.sessions.state import SessionState
from helmsman.terminal import ask_on_terminal, has_terminal, keyboard
from helmsman.terminal.keyboard import MOMENT
from tests.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.anyio

COMMAND = ("approve", "approve_session", "deny", "abort")
RULE = '[[rules]]\neffect = "allow"\ntext = "git push\u202e"\ndirectory = "/repo"\n\n'


def _session() -> Session:
    return Session(SessionState("s1", directory="/repo"), Feed(10), cast("Verbs", None))


def _question(
    *prompts: Prompt, kind: QuestionType = "command_approval", item_id: str | None = None, **details: Any
) -> Question:
    return Question(
        asker="Codex",
        id="q1",
        type=kind,
        session_id="s1",
        turn_id="t1",
        item_id=item_id,
        prompts=prompts,
        details=details,
    )


def _command(command: str = "/bin/bash -lc 'git push'", options: Sequence[str] = COMMAND, **details: Any) -> Question:
    return _question(Prompt(text="Run?", options=tuple(options)), command=command, directory="/repo", **details)


class Asking:
    """A question on the terminal, and the answer once there is one."""

    def __init__(self, question: Question, session: Session | None = None) -> None:
        self._question = question
        self._session = session or _session()
        self.answer: Sequence[str] | str | None = "not yet"

    async def run(self) -> None:
        answered = await ask_on_terminal(self._session, self._question)
        self.answer = None if answered is None else answered.answers


async def _answered(
    terminal: PseudoTerminal, question: Question, *moves: str, stdin: IO[str] | None = None
) -> Sequence[str] | str | None:
    """Ask, then wait for a text and press keys, in turns."""
    asking = Asking(question)
    with anyio.fail_after(20), terminal.attached(stdin=stdin):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking.run)
            for number, move in enumerate(moves):
                if number % 2 == 0:
                    await terminal.shows(move)
                else:
                    terminal.press(move)
    return asking.answer


@pytest.mark.parametrize(
    ("key", "answer"), [("y", "approve"), ("Y", "approve"), ("s", "approve_session"), ("x", "abort")]
)
async def test_each_choice_has_a_key(terminal: PseudoTerminal, key: str, answer: str) -> None:
    assert await _answered(terminal, _command(), "stop the turn", key) == [answer]
    await terminal.shows(f"→ {answer}")


async def test_a_command_is_shown_with_where_and_why(terminal: PseudoTerminal) -> None:
    await _answered(terminal, _command(reason="It needs the network"), "stop the turn", "y")
    assert (
        "? Codex asks to run a command outside the sandbox\n  Command: git push\n  Directory: /repo\n"
        "  Reason given: It needs the network\n" in terminal.screen
    )


async def test_a_denial_asks_for_the_reason(terminal: PseudoTerminal) -> None:
    answer = await _answered(terminal, _command(), "stop the turn", "n", "Why?", "touches production\n")
    assert answer == ["deny: touches production"]


async def test_control_characters_in_a_pasted_reason_are_shown_and_not_obeyed(terminal: PseudoTerminal) -> None:
    pasted = "no \x1b]0;title\x07\nnever"
    keys = f"\x1b[200~{pasted}\x1b[201~\r"
    answer = await _answered(terminal, _command(), "stop the turn", "n", "Why?", keys)
    assert answer == [f"deny: {pasted}"]
    await terminal.shows("Why? (Enter for no reason) no \\x1b]0;title\\x07 never")
    assert "\x1b]" not in terminal.raw


async def test_a_denial_needs_no_reason(terminal: PseudoTerminal) -> None:
    assert await _answered(terminal, _command(), "stop the turn", "n", "Why?", "\n") == ["deny"]


async def test_only_what_is_offered_can_be_chosen(terminal: PseudoTerminal) -> None:
    question = _command(options=("approve", "deny"))
    answer = await _answered(terminal, question, "deny", "s", "Press one of y, n.", "y")
    assert answer == ["approve"]
    assert "stop the turn" not in terminal.screen


async def test_a_lasting_permission_asks_for_the_prefix(terminal: PseudoTerminal) -> None:
    question = _command(
        options=("approve", "approve_always", "deny"),
        prefixes=[["git", "status"], ["git", "status", "a b"]],
        alwaysRule=RULE,
    )
    answer = await _answered(terminal, question, "deny", "a", "b  back", "1", "[y/N]", "y")
    assert answer == ["approve_always: git status"]
    assert '    command = ["git", "status"]\n    directory = "/repo"\n' in terminal.screen


async def test_one_can_go_back_from_the_prefixes(terminal: PseudoTerminal) -> None:
    question = _command(options=("approve", "approve_always", "deny"), prefixes=[["git"]])
    answer = await _answered(terminal, question, "deny", "a", "b  back", "b", "deny", "y")
    assert answer == ["approve"]


async def test_the_rule_of_a_lasting_permission_is_shown_and_asked_about(terminal: PseudoTerminal) -> None:
    question = _command(options=("approve", "approve_always", "deny"), alwaysRule=RULE)
    moves = ("deny", "a", "[y/N]", "\n", "deny", "a", "[y/N]", "n", "deny", "a", "[y/N]", "y")
    assert await _answered(terminal, question, *moves) == ["approve_always"]
    assert (
        '    [[rules]]\n    effect = "allow"\n    text = "git push\\u202e"\n    directory = "/repo"\n'
        in terminal.screen
    )


async def test_a_pasted_no_with_enter_refuses_and_a_pasted_yes_does_not_agree(terminal: PseudoTerminal) -> None:
    question = _command(options=("approve", "approve_always", "deny"), alwaysRule=RULE)
    moves = ("deny", "a", "[y/N]", "yes\n", "Press y or n.", "no\n", "deny", "y")
    assert await _answered(terminal, question, *moves) == ["approve"]


@pytest.mark.parametrize("prefixes", [None, [], [[]], "git", [["git", 1]]])
async def test_without_prefixes_a_lasting_permission_is_for_the_whole_command(
    terminal: PseudoTerminal, prefixes: object
) -> None:
    question = _command(options=("approve", "approve_always"), prefixes=prefixes, alwaysRule=RULE)
    assert await _answered(terminal, question, "always allow it", "a", "[y/N]", "y") == ["approve_always"]


async def test_a_hostile_command_cannot_hide_itself(terminal: PseudoTerminal) -> None:
    await _answered(terminal, _command("rm -rf /\x1b[2K\rls \u202e"), "stop the turn", "y")
    assert "Command: rm -rf /\\x1b[2K\\x0dls \\u202e" in terminal.screen
    assert "\x1b[2K" not in terminal.screen


async def test_a_command_of_several_lines_is_shown_whole(terminal: PseudoTerminal) -> None:
    script = "\n".join(f"echo {number}" for number in range(200))
    await _answered(terminal, _command(f"bash -lc '{script}'"), "stop the turn", "y")
    assert all(f"echo {number}\n" in terminal.screen for number in range(200))


async def test_a_patch_is_shown_with_its_real_paths(terminal: PseudoTerminal) -> None:
    changes = (
        PathChange(path="/repo/a.py", kind="update", diff="@@ -1 +1 @@\n-old\n+new\n"),
        PathChange(path="/etc/hosts", kind="delete", diff="secret\n"),
    )
    diff = file_change_diff(changes, "/repo")
    question = _question(Prompt(text="?", options=COMMAND), kind="patch_approval", diff=diff)
    await _answered(terminal, question, "stop the turn", "y")
    shown = [
        "  Changes: a.py  +1 -1",
        "  Deletes: /etc/hosts  +0 -1",
        *("    │ change a.py  +1 -1", "    │ @@ -1 +1 @@", "    │ -old", "    │ +new"),
        *("    │ delete /etc/hosts  +0 -1", "    │ @@ -1 +0,0 @@", "    │ -secret"),
    ]
    assert "\n".join(shown) in terminal.screen


async def test_the_rest_of_a_long_diff_is_shown_on_request(terminal: PseudoTerminal) -> None:
    diff = "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,300 @@\n"
    diff += "".join(f"+line {number}.\n" for number in range(300))
    question = _question(Prompt(text="?", options=COMMAND), kind="patch_approval", diff=diff)
    answer = await _answered(terminal, question, "show 182 more lines", "d", "line 299.", "", "stop the turn", "y")
    assert answer == ["approve"]


async def test_options_of_a_question_are_numbered(terminal: PseudoTerminal) -> None:
    colour = Prompt(text="Which colour?", options=("red", "blue"), descriptions={"blue": "like the sea"})
    answer = await _answered(terminal, _question(colour, kind="user_input"), "like the sea", "2")
    assert answer == ["blue"]
    assert "Which colour?\n\n  1  red\n  2  blue  like the sea\n" in terminal.screen


async def test_every_option_has_its_own_key(terminal: PseudoTerminal) -> None:
    """Those of a model may be two words that have the same letter."""
    question = _question(Prompt(text="Which?", options=("approve", "accept", "deny")), kind="user_input")
    assert await _answered(terminal, question, "3  deny", "1") == ["approve"]


async def test_every_part_of_a_question_is_asked(terminal: PseudoTerminal) -> None:
    prompts = (Prompt(text="First?", options=("a", "b")), Prompt(text="Second?"))
    answer = await _answered(terminal, _question(*prompts, kind="user_input"), "2  b", "1", "Second?", "free words\n")
    assert answer == ["a", "free words"]


async def test_another_answer_can_be_typed_where_that_is_allowed(terminal: PseudoTerminal) -> None:
    prompt = Prompt(text="Which?", options=("a", "b"), free_text=True)
    answer = await _answered(terminal, _question(prompt, kind="user_input"), "another answer", "t", "> ", "neither\n")
    assert answer == ["neither"]


async def test_many_options_are_chosen_by_number(terminal: PseudoTerminal) -> None:
    prompt = Prompt(text="Which?", options=tuple(f"option-{number}" for number in range(1, 13)))
    question = _question(prompt, kind="user_input")
    assert await _answered(terminal, question, "number >", "13\n", "from 1 to 12", "12\n") == ["option-12"]


async def test_a_form_is_filled_in_field_by_field(terminal: PseudoTerminal) -> None:
    prompts = (
        Prompt(text="Your details?", options=("accept", "decline", "cancel")),
        Prompt(text="Name", key="name"),
        Prompt(text="Sure", key="sure", options=("true", "false")),
    )
    question = _question(*prompts, kind="mcp_elicitation", server="lab")
    answer = await _answered(terminal, question, "cancel", "y", "Name\n", "Ada\n", "false", "1")
    assert answer == ["accept", "Ada", "true"]
    assert "? An MCP server asks you, through Codex\n  Server: lab\n  Asks: Your details?\n" in terminal.screen


async def test_a_declined_form_need_not_be_filled_in(terminal: PseudoTerminal) -> None:
    prompts = (Prompt(text="Your details?", options=("accept", "decline", "cancel")), Prompt(text="Name", key="name"))
    assert await _answered(terminal, _question(*prompts, kind="mcp_elicitation"), "cancel", "n") == ["decline"]


async def test_a_secret_is_not_shown(terminal: PseudoTerminal) -> None:
    prompt = Prompt(text="The token?", secret=True)
    assert await _answered(terminal, _question(prompt, kind="user_input"), "> ", "hunter2\n") == ["hunter2"]
    assert "hunter2" not in terminal.screen


async def test_keys_pressed_before_the_question_and_pasted_text_answer_nothing(terminal: PseudoTerminal) -> None:
    terminal.press("y\n")
    refused = "Press one of"
    answer = await _answered(terminal, _command(), "stop the turn", "yes yes", refused, "\x1b[A", refused, "x")
    assert answer == ["abort"]


@pytest.mark.parametrize("pieces", [("x" * 4096, "y"), ("y", "es\n"), ("\x1b[200~", "y", "\x1b[201~")])
async def test_a_paste_that_comes_in_pieces_answers_nothing(
    terminal: PseudoTerminal, pieces: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is longer than a read, or cut up by a network, may have a piece of one letter."""
    monkeypatch.setattr(keyboard, "_ALONE_SECONDS", 1.0)  # a busy machine may take long between two pieces
    asking = Asking(_command())
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking.run)
            await terminal.shows("stop the turn")
            for piece in pieces:
                terminal.press(piece)
                await anyio.sleep(0.005)
            await terminal.shows("Press one of")
            assert asking.answer == "not yet"
            terminal.press("x")
    assert asking.answer == ["abort"]


async def test_a_rule_confirmed_before_it_could_be_read_is_not_saved(terminal: PseudoTerminal) -> None:
    """Somebody who types "okay" presses a and y, one after the other."""
    asking = Asking(_command(options=("approve", "approve_always", "deny"), alwaysRule=RULE))
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking.run)
            await terminal.shows("deny")
            for letter in "okay":
                terminal.press(letter)
                await anyio.sleep(0.3)  # faster, no letter counts
            await terminal.shows("[y/N]")
            assert asking.answer == "not yet"
            terminal.press("n")
            await terminal.shows("deny")
            terminal.press("y")
    assert asking.answer == ["approve"]


async def test_a_long_command_cannot_write_lines_of_its_rule(terminal: PseudoTerminal) -> None:
    rule = f'[[rules]]\neffect = "allow"\ntext = "{"x" * 68} outside = false"\noutside = true\n'
    question = _command(options=("approve", "approve_always", "deny"), alwaysRule=rule)
    await _answered(terminal, question, "deny", "a", "[y/N]", "y")
    assert "\n    outside = true\n" in terminal.screen
    assert "\n    outside = false" not in terminal.screen
    assert "│ outside = false" in terminal.screen


async def test_a_question_answered_elsewhere_is_withdrawn_and_leaves_the_terminal_as_it_was(
    terminal: PseudoTerminal,
) -> None:
    before = terminal.modes
    asking = Asking(_command())
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking.run)
            await terminal.shows("stop the turn")
            assert terminal.modes != before
            tasks.cancel_scope.cancel()
    await terminal.shows("No answer is needed now.")
    assert asking.answer == "not yet"
    assert terminal.modes == before


async def test_several_questions_come_one_after_another(terminal: PseudoTerminal) -> None:
    first, second = Asking(_command("one")), Asking(_command("two"))
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            await terminal.shows("stop the turn")
            assert "Command: two" not in terminal.screen
            terminal.press("y")
            await terminal.shows("Command: two")
            await terminal.shows("stop the turn")
            terminal.press("x")
    assert (first.answer, second.answer) == (["approve"], ["abort"])


async def test_a_held_key_answers_one_question_and_not_the_next(terminal: PseudoTerminal) -> None:
    first, second = Asking(_command("one")), Asking(_command("two"))
    held = anyio.Event()

    async def hold() -> None:
        terminal.press("y")
        await anyio.sleep(0.25)
        while not held.is_set():
            terminal.press("y")
            await anyio.sleep(0.03)  # as keyboards repeat

    with anyio.fail_after(30), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            await terminal.shows("stop the turn")
            tasks.start_soon(hold)
            await terminal.shows("Command: two")
            await anyio.sleep(2 * MOMENT)
            held.set()
            assert (first.answer, second.answer) == (["approve"], "not yet")
            await terminal.shows("stop the turn")
            terminal.press("x")
    assert second.answer == ["abort"]


async def test_a_key_that_is_held_since_before_the_question_answers_nothing(terminal: PseudoTerminal) -> None:
    asking = Asking(_command())
    with anyio.fail_after(30), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking.run)
            await terminal.shows("Command:")
            terminal.press("y")
            await terminal.shows("stop the turn")  # keyboards begin to repeat after up to a second
            for _ in range(30):
                terminal.press("y")
                await anyio.sleep(0.04)
            assert asking.answer == "not yet"
            await anyio.sleep(2 * MOMENT)  # the key has been let go
            terminal.press("x")
    assert asking.answer == ["abort"]


async def test_every_part_of_a_question_waits_for_a_key_of_its_own(terminal: PseudoTerminal) -> None:
    prompts = (Prompt(text="First?", options=("a", "b")), Prompt(text="Second?", options=("c", "d")))
    moves = ("2  b", "1", "Second?", "1", "2  d", "2")  # the second 1 comes before there is a choice
    assert await _answered(terminal, _question(*prompts, kind="user_input"), *moves) == ["a", "d"]


async def test_the_bell_rings_once_for_each_question_also_for_one_that_waits(terminal: PseudoTerminal) -> None:
    first, second = Asking(_command("one")), Asking(_command("two"))
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            await terminal.shows("stop the turn")
            assert terminal.raw.count("\a") == 1
            tasks.start_soon(second.run)
            await terminal.shows("\a")
            terminal.press("y")
            await terminal.shows("Command: two")
            await terminal.shows("stop the turn")
            terminal.press("x")
    assert terminal.raw.count("\a") == 2


async def test_the_end_of_input_leaves_the_question_to_others(terminal: PseudoTerminal) -> None:
    prompt = Prompt(text="Say something")
    assert await _answered(terminal, _question(prompt, kind="user_input"), "> ", "\x04", "Left unanswered.", "") is None


async def test_leaving_an_open_question_shows_how_to_answer_it_later(
    terminal: PseudoTerminal,
) -> None:
    session = _session()
    session.become_copy()
    with anyio.fail_after(20), terminal.attached():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Asking(_command(), session).run)
            await terminal.shows("stop the turn")
            terminal.press("\x04")
            await terminal.shows(f"Left unanswered. Answer it with helmsman respond {session.id}")


async def test_a_prompt_piped_into_stdin_leaves_the_terminal_for_questions(terminal: PseudoTerminal) -> None:
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as piped:
        assert await _answered(terminal, _command(), "stop the turn", "y", stdin=piped) == ["approve"]


async def test_without_a_terminal_no_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nothing:  # noqa: ASYNC230, PTH123 -- a file that is no terminal
        monkeypatch.setattr(sys, "stdin", nothing)
        monkeypatch.setattr(sys, "stderr", nothing)
        assert not has_terminal()
        assert await ask_on_terminal(_session(), _command()) is None


async def test_a_program_without_any_streams_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert not has_terminal()
