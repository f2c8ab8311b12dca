"""Read and write one configuration file of a client without losing content."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helmsman.base.files import replace_file
from helmsman.clients.entries import OldServer, OwnEntry, recognise
from helmsman.clients.json_file import JsonFile, NotReadable
from helmsman.clients.toml_file import TomlFile
from helmsman.errors import ConfigurationChanged, ConfigurationUnusable

if TYPE_CHECKING:
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
    _must_be(path, target, before)
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if before is not None else None
        if mode is not None and not (mode & stat.S_IWUSR and os.access(target, os.W_OK)):
            raise ConfigurationUnusable(
                f"{target} is read-only. Make it writable (`chmod u+w {target}`) and try again."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        if after is None:
            _must_be(path, target, before)
            target.unlink(missing_ok=True)
            return
        if mode is None and private:
            mode = 0o600
        replace_file(target, after, mode=mode, last_look=lambda: _must_be(path, target, before))
    except OSError as error:
        raise ConfigurationUnusable(
            f"{path} cannot be written: {error.strerror}. Check who may write there; nothing was changed."
        ) from error


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _must_be(path: Path, target: Path, before: str | None) -> None:
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
    return JsonFile("{}\n" if text is None or _is_blank(text) else text, comments=written_as == "jsonc")


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip("\ufeff \t\r\n")
