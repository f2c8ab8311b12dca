"""Makes docs/compatibility.md from what the matrix recorded (`make matrix`), and prints the table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / ".cache" / "matrix"
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

INTRODUCTION = """\
# Which Codex versions work

Made by `make matrix`, which tells each released Codex the same stories on a scripted model (`tests/matrix`). A tick means
that the story was told to its end; a number is explained below, with what a user is told.
"""


def main() -> int:
    records = (
        {folder.name: read(folder) for folder in sorted(RECORDS.iterdir(), key=version_of)} if RECORDS.is_dir() else {}
    )
    if not records:
        print("There are no records. Run the matrix first: make matrix", file=sys.stderr)
        return 1
    page = render(records)
    PAGE.write_text(page, encoding="utf-8")
    print(page)
    return 0


def version_of(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("."))


def read(folder: Path) -> dict[str, str | None]:
    files = (json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json"))
    return {record["story"]: record["refusal"] for record in files}


def render(records: dict[str, dict[str, str | None]]) -> str:
    notes: list[str] = []
    rows = [["", *records], ["---", *("---" for _ in records)]]
    for story, title in STORIES.items():
        rows.append([title, *(cell(told, story, notes) for told in records.values())])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    footnotes = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return f"{INTRODUCTION}\n{table}\n" + (f"\n{footnotes}\n" if footnotes else "")


def cell(told: dict[str, str | None], story: str, notes: list[str]) -> str:
    if story not in told:
        return "✗"
    refusal = told[story]
    if refusal is None:
        return "✓"
    # The page speaks of versions in its columns, and of no machine's paths.
    refusal = re.sub(r"^Codex [\d.]+", "This Codex", re.sub(r" \(in use: [^)]*\)", "", refusal))
    if refusal not in notes:
        notes.append(refusal)
    return f"({notes.index(refusal) + 1})"


if __name__ == "__main__":
    sys.exit(main())
