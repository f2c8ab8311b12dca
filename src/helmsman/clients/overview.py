"""Overview of all clients that run Helmsman or the old `codex mcp-server`, with problems."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helmsman.clients.configuration import Entry, read_configuration
from helmsman.clients.entries import OldServer, OwnEntry
from helmsman.clients.locations import CLIENTS, Client, ClientPlatform
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass(frozen=True, slots=True)
class ClientFinding:
    """Result for one client, and the fix for a problem."""

    client: Client
    detail: str
    fix: str = ""


def inspect_clients(
    around: ClientPlatform, here: Collection[tuple[str, ...]], *, which: Callable[[str], str | None] = shutil.which
) -> list[ClientFinding]:
    """Return a finding for each client with an entry for Helmsman or Codex, or with an unreadable file.

    `here` lists the commands that start the running Helmsman.
    """
    return [finding for client in CLIENTS.values() if (finding := _look_at(client, around, here, which)) is not None]


def _look_at(
    client: Client,
    around: ClientPlatform,
    here: Collection[tuple[str, ...]],
    which: Callable[[str], str | None],
) -> ClientFinding | None:
    said: list[str] = []
    fixes: list[str] = []
    places = {
        (place.path, place.servers): place for place in (client.location(scope, around) for scope in client.places)
    }
    for place in places.values():
        scope = place.scope
        option = "" if scope == "user" else f" --scope {scope}"
        try:
            entries = read_configuration([place]).entries
        except HelmsmanError as error:
            return ClientFinding(client, error.message, "The client itself may not be able to read it either.")
        for entry in entries:
            name = f"{entry.name} ({scope} scope)"
            if isinstance(entry.kind, OldServer):
                said.append(f"{name} runs the old `codex mcp-server`, which newer versions of Codex do not have.")
                fixes.append(f"Run `helmsman install {client.key}{option}`.")
            elif isinstance(entry.kind, OwnEntry) and which(entry.kind.launch[0]) is None:
                said.append(f"{name} runs {entry.kind.launch[0]}, which is not there.")
                fixes.append(f"Run `helmsman install {client.key}{option}`.")
            elif isinstance(entry.kind, OwnEntry):
                said.append(f"{name} {_where(entry, here)}.")
    if not said:
        return None
    if not fixes:
        said.append(client.limits)
    return ClientFinding(client, " ".join(said), " ".join(dict.fromkeys(fixes)))


def _where(entry: Entry, here: Collection[tuple[str, ...]]) -> str:
    assert isinstance(entry.kind, OwnEntry)
    return "points here" if entry.kind.launch in here else f"points to {' '.join(entry.kind.launch)}"
