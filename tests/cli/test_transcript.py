"""The transcript on what real Codex versions were recorded to say, and on what they can be made to say."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from helmsman.agents.codex.normalise import from_app_server, from_exec
from helmsman.base.structs import replace
from helmsman.cli.transcript import DIFF_LINES, OUTPUT_LINES, TranscriptPrinter
from helmsman.model.events import (
    AgentMessage,
    CollabToolCall,
    CommandExecution,
    ContextCompaction,
    DynamicToolCall,
    EngineGone,
    ErrorItem,
    Event,
    Failure,
    FileChange,
    ImageView,
    Item,
    ItemDelta,
    ItemEnded,
    ItemStarted,
    McpToolCall,
    Notice,
    PathChange,
    ProposedPlan,
    QuestionAsked,
    QuestionClosed,
    Review,
    SettingsApplied,
    TurnEnded,
    TurnRequested,
    UserMessage,
)
from helmsman.model.questions import Prompt, Question

GOLDENS = Path(__file__).parents[1] / "golden"
RECORDINGS = sorted(path for path in GOLDENS.glob("*/*.jsonl"))


def _recorded(recording: Path) -> list[Event]:
    """The events of a recording. Those of other threads than the first one are a sub-agent's, as routing says."""
    events: list[Event] = []
    for line in recording.read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        if recording.name.startswith("exec"):
            events += from_exec(message, "s", "t")
        elif (event := from_app_server(message.get("method"), message.get("params"))) is not None:
            events.append(event)
    main = next((event.session_id for event in events if isinstance(event, ItemStarted | ItemEnded)), "")
    return [event if event.session_id in (main, "") else replace(event, agent_id=event.session_id) for event in events]


def _console(width: int = 80) -> Console:
    return Console(width=width, file=io.StringIO(), highlight=False, markup=False, emoji=False)


def _shown(transcript: TranscriptPrinter, *events: Event) -> str:
    return "\n".join(line.plain for event in events for line in transcript.lines(event))


def _ended(*items: Item) -> list[Event]:
    return [ItemEnded(session_id="s", item=item) for item in items]


def _text(item: Item, width: int = 80) -> str:
    return _shown(TranscriptPrinter(_console(width)), *_ended(item)).strip("\n")


def _delta(text: str, item_id: str = "m") -> ItemDelta:
    return ItemDelta(session_id="s", item_id=item_id, item_type="agent_message", text=text)


def _story(version: str, name: str, width: int = 80) -> str:
    (recording,) = [path for path in RECORDINGS if (path.parent.name, path.stem) == (version, name)]
    transcript = TranscriptPrinter(_console(width))
    transcript.directory = "/repo"
    return _shown(transcript, *_recorded(recording)).strip("\n")


# --- recordings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 140])
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recorded_story_fits_its_width_and_ends_with_what_was_said(recording: Path, width: int) -> None:
    console = _console(width)
    transcript = TranscriptPrinter(console)
    events = _recorded(recording)
    lines = [line for event in events for line in transcript.lines(event)]
    assert all(line.cell_len <= width for line in lines)
    assert all(line.plain == line.plain.rstrip() for line in lines)
    said = [
        event.item.text for event in events if isinstance(event, ItemEnded) and isinstance(event.item, AgentMessage)
    ]
    shown = " ".join("\n".join(line.plain for line in lines).split())
    assert all(" ".join(text.split()) in shown for text in said)


def test_a_command_is_reported_with_its_output_and_exit_code() -> None:
    story = "› Tell the story\n\n$ echo oops; exit 3\n  oops\n  ✗ exit 3 (0.0 s)\n\n• It failed"
    assert _story("0.145.0", "app-server-command-failed") == story


def test_a_patch_is_reported_file_by_file() -> None:
    story = _story("0.145.0", "app-server-patch")
    assert "± change changed.txt  +1 -1\n  @@ -1,3 +1,3 @@\n   one\n  -two\n  +TWO\n   three\n" in story
    assert "± delete gone.txt  +0 -3\n  -one\n" in story
    assert "± change moved.txt → renamed.txt  +1 -1\n" in story
    assert "± add new.txt  +2 -0\n  +hello\n  +world\n" in story


