"""`helmsman acp`: be an agent for editors and other clients of the Agent Client Protocol."""

from __future__ import annotations

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command


@cli_command(
    "acp",
    "Offer all agents to editors that speak the Agent Client Protocol.",
    "helmsman acp",
    has_json=False,
)
def command() -> int:
    """Be one agent for an editor or another ACP client: it starts the command, and talks over standard input and output.

    Every session of every agent can be listed, loaded and continued there, and its questions are asked there too.
    Sessions go on in the hub when the editor quits.
    """
    import asyncio

    from helmsman.acp_server.server import serve_acp
    from helmsman.client import Helmsman

    async def serve() -> None:
        async with Helmsman(settings_of_command()) as helm:
            await serve_acp(helm)

    asyncio.run(serve())
    return 0
