"""Skills over MCP (SEP-2640): listed with digests, read as resources, in both eras of the protocol."""

from __future__ import annotations

import hashlib
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.mcp.skills import EXTENSION, SKILLS
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from mcp import Client

pytestmark = pytest.mark.anyio


class Request(types.Request[Any, Any]):
    method: str
    params: Any


class Raw(types.Result):
    model_config = ConfigDict(extra="allow")


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    answer = await client.session.send_request(Request(method=method, params=params), Raw)
    return answer.model_dump(by_alias=True)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_lists_gets_and_reads_the_skills_of_the_plugin(settings: Settings, mode: Any) -> None:
    async with Client(build_server(HelmsmanService(settings)), mode=mode) as client:
        assert client.server_capabilities is not None
        if mode != "legacy":  # protocols before 2026-07-28 have no place for it
            assert EXTENSION in (client.server_capabilities.extensions or {})
        answer = await ask(client, "skills/list")
        assert answer["resultType"] == "complete"
        assert {skill["frontmatter"]["name"] for skill in answer["skills"]} == {path.name for path in SKILLS.iterdir()}
        for skill in answer["skills"]:
            assert (await ask(client, "skills/get", uri=skill["uri"]))["skill"] == skill
            (file,) = skill["resources"]
            (content,) = (await client.read_resource(file["uri"])).contents
            assert isinstance(content, types.TextResourceContents)
            raw = content.text.encode()
            assert content.mime_type == "text/markdown"
            assert (file["digest"], file["size"]) == (f"sha256:{hashlib.sha256(raw).hexdigest()}", len(raw))


@pytest.mark.parametrize("uri", ["skill://none/SKILL.md", "skill://delegate-work/../../.mcp.json"])
async def test_only_files_of_a_skill_are_served(settings: Settings, uri: str) -> None:
    async with Client(build_server(HelmsmanService(settings))) as client:
        with pytest.raises(MCPError, match="no skill"):
            await ask(client, "skills/get", uri=uri)
        with pytest.raises(MCPError):
            await client.read_resource(uri)


async def test_a_server_without_the_tools_that_skills_name_offers_none(settings: Settings) -> None:
    async with Client(build_server(HelmsmanService(replace(settings, tools=("router",))))) as client:
        assert client.server_capabilities is not None
        assert EXTENSION not in (client.server_capabilities.extensions or {})
