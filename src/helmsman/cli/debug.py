"""`helmsman debug`: reproduce a failure, fix its cause, and verify the fix."""

from __future__ import annotations

from typing import Any

import click

from helmsman.cli.command import cli_command
from helmsman.cli.outcomes import outcome_options, run_outcome


@cli_command(
    "debug",
    "Have a failure found and fixed, and verified.",
    'helmsman debug "test_parse fails: KeyError" --check "make test"',
    'helmsman debug "The second login hangs" --agent codex --agent claude',
    "gh issue view 17 --json title,body -q '.title+\"\\n\"+.body' | helmsman debug - --json",
)
@outcome_options
@click.option("--test", metavar="NAME", help="The failing test.")
def command(request: str, test: str | None, **options: Any) -> int:
    """Have a failure reproduced, its cause found and fixed, in a git worktree; REQUEST says what fails (`-` reads it from
    stdin).

    Helmsman runs the check itself: before the change, when it must show that failure, and after it, when it must pass. A
    change that does not verify goes back to the agent with the evidence, at most three times, and is never applied.
    """
    return run_outcome("debug", request, more=None if test is None else {"test": test}, **options)
