"""Command line: `helmsman`, also as `python -m helmsman`.

`app` defines the command group, its help and the exit codes; each command has its own module. Modules are imported when
their command runs, which keeps `helmsman --version` fast. Before options are parsed, `helmsman serve` becomes a pipe
(`helmsman.mcp.pipe`), and the hub renders what commands only ask for (`thin`).
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    # Before click is imported: a pipe and a bridge must start in milliseconds.
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
        from helmsman.cli.command_names import expanded

        sys.argv[1:] = thin.with_host(expanded(sys.argv[1:]))
        code = thin.run(sys.argv[1:])
        if code is not None:
            sys.exit(code)
    from helmsman.cli.app import run

    run()
