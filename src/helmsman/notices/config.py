"""Recipients of notifications: the table `[notify]` of the user's own `helmsman.toml`.

    [notify]
    events = ["question", "failed"]       # all there are, if left out
    unanswered_sec = 20                   # a question is sent when it has been open this long

    [[notify.to]]
    way = "desktop"

    [[notify.to]]
    way = "ntfy"
    topic = "my-topic"
    token_file = "~/.config/helmsman/ntfy-token"
    quiet = "22:00-07:00"

A project's file counts for nothing here: it came with a repository, which could send notifications to another person.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, cast
from urllib.parse import urlsplit

from msgspec.structs import force_setattr

from helmsman.base.addresses import is_loopback
from helmsman.base.caller_context import CallerContext, environment, expand_home
from helmsman.base.config_table import Contradiction, number, one_of, read_table, switch
from helmsman.base.files import is_inside
from helmsman.base.programs import available
from helmsman.base.structs import SecretValue, Value, replace
from helmsman.errors import InvalidSetting
from helmsman.notices.devices import DeviceBook, Subscription
from helmsman.notices.notifications import KINDS, NotificationKind
from helmsman.settings import ConfigFile, load_settings

if TYPE_CHECKING:
    from helmsman.notices.notifications import Notification

WayKind = Literal["desktop", "browser", "push", "command", "webhook", "ntfy"]
"""`push` is not in the file: browsers subscribe to it (`devices.py`)."""

ON_THE_MACHINE: Final = frozenset({"desktop", "browser"})
"""Ways by which nothing leaves the machine: these say everything, unless `detail` is `short`."""
_DEFAULT_EVENTS: Final[frozenset[NotificationKind]] = frozenset({"question", "done", "failed"})
_UNANSWERED: Final = 20.0
_MOST_WAYS: Final = 20
_MOST_WORDS: Final = 100
_SECRET_BYTES: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_QUIET: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\s*-\s*([01]\d|2[0-3]):([0-5]\d)")


class QuietHours(Value, frozen=True):
    """Quiet time between two local times of day."""

    begin: time
    end: time

    def until(self, now: datetime) -> datetime | None:
        """Return when the current quiet time ends; None if it is not quiet now."""
        local = now.astimezone()
        clock = local.time()
        # A range over midnight is the end of one day and the beginning of the next.
        is_quiet = self.begin <= clock < self.end if self.begin < self.end else clock >= self.begin or clock < self.end
        if not is_quiet:
            return None
        # Quiet hours over midnight end tomorrow, unless midnight has passed.
        day = local.date() + timedelta(days=1 if clock >= self.end else 0)
        return datetime.combine(day, self.end).astimezone()


class Recipient(SecretValue, frozen=True, kw_only=True):
    """One `[[notify.to]]`. Its `way` decides which of the fields below `is_full` apply."""

    secrets: ClassVar[tuple[str, ...]] = ("secret", "reply_token")
    name: str
    way: WayKind
    events: frozenset[NotificationKind] = frozenset(KINDS)
    projects: tuple[Path, ...] = ()
    agents: frozenset[str] = frozenset()
    quiet: QuietHours | None = None
    is_full: bool = False
    command: tuple[str, ...] = ()
    timeout: float = 30.0
    url: str = ""
    """Address of the webhook or of the ntfy server."""
    topic: str = ""
    secret: str | None = None
    """Key that signs a webhook, or token for ntfy."""
    answers: bool = False
    reply_topic: str = ""
    reply_token: str | None = None
    push: Subscription | None = None

    def wants(self, notification: Notification) -> bool:
        """Return whether it gets a notification. One without a project or agent passes the filters for these."""
        if notification.kind == "test":
            return True
        if notification.kind not in self.events or (
            self.agents and notification.agent is not None and notification.agent not in self.agents
        ):
            return False
        return not self.projects or notification.directory is None or is_inside(notification.directory, self.projects)


class NotifySettings(Value, frozen=True):
    """Recipients. `unanswered` is the number of seconds after which an open question is sent; `events` are those for
    recipients without their own; `push_hosts` are further push services that browsers may use.
    """

    to: tuple[Recipient, ...] = ()
    unanswered: float = _UNANSWERED
    events: frozenset[NotificationKind] = _DEFAULT_EVENTS
    push_hosts: tuple[str, ...] = ()

    @classmethod
    def of_machine(cls, state_dir: Path) -> Self:
        """Read the user's own file as the hub of this machine finds it. Blocks.

        Raises:
            InvalidSetting: A value is invalid.
        """
        # As the hub's own process sees `~` and the environment, not as a client does that calls at this moment.
        with CallerContext(os.environ, Path("/")).entered():
            own = cls.load(load_settings({}, os.environ, state_dir).files)
        browsers = tuple(
            Recipient(name=f"push-{one.id}", way="push", events=own.events, is_full=True, push=one.push)
            for one in DeviceBook(state_dir).all()
            if one.push is not None
        )
        return replace(own, to=(*own.to, *browsers))

    @classmethod
    def load(cls, files: Iterable[ConfigFile]) -> Self:
        """Read `[notify]` of the user's own file. Blocks: secrets may be in separate files.

        Without that table, notifications go to the desktop, if there is one. An empty table switches them off.

        Raises:
            InvalidSetting: A value is invalid; the message names the key, its value and the allowed values.
        """
        own = next((file for file in files if file.trusted), None)
        if own is None or "notify" not in own.content:
            return cls(_by_default())
        table = read_table(_NotifyTable, own.content["notify"], "notify", own.path)
        to: dict[str, Recipient] = {}
        for place, entry in enumerate(table.to, 1):
            name = f"notify.to[{place}]"
            one = _entry(entry, name, own.path).recipient(table.events or frozenset(KINDS))
            if one.name in to:
                raise InvalidSetting(
                    f"{name} in {own.path} would be another {one.name!r}. Give it another name: name = …"
                )
            to[one.name] = one
        return cls(tuple(to.values()), table.unanswered_sec, table.events or _DEFAULT_EVENTS, table.push_hosts)


def _by_default() -> tuple[Recipient, ...]:
    """Return the recipient for users who have set up none: their desktop, if the hub runs on one."""
    # macOS always has notifications. Elsewhere they need a display and notify-send.
    if sys.platform != "darwin":
        known = environment()
        if not (known.get("DISPLAY") or known.get("WAYLAND_DISPLAY")) or available("notify-send", known) is None:
            return ()
    return (Recipient(name="desktop", way="desktop", events=_DEFAULT_EVENTS, is_full=True),)


def with_recipient(path: Path, entry: Mapping[str, str | bool | Sequence[str]]) -> str:
    """Return the content of the user's file with one more recipient, which is checked. Blocks.

    Raises:
        InvalidSetting: The recipient, or another value of the file, is invalid.
    """
    try:
        before = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        before = ""
    # a JSON text or list of texts is a TOML one, too
    lines = ["[[notify.to]]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items())]
    content = "\n".join([before.rstrip() + "\n" if before.strip() else "", *lines]).lstrip("\n") + "\n"
    try:
        parsed = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{path} cannot be extended ({error}). Add it by hand: {' '.join(lines)}") from None
    NotifySettings.load([ConfigFile(path, parsed, trusted=True)])
    return content


# --- readers of values -----------------------------------------------------------------------------------------------


def _events(value: Any) -> frozenset[NotificationKind]:
    if not isinstance(value, list) or not value or not set(value) <= set(KINDS):
        raise ValueError(f"one or several of {', '.join(KINDS)}, in a list")
    return frozenset(cast("list[NotificationKind]", value))


def _entries(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_WAYS:
        raise ValueError(f"at most {_MOST_WAYS} tables, each begun with [[notify.to]]")
    return value


def _seconds(least: float, most: float) -> Callable[[Any], float]:
    return number(least, most, f"seconds, from {least:g} to {most:g}")


def _matching(pattern: re.Pattern[str], allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(allowed)
        return value

    return read


def _texts(allowed: str) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        texts = value if isinstance(value, list) else []
        if not 0 < len(texts) <= _MOST_WORDS or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(allowed)
        return tuple(texts)

    return read


def _words(value: Any) -> tuple[str, ...]:
    words = _texts("a program and its arguments, in a list")(value)
    program = expand_home(words[0])
    if os.sep in words[0] and not program.is_absolute():
        raise ValueError("a program by its whole path or by its name, and its arguments, in a list")
    return str(program) if os.sep in words[0] else words[0], *words[1:]


def _directories(value: Any) -> tuple[Path, ...]:
    paths = [expand_home(text) for text in _texts("directories, in a list")(value)]
    if not all(path.is_absolute() for path in paths):
        raise ValueError("directories by their whole paths (~ is your home), in a list")
    return tuple(path.resolve() for path in paths)


def _quiet(value: Any) -> QuietHours:
    found = _QUIET.fullmatch(value.strip()) if isinstance(value, str) else None
    # Two equal times could mean the whole day or no time at all.
    if found is None or found[1] + found[2] == found[3] + found[4]:
        raise ValueError('two times of the day, such as "22:00-07:00"')
    hours = [int(group) for group in found.groups()]
    return QuietHours(time(hours[0], hours[1]), time(hours[2], hours[3]))


def _address(value: Any) -> str:
    allowed = "an address such as https://example.org/path, without a password in it"
    if not isinstance(value, str) or len(value) > 2000 or not value.isprintable():
        raise ValueError(allowed)
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError(allowed)
    return value


def _secret(value: Any) -> str:
    # A token goes into an HTTP header, which takes ASCII only.
    if not isinstance(value, str) or not value.strip() or len(value) > _SECRET_BYTES or not value.isascii():
        raise ValueError("a text")
    return value.strip()


def _secret_file(value: Any) -> Path:
    if not isinstance(value, str) or not expand_home(value).is_absolute():
        raise ValueError("a file by its whole path (~ is your home)")
    return expand_home(value)


_topic: Final = _matching(_TOPIC, "letters, digits, _ and -, at most 64")


# --- tables ----------------------------------------------------------------------------------------------------------


class _NotifyTable(Value, frozen=True, kw_only=True):
    """Table `[notify]`."""

    events: Annotated[frozenset[NotificationKind] | None, _events] = None
    unanswered_sec: Annotated[float, _seconds(0, 24 * 3600)] = _UNANSWERED
    push_hosts: Annotated[tuple[str, ...], _texts("host names, in a list")] = ()
    to: Annotated[Sequence[Any], _entries] = ()


class _Entry(SecretValue, frozen=True, kw_only=True):
    """Table `[[notify.to]]`, with the keys of every channel."""

    secrets: ClassVar[tuple[str, ...]] = ("secret", "token", "reply_token")
    way: Annotated[WayKind, one_of("desktop", "browser", "command", "webhook", "ntfy")]
    name: Annotated[str | None, _matching(_NAME, "a short name of letters, digits, dots, dashes")] = None
    events: Annotated[frozenset[NotificationKind], _events] = frozenset(KINDS)
    projects: Annotated[tuple[Path, ...], _directories] = ()
    agents: Annotated[tuple[str, ...], _texts("names of agents, such as codex, in a list")] = ()
    quiet: Annotated[QuietHours | None, _quiet] = None
    detail: Annotated[Literal["full", "short"] | None, one_of("full", "short")] = None

    @property
    def is_full(self) -> bool:
        return self.detail == "full" or (self.detail is None and self.way in ON_THE_MACHINE)

    def recipient(self, events: frozenset[NotificationKind]) -> Recipient:
        """Return the recipient, for these events at most."""
        return Recipient(
            name=self.name or self.way,
            way=self.way,
            events=events & self.events,
            projects=self.projects,
            agents=frozenset(self.agents),
            quiet=self.quiet,
            is_full=self.is_full,
            **self._own(),
        )

    def _own(self) -> dict[str, Any]:
        """Return the fields of the channel alone."""
        return {}


class _Command(_Entry, frozen=True, kw_only=True):
    command: Annotated[tuple[str, ...], _words]
    timeout_sec: Annotated[float, _seconds(1, 600)] = 30.0

    def _own(self) -> dict[str, Any]:
        return {"command": self.command, "timeout": self.timeout_sec}


class _Webhook(_Entry, frozen=True, kw_only=True):
    url: Annotated[str, _address]
    insecure: Annotated[bool, switch] = False
    secret: Annotated[str | None, _secret] = None
    secret_file: Annotated[Path | None, _secret_file] = None

    def __post_init__(self) -> None:
        _require_encryption("url", self.url, insecure=self.insecure)
        _read_secret(self, "secret")

    def _own(self) -> dict[str, Any]:
        return {"url": self.url, "secret": self.secret}


class _Ntfy(_Entry, frozen=True, kw_only=True):
    topic: Annotated[str, _topic]
    server: Annotated[str, _address] = "https://ntfy.sh"
    insecure: Annotated[bool, switch] = False
    token: Annotated[str | None, _secret] = None
    token_file: Annotated[Path | None, _secret_file] = None
    answers: Annotated[bool, switch] = False
    reply_topic: Annotated[str | None, _topic] = None
    reply_token: Annotated[str | None, _secret] = None
    reply_token_file: Annotated[Path | None, _secret_file] = None

    def __post_init__(self) -> None:
        _require_encryption("server", self.server, insecure=self.insecure)
        _read_secret(self, "token")
        _read_secret(self, "reply_token")
        if self.answers and not self.is_full:
            raise Contradiction("answers", 'false, or set detail = "full": only what is shown can be approved')
        if self.answers and self.token is None:
            raise Contradiction("answers", "false, or set token_file: others must not be able to read the topic")
        if self.reply_topic == self.topic:
            raise Contradiction("reply_topic", "another topic than notices go to")

    def _own(self) -> dict[str, Any]:
        return {
            "url": self.server.rstrip("/"),
            "topic": self.topic,
            "secret": self.token,
            "answers": self.answers,
            # With the suffix it has the 64 characters that ntfy allows.
            "reply_topic": self.reply_topic or f"{self.topic[:56]}-replies",
            "reply_token": self.reply_token,
        }


_TABLES: Final[Mapping[object, type[_Entry]]] = {
    "desktop": _Entry,
    "browser": _Entry,
    "command": _Command,
    "webhook": _Webhook,
    "ntfy": _Ntfy,
}


def _entry(content: Any, name: str, path: Path) -> _Entry:
    way = content.get("way") if isinstance(content, dict) else None
    if isinstance(way, str) and way in _TABLES:
        return read_table(_TABLES[way], content, name, path)
    # Only the channel is wrong for certain: it decides which other keys there may be.
    return read_table(_Entry, {"way": way} if isinstance(content, dict) else content, name, path)


def _require_encryption(key: str, address: str, *, insecure: bool) -> None:
    parts = urlsplit(address)
    if parts.scheme == "http" and not is_loopback(str(parts.hostname)) and not insecure:
        raise Contradiction(key, "an https address (or add insecure = true, and it is sent unencrypted)")


def _read_secret(entry: _Entry, key: str) -> None:
    """Take a secret from its file, if a file is named."""
    path = getattr(entry, f"{key}_file")
    if path is None:
        return
    if getattr(entry, key) is not None:
        raise Contradiction(f"{key}_file", f"a file, or {key} to a text, and not both")
    try:
        force_setattr(entry, key, _secret(_content(path)))
    except ValueError as error:
        raise Contradiction(f"{key}_file", str(error)) from None


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # Checked on the open file, which cannot be exchanged in between.
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise ValueError(f"a file that only you can read (chmod 600 {path})")
            return file.read(_SECRET_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise ValueError(f"a file that can be read ({path}: {error.strerror})") from None
