"""`helmsman hub store`: show size and integrity of the file with all transcripts and tasks, and export it."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from helmsman.base.caller_context import from_here
from helmsman.base.sanitize import one_line
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.completing import complete_session
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import ago, counted, print_details, print_json, print_result
from helmsman.errors import InvalidInput, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database
    from helmsman.store.upkeep import Compacted, Problems, Summary

DAMAGED: Final = (
    "Save what can still be read: helmsman hub store export --output FILE. Then run `helmsman tasks`, which sets the "
    "damaged file aside and starts a new one."
)
_INCOMPLETE: Final = "Everything else can be used and exported. Please report this, with the output of this command."


@cli_group(
    "store",
    "Look at the store of transcripts and tasks, and compact it.",
    "helmsman hub store",
    "helmsman hub store compact",
    "helmsman hub store export --session 3b2d5c8e --output session.jsonl",
    itself="show",
)
def command(as_json: bool) -> None:
    """Look at the store: the file with the transcripts, tasks, schedules and notices of all sessions.

    Transcripts and results are deleted by themselves 30 days after the last use of their session
    (HELMSMAN_RETENTION_DAYS).
    """
    from helmsman.store.upkeep import summary

    with closing(_store()) as store, store.snapshot() as connection:
        found = summary(connection, store.size())
    days = settings_of_command().retention_days
    if as_json:
        print_json({"path": store.name, **_as_json(found), "retentionDays": days})
        return
    oldest = "none" if found.oldest_at is None else f"{found.oldest_at.astimezone():%Y-%m-%d %H:%M}"
    largest = (
        f"{one.session_id}: {counted(one.events, 'event')}, {_size(one.bytes)}, last used {ago(one.changed_at)}"
        for one in found.largest
    )
    free = "" if found.free_bytes is None else f", of which {_size(found.free_bytes)} are free"
    print_details(
        {
            "file" if settings_of_command().store is None else "database": one_line(store.name),
            "size": _size(found.bytes) + free,
            "contents": f"{counted(found.sessions, 'session')}, {counted(found.events, 'event')}, "
            f"{counted(found.tasks, 'task')}",
            "oldest": oldest,
            "kept for": f"{counted(days, 'day')} after the last use of a session",
            "largest": "\n".join(map(one_line, largest)),
        }
    )


@cli_command("check", "Check that the store is whole.", "helmsman hub store check", group=command)
def _check(as_json: bool) -> int:
    """Read the whole store, and check that it is undamaged and that no event is missing. Exit code 1 if not.

    Nothing is changed, and the hub may keep running.
    """
    with closing(_store()) as store:
        found = _problems(store)
    advice = DAMAGED if found.damage else _INCOMPLETE if found.gaps else None
    said = (*found.damage, *found.gaps)
    if as_json:
        print_json({"path": store.name, "ok": not said, "problems": said, "fix": advice})
    elif advice is None:
        click.echo("The store is whole.", err=True)
    else:
        for problem in said:
            click.echo(one_line(problem))
        click.echo(advice, err=True)
    return ExitCode.FAILED if said else ExitCode.OK


def _problems(store: Database) -> Problems:
    """Return the problems found. The database is read on a thread, so that Ctrl-C works immediately."""
    from helmsman.store.upkeep import problems

    with store.snapshot() as connection, ThreadPoolExecutor(1) as threads:
        reading = threads.submit(problems, store, connection)
        try:
            return reading.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


@cli_command(
    "compact",
    "Delete what is kept no longer, and free its space.",
    "helmsman hub store compact",
    "helmsman hub store compact --yes",
    group=command,
)
@yes_option
def _compact(agreed: bool, as_json: bool) -> None:
    """Delete the transcripts and results of sessions that were not used for the retention time, and free the space.

    You are asked first if there is anything to delete. Sessions with a task that runs or waits are left alone. Their agents
    keep their own transcripts. The hub may keep running.
    """
    from datetime import UTC, datetime

    from helmsman.store.upkeep import due
    from helmsman.tasks.registry import REGISTRY_NAME, Registry

    settings = settings_of_command()
    retention = timedelta(days=settings.retention_days)
    with closing(_store()) as store:
        if _problems(store).damage:  # a write that hits the damage would move the whole file aside
            raise RegistryUnavailable(f"The store {store.name} is damaged, and nothing was deleted. {DAMAGED}")
        with store.snapshot() as connection:
            planned = due(connection, datetime.now(UTC), retention)
        before = store.size().bytes
    if any(planned):
        lost = f"{_amount(planned)} will be deleted for good."
        agree(f"{lost} Delete?", agreed=agreed, as_json=as_json, otherwise=lost)
    path = settings.state_dir / REGISTRY_NAME
    with closing(Registry(path, address=settings.store, retention=retention)) as registry:
        done = registry.compact() if any(planned) else planned
        registry.database.reclaim()
        after = registry.database.size().bytes
    said = f"Deleted {_amount(done)}. The store had {_size(before)}, and has {_size(after)} now."
    print_result(said, {**done._asdict(), "bytesBefore": before, "bytes": after}, as_json=as_json)


@cli_command(
    "export",
    "Write transcripts as lines of JSON.",
    "helmsman hub store export --output store.jsonl",
    "helmsman hub store export --session 3b2d5c8e | jq .type",
    group=command,
)
@click.option("--session", "session_id", metavar="SESSION", shell_complete=complete_session, help="Only this session.")
@click.option(
    "--output", metavar="FILE", type=click.Path(), help="Write to a new file, for you alone.  [default: stdout]"
)
def _export(session_id: str | None, output: str | None, as_json: bool) -> int:
    """Write the events of all sessions, one a line, as docs/events.md describes them, each with its `seq` and `at`.

    They hold prompts, messages, commands and diffs in plain text. A damaged store is exported as far as it can be read.
    """
    from helmsman.cli.session_ids import the_one_meant
    from helmsman.store.upkeep import session_ids

    with closing(_store()) as store, store.snapshot() as connection, new_file(output) as file:
        wanted = session_ids(connection)
        if session_id is not None:
            wanted = [the_one_meant(session_id, dict.fromkeys(wanted, ""))]
        events, damaged = _write_events(connection, wanted, file)
    if output is not None:
        said = f"Exported {counted(events, 'event')} of {counted(len(wanted), 'session')} to {output}."
        print_result(said, {"events": events, "sessions": len(wanted), "damaged": damaged}, as_json=as_json)
    if damaged:
        click.echo(f"Of {counted(len(damaged), 'session')} not all could be read: {', '.join(damaged)}", err=True)
    return ExitCode.FAILED if damaged else ExitCode.OK


def _write_events(connection: StoreConnection, wanted: list[str], file: TextIO) -> tuple[int, list[str]]:
    """Write the events of sessions; return their number and the sessions with unreadable events."""
    from helmsman.shapes.rendering import json_line
    from helmsman.store.upkeep import exported

    events, damaged = 0, dict[str, None]()
    for session_id in wanted:
        for event in exported(connection, session_id):
            if event is None:
                damaged[session_id] = None
            else:
                file.write(f"{json_line(event)}\n")
                events += 1
    return events, list(damaged)


@contextmanager
def new_file(output: str | None) -> Iterator[TextIO]:
    """Open a new file for the user alone, or stdout. A file that cannot be completed is removed."""
    if output is None:
        yield sys.stdout
        return
    path = from_here(output)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(f"{path} exists. Choose another name, or remove it.") from None
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            yield file
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(path, error) from error
        raise


def _not_written(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be written: {error.strerror}. Make room there, or choose another place.")


def _store() -> Database:
    """Return the store, creating it if missing. An existing file is not opened, because a damaged one would be moved."""
    from helmsman.store import open_store
    from helmsman.tasks.registry import REGISTRY_NAME

    settings = settings_of_command()
    path = settings.state_dir / REGISTRY_NAME
    store = open_store(path, settings.store)
    if settings.store is not None or not path.exists():
        store.version()
    elif not path.is_file():
        raise RegistryUnavailable(f"{path} is not a file. Remove it, or set HELMSMAN_STATE_DIR to another directory.")
    return store


def _amount(of: Compacted) -> str:
    return f"{counted(of.events, 'event')} of {counted(of.sessions, 'session')} and {counted(of.results, 'result')}"


def _as_json(found: Summary) -> dict[str, Any]:
    return {
        "bytes": found.bytes,
        "freeBytes": found.free_bytes,
        "sessions": found.sessions,
        "events": found.events,
        "tasks": found.tasks,
        "oldestAt": None if found.oldest_at is None else found.oldest_at.isoformat(),
        "largest": [
            {
                "sessionId": one.session_id,
                "events": one.events,
                "bytes": one.bytes,
                "changedAt": one.changed_at.isoformat(),
            }
            for one in found.largest
        ],
    }


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