def test_a_plan_is_reported_once_and_then_only_what_moved() -> None:
    story = "Plan  0 of 2 steps\n  ▸ Look\n  ○ Mend\n\nPlan  2 of 2 steps\n  ✓ Look\n  ✓ Mend\n\n• Planned and done"
    assert _story("0.145.0", "app-server-plan").endswith(story)


def test_a_declined_command_is_reported_as_such() -> None:
    assert "$ touch /elsewhere\n  ✗ declined, not run\n" in _story("0.145.0", "app-server-declined")


def test_an_interrupted_message_is_reported_as_far_as_it_went() -> None:
    assert _story("0.145.0", "app-server-interrupted").endswith("• Hel\n\n■ Interrupted")


def test_tools_searches_and_thoughts_are_reported() -> None:
    assert '◦ called lab/read {"key": "k"}\n  no such note\n' in _story("0.145.0", "app-server-mcp-tool")
    assert "◦ searched the web for tide tables\n" in _story("0.145.0", "app-server-web-search")
    assert "\n  First look.\n" in _story("0.145.0", "app-server-reasoning")


def test_sub_agents_are_reported_in_a_line_each() -> None:
    story = _story("0.145.0", "app-server-sub-agent")
    assert "◦ sub-agents: spawn_agent: Help with the story\n" in story
    assert re.search(r"^  ↳ id-\d agent message: Helping", story, re.MULTILINE)
    assert re.search(r"^  ↳ id-\d starting$", story, re.MULTILINE)


def test_a_retry_is_reported() -> None:
    assert "! Reconnecting... 1/1" in _story("0.145.0", "app-server-retry", width=140)


# --- messages --------------------------------------------------------------------------------------------------------


def test_a_message_is_given_out_line_by_line_as_it_is_written() -> None:
    transcript = TranscriptPrinter(_console())
    assert _shown(transcript, _delta("First li")) == ""
    assert [line.plain for line in transcript.unfinished] == ["• First li"]
    assert _shown(transcript, _delta("ne.\n\nSecond ")) == "\n• First line."
    assert [line.plain for line in transcript.unfinished] == ["", "  Second"]
    ended = _shown(transcript, *_ended(AgentMessage(id="m", text="First line.\n\nSecond one.")))
    assert ended == "\n  Second one."
    assert transcript.unfinished == []


def test_a_message_that_was_not_streamed_is_given_out_at_its_end() -> None:
    assert _text(AgentMessage(id="m", text="one\ntwo\n")) == "• one\n  two"


def test_a_message_that_ends_differently_than_it_was_written_is_reported_once() -> None:
    transcript = TranscriptPrinter(_console())
    shown = _shown(transcript, _delta("Hello\nWor"), *_ended(AgentMessage(id="m", text="Goodbye")))
    assert shown == "\n• Hello"


def test_two_messages_written_at_once_do_not_mix() -> None:
    transcript = TranscriptPrinter(_console())
    shown = _shown(transcript, _delta("a\n", "1"), _delta("b\n", "2"), _delta("c\n", "1"))
    assert shown == "\n• a\n\n• b\n  c"


def test_held_messages_come_before_what_follows_and_the_result_apart() -> None:
    transcript = TranscriptPrinter(_console(), hold_messages=True)
    messages = _ended(AgentMessage(id="1", text="I look."), AgentMessage(id="2", text="I run."))
    assert _shown(transcript, _delta("I look.\n"), *messages) == "\n• I look."
    shown = _shown(transcript, *_ended(CommandExecution(id="c", command="ls", exit_code=0)))
    assert shown == "\n• I run.\n\n$ ls\n  ✓ exit 0"
    assert _shown(transcript, *_ended(AgentMessage(id="3", text="Done."))) == ""
    assert transcript.rest("Done.") == []


