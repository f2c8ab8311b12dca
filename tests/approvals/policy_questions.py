"""Questions and rules as the tests of the policy write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helmsman.approvals.policy import RuleSet, Ruling, Workspace, decide
from helmsman.model.questions import Prompt, Question, QuestionType
from helmsman.model.rules import Rule

HERE = Path("/nowhere/repo")


def ask(kind: QuestionType, prompts: int = 1, **details: Any) -> Question:
    return Question(
        asker="Codex",
        id="q_1",
        type=kind,
        session_id="T1",
        turn_id="U1",
        prompts=tuple(Prompt(text="May I?", options=("approve", "deny")) for _ in range(prompts)),
        details=details,
    )


def command(text: str, directory: str | None = str(HERE), sandbox: str | None = "inside", **details: Any) -> Question:
    return ask("command_approval", command=text, directory=directory, sandbox=sandbox, **details)


def allow(*words: str, **more: Any) -> Rule:
    return Rule(effect="allow", command=words, **more)


def deny(*words: str, **more: Any) -> Rule:
    return Rule(effect="deny", command=words, **more)


def decided(question: Question, *rules: Rule, workspace: Workspace | None = None, switch: bool = False) -> Ruling:
    return decide(
        question, RuleSet(rules=rules, allow_workspace_patches=switch), workspace or Workspace(directory=HERE)
    )


GIT_STATUS = allow("git", "status")
LS = allow("ls")


def patch(*paths: str | Path, **details: Any) -> Question:
    return ask("patch_approval", diff="…", paths=[str(path) for path in paths], **details)


def tool(name: str | None = "write", prompts: int = 1, **details: Any) -> Question:
    shown = {"server": "lab", "tool": name, "approvalKind": "mcp_tool_call", "mode": "form"} | details
    return ask("mcp_elicitation", prompts, **shown)


def mcp(effect: Any, server: str, name: str | None = None, **more: Any) -> Rule:
    return Rule(effect=effect, mcp=(server, name), outside=effect == "allow", **more)
