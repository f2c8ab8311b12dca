"""Operations are declared once: names, texts and lists are derived from the table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helmsman.hub.verbs import READING, VERBS
from helmsman.model.nature import Nature
from helmsman.operations.table import Operation
from helmsman.operations.texts import FOR_ANY, FOR_CODEX, voice_of
from helmsman.operations.toolsets import operations_of

TOOLSETS = ("sessions", "agents", "extras", "capabilities")
OPERATIONS = {one.name: one for toolset in TOOLSETS for one in operations_of(toolset)}


@pytest.mark.parametrize("one", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_text_is_rendered_for_every_voice(one: Operation[Any]) -> None:
    for voice in (FOR_CODEX, FOR_ANY, voice_of("claude", "Claude Code")):
        texts = [voice.render(text) for text in (one.name, one.title, one.description)]
        assert all(texts)
        assert not re.search(r"\{[\w']+\}|\[\[|\]\]", " ".join(texts)), texts
    assert "Codex" not in FOR_ANY.render(one.title)


def test_a_part_that_is_only_true_of_codex_is_left_out_for_another_agent() -> None:
    template = 'Start {agent}[[, e.g. in the cloud]] with {"effort": 1}; then {tool}_wait.'
    assert FOR_CODEX.render(template) == 'Start Codex, e.g. in the cloud with {"effort": 1}; then codex_wait.'
    assert (
        voice_of("claude", "Claude Code").render(template) == 'Start Claude Code with {"effort": 1}; then claude_wait.'
    )


def test_a_verb_that_changes_nothing_may_be_repeated() -> None:
    assert all(VERBS[verb][0].repeat == "freely" for verb in READING)
    assert VERBS["interrupt"][0].completes
    assert VERBS["extras.upkeep.roll_back"][0].repeat == "never"
    assert VERBS["start"][0].repeat == VERBS["respond"][0].repeat == "finds out"


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        *(("{tool}_start", "start"), ("{tool}_say", "say"), ("{tool}_respond", "respond")),
        *(("{tool}_interrupt", "interrupt"), ("{tool}_apply", "extras.changes.apply")),
        *(("{tool}_list", "list"), ("{tool}_usage", "extras.usage.report"), ("debug", "extras.outcomes.start")),
    ],
)
def test_a_tool_has_the_nature_of_the_verb_that_it_calls(name: str, verb: str) -> None:
    assert OPERATIONS[name].nature == VERBS[verb][0]


def test_a_nature_that_says_nothing_runs_once() -> None:
    assert Nature().repeat == "never"
