"""Read and write one configuration file of a client without losing content."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.base.files import replace_file
from helmsman.clients.entries import OldServer, OwnEntry, recognise
from helmsman.clients.json_file import JsonFile, NotReadable
from helmsman.clients.locations import CLIENTS, Client, ClientPlatform
from helmsman.clients.toml_file import TomlFile
from helmsman.errors import ConfigurationChanged, ConfigurationUnusable, HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from helmsman.clients.locations import Format, Location


@dataclass(frozen=True, slots=True)
class Entry:
    """Server entry of a client. `kind` classifies its command."""

    location: Location
    name: str
    content: Any
    kind: OwnEntry | OldServer | None

    @property
    def path(self) -> tuple[str, ...]:
        return (*self.location.servers, self.name)


@dataclass(frozen=True)
class ConfigurationFile:
    """Configuration file with the locations of its servers. `text` is None if the file does not exist.

    `target` is the path with links resolved.
    """

    path: Path
    target: Path
    locations: tuple[Location, ...]
    text: str | None
    document: JsonFile | TomlFile

    @property
    def is_new(self) -> bool:
        return _is_blank(self.text)

    @property
    def entries(self) -> list[Entry]:
        """All servers, in file order."""
        found = []
        for location in self.locations:
            servers = value_at(self.document.value, location.servers)
            if servers is None:
                continue
            # Another value under this key is not ours to replace.
            if not isinstance(servers, Mapping):
                raise ConfigurationUnusable(
                    f"{self.path} has something else than servers under {'.'.join(location.servers)}. Correct it there."
                )
            found += [Entry(location, name, content, recognise(content)) for name, content in servers.items()]
        return found


def read_configuration(locations: Sequence[Location]) -> ConfigurationFile:
    """Read the file of these locations, which must all be in the same file.

    Raises:
        ConfigurationUnusable: The file is unreadable or invalid; the message says where.
    """
    path = Path(locations[0].path)
    text = _read(path)
    document = _parse(text, locations[0].client.format)
    try:
        document.value  # noqa: B018 - parsed here to raise errors early
    except NotReadable as error:
        kind = "TOML" if locations[0].client.format == "toml" else "JSON"
        raise ConfigurationUnusable(
            f"{path} is not valid {kind}, {error}. Correct it there; nothing was changed."
        ) from error
    return ConfigurationFile(path, _target(path), tuple(locations), text, document)


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None if it is absent."""
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def write_configuration(path: Path, target: Path, before: str | None, after: str | None, *, private: bool) -> None:
    """Replace `before` with `after` atomically, keeping mode and links. None means no file.

    `target` is the resolved path at the time of the preview.

    Raises:
        ConfigurationUnusable: The file cannot be written.
        ConfigurationChanged: The content is no longer `before`.
    """
    # Between the preview and now, a client may have written the file.
    _must_be(path, target, before)
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if before is not None else None
        # Replacing a file needs no right to write it, so the right is checked here.
        if mode is not None and not (mode & stat.S_IWUSR and os.access(target, os.W_OK)):
            raise ConfigurationUnusable(
                f"{target} is read-only. Make it writable (`chmod u+w {target}`) and try again."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        # Removed only if it is still the file that was shown.
        if after is None:
            _must_be(path, target, before)
            target.unlink(missing_ok=True)
            return
        if mode is None and private:
            # Entries may contain keys in `env`.
            mode = 0o600
        # Looked at once more, right before the file is replaced.
        replace_file(target, after, mode=mode, last_look=lambda: _must_be(path, target, before))
    except OSError as error:
        raise ConfigurationUnusable(
            f"{path} cannot be written: {error.strerror}. Check who may write there; nothing was changed."
        ) from error


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _must_be(path: Path, target: Path, before: str | None) -> None:
    # A link that leads elsewhere now would change another file than was shown.
    if _target(path) != target or _read(path) != before:
        raise ConfigurationChanged(f"{path} was changed by another program; nothing was written. Try again.")


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigurationUnusable(
            f"{path} is not UTF-8, at byte {error.start}. Save it as UTF-8 and try again."
        ) from error
    except OSError as error:
        raise ConfigurationUnusable(
            f"{path} cannot be read: {error.strerror}. Check what it is and who may read it."
        ) from error


def _parse(text: str | None, written_as: Format) -> JsonFile | TomlFile:
    if written_as == "toml":
        return TomlFile(text or "")
    # An empty file counts as an empty object, since clients leave such files behind.
    return JsonFile("{}\n" if text is None or _is_blank(text) else text, comments=written_as == "jsonc")


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip("\ufeff \t\r\n")


# --- Overview of all clients that run Helmsman or the old `codex mcp-server`, with problems ---------------------------


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
            # The client is probably broken by it as well, which is what the user has to know.
            return ClientFinding(client, error.message, "The client itself may not be able to read it either.")
        for entry in entries:
            name = f"{entry.name} ({scope} scope)"
            if isinstance(entry.kind, OldServer):
                said.append(f"{name} runs the old `codex mcp-server`, which newer versions of Codex do not have.")
                fixes.append(f"Run `helmsman install {client.key}{option}`.")
            elif isinstance(entry.kind, OwnEntry) and which(entry.kind.launch[0]) is None:
                # PATH of this shell; a desktop program may have another.
                said.append(f"{name} runs {entry.kind.launch[0]}, which is not there.")
                fixes.append(f"Run `helmsman install {client.key}{option}`.")
            elif isinstance(entry.kind, OwnEntry):
                said.append(f"{name} {_where(entry, here)}.")
    if not said:
        return None
    if not fixes:
        # A broken entry has to be fixed before its limits matter.
        said.append(client.limits)
    return ClientFinding(client, " ".join(said), " ".join(dict.fromkeys(fixes)))


def _where(entry: Entry, here: Collection[tuple[str, ...]]) -> str:
    assert isinstance(entry.kind, OwnEntry)
    return "points here" if entry.kind.launch in here else f"points to {' '.join(entry.kind.launch)}"
