"""`helmsman test`: tests are written, and Helmsman checks that they can fail."""

from __future__ import annotations

from typing import Any

import click

from helmsman.cli.command import cli_command
from helmsman.cli.outcomes import outcome_options, run_outcome


@cli_command(
    "test",
    "Have tests written that can fail.",
    'helmsman test "The date parser, with leap years"',
    'helmsman test "What the last commit added" --check "pytest -q" --apply verified',
)
@outcome_options
@click.option("--base", metavar="COMMIT", help="A commit whose code the new tests are to fail with.")
def command(request: str, base: str | None, **options: Any) -> int:
    """Have tests written, in a git worktree; REQUEST says what to test (`-` reads it from stdin).

    Helmsman runs them itself, three times, and then against the code of --base, and small mutations of the code under test:
    at least one has to fail.
    """
    return run_outcome("test", request, more=None if base is None else {"base": base}, **options)
