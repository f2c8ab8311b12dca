"""The program of the hub, started by whichever door comes first: `python -I -m helmsman.cli.hub_process STATE_DIR`.

It lets go of what it inherited before it imports anything, and then wires the doors into the hub.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from helmsman.base.processes import Process
    from helmsman.httpd.hub_door import HttpDoors
    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub, Serve
    from helmsman.steering.shared import Shared

HTTP = "helmsman-http 1"


def main() -> None:
    from helmsman.hub.daemon import become_daemon

    become_daemon()
    import gc

    gc.disable()  # a client waits for all that is imported now
    import anyio

    anyio.run(_run, os.path.abspath(sys.argv[1]))  # noqa: PTH100


async def _run(state: str) -> None:
    import gc
    from pathlib import Path

    from helmsman.agents.registry import Owner
    from helmsman.cli.consoles import log_to_stderr
    from helmsman.hub.control import CONTROL, serve_control
    from helmsman.hub.handover import HANDOVER, serve_handover, take_over
    from helmsman.hub.interface import PROGRAM, ProgramDoors
    from helmsman.hub.launch import TAKE_OVER, start_command
    from helmsman.hub.process import NEXT, Hub
    from helmsman.hub.recovery import Recovery
    from helmsman.mcp.hub_door import PipeDoors
    from helmsman.mcp.pipe import PROTOCOL
    from helmsman.service import Helmsman
    from helmsman.steering.shared import Shared
    from helmsman.tasks.database import Fence, newest_epoch
    from helmsman.tasks.registry import REGISTRY_NAME

    log_to_stderr("%(asctime)s %(levelname)s %(name)s: %(message)s", "info")
    state_dir = Path(state)

    def keepers() -> Collection[Process]:
        from helmsman.agents.codex.detached.records import read_records

        return {record.keeper for record in read_records(state_dir)}

    gc.freeze()
    gc.enable()
    if TAKE_OVER in sys.argv[2:] and not take_over(state):
        return
    hub = Hub(state_dir, keepers, newest_epoch(state_dir / REGISTRY_NAME))
    fence = Fence(hub.epoch, lambda newer: hub.end(NEXT, f"a later one, of epoch {newer}, has taken its place"))
    async with Shared(state_dir, owner=Owner(hub.epoch, start_command(state)), fence=fence) as shared:
        hub.work = shared.work
        hub.on_stop = lambda: shared.need_engines(none=True)
        pipes = PipeDoors(shared)
        await pipes.forget_gone()
        shared.tasks.start_soon(Recovery(shared, Helmsman).run)
        await hub.run(
            {
                PROTOCOL: pipes.serve,
                PROGRAM: ProgramDoors(shared, Helmsman).serve,
                CONTROL: serve_control,
                HTTP: _serve_http(shared),
                HANDOVER: serve_handover(shared.ledger.write),
            }
        )


def _serve_http(shared: Shared) -> Serve:
    """Web servers take long to import, and few ask for one."""

    async def serve(hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        import anyio.to_thread

        def load() -> type[HttpDoors]:
            from helmsman.httpd.hub_door import HttpDoors

            return HttpDoors

        doors = await anyio.to_thread.run_sync(load)
        await doors(shared).serve(hub, connection, fields, refused)

    return serve


if __name__ == "__main__":
    main()