def test_the_result_is_not_reported_before_a_command_that_outlives_the_turn() -> None:
    transcript = TranscriptPrinter(_console(), hold_messages=True)
    command = CommandExecution(id="c", command="serve", status="in_progress")
    events = [ItemStarted(session_id="s", item=command), *_ended(AgentMessage(id="m", text="Done."))]
    assert "Done." not in _shown(transcript, *events, TurnEnded(session_id="s", outcome="completed"))
    assert transcript.rest("Done.") == []


def test_a_held_message_that_is_not_the_result_is_not_lost() -> None:
    transcript = TranscriptPrinter(_console(), hold_messages=True)
    transcript.lines(*_ended(AgentMessage(id="1", text="Half done.")))
    assert [line.plain for line in transcript.rest(None)] == ["", "• Half done."]


def test_hostile_text_is_written_out_everywhere() -> None:
    items: list[Item] = [
        AgentMessage(id="1", text="a\x1b[2Jb"),
        CommandExecution(id="2", command="c\x1b[2Jd", output="e\rf\x07", exit_code=0),
        FileChange(id="3", changes=(PathChange(path="g\x1bh", kind="add", diff="i\x1bj\n"),)),
        McpToolCall(id="4", server="k\x1bl", tool="m", arguments={"n": "\x1b"}, error="o\x1bp"),
        UserMessage(id="5", text="q\x1br"),
        ErrorItem(id="6", message="s\x1bt"),
        ImageView(id="7", path="u\x1bv"),
    ]
    transcript = TranscriptPrinter(_console())
    shown = _shown(transcript, *_ended(*items), Notice(session_id="s", kind="warning", message="w\x1bx"))
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "\x07" not in shown
    for piece in (
        "a\\x1b[2Jb",
        "c\\x1b[2Jd",
        "f\\x07",
        "g\\x1bh",
        "i\\x1bj",
        "k\\x1bl",
        "o\\x1bp",
        "q\\x1br",
        "u\\x1bv",
    ):
        assert piece in shown


# --- items -----------------------------------------------------------------------------------------------------------


def test_only_the_tail_of_a_long_output_is_shown() -> None:
    output = "\n".join(f"line {number}" for number in range(1, 101))
    shown = _text(CommandExecution(id="c", command="seq 100", output=output, exit_code=0)).splitlines()
    assert shown[1] == f"  … {100 - OUTPUT_LINES} lines above"
    assert shown[2:-1] == [f"  line {number}" for number in range(101 - OUTPUT_LINES, 101)]


def test_a_long_line_of_output_is_cut_and_a_long_command_is_folded() -> None:
    shown = _text(
        CommandExecution(id="c", command="echo " + "x" * 100, output="y" * 100, exit_code=0), width=60
    ).splitlines()
    assert shown[1:3] == ["  " + "x" * 58, "  " + "x" * 42]
    assert shown[3] == "  " + "y" * 57 + "…"


def test_a_long_diff_is_cut_with_a_word_about_it() -> None:
    change = PathChange(path="/repo/x", kind="add", diff="line\n" * 100, added=100, removed=0)
    shown = _text(FileChange(id="f", changes=(change,))).splitlines()
    assert shown[-1] == f"  … {100 - DIFF_LINES} more lines"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (CommandExecution(id="c", command="ls", status="failed"), "$ ls\n  ✗ did not finish"),
        (CommandExecution(id="c", command="ls"), "$ ls\n  ✓ done"),
        (CommandExecution(id="c", command="ls", exit_code=0, duration_ms=61_500), "$ ls\n  ✓ exit 0 (61.5 s)"),
        (FileChange(id="f", changes=(PathChange(path="x", kind="add"),), declined=True), "± add x\n  ✗ declined"),
        (FileChange(id="f", changes=(PathChange(path="x", kind="add"),), status="failed"), "± add x\n  ✗ not applied"),
        (McpToolCall(id="m", server="lab", tool="write", error="no"), "◦ called lab/write\n  ✗ no"),
        (DynamicToolCall(id="d", tool="lookup", result="found"), "◦ called lookup\n  found"),
        (ProposedPlan(id="p", text="First\nThen"), "Plan\n  First\n  Then"),
        (ImageView(id="i", path="a.png"), "◦ looked at a.png"),
        (ContextCompaction(id="x"), "◦ compacted the context"),
        (CollabToolCall(id="x", tool="wait"), "◦ sub-agents: wait"),
        (Review(id="r", text="uncommitted changes"), "◦ reviewing uncommitted changes"),
        (Review(id="r", text="All good", finished=True), "◦ review: All good"),
        (ErrorItem(id="e", message="careful"), "! careful"),
    ],
)
def test_each_kind_of_item_has_its_lines(item: Item, text: str) -> None:
    assert _text(item) == text


