"""Tests of rules for MCP tools."""

from __future__ import annotations

from pathlib import Path

from helmsman.model.rules import Rule
from tests.approvals.policy_questions import HERE, LS, command, decided, mcp, tool


def test_a_tool_is_outside_by_nature() -> None:
    assert decided(tool(sandbox="inside"), Rule(effect="allow", mcp=("lab", "write"))).effect == "ask"


def test_a_tool_is_allowed_by_its_name_or_by_its_server() -> None:
    assert decided(tool(), mcp("allow", "lab", "write")).effect == "allow"
    assert decided(tool(), mcp("allow", "lab")).effect == "allow"
    assert decided(tool(None), mcp("allow", "lab")).effect == "allow"
    assert decided(tool(), mcp("allow", "lab", "write", directory=HERE)).effect == "allow"


def test_another_tool_server_place_or_kind_of_elicitation_is_asked() -> None:
    rules = (mcp("allow", "lab", "write"), mcp("allow", "other"))
    assert decided(tool("read"), *rules).effect == "ask"
    assert decided(tool(None), *rules).effect == "ask"
    assert decided(tool(server="Lab"), *rules).effect == "ask"
    assert decided(tool(approvalKind=None), *rules).effect == "ask"
    assert decided(tool(mode="url"), *rules).effect == "ask"
    assert decided(tool(prompts=2), *rules).effect == "ask"
    assert decided(tool(), mcp("allow", "lab", directory=Path("/elsewhere"))).effect == "ask"
    assert decided(tool(), LS, Rule(effect="allow"), Rule(effect="allow", type="mcp_elicitation")).effect == "ask"


def test_a_denied_tool_is_denied_in_doubt() -> None:
    rules = (mcp("allow", "lab"), mcp("deny", "lab", "write"))
    assert decided(tool(), *rules).effect == "deny"
    assert decided(tool(None), *rules).effect == "deny"
    assert decided(tool("read"), *rules).effect == "allow"
    assert decided(tool(approvalKind=None), *rules).effect == "deny"
    assert decided(command("ls"), LS, *rules).effect == "allow"
