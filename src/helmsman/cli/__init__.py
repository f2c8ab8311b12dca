"""The command line: `helmsman`, also as `python -m helmsman`.

`app` is the group with its help and exit codes, then one module a command. They import what they need when they run,
so that `helmsman --version` costs next to nothing. `helmsman serve`, which every client starts, goes to the hub before
even options are read.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    if sys.argv[1:2] == ["serve"]:
        from helmsman.mcp.pipe import run_pipe

        code = run_pipe(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from helmsman.cli.app import run

    run()
