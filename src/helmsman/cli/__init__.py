"""The command line: `helmsman`, also as `python -m helmsman`.

`app` is the group with its help and exit codes, then one module a command. They import what they need when they run,
so that `helmsman --version` costs next to nothing.
"""

from __future__ import annotations


def main() -> None:
    """The console script."""
    from helmsman.cli.app import run

    run()
