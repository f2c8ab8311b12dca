"""Plan the changes of `install` and `uninstall` for preview, then apply them exactly as shown."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from helmsman.base.files import replace_file
from helmsman.base.redaction import redact, redact_value
from helmsman.base.structs import Value, pack, unpack
from helmsman.clients.configuration import ConfigurationFile, Entry, value_at, write_configuration
from helmsman.clients.entries import OldServer, OwnEntry, with_tools, words_of
from helmsman.clients.json_file import JsonFile, NotReadable
from helmsman.clients.locations import BLOCKING_CALL_SECONDS, Location
from helmsman.errors import ConfigurationUnusable, HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from helmsman.clients.toml_file import TomlFile

# --- Record of the values that `install` replaced, so that `uninstall` can restore them -------------------------------

# Only changed values are stored, as source text. Other fields of an entry stay in its file, because `env` may contain
# secrets.

_NAME: Final = "client-entries.json"
_VERSION: Final = 1


class Piece(Value, frozen=True):
    """Changed value: path, source text before (None if absent) and the new value."""

    path: tuple[str, ...]
    before: str | None
    after: Any


class KeptEntry(Value, frozen=True, kw_only=True):
    """Record of one entry of a file.

    `pieces` are the changed fields of a rewritten entry. An added entry has none: the first `present` keys of its path
    existed before, `empty_source` is the text of the empty object at their end, and `new_file` means that the file was
    empty or missing.
    """

    file: str
    path: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    present: int = 0
    empty_source: str | None = None
    new_file: bool = False

    @property
    def rewritten(self) -> bool:
        return bool(self.pieces)


class Record:
    """All recorded entries. Read on creation; `save` writes them."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / _NAME
        self._kept = {(kept.file, kept.path): kept for kept in self._read()}

    def get(self, file: str, path: tuple[str, ...]) -> KeptEntry | None:
        return self._kept.get((file, path))

    def keep(self, kept: KeptEntry) -> None:
        self._kept[kept.file, kept.path] = kept

    def forget(self, file: str, path: tuple[str, ...]) -> None:
        self._kept.pop((file, path), None)

    def save(self) -> None:
        """Write the record atomically, readable by the user only.

        Raises:
            HelmsmanError: The file cannot be written.
        """
        content = {"version": _VERSION, "entries": [pack(kept) for kept in self._kept.values()]}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(content, indent=2))
        except OSError as error:
            raise HelmsmanError(
                f"{self.path} cannot be written: {error.strerror}. Fix its permissions, or set HELMSMAN_STATE_DIR."
            ) from error

    def _read(self) -> list[KeptEntry]:
        """Read the record. An unreadable file counts as empty: `uninstall` then removes the entries it recognizes."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            # Another version's record is not understood; guessing could restore wrong values.
            return [unpack(entry, KeptEntry) for entry in content["entries"]] if content["version"] == _VERSION else []
        except (OSError, ValueError, KeyError, TypeError):
            return []


DEFAULT_NAME: Final = "helmsman"
_CODEX_VARIABLE: Final = "CODEX_CLI_PATH"
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
"""Lines as a diff counts them; `splitlines` recognizes more line ends."""

EntryAction = Literal["added", "rewritten", "updated", "removed", "restored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Requested installation: `launch` starts Helmsman (`shared_launch` in project files).

    Without `tools`, our entries keep their toolsets, an old server becomes compat, and a new entry gets the default.
    With a `name`, no other entry is touched.
    """

    launch: tuple[str, ...]
    shared_launch: tuple[str, ...]
    tools: str | None = None
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EntryChange:
    """Change of one entry. `content` is the new entry; None if it is removed."""

    location: Location
    name: str
    action: EntryAction
    content: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Change:
    """New text of a file and the changed entries. `target` is the path with links resolved."""

    path: Path
    target: Path
    before: str | None
    after: str | None
    entries: tuple[EntryChange, ...]
    private: bool
    keep: tuple[KeptEntry, ...] = ()
    forget: tuple[tuple[str, ...], ...] = ()

    @property
    def diff(self) -> str:
        """Change as a unified diff."""
        before, after = self.before or "", self.after or ""
        name = str(self.path)
        lines = difflib.unified_diff(
            _LINES.findall(before),
            _LINES.findall(after),
            name if self.before is not None else "/dev/null",
            name if self.after is not None else "/dev/null",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def apply(self, record: Record) -> None:
        """Write the change, if the file is unchanged since. Replaced values are recorded before the file is written.

        Raises:
            ConfigurationUnusable: The file cannot be written; nothing was changed.
            ConfigurationChanged: The file was changed since; nothing was written.
        """
        # Recorded first: if writing fails, a useless record remains, and otherwise an original would be lost.
        if self.keep:
            for kept in self.keep:
                record.keep(kept)
            record.save()
        write_configuration(self.path, self.target, self.before, self.after, private=self.private)
        # Forgotten last, for the same reason.
        if self.forget:
            for path in self.forget:
                record.forget(str(self.path), path)
            record.save()


# --- installing ------------------------------------------------------------------------------------------------------


def plan_install(files: Sequence[ConfigurationFile], place: Location, wish: Wish, record: Record) -> list[Change]:
    """Return the changes that add Helmsman to a client. Empty if nothing needs to change.

    Args:
        files: Where to look for our entries and those of the old server.
        place: Where a new entry goes, if there is no entry to rewrite; in one of `files`.

    Raises:
        InvalidInput: The name is taken, or an old entry has options that would be lost.
    """
    entries = [entry for file in files for entry in file.entries]
    if wish.name is not None:
        chosen = [entry for entry in entries if entry.name == wish.name]
    else:
        # Without a name only entries of ours and of the old server are touched.
        chosen = [entry for entry in entries if entry.kind is not None]
    if not chosen:
        name = wish.name or DEFAULT_NAME
        chosen = [entry for entry in entries if entry.name == name]  # another entry of that name is in the way
    for entry in chosen:
        # All are checked before any file is changed.
        _refuse_what_cannot_be_taken_over(entry)
    changes = []
    for file in files:
        draft = _Draft(file)
        for entry in chosen:
            # One file may hold several scopes, and an entry belongs to one of them.
            if entry.location in file.locations:
                _take_over(draft, entry, wish, record)
        if not chosen and place in file.locations:
            _add(draft, place, wish.name or DEFAULT_NAME, wish)
        changes += draft.changes()
    return changes


def _refuse_what_cannot_be_taken_over(entry: Entry) -> None:
    # Commands may contain keys.
    words = redact(" ".join(words_of(entry.content)))
    if entry.kind is None:
        raise InvalidInput(
            f"{entry.location.path} already has a server {entry.name!r} that is something else"
            f"{f' ({words})' if words else ''}. Choose another name with --name."
        )
    if isinstance(entry.kind, OldServer) and entry.kind.options:
        raise InvalidInput(
            f"The server {entry.name!r} in {entry.location.path} runs `{words}`, and its options "
            f"({redact(' '.join(entry.kind.options))}) would be lost. Put them into Codex's config.toml and take them "
            f"out of the entry, or leave it alone and add another one: --name {DEFAULT_NAME}."
        )


def _add(draft: _Draft, place: Location, name: str, wish: Wish) -> None:
    # A file shared with others must not contain a path of this machine.
    launch = wish.shared_launch if place.shared else wish.launch
    options = () if wish.tools is None else ("--tools", wish.tools)
    content: dict[str, Any] = {"type": "stdio"} if place.client.typed else {}
    content |= {"command": launch[0], "args": [*launch[1:], "serve", *options]}
    if wish.env:
        content["env"] = dict(wish.env)
    content |= _time_limit(place, wish.tools, content)
    draft.add(place, name, content)


def _take_over(draft: _Draft, entry: Entry, wish: Wish, record: Record) -> None:
    """Rewrite our entry or an old server's; all other fields stay."""
    kind, place = entry.kind, entry.location
    launch = wish.shared_launch if place.shared else wish.launch
    env = dict(wish.env)
    if isinstance(kind, OwnEntry):
        options = kind.options if wish.tools is None else with_tools(kind.options, wish.tools)
        tools = wish.tools or kind.tools
    else:
        assert isinstance(kind, OldServer)
        tools = wish.tools or "compat"
        # Options of the old server become defaults of sessions.
        options = (*kind.defaults, "--tools", tools)
        if kind.binary is not None and Path(kind.binary).is_file():
            env = {_CODEX_VARIABLE: kind.binary, **env}  # the old entry selected this Codex
    content = entry.content
    fields: dict[tuple[str, ...], Any] = {("command",): launch[0], ("args",): [*launch[1:], "serve", *options]}
    # Single variables are set, so that others of the user stay.
    if isinstance(content.get("env"), Mapping):
        fields |= {("env", name): value for name, value in env.items()}
    elif env:
        fields["env",] = env
    fields |= {(name,): value for name, value in _time_limit(place, tools, content).items()}
    # Values from before the first change are the ones to restore.
    kept = record.get(str(draft.file.path), entry.path) if isinstance(kind, OwnEntry) else None
    draft.rewrite(entry, fields, kept)


def _time_limit(place: Location, tools: str | None, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field for a time limit of a whole turn, if calls block and the entry has no limit."""
    timeout = place.client.timeout
    # A limit that the user has set stays.
    if timeout is None or tools is None or "compat" not in tools.split(",") or timeout[0] in content:
        return {}
    return {timeout[0]: BLOCKING_CALL_SECONDS * timeout[1]}


# --- uninstalling ----------------------------------------------------------------------------------------------------


def plan_uninstall(files: Sequence[ConfigurationFile], name: str | None, record: Record) -> list[Change]:
    """Return the changes that remove Helmsman: rewritten entries are restored, added ones removed."""
    changes = []
    for file in files:
        draft = _Draft(file)
        for entry in reversed(file.entries):  # the entry added first may have created the parent of the others
            if isinstance(entry.kind, OwnEntry) and name in (None, entry.name):
                kept = record.get(str(file.path), entry.path)
                if kept is not None and kept.rewritten:
                    draft.restore(entry, kept)
                else:
                    draft.remove(entry, kept)
        changes += draft.changes()
    return changes


# --- drafts ----------------------------------------------------------------------------------------------------------


class _Draft:
    """File while it is edited. The expected value is tracked separately and compared with the edited text at the end."""

    def __init__(self, file: ConfigurationFile) -> None:
        self.file = file
        self._document: JsonFile | TomlFile = file.document
        self._expected: dict[str, Any] = copy.deepcopy(file.document.value)
        self._entries: list[EntryChange] = []
        self._keep: list[KeptEntry] = []
        self._forget: list[tuple[str, ...]] = []
        self._delete = False

    def add(self, place: Location, name: str, content: dict[str, Any]) -> None:
        path = (*place.servers, name)
        # How much of the path exists, so that `uninstall` removes what was created, and no more.
        present = next(n for n in range(len(place.servers), -1, -1) if self._has(path[:n]))
        empty = value_at(self._expected, path[:present]) == {}
        self._keep.append(
            KeptEntry(
                file=str(self.file.path),
                path=path,
                present=present,
                empty_source=self._document.source(path[:present]) if empty and present else None,
                new_file=self.file.is_new,
            )
        )
        self._set(path, content)
        self._entries.append(EntryChange(place, name, "added", content))

    def rewrite(self, entry: Entry, fields: Mapping[tuple[str, ...], Any], earlier: KeptEntry | None) -> None:
        pieces = []
        for field_path, value in fields.items():
            path = (*entry.path, *field_path)
            # Unchanged fields keep their spelling, and the diff stays small.
            if self._has(path) and value_at(self._expected, path) == value:
                continue
            pieces.append(Piece(field_path, self._document.source(path), value))
            self._set(path, value)
        if not pieces:
            return
        if isinstance(entry.kind, OldServer):
            self._keep.append(KeptEntry(file=str(self.file.path), path=entry.path, pieces=tuple(pieces)))
        elif earlier is not None and earlier.rewritten:
            # The value from before the first change is the one that `uninstall` restores.
            known = {piece.path: piece for piece in earlier.pieces}
            for piece in pieces:
                before = known[piece.path].before if piece.path in known else piece.before
                known[piece.path] = Piece(piece.path, before, piece.after)
            self._keep.append(KeptEntry(file=earlier.file, path=earlier.path, pieces=tuple(known.values())))
        action: EntryAction = "rewritten" if isinstance(entry.kind, OldServer) else "updated"
        self._entries.append(EntryChange(entry.location, entry.name, action, value_at(self._expected, entry.path)))

    def restore(self, entry: Entry, kept: KeptEntry) -> None:
        for piece in kept.pieces:
            path = (*entry.path, *piece.path)
            # command and args are always ours; other fields only with our value.
            ours = piece.path in (("command",), ("args",)) or value_at(self._expected, path) == piece.after
            if not ours or not self._has(path):
                continue  # the user has set another value since
            if piece.before is None:
                self._remove(path)
            else:
                self._put_back(path, piece.before)
        self._forget.append(entry.path)
        self._entries.append(EntryChange(entry.location, entry.name, "restored", value_at(self._expected, entry.path)))

    def remove(self, entry: Entry, kept: KeptEntry | None) -> None:
        self._remove(entry.path)
        if kept is not None:
            # Objects that were created for the entry go with it, if nothing else was put in.
            for length in range(len(entry.path) - 1, kept.present, -1):
                if value_at(self._expected, entry.path[:length]) == {}:
                    self._remove(entry.path[:length])
            owner = entry.path[: kept.present]
            # Restored in its own spelling, for example `{ }`.
            if kept.empty_source is not None and owner and value_at(self._expected, owner) == {}:
                self._put_back(owner, kept.empty_source)
            self._delete = kept.new_file
        self._forget.append(entry.path)
        self._entries.append(EntryChange(entry.location, entry.name, "removed", None))

    def changes(self) -> list[Change]:
        """Return the change, if there is one.

        Raises:
            ConfigurationUnusable: The file cannot be changed without losing content.
        """
        if not self._entries:
            return []
        try:
            # Compared as values: an unusual file must lead to an error, never to a loss.
            sound = self._document.value == self._expected
        except NotReadable:
            sound = False
        if not sound:
            raise ConfigurationUnusable(
                f"{self.file.path} is written in a way that cannot be changed safely. Change it by hand: "
                f"{'; '.join(f'{change.name}: {redact_value(change.content)}' for change in self._entries)}."
            )
        # A file that did not exist before is removed again.
        after = None if self._delete and not self._expected else self._document.text
        private = all(not location.shared for location in self.file.locations)
        kept, forgotten = tuple(self._keep), tuple(self._forget)
        return [
            Change(
                self.file.path, self.file.target, self.file.text, after, tuple(self._entries), private, kept, forgotten
            )
        ]

    def _has(self, path: Sequence[str]) -> bool:
        owner = value_at(self._expected, path[:-1])
        return not path or (isinstance(owner, Mapping) and path[-1] in owner)

    def _set(self, path: Sequence[str], value: Any) -> None:
        self._document = self._changed(lambda document: document.with_value(path, value))
        owner = self._expected
        for key in path[:-1]:
            owner = owner.setdefault(key, {})
        owner[path[-1]] = value

    def _put_back(self, path: Sequence[str], source: str) -> None:
        self._document = self._changed(lambda document: document.with_source(path, source))
        value_at(self._expected, path[:-1])[path[-1]] = value_at(self._document.value, path)

    def _remove(self, path: Sequence[str]) -> None:
        self._document = self._changed(lambda document: document.without(path))
        owner = value_at(self._expected, path[:-1])
        if isinstance(owner, dict):
            owner.pop(path[-1], None)

    def _changed(self, change: Callable[[JsonFile | TomlFile], JsonFile | TomlFile]) -> JsonFile | TomlFile:
        try:
            return change(self._document)
        except NotReadable as error:
            raise ConfigurationUnusable(f"{self.file.path}: {error}. Correct it there; nothing was changed.") from error
