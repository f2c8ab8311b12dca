"""Images that a client shows to an agent of a fleet: small ones travel with their task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.fleet.owned_task import OwnedTask

KIND: Final = "images"
"""Kind of bundle (`helmsman.bundles`) with one part per image."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Limit for all images of one task."""


def read_images(images: Sequence[Path]) -> tuple[tuple[str, bytes], ...]:
    """Read images for sending: the suffix and content of each. Blocks.

    Raises:
        InvalidInput: They are too large, or cannot be read.
    """
    read: list[tuple[str, bytes]] = []
    left = MOST_BYTES
    for image in images:
        try:
            with image.open("rb") as file:
                # One byte more than allowed shows that it is too large.
                content = file.read(left + 1)
        except OSError as error:
            raise InvalidInput(f"{image} cannot be read: {error.strerror}.", parameter="images") from None
        if len(content) > left:
            raise InvalidInput(
                f"With {image} the images are larger than {MOST_BYTES // 1024**2} MiB, which is the most that travels to a "
                "fleet. Make it smaller, or put it into the repository.",
                parameter="images",
            )
        left -= len(content)
        read.append((image.suffix.lower(), content))
    return tuple(read)


async def place_images(owned: OwnedTask, folder: Path) -> list[Path]:
    """Fetch the images of a task to this machine."""
    rows = await owned.database.all(
        "select part, about ->> 'suffix' as suffix, data from helmsman.bundles "
        "where task = %s and kind = 'images' order by part",
        (owned.id,),
    )
    return await anyio.to_thread.run_sync(_write, folder, [(row["part"], row["suffix"], row["data"]) for row in rows])


def _write(folder: Path, parts: Sequence[tuple[int, str, bytes]]) -> list[Path]:
    placed: list[Path] = []
    for number, suffix, content in parts:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The suffix comes from another machine, and becomes part of a path.
        placed.append(folder / f"{number}{suffix if suffix[1:].isalnum() else ''}")
        placed[-1].write_bytes(content)
    return placed
