"""`helmsman test`: tests are written, and Helmsman checks that they can fail."""

from __future__ import annotations

from typing import Any

from helmsman.cli.command import cli_command
from helmsman.cli.outcomes import outcome_options, run_outcome


@cli_command(
    "test",
    "Have tests written that can fail.",
    'helmsman test "The date parser, with leap years"',
    'helmsman test "What the last commit added" --check "pytest -q" --apply verified',
)
@outcome_options
def command(request: str, **options: Any) -> int:
    """Have tests written, in a git worktree; REQUEST says what is to be tested (`-` reads it from stdin).

    Helmsman runs them itself, three times, and then against small mutations of the code under test: at least one has to
    fail.
    """
    return run_outcome("test", request, **options)
