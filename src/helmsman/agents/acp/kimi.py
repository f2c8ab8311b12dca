"""Kimi Code: its profile."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.agents.acp.opencode import PLACES, PlacePerSession
from helmsman.agents.acp.profile import AgentHome, home_in
from helmsman.agents.protocol import Trust
from helmsman.base.json_values import json_object, mapping, sequence, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.model.options import SessionOptions


class Kimi(PlacePerSession):
    """Kimi Code. It asks before commands, and changes files without asking. It runs nothing of a directory that it does
    not trust; in a place of Helmsman it trusts none.
    """

    name = "kimi"
    title = "Kimi Code"
    program = "kimi"
    arguments = ("acp",)
    install = "npm install -g @moonshot-ai/kimi-code"
    trust = Trust(
        asking_mode="default",
        reading_mode="plan",
        asking_options={},
        acts_unasked=True,
        memory=(),
        runs_repository_files=False,
        variables=("KIMI_*", "*_API_KEY"),
        shared=(PLACES,),
    )

    tells_later = True

    _OF_SESSION = (
        *("sessions", "session_index.jsonl", "workspaces.json", "blobs", "store", "cache", "logs"),
        *("user-history", "telemetry"),
    )
    """What it keeps of its sessions. Their files name each other by absolute paths, so a place is a whole home."""
    _KEPT_FROM_SESSIONS = ("workspace-trust", "server", "server.token", "updates", "backups")
    """What no session gets. With the token, a command could have the user's own server run others outside the sandbox."""

    def read_update(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an update with the input of its call. Kimi writes that as text, and shortens it in the question."""
        parts = [mapping(mapping(part).get("content")) for part in sequence(update.get("content"))]
        if update.get("status") != "pending" or "rawInput" in update or len(parts) != 1:
            return update
        given = json_object(text(parts[0].get("text")))  # None as long as it is not complete
        return update if given is None else {**update, "rawInput": given, "status": "in_progress"}

    def environment(self, env: Mapping[str, str], options: SessionOptions, places: Path) -> dict[str, str]:
        return {**env, "KIMI_CODE_NO_AUTO_UPDATE": "1"}

    def dangerous_files(self, directory: Path) -> list[Path]:
        return []

    def home(self, env: Mapping[str, str]) -> AgentHome:
        path = Path(env.get("KIMI_CODE_HOME") or home_in(env) / ".kimi-code")
        empty = (*self._OF_SESSION, *self._KEPT_FROM_SESSIONS)
        return AgentHome(path=path, variable="KIMI_CODE_HOME", shared=self.trust.shared, empty=empty)

    def session_place(self, session_id: str, env: Mapping[str, str], *, enforced: bool) -> Path | None:
        place = super().session_place(session_id, env, enforced=enforced)
        if place is not None:
            self._refresh(place, self.home(env).path)
        return place

    def _refresh(self, place: Path, home: Path) -> None:
        """Bring the settings and the login in a place up to date. What a command has left there is removed."""
        for entry in place.iterdir():
            is_link, is_of_session = entry.is_symlink(), entry.name in self._OF_SESSION
            if entry.is_dir() and not is_link:
                if not is_of_session:
                    shutil.rmtree(entry)
            elif is_link or not is_of_session or not entry.is_file():
                entry.unlink()
        for entry in home.iterdir():
            if entry.name not in (*self._OF_SESSION, *self._KEPT_FROM_SESSIONS, PLACES):
                with suppress(FileNotFoundError):  # one that is just being replaced
                    if entry.is_dir():
                        shutil.copytree(entry, place / entry.name, ignore=_special_files)
                    elif entry.is_file():
                        shutil.copy2(entry, place / entry.name)

    def place_environment(self, place: Path) -> Mapping[str, str]:
        return {"KIMI_CODE_HOME": str(place)}

    def logins(self, env: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Path]]:
        return ("KIMI_MODEL_API_KEY",), (self.home(env).path / "credentials",)


def _special_files(directory: str, names: list[str]) -> list[str]:
    """Return the entries that cannot be copied, such as sockets and links without a target."""
    return [name for name in names if not ((path := Path(directory, name)).is_dir() or path.is_file())]
