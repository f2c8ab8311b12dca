"""Images that a client shows to an agent of a fleet: small ones travel with their task, each as a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from psycopg.rows import DictRow

    from helmsman.fleet.owned_task import OwnedTask

_KIND: Final = "image-"
"""Begin of the kinds of bundles with images (`helmsman.bundles`); their numbers follow."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Limit for all images of one task."""


def image_bundles(images: Sequence[Path]) -> dict[str, tuple[Mapping[str, Any], Path]]:
    """Return images for `FleetDraft.bundles`, each with its suffix. Blocks.

    Raises:
        InvalidInput: They are too large, or cannot be read.
    """
    left = MOST_BYTES
    for image in images:
        try:
            with image.open("rb") as file:
                left -= file.seek(0, 2)
        except OSError as error:
            raise InvalidInput(f"{image} cannot be read: {error.strerror}.", parameter="images") from None
        if left < 0:
            raise InvalidInput(
                f"With {image} the images are larger than {MOST_BYTES // 1024**2} MiB, which is the most that travels to a "
                "fleet. Make it smaller, or put it into the repository.",
                parameter="images",
            )
    return {f"{_KIND}{number}": ({"suffix": image.suffix.lower()}, image) for number, image in enumerate(images)}


async def place_images(owned: OwnedTask, folder: Path) -> list[Path]:
    """Fetch the images of a task to this machine."""
    rows = await owned.database.all(
        "select split_part(kind, '-', 2) as number, part, about ->> 'suffix' as suffix, data from helmsman.bundles "
        "where task = %s and starts_with(kind, 'image-') order by split_part(kind, '-', 2)::int, part",
        (owned.id,),
    )
    return await anyio.to_thread.run_sync(_write, folder, rows)


def _write(folder: Path, rows: Sequence[DictRow]) -> list[Path]:
    placed: dict[str, Path] = {}
    for row in rows:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        suffix = row["suffix"]
        # The suffix comes from another machine, and becomes part of a path.
        path = placed[row["number"]] = folder / f"{row['number']}{suffix if suffix[1:].isalnum() else ''}"
        with path.open("ab" if row["part"] else "wb") as file:
            file.write(row["data"])
    return list(placed.values())
