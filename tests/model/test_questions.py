"""What is a legal answer."""

from __future__ import annotations

import pytest

from helmsman.errors import AnswerInvalid
from helmsman.model.questions import Choice, Prompt, Question, QuestionType, read_answers


def question(*prompts: Prompt, kind: QuestionType = "command_approval") -> Question:
    return Question(
        asker="Codex", id="q_1", type=kind, session_id="s", turn_id="t", prompts=prompts, details={"command": "ls"}
    )


APPROVAL = Prompt(text="Run it?", options=("approve", "deny"))


def test_an_option_is_an_answer() -> None:
    assert read_answers(question(APPROVAL), ["approve"]) == (Choice("approve"),)


def test_a_reason_may_follow_after_the_first_colon() -> None:
    assert read_answers(question(APPROVAL), ["deny: touches: production"]) == (Choice("deny", "touches: production"),)


def test_an_empty_reason_is_none() -> None:
    assert read_answers(question(APPROVAL), ["deny:"]) == (Choice("deny"),)


@pytest.mark.parametrize("answer", ["yes please", "ok", "", "always", "approve please", ": approve", "approve_session"])
def test_an_option_that_was_not_offered_is_refused_with_the_offered_ones(answer: str) -> None:
    with pytest.raises(AnswerInvalid, match="approve, deny"):
        read_answers(question(APPROVAL), [answer])


@pytest.mark.parametrize("answers", [[], ["approve", "approve"]])
def test_a_wrong_count_is_refused(answers: list[str]) -> None:
    with pytest.raises(AnswerInvalid, match="1 part"):
        read_answers(question(APPROVAL), answers)


def test_free_text_is_taken_as_it_is_even_with_a_colon() -> None:
    prompt = Prompt(text="Name?")
    assert read_answers(question(prompt, kind="user_input"), ["a: b"]) == (Choice("a: b"),)


@pytest.mark.parametrize(
    ("prompt", "answer"), [(Prompt(text="Which file?"), "caf\udce9"), (APPROVAL, "deny: caf\udce9")]
)
def test_invalid_text_is_no_answer(prompt: Prompt, answer: str) -> None:
    with pytest.raises(AnswerInvalid, match="no valid text"):
        read_answers(question(prompt), [answer])


def test_a_prompt_with_options_may_allow_other_text() -> None:
    prompt = Prompt(text="Which?", options=("A", "B"), free_text=True)
    assert read_answers(question(prompt, kind="user_input"), ["neither"]) == (Choice("neither"),)


def test_a_declined_form_need_not_be_filled_in() -> None:
    form = question(
        Prompt(text="?", options=("accept", "decline", "cancel")), Prompt(text="name"), kind="mcp_elicitation"
    )
    assert read_answers(form, ["decline"]) == (Choice("decline"),)
    with pytest.raises(AnswerInvalid, match="2 part"):
        read_answers(form, ["accept"])


@pytest.mark.parametrize(
    ("given", "read"),
    [(" approve ", Choice("approve")), ("deny\n", Choice("deny")), (" deny : not now ", Choice("deny", "not now"))],
)
def test_spaces_around_an_option_do_not_matter(given: str, read: Choice) -> None:
    assert read_answers(question(APPROVAL), [given]) == (read,)
    also_text = Prompt(text="Run it?", options=("approve", "deny"), free_text=True)
    assert read_answers(question(also_text), [given]) == (read,)


@pytest.mark.parametrize(
    ("given", "read"),
    [("approve", "accept"), (" approve ", "accept"), ("deny", "decline"), ("abort", "cancel"), ("accept", "accept")],
)
def test_the_words_of_approvals_answer_the_question_of_an_mcp_server(given: str, read: str) -> None:
    asked = question(Prompt(text="?", options=("accept", "decline", "cancel")), kind="mcp_elicitation")
    assert read_answers(asked, [given]) == (Choice(read),)
    assert read_answers(asked, [f"{given}: why"]) == (Choice(read, "why"),)
    with pytest.raises(AnswerInvalid):
        read_answers(question(Prompt(text="?", options=("one", "decline"))), ["deny"])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        *(("yes", "approve"), ("Yes", "approve"), ("APPROVE", "approve"), ("accept", "approve")),
        *(("no", "deny"), ("No: touches production", "deny: touches production"), ("decline", "deny")),
    ],
)
def test_one_vocabulary_answers_every_approval(given: str, read: str) -> None:
    wide = Prompt(text="Run it?", options=("approve_always", "approve_session", "approve", "deny", "abort"))
    assert [choice.in_full for choice in read_answers(question(wide), [given])] == [read]


def test_a_yes_never_grants_more_than_this_one_thing() -> None:
    for options in (("approve_session", "deny"), ("approve_always", "abort")):
        with pytest.raises(AnswerInvalid):
            read_answers(question(Prompt(text="?", options=options)), ["yes"])
    with pytest.raises(AnswerInvalid, match="a condition"):
        read_answers(question(APPROVAL), ["yes: but only in /tmp"])


def test_words_are_no_answer_to_an_agents_own_options() -> None:
    own = question(Prompt(text="Delete?", options=("approve", "keep")), kind="user_input")
    with pytest.raises(AnswerInvalid):
        read_answers(own, ["yes"])
    assert read_answers(own, ["Approve"]) == (Choice("approve"),)
    spelt_alike = question(Prompt(text="?", options=("Go", "GO")), kind="user_input")
    with pytest.raises(AnswerInvalid):
        read_answers(spelt_alike, ["go"])
    anything = question(Prompt(text="?", options=("approve", "deny"), free_text=True))
    assert read_answers(anything, ["yes"]) == (Choice("yes"),)


def test_no_declines_a_whole_form() -> None:
    form = question(
        Prompt(text="?", options=("accept", "decline", "cancel")), Prompt(text="Name?"), kind="mcp_elicitation"
    )
    assert read_answers(form, ["no: not now"]) == (Choice("decline", "not now"),)
