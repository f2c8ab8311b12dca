"""Model, profile and configuration that `helmsman serve` is started with, for every session of that server."""

from __future__ import annotations

import sys

import pytest

from helmsman.mcp.pipe import _understood
from helmsman.mcp.pipe_server import _flags
from helmsman.testing import CodexHome, ScriptedModel, always, say
from mcp import Client
from tests.hub.conftest import Place
from tests.mcp.caller import Caller

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="There are no hubs here.")]

DEFAULTS = ("-m", "gpt-5.5", "-c", 'model_reasoning_effort="high"', "-c", "sandbox_mode=read-only")


async def test_they_hold_for_that_server_alone_and_what_a_client_says_wins(
    place: Place, model: ScriptedModel, codex_home: CodexHome
) -> None:
    model.otherwise(always(say("done")))
    (codex_home.path / "work.config.toml").write_text('model_reasoning_effort = "low"\n', encoding="utf-8")
    async with (
        Client(place.on_stdio(*DEFAULTS)) as one,
        Client(place.on_stdio()) as other,
        Client(place.on_stdio("--profile", "work")) as third,
    ):

        async def asked(client: Client, **arguments: object) -> tuple[str, str | None]:
            agent = Caller(client)
            started = await agent("codex_start", prompt="hello", **arguments)
            assert (await agent.until_settled(started["sessionId"]))["status"] == "done"
            return model.requests[-1].model, model.requests[-1].effort

        usual = await asked(other)
        assert await asked(one) == ("gpt-5.5", "high") != usual
        assert await asked(one, model="gpt-5.4", config={"model_reasoning_effort": "low"}) == ("gpt-5.4", "low")
        assert await asked(other) == usual
        assert (await asked(third))[1] == "low" != usual[1]


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["-m", "o3"], {"default_model": "o3"}),
        (["-mo3", "--profile=work"], {"default_model": "o3", "default_profile": "work"}),
        (["--model", "o3", "--tools=compat"], {"default_model": "o3", "tools": "compat"}),
        (["-c", "a=1", "-cb=x=2", "--config=c=3"], {"default_config": ["a=1", "b=x=2", "c=3"]}),
        (["--expose-primitives", "--transport", "stdio"], {"expose_primitives": True}),
    ],
)
def test_flags_of_a_pipe_are_settings_in_the_hub(words: list[str], flags: dict[str, object]) -> None:
    assert _understood(words)
    assert _flags(words) == flags


@pytest.mark.parametrize("words", [["-m"], ["-x", "1"], ["--models", "o3"], ["o3"], ["--transport", "http"]])
def test_other_flags_are_for_the_command_line_to_complain_about(words: list[str]) -> None:
    assert not _understood(words)
