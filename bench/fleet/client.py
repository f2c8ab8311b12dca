"""Client that only submits tasks to a fleet.

python -m bench.fleet.client URL COUNT
"""

from __future__ import annotations

import sys

import anyio

from bench.fleet.fleet import draft
from helmsman.fleet.client import FleetClient


async def main(url: str, count: str) -> None:
    async with FleetClient(url) as client:
        await client.enqueue(draft())
        print("ready", flush=True)
        sys.stdin.readline()
        limit = anyio.Semaphore(4)

        async def put() -> None:
            async with limit:
                await client.enqueue(draft())

        async with anyio.create_task_group() as tasks:
            for _ in range(int(count)):
                tasks.start_soon(put)
        print("done", flush=True)


if __name__ == "__main__":
    url, count = sys.argv[1:]
    anyio.run(main, url, count)
