"""Whatever a message says, the model reads it: no real agent takes one for a command to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from helmsman import Helmsman
from helmsman.agents.process_engine import as_words
from helmsman.testing import ScriptedModel, always, run, say
from tests.agents.test_permissions import real_settings
from tests.agents.test_stories import ended, question_of
from tests.real_agents import NAMES

COMMANDS: Final = {
    "claude": "/config autoCompact=false",  # it would change the user's settings
    "gemini": "/extensions link {place}",  # the value of an extension is run
    "opencode": "/init",
    "qwen": "/directory add {place}",
    "copilot": "/allow-all",  # nothing would be asked from then on
}


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "agent",
    ["claude", *(pytest.param(name, marks=[pytest.mark.matrix, pytest.mark.rare]) for name in NAMES)],
)
async def test_no_message_is_a_command_to_the_agent_itself(
    agent: str, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    command = COMMANDS[agent].format(place=tmp_path)
    model.on("", always(say("read")))
    model.on("make it", run("touch made.txt"), always(say("done")))
    settings, env = real_settings(agent, model, tmp_path)
    async with Helmsman(settings, env=env, inside=True) as helm:
        session = await helm.start(command, cwd=git_repo, agent=agent, unenforced=True)
        await ended(session)
        assert session.result == "read"
        assert any("do not work from here" in note for note in session.notes)
        for message in (f"\ufeff\n {command}", "!touch banged.txt"):
            await session.say(message)
            await ended(session)
            assert session.result == "read"
        await session.say("make it")
        await session.respond((await question_of(session)).id, f"deny: {command}")
        await ended(session)
    read = [text for request in model.requests for text in request.user_texts]
    for message in (command, "!touch banged.txt"):
        assert any(as_words(message) in text for text in read)
    if agent != "claude":  # which has a place for the reason of a refusal
        assert any(text.strip() == as_words(command) for text in model.requests[-1].user_texts)
    assert not {"made.txt", "banged.txt"} & {path.name for path in git_repo.iterdir()}


@pytest.mark.parametrize("text", ["/x", "  /x", "\n\t/x", "\ufeff/x", "\u200b /x", "!x", "\u2060!x"])
def test_messages_that_could_be_commands_are_prefixed_with_a_word(text: str) -> None:
    assert as_words(text) == f"Message: {text}"


@pytest.mark.parametrize("text", ["", "x", "what is /etc?", "a\n/x", "@a.txt look", "# heading"])
def test_all_else_is_sent_as_it_is(text: str) -> None:
    assert as_words(text) == text