def test_in_a_log_a_command_is_shown_when_it_begins_and_completed_below() -> None:
    transcript = TranscriptPrinter(_console(), announce=True)
    command = CommandExecution(id="c", command="make", status="in_progress")
    assert _shown(transcript, ItemStarted(session_id="s", item=command)) == "\n$ make"
    assert _shown(transcript, *_ended(replace(command, status="completed", exit_code=0))) == "  ✓ exit 0"


def test_in_a_log_a_command_that_ends_later_is_named_again() -> None:
    transcript = TranscriptPrinter(_console(), announce=True)
    command = CommandExecution(id="c", command="make", status="in_progress")
    _shown(transcript, ItemStarted(session_id="s", item=command), *_ended(AgentMessage(id="m", text="Meanwhile.")))
    assert _shown(transcript, *_ended(replace(command, status="completed", exit_code=0))) == "\n$ make\n  ✓ exit 0"


def test_commands_cut_off_by_an_interrupt_are_reported() -> None:
    transcript = TranscriptPrinter(_console())
    command = CommandExecution(id="c", command="sleep 300", status="in_progress")
    shown = _shown(
        transcript, ItemStarted(session_id="s", item=command), TurnEnded(session_id="s", outcome="interrupted")
    )
    assert shown == "\n$ sleep 300\n  ✗ did not finish\n\n■ Interrupted"


def test_a_command_that_outlives_its_turn_is_reported() -> None:
    transcript = TranscriptPrinter(_console())
    command = CommandExecution(id="c", command="serve", status="in_progress")
    shown = _shown(
        transcript, ItemStarted(session_id="s", item=command), TurnEnded(session_id="s", outcome="completed")
    )
    assert shown == "\n$ serve\n  … had not ended when the turn did"


# --- turns and questions ---------------------------------------------------------------------------------------------


def test_a_turn_begins_with_the_prompt_and_what_is_in_force() -> None:
    transcript = TranscriptPrinter(_console())
    transcript.directory = "/repo"
    applied = SettingsApplied(session_id="s", model="gpt-5.5", sandbox="read-only", approval_policy="on-request")
    shown = _shown(transcript, TurnRequested(session_id="s", text="Do it\nwell"), applied, applied)
    assert shown == "\n› Do it\n  well\n  gpt-5.5 · read-only · approval on-request · /repo"


def test_another_agent_than_codex_is_named_once_and_so_is_the_place() -> None:
    transcript = TranscriptPrinter(_console())
    transcript.directory, transcript.agent = "/repo", "claude"
    policy = SettingsApplied(session_id="s", sandbox="workspace-write", approval_policy="on-request")
    shown = _shown(transcript, policy, SettingsApplied(session_id="s", model="opus"))
    assert shown == "  claude · workspace-write · approval on-request · /repo\n  opus"


def test_the_prompt_is_not_repeated_but_a_steering_message_is_shown() -> None:
    transcript = TranscriptPrinter(_console())
    events = [TurnRequested(session_id="s", text="Do it"), *_ended(UserMessage(id="1", text="Do it"))]
    assert _shown(transcript, *events) == "\n› Do it"
    assert _shown(transcript, *_ended(UserMessage(id="2", text="Hurry"))) == "\n› Hurry"


