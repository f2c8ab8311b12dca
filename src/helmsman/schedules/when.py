"""Compute the times of a schedule: a cron line, an interval, or one time.

A cron line uses the local time of its time zone, as in Debian's cron. A time inside the hour that daylight saving skips
runs right after it, and a time that occurs twice runs once. An interval is elapsed time, regardless of clock changes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.caller_context import environment
from helmsman.base.structs import Value
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_SHORTEST: Final = timedelta(minutes=1)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNIT: Final = "s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:(?:ee)?ks?)?"
_SPAN: Final = re.compile(rf"(?:\d+\s*(?:{_UNIT})(?![a-z]),?\s*(?:and\s+)?)+", re.ASCII)
_PART: Final = re.compile(rf"(\d+)\s*({_UNIT})(?![a-z])", re.ASCII)
_CLOCK: Final = re.compile(r"(?P<day>.*?)\s*\b(?:at\s+)?(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::00)?")
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ZONES: Final = "zoneinfo/"


class When(Value, frozen=True, kw_only=True):
    """Times of a schedule: one of `cron`, `every` and `at`. `since` is the start of intervals."""

    timezone: str
    since: datetime
    cron: str | None = None
    every: timedelta | None = None
    at: datetime | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment, or None."""
        if self.at is not None:
            return self.at if self.at > moment else None
        if self.every is not None:
            # A moment before `since` would count backwards.
            passed = max((moment - self.since) // self.every, 0)
            return self.since + (passed + 1) * self.every
        return self._by_cron(moment, is_backwards=False)

    def last_until(self, moment: datetime) -> datetime | None:
        """Return the last time up to a moment, or None."""
        if self.at is not None:
            return self.at if self.at <= moment else None
        if self.every is not None:
            passed = (moment - self.since) // self.every
            # The first run comes one interval after `since`, not at `since`.
            return self.since + passed * self.every if passed > 0 else None
        # CronSim yields only times before the given one.
        return self._by_cron(moment + timedelta(seconds=1), is_backwards=True)

    def _by_cron(self, moment: datetime, *, is_backwards: bool) -> datetime | None:
        # Loaded only where a cron line is read: most processes have no schedules.
        from cronsim import CronSim

        local = moment.astimezone(_zone(self.timezone))
        try:
            due: datetime = next(CronSim(self.cron or "", local, reverse=is_backwards))
        except StopIteration:
            return None
        return due.astimezone(UTC)

    def __str__(self) -> str:
        if self.at is not None:
            return f"once, {self.at.astimezone(_zone(self.timezone)):%Y-%m-%d %H:%M} {self.timezone}"
        if self.every is not None:
            return f"every {_span_text(self.every)}"
        return f"{self.cron} ({self.timezone})"


def parse_when(
    now: datetime,
    *,
    cron: str | None = None,
    every: str | None = None,
    at: str | None = None,
    timezone: str | None = None,
) -> When:
    """Parse when a schedule is due.

    Args:
        now: The current time.
        cron: Five fields, such as `0 7 * * 1-5`.
        every: An interval, such as `2h` or `1d 12h`.
        at: One time, such as `tomorrow 6:00`, `friday 18:30`, `2027-01-31 09:00`, `in 90 minutes`.
        timezone: Time zone of `cron` and `at`, such as `Europe/Berlin`; by default that of the machine.

    Raises:
        InvalidInput: No time is given, more than one is, or it never comes.
    """
    given = [text for text in (cron, every, at) if text is not None]
    if len(given) != 1:
        raise InvalidInput("Say when, in one way: cron, every or at.", parameter="cron")
    zone = _zone(timezone or local_timezone())
    made = partial(When, timezone=zone.key, since=now)
    if every is not None:
        return made(every=_interval(every))
    if at is not None:
        return made(at=_moment(at, now.astimezone(zone)))
    when = made(cron=_cron(cron or "", now.astimezone(zone)))
    if when.next_after(now) is None:
        raise InvalidInput(f"The cron line {cron!r:.100} names a day that never comes.", parameter="cron")
    return when


def local_timezone() -> str:
    """Return the name of the local time zone: that of `TZ`, else the machine's, else UTC."""
    # The standard library knows the local offset but not the zone's name. The link to the zone file has it.
    with suppress(OSError):
        named = environment().get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").readlink())
        # TZ may hold a path to the zone file instead of a name.
        name = named.partition(_ZONES)[2] or named
        with suppress(InvalidInput):
            return _zone(name).key
    return "UTC"


def _zone(name: str) -> ZoneInfo:
    # Loaded only where a zone is named.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    # ZoneInfo raises KeyError for an unknown name, ValueError for a path outside its database, and
    # OSError where the database cannot be read.
    except (KeyError, ValueError, OSError) as error:
        raise InvalidInput(
            f"There is no time zone {name!r:.100}. Use a name such as Europe/Berlin or UTC.", parameter="timezone"
        ) from error


def _cron(text: str, now: datetime) -> str:
    from cronsim import CronSim, CronSimError

    line = " ".join(text.split())
    try:
        CronSim(line, now)
        reason = "" if line.count(" ") == 4 else "Wrong number of fields"
    except CronSimError as error:
        reason = str(error)
    if reason:
        raise InvalidInput(
            f"The cron line {text!r:.100} is not understood: {reason[0].lower()}{reason[1:]}. Use five fields, such as "
            "'0 7 * * 1-5' for 7:00 from Monday to Friday.",
            parameter="cron",
        )
    return line


def _interval(text: str) -> timedelta:
    span = _span(text)
    if span is None:
        raise InvalidInput(f"{text!r:.100} is no interval. Use one such as 30m, 2h, 1d or 1d 12h.", parameter="every")
    if span < _SHORTEST:
        raise InvalidInput("The shortest interval is a minute.", parameter="every")
    return span


def _span(text: str) -> timedelta | None:
    text = text.strip().lower()
    if _SPAN.fullmatch(f"{text} ") is None:
        return None
    seconds = sum(int(number) * _UNITS[unit[0]] for number, unit in _PART.findall(text))
    # Beyond this, a sum with a date could overflow.
    return timedelta(seconds=seconds) if seconds <= timedelta.max.total_seconds() / 1000 else None


def _span_text(span: timedelta) -> str:
    left, words = int(span.total_seconds()), []
    for unit in ("d", "h", "m", "s"):
        number, left = divmod(left, _UNITS[unit])
        if number:
            words.append(f"{number}{unit}")
    return " ".join(words)


def _moment(text: str, now: datetime) -> datetime:
    """Parse one time in words, in the time zone of `now`."""
    words = text.strip().lower()
    try:
        found = _said_moment(words, now)
        moment = None if found is None else found.astimezone(UTC)
    except OverflowError:  # in the year 9999, somewhere on earth
        moment = None
    if moment is None:
        raise InvalidInput(
            f"{text!r:.100} is no time. Use one such as 'tomorrow 6:00', 'friday 18:30', '2027-01-31 09:00' or 'in 2h'.",
            parameter="at",
        )
    if moment <= now:
        raise InvalidInput(f"{text!r:.100} is past. Name a time to come.", parameter="at")
    return moment


def _said_moment(words: str, now: datetime) -> datetime | None:
    if words.startswith("in ") and (span := _span(words.removeprefix("in "))) is not None:
        # In UTC, since an interval is elapsed time, whatever the clocks do.
        return (now.astimezone(UTC) + span).astimezone(now.tzinfo)
    try:
        exact = datetime.fromisoformat(words.upper())
    except ValueError:
        return _on_a_day(words, now)
    with suppress(ValueError):
        date.fromisoformat(words.upper())
        return None  # of a day alone one cannot tell when
    return exact if exact.tzinfo is not None else _real(exact.replace(tzinfo=now.tzinfo))


def _on_a_day(words: str, now: datetime) -> datetime | None:
    clock = _CLOCK.fullmatch(words)
    if clock is None or int(clock["hour"]) > 23 or int(clock["minute"]) > 59:
        return None
    day, at = clock["day"].removesuffix(",").strip(), time(int(clock["hour"]), int(clock["minute"]))

    def in_days(days: int) -> datetime:
        return _real(datetime.combine(now.date() + timedelta(days=days), at, now.tzinfo))

    if day == "":
        return later if (later := in_days(0)) > now else in_days(1)
    if day in ("today", "tomorrow"):
        return in_days(("today", "tomorrow").index(day))
    # One or two letters could be two days: “t” is Tuesday and Thursday.
    named = [number for number, name in enumerate(_WEEKDAYS) if len(day) >= 3 and name.startswith(day)]
    if not named:
        return None
    ahead = (named[0] - now.weekday()) % 7
    # This weekday at a time that has passed today means next week.
    return later if (later := in_days(ahead)) > now else in_days(ahead + 7)


def _real(moment: datetime) -> datetime:
    """Return a wall-clock time that a change of clocks skips, as the clocks would have shown it unchanged."""
    there = moment.astimezone(UTC).astimezone(moment.tzinfo)
    return there if there.replace(tzinfo=None) != moment.replace(tzinfo=None) else moment
