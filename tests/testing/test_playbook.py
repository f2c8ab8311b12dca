from __future__ import annotations

import pytest

from helmsman.testing import ModelRequest, always, fail, run, say
from helmsman.testing.model import Playbook
from helmsman.testing.script import Part, ScriptProblem


def request(*texts: str, thread: str = "T1", turn: str | None = "U1", answered: int = 0) -> ModelRequest:
    """A conversation in which the model has already answered the first texts."""
    items = []
    for index, text in enumerate(texts):
        items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        if index < answered:
            items.append({"type": "message", "role": "assistant", "content": []})
    headers = {"thread-id": thread} | ({"x-codex-turn-metadata": f'{{"turn_id":"{turn}"}}'} if turn else {})
    return ModelRequest(headers, {"input": items})


def only(parts: tuple[Part, ...]) -> Part:
    (part,) = parts
    return part


def test_a_script_is_played_step_by_step() -> None:
    book = Playbook()
    book.add("Fix", [run("ls"), say("Done")])

    assert [only(book.next_parts(request("Fix it"))) for _ in range(2)] == [run("ls"), say("Done")]


def test_threads_with_the_same_prompt_share_a_script_and_not_their_position() -> None:
    book = Playbook()
    book.add("Fix", [run("ls"), say("Done")])

    played = [only(book.next_parts(request("Fix", thread=thread))) for thread in ("T1", "T2", "T1", "T2")]

    assert played == [run("ls"), run("ls"), say("Done"), say("Done")]


def test_a_script_that_is_used_up_says_so() -> None:
    book = Playbook()
    book.add("Fix", [say("Done")])
    book.next_parts(request("Fix"))

    with pytest.raises(ScriptProblem, match=r"'Fix' has 1 step\(s\).*one more"):
        book.next_parts(request("Fix"))


def test_the_last_step_can_be_given_for_ever() -> None:
    book = Playbook()
    book.add("Fix", [say("first"), always(say("again"))])

    assert [only(book.next_parts(request("Fix"))) for _ in range(4)] == [say("first"), *[say("again")] * 3]


def test_a_prompt_that_nothing_matches_is_a_problem() -> None:
    with pytest.raises(ScriptProblem, match="No script matches the prompt 'Hello'"):
        Playbook().next_parts(request("Hello"))


def test_the_default_is_for_prompts_that_nothing_matches() -> None:
    book = Playbook()
    book.set_default([always(say("ok"))])
    book.add("Fix", [say("Done")])

    assert only(book.next_parts(request("Hello"))) == say("ok")
    assert only(book.next_parts(request("Hello", "Fix", turn="U2", answered=1))) == say("Done")
    assert only(book.next_parts(request("Hello", "Fix", "Bye", turn="U3", answered=2))) == say("ok")


def test_a_steered_message_with_a_script_of_its_own_switches_to_it() -> None:
    book = Playbook()
    book.add("Fix", [run("ls"), say("Done")])
    book.add("Stop", [say("Stopped")])
    book.next_parts(request("Fix"))

    assert only(book.next_parts(request("Fix", "Stop please"))) == say("Stopped")


def test_a_steered_message_that_matches_nothing_continues_with_the_script() -> None:
    book = Playbook()
    book.set_default([say("ok")])
    book.add("Fix", [run("ls"), say("Done")])
    book.next_parts(request("Fix"))

    assert only(book.next_parts(request("Fix", "and quickly"))) == say("Done")


def test_a_message_steered_in_before_the_first_request_counts() -> None:
    book = Playbook()
    book.add("Fix", [say("Done")])
    book.add("Stop", [say("Stopped")])

    assert only(book.next_parts(request("Fix", "Stop"))) == say("Stopped")
    assert only(book.next_parts(request("Fix", "be quick", thread="T2"))) == say("Done")


def test_without_a_default_a_new_turn_that_matches_nothing_continues_the_script() -> None:
    book = Playbook()
    book.add("Fix", [say("one"), say("two")])
    book.next_parts(request("Fix"))

    assert only(book.next_parts(request("Fix", "go on", turn="U2", answered=1))) == say("two")


@pytest.mark.parametrize("turn", ["U2", None], ids=["with turn ids", "without turn ids"])
def test_the_same_prompt_again_begins_the_script_again(turn: str | None) -> None:
    book = Playbook()
    book.add("Fix", [say("Done")])
    book.next_parts(request("Fix", turn=turn and "U1"))

    assert only(book.next_parts(request("Fix", "Fix", turn=turn, answered=1))) == say("Done")


def test_a_request_that_is_tried_again_gets_the_next_step() -> None:
    book = Playbook()
    book.add("Fix", [fail(503), say("Done")])

    assert [only(book.next_parts(request("Fix"))) for _ in range(2)] == [fail(503), say("Done")]


def test_a_fork_follows_its_own_new_prompt() -> None:
    book = Playbook()
    book.add("Fix", [say("Done")])
    book.add("Other", [say("way")])
    book.next_parts(request("Fix"))

    assert only(book.next_parts(request("Fix", "Other", thread="T2", answered=1))) == say("way")


def test_a_rolled_back_conversation_follows_its_newest_prompt() -> None:
    book = Playbook()
    book.add("Fix", [always(say("Done"))])
    book.add("Other", [say("way")])
    book.next_parts(request("Fix"))
    book.next_parts(request("Fix", "Fix", "Fix", turn="U2", answered=2))

    assert only(book.next_parts(request("Fix", "Other", turn="U3", answered=1))) == say("way")


@pytest.mark.parametrize("prompt", ["Fix", "Fix again"])
def test_a_prompt_that_replaces_the_last_one_begins_its_script(prompt: str) -> None:
    book = Playbook()
    book.add("Fix", [say("Done")])
    book.next_parts(request("Fix"))

    assert only(book.next_parts(request(prompt, turn="U2"))) == say("Done")


def test_a_later_script_refines_an_earlier_one() -> None:
    book = Playbook()
    book.add("Fix", [say("general")])
    book.add("Fix the bug", [say("special")])

    assert only(book.next_parts(request("Fix the bug"))) == say("special")


def test_a_script_can_be_chosen_by_a_predicate() -> None:
    book = Playbook()
    book.add(lambda asked: asked.thread_id == "T7", [say("seven")])

    assert only(book.next_parts(request("anything", thread="T7"))) == say("seven")


def test_a_step_can_react_to_the_request() -> None:
    book = Playbook()
    book.add("Fix", [lambda asked: [say(asked.last_user_text), run("ls")]])

    assert book.next_parts(request("Fix it")) == (say("Fix it"), run("ls"))


def test_a_function_that_fails_is_a_problem_of_the_script() -> None:
    book = Playbook()
    book.add("Fix", [lambda asked: [say(asked.tool_outputs[3])]])

    with pytest.raises(ScriptProblem, match="IndexError"):
        book.next_parts(request("Fix"))


def test_a_script_that_makes_no_sense_fails_where_it_is_written() -> None:
    book = Playbook()

    with pytest.raises(ValueError, match="empty"):
        book.add("Fix", [])
    with pytest.raises(ValueError, match="Put it last"):
        book.add("Fix", [always(say("a")), say("b")])
    with pytest.raises(TypeError, match="not part of a script"):
        book.add("Fix", ["text"])  # type: ignore[list-item]
