"""`helmsman agents models` and `helmsman agents account`."""

from __future__ import annotations

import pytest

from helmsman.cli.exit_codes import ExitCode
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


async def test_models_are_listed_with_the_default_marked(cli: Cli) -> None:
    rows = [line.split("\t") for line in (await cli.run("agents", "models")).stdout.splitlines()]
    assert [row[1] for row in rows].count("*") == 1
    assert all(row[2] for row in rows)
    (shown,) = (await cli.run("agents", "models", "--json")).json
    assert [model["id"] for model in shown["models"]] == [row[0] for row in rows]


async def test_models_are_a_table_on_a_terminal(cli: Cli) -> None:
    async with cli.on_terminal("agents", "models", columns=160) as program:
        await program.shows("EFFORTS")
        assert await program.exit_code() == ExitCode.OK


async def test_the_account_is_reported_in_sentences(cli: Cli) -> None:
    done = await cli.run("agents", "account")
    assert done.exit_code == ExitCode.OK
    assert done.stdout.splitlines() == [
        "Codex uses a model provider that needs no OpenAI login.",
        "This provider reports no rate limits.",
    ]
    (shown,) = (await cli.run("agents", "account", "--json")).json
    assert (shown["limits"], shown["largeTaskFits"]) == ([], "unknown")


async def test_without_codex_it_says_so(bare_cli: Cli) -> None:
    assert (await bare_cli.run("agents", "account")).exit_code == ExitCode.NO_CODEX
