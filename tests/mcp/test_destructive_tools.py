"""Tools that can lose work say so, in the words a client asks its user by."""

from __future__ import annotations

import pytest
from mcp.types import ToolAnnotations

from helmsman.base.structs import replace
from helmsman.mcp.server import build_server
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from mcp import Client

pytestmark = pytest.mark.anyio

LOSE_WORK = {
    "codex_discard", "codex_apply", "codex_rollback", "codex_rewind", "codex_interrupt", "codex_respond", "codex_compact",
    "codex_goal",
}  # fmt: skip
HARMLESS = {
    "codex_rename", "codex_archive", "codex_unarchive", "codex_review", "codex_local_review", "_codex_cloud_cancel",
}  # fmt: skip


async def test_every_tool_that_can_lose_work_is_marked_as_destructive(settings: Settings) -> None:
    found: dict[str, ToolAnnotations | None] = {}
    for toolsets in (("sessions",), ("extras",), ("router",)):
        async with (
            HelmsmanService(replace(settings, tools=toolsets, expose_primitives=True)) as helm,
            Client(build_server(helm)) as client,
        ):
            found |= {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert found.keys() >= LOSE_WORK
    for name, hints in found.items():
        assert hints is not None, name
        if not hints.read_only_hint and name not in HARMLESS:
            assert hints.destructive_hint is True, name
