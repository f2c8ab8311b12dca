"""Makes docs/compatibility.md from what the matrix recorded (`make matrix`), and prints it.

It has a part for the versions of Codex and one for the other agents. Of what was not recorded, the page keeps what it says.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / ".cache" / "matrix"
AGENT_RECORDS = ROOT / ".cache" / "stories"
PAGE = ROOT / "docs" / "compatibility.md"

STORIES = {
    "start": "start a session, run a command, trust nothing",
    "resume_after_the_process_died": "resume after the process died",
    "steer": "steer a running turn",
    "interrupt": "interrupt a turn and its command",
    "command_approval-approve": "command approval: accept",
    "command_approval-deny": "command approval: decline",
    "command_approval-abort": "command approval: cancel",
    "refusal_with_a_reason": "decline with a reason for the model",
    "patch_approval_with_its_diff": "patch approval with its diff",
    "output_schema": "output schema",
    "on_failure_approval_policy": "approval policy on-failure",
    "policy_is_not_wider_after_resume_and_fork": "policy never wider on resume and fork",
    "unknown_session": "unknown session refused clearly",
    "exec_turn": "exec: a turn",
    "exec_resume": "exec: resume",
    "listing": "list sessions of every origin",
    "the_removed_server": "the tools of the removed `codex mcp-server`",
    "fork_from_a_turn": "fork from an earlier turn",
    "fork_that_waits_for_its_message": "fork that waits for its message",
    "rollback": "forget the last turns",
    "compact": "compact the history",
    "names_and_the_archive": "name, archive, bring back",
    "goal": "goals",
    "rate_limits_and_models": "rate limits and models",
    "review-uncommitted": "review of uncommitted changes",
    "review-base": "review against a branch",
    "review-commit": "review of a commit",
    "review-custom": "review by instructions",
    "review_that_is_interrupted": "interrupt a review",
    "review_in_the_session_that_is_to_fix_it": "review in the session that is to fix it",
    "plan_first": "plan first, then approve",
    "plan_first_without_a_sandbox_of_its_own": "plan first with full access",
    "worktree_changes_applied_and_discarded": "worktree: changes applied and discarded",
    "diff_of_a_session_without_a_worktree": "diff without a worktree",
    "usage_counted_once": "usage, each turn once",
}

AGENT_STORIES = {
    "start": "start a session",
    "question_yes": "command approval: accept",
    "question_no": "command approval: decline",
    "question_with_reason": "decline with a reason for the model",
    "exit_code": "output and exit code of a command",
    "patch": "patch approval with its diff",
    "steer": "steer a running turn",
    "interrupt": "interrupt a turn and a command that left its group",
    "resume_after_kill": "resume after the process was killed",
    "list": "list sessions of every origin, with their history",
    "usage": "tokens used",
    "hostile_repository": "a repository runs nothing",
    "sandbox": "a sandbox that holds what was approved",
}

AGENTS = """\
## Other agents

The same tests for each agent, in the version shown (`tests/agents/test_stories.py`). Older versions were not tested;
Claude Code must be 2.1.300 or newer.
"""

INTRODUCTION = """\
# Which Codex versions work

`helmsman doctor` tells you which Codex you have and what it can do. Codex 0.93.0 and newer work.

`make matrix` runs the same tests on these releases with a scripted model (`tests/matrix`) and writes this page. ✓ means that
the test passed; a number refers to the notes below the table, which quote what a user sees.
"""


def main() -> int:
    versions = {folder.name: read(folder) for folder in folders(RECORDS, version_of)}
    agents = {heading(folder): read(folder) for folder in folders(AGENT_RECORDS, str)}
    if not versions and not agents:
        print("There are no records. Run the matrix first: make matrix", file=sys.stderr)
        return 1
    heads = AGENTS.partition("\n")[0]
    codex, _, others = PAGE.read_text(encoding="utf-8").partition(heads)
    codex = render(INTRODUCTION, STORIES, versions) if versions else codex.rstrip("\n") + "\n"
    others = render(AGENTS, AGENT_STORIES, agents) if agents else heads + others
    page = f"{codex}\n{others}"
    PAGE.write_text(page, encoding="utf-8")
    print(page)
    return 0


def folders(records: Path, order: Callable[[Path], Any]) -> list[Path]:
    return sorted(records.iterdir(), key=order) if records.is_dir() else []


def heading(folder: Path) -> str:
    """Return an agent with the tested version."""
    told = json.loads(next(folder.glob("*.json")).read_text(encoding="utf-8"))
    return f"{told['agent']} {told['version']}"


def version_of(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("."))


def read(folder: Path) -> dict[str, str | None]:
    files = (json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json"))
    return {record["story"]: record["refusal"] for record in files}


def render(introduction: str, stories: dict[str, str], records: dict[str, dict[str, str | None]]) -> str:
    notes: list[str] = []
    rows = [["", *records], ["---", *("---" for _ in records)]]
    for story, title in stories.items():
        rows.append([title, *(cell(told, story, notes) for told in records.values())])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    footnotes = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return f"{introduction}\n{table}\n" + (f"\n{footnotes}\n" if footnotes else "")


def cell(told: dict[str, str | None], story: str, notes: list[str]) -> str:
    if story not in told:
        return "✗"
    refusal = told[story]
    if refusal is None:
        return "✓"
    # The page names versions in its columns, and no paths of this machine.
    refusal = re.sub(r"^Codex [\d.]+", "This Codex", re.sub(r" \(in use: [^)]*\)", "", refusal))
    refusal = re.sub(r": /\S+(, /\S+)*\.", " (they are named).", refusal)
    if refusal not in notes:
        notes.append(refusal)
    return f"({notes.index(refusal) + 1})"


if __name__ == "__main__":
    sys.exit(main())