def test_a_failure_is_reported_when_the_turn_is_tried_again() -> None:
    transcript = TranscriptPrinter(_console())
    failed = TurnEnded(session_id="s", outcome="failed", failure=Failure(code="x", message="No network."))
    assert _shown(transcript, failed) == ""
    again = _shown(transcript, TurnRequested(session_id="s", text="Continue"))
    assert again == "\n! The turn failed: No network. Trying again.\n\n› Continue"
    gone = EngineGone(session_id="s", failure=Failure(code="engine_lost", message="Codex died."))
    assert "Codex died." in _shown(transcript, gone, TurnRequested(session_id="s", text="Continue"))


QUESTION = Question(
    asker="Codex",
    id="q",
    type="command_approval",
    session_id="s",
    turn_id="t",
    item_id="c",
    prompts=(Prompt(text="?", options=("approve", "deny")),),
    details={"command": "bash -lc 'git push'", "directory": "/repo"},
)


def _closed(answer: str | None, by: str, via: str | None = None) -> Sequence[Event]:
    return (
        QuestionAsked(session_id="s", question=QUESTION),
        QuestionClosed(session_id="s", question_id="q", answer=answer, by=by, via=via),
    )


@pytest.mark.parametrize(
    ("answer", "by", "line"),
    [
        ("approve", "handler", "  → approve (--auto)"),
        ("deny: no", "handler", "  → deny: no (--auto)"),
        ("deny", "deadline", "  → denied: no answer in time"),
        ("approve", "rule: git push", "  → approved by rule: git push"),
        (None, "turn ended", "  → withdrawn: its turn ended"),
    ],
)
def test_a_question_answered_elsewhere_is_reported_with_its_answer(answer: str | None, by: str, line: str) -> None:
    transcript = TranscriptPrinter(_console(), answered_by="--auto")
    shown = _shown(transcript, *_closed(answer, by))
    assert (
        shown == f"\n? Codex asks to run a command outside the sandbox\n  Command: git push\n  Directory: /repo\n{line}"
    )


def test_a_question_on_the_same_screen_is_not_reported_again() -> None:
    transcript = TranscriptPrinter(_console(), asked_here=True)
    transcript.puts_to_person("q")
    assert _shown(transcript, *_closed("approve", "person", "dashboard")) == "  → approved by you in the dashboard"
    assert _shown(transcript, *_closed("deny", "person", "terminal")) == "  → denied by you at the terminal"
    transcript.answered_here.add("q")
    assert _shown(transcript, *_closed("approve", "person", "terminal")) == ""
    assert _shown(transcript, *_closed("approve", "person", "dashboard")) == "  → approved by you in the dashboard"
    assert _shown(TranscriptPrinter(_console(), asked_here=True), *_closed(None, "turn ended")) == ""


def test_an_answer_by_a_rule_is_reported() -> None:
    shown = _shown(TranscriptPrinter(_console(), asked_here=True), *_closed("approve", "rule: git push"))
    assert shown.endswith("Command: git push\n  Directory: /repo\n  → approved by rule: git push")


def test_a_result_of_a_question_is_not_shown_below_another_one() -> None:
    ran = ItemEnded(session_id="s", item=CommandExecution(id="c", status="completed", command="git push", exit_code=0))
    transcript = TranscriptPrinter(_console(), asked_here=True)
    transcript.puts_to_person("q")
    asked, closed = _closed("approve", "person", "terminal")
    transcript.answered_here.add("q")
    _shown(transcript, asked)
    transcript.puts_to_person("another")  # its dialogue begins before the end of the first was reported
    assert _shown(transcript, closed, ran).lstrip() == "$ git push\n  ✓ exit 0"

    other = QuestionAsked(session_id="s", question=replace(QUESTION, id="other", item_id="d"))
    shown = _shown(TranscriptPrinter(_console()), *_closed("approve", "rule: x")[:1], other, closed, ran)
    assert shown.count("Command: git push") == 3
    assert shown.endswith("Directory: /repo\n  → approved by you at the terminal\n  ✓ exit 0")


def test_the_result_of_a_question_is_shown_below_it() -> None:
    transcript = TranscriptPrinter(_console())
    _shown(transcript, *_closed("approve", "handler"))
    assert _shown(transcript, *_ended(CommandExecution(id="c", command="git push", exit_code=0))) == "  ✓ exit 0"
