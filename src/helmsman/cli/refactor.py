"""`helmsman refactor`: improve code, and verify that its behaviour is unchanged."""

from __future__ import annotations

from typing import Any

import click

from helmsman.cli.command import cli_command
from helmsman.cli.outcomes import outcome_options, run_outcome


@cli_command(
    "refactor",
    "Have code made better, with its check green before and after.",
    'helmsman refactor "Split the parser in two" --scope src/parser --check "make test"',
    'helmsman refactor "Less nesting in billing.py" --candidates 3 --apply never',
)
@outcome_options
@click.option(
    "--scope", metavar="PATH", multiple=True, help="Only this file or directory may change. Repeatable.  [default: all]"
)
def command(request: str, scope: tuple[str, ...], **options: Any) -> int:
    """Have code made better without changing what it does, in a git worktree; REQUEST says what to improve (`-`
    reads it from stdin).

    Helmsman runs the check itself, before and after, checks that nothing outside the scope was touched, and reports what
    changed in the public interface.
    """
    return run_outcome("refactor", request, more={"scope": list(scope)} if scope else None, **options)
