"""The tokens that a client's model spends on `tools/list`, counted as `tests/listings.py` says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import mcp_types as types
import pytest

from helmsman import load_settings
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import TOOLSETS
from mcp import Client
from tests.listings import count

pytestmark = pytest.mark.anyio

PER_PIECE = 1.07
"""Tokens of o200k_base for each piece that is counted. Measured on the toolset `sessions`: 1,831 tokens in 1,718 pieces."""


def listed_tokens(tools: Sequence[types.Tool]) -> float:
    """Return the tokens of what a model reads of a list."""
    read = [{"name": one.name, "description": one.description, "inputSchema": one.input_schema} for one in tools]
    return sum(map(count, read)) * PER_PIECE


@pytest.mark.parametrize(
    ("toolsets", "most"),
    [
        ("sessions", 1_900),
        ("agents,extras", 3_000),
        (",".join(name for name in TOOLSETS if name != "compat"), 3_000),
    ],
)
async def test_the_tool_descriptions_for_a_model_are_short(toolsets: str, most: int, tmp_path: Path) -> None:
    env = {**os.environ, "HELMSMAN_STATE_DIR": str(tmp_path / "state"), "PATH": str(tmp_path)}
    settings = load_settings({"tools": toolsets}, env, tmp_path, user_file=tmp_path / "none.toml")
    async with HelmsmanService(settings, env=env) as helm, Client(build_server(helm)) as client:
        tools = (await client.list_tools()).tools
    assert listed_tokens(tools) <= most
    verbs = {one.name.partition("_")[2] for one in tools}
    assert {"start", "wait", "respond", "diff", "apply", "discard"} <= verbs
