"""Tests of questions to all agents: capabilities, and whose commands reach the network."""

from __future__ import annotations

from typing import Any

import pytest

from helmsman.agents.acp.gemini import Gemini
from helmsman.agents.acp.opencode import OpenCode
from helmsman.agents.acp.qwen import Qwen
from helmsman.agents.codex.binary import exec_capabilities
from helmsman.agents.protocol import Capabilities, Capability
from helmsman.agents.registry import Agents
from helmsman.model.options import SessionOptions
from tests.played import PlayedAgent, capabilities


def refusal(can: Capabilities, capability: Capability) -> str:
    return Agents([PlayedAgent()]).explained(can).refusal(capability).message


@pytest.mark.parametrize(
    ("can", "capability", "said"),
    [
        (Gemini().capabilities, Capability.FORK, "Gemini cannot fork a session. Codex and Claude Code can."),
        (Gemini().capabilities, Capability.GOALS, "Gemini cannot keep a goal for a session. Codex can."),
        (capabilities(), Capability.RENAME, "The played agent cannot name a session. Codex and Claude Code can."),
        (
            Gemini().capabilities,
            Capability.MOVE,
            "Gemini cannot go on with a session on another machine. Codex, Claude Code and Qwen can. There the work starts "
            "anew from the files.",
        ),
        (
            Qwen().capabilities,
            Capability.REVIEW,
            "Qwen cannot review by a command of its own. Codex can. It is shown the diff and asked for its findings instead "
            "(`helmsman review --agent qwen`).",
        ),
    ],
)
def test_a_refusal_names_all_agents_that_can(can: Capabilities, capability: Capability, said: str) -> None:
    assert refusal(can, capability) == said


def test_a_capability_of_the_agent_alone_refers_to_its_own_program() -> None:
    assert refusal(Gemini().capabilities, Capability.LOGIN) == (
        "Gemini cannot be logged in from here. Log in with its own program."
    )
    assert refusal(capabilities(), Capability.CONFIGURE).endswith("Change its own configuration files.")


def test_an_agent_of_which_another_engine_can_is_not_told_to_go_to_others() -> None:
    assert refusal(exec_capabilities(), Capability.FORK) == (
        "`codex exec` cannot fork a session. Use the engine app-server."
    )


def test_every_missing_capability_has_an_explanation() -> None:
    agents = Agents([PlayedAgent()])
    for can in (*(profile().capabilities for profile in (Gemini, OpenCode, Qwen)), capabilities(), exec_capabilities()):
        assert all(agents.explained(can).lacking.values())


@pytest.mark.parametrize(
    ("config", "reaches"),
    [
        ({}, False),
        ({"sandbox_workspace_write": {"network_access": True}}, True),
        ({"sandbox_workspace_write": {"network_access": False}}, False),
        ({"sandbox_workspace_write.network_access": True}, True),
        ({"sandbox_workspace_write": {"network_access": True}, "sandbox_workspace_write.network_access": False}, False),
        ({"sandbox_workspace_write": "nonsense"}, False),
    ],
    ids=str,
)
def test_commands_of_codex_reach_the_network_only_where_its_configuration_says_so(
    config: dict[str, Any], reaches: bool
) -> None:
    agents, options = Agents([PlayedAgent()]), SessionOptions(config=config)
    assert agents["codex"].reaches_network(options) is reaches
    assert all(agent.reaches_network(options) for agent in agents if agent.name != "codex")
