"""The command line: `helmsman`, also as `python -m helmsman`.

`app` is the group with its help and exit codes, then one module a command. They import what they need when they run,
so that `helmsman --version` costs next to nothing. `helmsman serve`, which every client starts, and the commands that need
nothing of the process but its streams go to the hub before even options are read (`helmsman.mcp.pipe`, `thin`).
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    refused = ""
    if sys.argv[1:2] == ["serve"]:
        from helmsman.mcp.pipe import run_pipe

        code = run_pipe(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    elif sys.argv[1:3] == ["hub", "connect"]:
        from helmsman.hub.bridge import run_bridge

        sys.exit(run_bridge(sys.argv[3:]))
    else:
        from helmsman.cli import thin

        sys.argv[1:] = thin.with_host(sys.argv[1:])
        try:
            sys.exit(thin.run(sys.argv[1:]))
        except thin.OwnProcess as own:
            refused = own.refused
    from helmsman.cli.app import run

    run(refused)
