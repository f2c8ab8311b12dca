"""`helmsman hub`: show and stop the process that holds all sessions, and print its log."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from xml.sax.saxutils import escape

import click

from helmsman.base.caller_context import environment, from_here
from helmsman.base.files import replace_file
from helmsman.base.programs import environment_for, find_program
from helmsman.base.sanitize import one_line, visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, cli_group, option, yes_option
from helmsman.cli.completing import complete_session
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.output import (
    Column,
    ago,
    agree,
    local,
    print_details,
    print_json,
    print_list,
    print_result,
    the_only_one,
)
from helmsman.errors import HelmsmanError, InvalidInput, ProgramRefused, RegistryUnavailable, Unsupported
from helmsman.hub.bridge import run_bridge
from helmsman.hub.control import ask_hub, keep_hub
from helmsman.hub.launch import LOG, HubFailed, NoHub, state_directory
from helmsman.shapes.rendering import json_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helmsman.store.connection import StoreConnection
    from helmsman.store.database import Database
    from helmsman.store.upkeep import Compacted, Problems, Summary

_NONE: Final = "No hub is running. One starts with the first client."
_LOG_LINES: Final = 50
_POLL_SECONDS: Final = 0.25


@cli_group(
    "hub",
    "Look at the hub, stop it, read its log and its store.",
    "helmsman hub",
    "helmsman hub log -f",
    "helmsman hub restart",
    itself="status",
)
def command(as_json: bool) -> None:
    """Look at the hub: the process that holds all sessions, one for each user and state directory.

    It starts with the first client and ends when no client is connected and nothing runs (HELMSMAN_HUB_IDLE_MS).
    Clients do not notice when it ends: the next one continues where it left off.
    """
    from helmsman.agents.registry import engine_overviews

    # Asked, not started: a look must not bring up a hub.
    state_dir = settings_of_command().state_dir
    hub = ask_hub(state_dir, "status")
    if as_json:
        print_json({"hub": hub, "engines": engine_overviews(state_dir)})
        return
    if hub is None:
        click.echo(_NONE, err=True)
        return
    memory = f", {hub['memoryBytes'] / 1e6:.0f} MB" if hub["memoryBytes"] else ""
    up = timedelta(seconds=round(hub["uptimeSeconds"]))
    click.echo(f"Hub {hub['pid']}, version {hub['version']}, up {up}{memory}, epoch {hub['epoch']}")
    click.echo(f"State directory: {one_line(hub['stateDirectory'])}")
    click.echo(f"At work: {counted(hub['sessionsAtWork'], 'session')}")
    if hub.get("nextScheduleAt"):
        click.echo(f"Next schedule: {local(datetime.fromisoformat(hub['nextScheduleAt']))}")
    if hub.get("noticesPending"):
        click.echo(f"Waiting to be sent: {counted(hub['noticesPending'], 'notice')}")
    click.echo(f"Engines: {len(engine_overviews(state_dir))}")
    click.echo(f"Clients: {len(hub['clients'])}")
    for client in hub["clients"]:
        name = f" ({one_line(client['client'])})" if client.get("client") else ""
        click.echo(f"  {client['pid']}  {client['kind']}{name}  {one_line(client['directory'])}")


@cli_command("run", "Keep a hub running.", "helmsman hub run", group=command, has_json=False)
def _run() -> None:
    """Keep a hub running, and start the next one when it dies, until `helmsman hub stop`. A system service runs this.

    Schedules and notices then need no client. A dashboard that was on when the machine went down is on again.
    `helmsman hub install` starts it with the machine.
    """
    from helmsman.cli.dashboard_process import resume  # it loads the server's options and TLS

    settings = settings_of_command()
    # A dashboard that was on belongs to what comes back with the machine.
    resume(settings)
    try:
        keep_hub(settings.state_dir)
    except (NoHub, HubFailed) as error:
        raise HelmsmanError(f"There can be no hub here: {error}") from error


@cli_command(
    "install",
    "Start the hub with the machine.",
    "helmsman hub install",
    "helmsman hub install --yes",
    group=command,
)
@yes_option
def _install(agreed: bool, as_json: bool) -> None:
    """Start the hub with the machine, as your own service (systemd on Linux, launchd on macOS).

    The file is shown first. Schedules then run after a restart without any client.
    """
    service = service_of(settings_of_command().state_dir)
    # Before the question, or the user would agree to a file without effect.
    service.refuse_if_nobody_reads_it()
    if not as_json:
        click.echo(f"{one_line(str(service.path))}:\n\n{visible(service.text)}", err=True)
    agree(
        "Write this file, and start the service?",
        agreed=agreed,
        as_json=as_json,
        otherwise="A file in your home would be written.",
    )
    left = service.install()
    said = "Installed." if left is None else f"Written. {left}"
    print_result(said, {"installed": str(service.path), "toDo": left}, as_json=as_json)


@cli_command("uninstall", "Stop starting the hub with the machine.", "helmsman hub uninstall", group=command)
def _uninstall(as_json: bool) -> None:
    """Remove what `helmsman hub install` wrote. A running hub keeps running."""
    service = service_of(settings_of_command().state_dir)
    was_there = service.uninstall()
    said = f"Removed {service.path}." if was_there else "It was not installed."
    print_result(said, {"uninstalled": str(service.path) if was_there else None}, as_json=as_json)


@cli_command("stop", "Stop the hub.", "helmsman hub stop", group=command)
@yes_option
def _stop(agreed: bool, as_json: bool) -> None:
    """Stop the hub. Turns keep running in their engines; the next client request starts the next hub.

    On a terminal you are asked first if something is running.
    """
    _end("stop", agreed=agreed, as_json=as_json)


@cli_command("restart", "Stop the hub and let the next one take over.", "helmsman hub restart", group=command)
@yes_option
def _restart(agreed: bool, as_json: bool) -> None:
    """Stop the hub and let the next one take over, at once if clients are connected. Turns keep running in their engines."""
    _end("restart", agreed=agreed, as_json=as_json)


def _end(how: str, *, agreed: bool, as_json: bool) -> None:
    state_dir = settings_of_command().state_dir
    hub = ask_hub(state_dir, "status")
    if hub is not None and hub["sessionsAtWork"]:
        count = counted(hub["sessionsAtWork"], "session")
        fate = "Turns keep running in their engines, and their questions and queued messages wait for the next hub."
        agree(f"{count} running. {fate} Stop the hub?", agreed=agreed, as_json=as_json, otherwise=None)
    stopped: dict[str, Any] | None = ask_hub(state_dir, how) if hub is not None else None
    then = " Clients that are connected start the next one." if how == "restart" else ""
    said = _NONE if stopped is None else f"Stopped hub {stopped['pid']}.{then}"
    print_result(said, {"stopped": None if stopped is None else stopped["pid"]}, as_json=as_json)


@cli_command(
    "connect",
    "Connect another machine to the hub.",
    "ssh build helmsman hub connect",
    group=command,
    has_json=False,
)
@click.argument("state", metavar="[STATE]", required=False)
def _connect(state: str | None) -> int:
    """Connect stdin and stdout to the hub: what `helmsman --host NAME` runs on this machine, over SSH.

    Helmsman itself runs it. STATE is a state directory, in hex.
    """
    return run_bridge(() if state is None else (state,))


@cli_command("log", "Read the hub's log.", "helmsman hub log -f", group=command, has_json=False)
@option("-f --follow", "Keep reading until Ctrl-C.")
def _log(follow: bool) -> None:
    """Read the end of the hub's log."""
    path = settings_of_command().state_dir / LOG
    if not path.exists():
        click.echo(f"There is no log yet: {path}", err=True)
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        # The end of a long log is what is wanted.
        for line in file.readlines()[-_LOG_LINES:]:
            click.echo(visible(line.rstrip("\n")))
        position = file.tell()
    while follow:
        position = _print_rest(path, position)
        time.sleep(_POLL_SECONDS)


def _print_rest(path: Path, position: int) -> int:
    """Print lines added since `position`; a shorter file is a new log."""
    with path.open(encoding="utf-8", errors="replace") as file:
        # The log was replaced.
        file.seek(position if position <= os.fstat(file.fileno()).st_size else 0)
        for line in file:
            click.echo(visible(line.rstrip("\n")))
        return file.tell()


_UNIT: Final = "helmsman-hub.service"
_LABEL: Final = "dev.helmsman.hub"
_SECONDS: Final = 30


@dataclass(frozen=True)
class Service:
    """Service file and the commands that load it."""

    path: Path
    text: str
    command: tuple[str, ...]  # command that the service runs
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    remark: str = ""  # further note for the user

    @property
    def is_installed(self) -> bool:
        return self.path.exists()

    def refuse_if_nobody_reads_it(self) -> None:
        """Check that this system has the service manager.

        Raises:
            Unsupported: It does not.
            ProgramRefused: A session could have written the program.
        """
        program = self.start[0][0]
        if find_program(program) is None:
            raise Unsupported(
                f"There is no {program} here, so nothing would read {self.path}; nothing was written. Let the "
                "program that starts others at boot (runit, OpenRC, cron's @reboot, a container's entry point) run, "
                f"as you: {shlex.join(self.command)}"
            )

    def install(self) -> str | None:
        """Write the file and start the service; return the remaining manual step. Blocks."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.text.encode())
        for command in self.start:
            if (problem := _run_manager(command)) is not None:
                return f"It could not be started ({problem}). Run: {' '.join(command)}"
        return self.remark or None

    def uninstall(self) -> bool:
        """Stop the service and remove the file; return whether it existed. Blocks."""
        if not self.is_installed:
            return False
        # A failure is ignored: the file has to go in any case.
        for command in self.stop:
            _run_manager(command)
        self.path.unlink()
        return True


def service_of(state_dir: Path) -> Service:
    """Return the service that starts the hub of a state directory with the machine."""
    env = environment()
    home = Path(env.get("HOME") or Path.home())
    # `-P`: no module of the directory that the service starts in is imported.
    command = (sys.executable, "-P", "-m", "helmsman", "hub", "run")
    # Agents are found by PATH, and services have a different one.
    variables = {"PATH": env.get("PATH", os.defpath)}
    # A service gets no other variable of the user's shell.
    if state_directory({"HOME": str(home)}) != str(state_dir):
        variables["HELMSMAN_STATE_DIR"] = str(state_dir)
    if sys.platform == "darwin":
        return _launchd(home, command, variables)
    return _systemd(Path(env.get("XDG_CONFIG_HOME") or home / ".config"), command, variables)


def _systemd(configuration: Path, command: tuple[str, ...], variables: dict[str, str]) -> Service:
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()]
    text = "\n".join(
        [
            "[Unit]",
            "Description=Helmsman: schedules, notices and sessions of coding agents",
            "",
            "[Service]",
            # In commands, unlike in `Environment`, systemd replaces `$NAME`.
            f"ExecStart={' '.join(map(_quoted, command)).replace('$', '$$')}",
            *lines,
            "Restart=on-failure",
            "# Agents at work outlive the hub.",
            # Systemd would otherwise end all processes of the service, with the agents in them.
            "KillMode=process",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )
    systemctl = ("systemctl", "--user")
    return Service(
        path=configuration / "systemd" / "user" / _UNIT,
        text=text,
        command=command,
        start=((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", _UNIT)),
        stop=((*systemctl, "disable", "--now", _UNIT), (*systemctl, "daemon-reload")),
        remark="It runs while you are logged in; to have it run before that, too: loginctl enable-linger",
    )


def _quoted(word: str) -> str:
    """Quote a word for systemd."""
    # Systemd expands percent signs.
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _launchd(home: Path, command: tuple[str, ...], variables: dict[str, str]) -> Service:
    path = home / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
    words = "".join(f"<string>{escape(word)}</string>" for word in command)
    given = "".join(f"<key>{escape(name)}</key><string>{escape(value)}</string>" for name, value in variables.items())
    # `KeepAlive` is launchd's `Restart=on-failure`, `AbandonProcessGroup` its `KillMode=process`.
    text = f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{_LABEL}</string>
  <key>ProgramArguments</key><array>{words}</array>
  <key>EnvironmentVariables</key><dict>{given}</dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>AbandonProcessGroup</key><true/>
</dict>
</plist>
"""
    # launchd knows users by number.
    domain = f"gui/{os.getuid()}"
    return Service(
        path=path,
        text=text,
        command=command,
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(("launchctl", "bootout", f"{domain}/{_LABEL}"),),
    )


def _run_manager(command: Sequence[str]) -> str | None:
    """Run a command and return its failure, or None."""
    try:
        program = find_program(command[0])
    except ProgramRefused as error:
        return error.message
    if program is None:
        return f"there is no {command[0]}"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            env=environment_for(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


_COLUMNS: Final = (
    Column("ID", "cyan"),
    Column("AGENT"),
    Column("VERSION"),
    Column("STATUS"),
    Column("TURNS"),
    Column("STARTED", left_out=2),
    Column("PLACE", "dim", gives_way="at its beginning", left_out=1),
)
_FIELDS: Final = ("id", "version", "status", "running", "waiting", "pid", "startedAt", "place", "agent")


@cli_group(
    "engines",
    "List and stop the engines that run without you.",
    "helmsman hub engines",
    "helmsman hub engines stop 3f2a9c1e",
    "helmsman hub engines stop --all",
    parent=command,
)
def engines_command(as_json: bool) -> None:
    """List and stop the engines that keep working after the process that started them has ended.

    One Codex engine holds all its sessions, an engine of another agent holds one. An idle engine without
    clients ends after HELMSMAN_ENGINE_IDLE_MS (15 minutes).
    """
    from helmsman.agents.registry import engine_overviews

    engines = engine_overviews(settings_of_command().state_dir)
    print_list(
        {"engines": engines},
        # Tabs for programs have all fields, in a fixed order.
        [["" if engine[field] is None else str(engine[field]) for field in _FIELDS] for engine in engines],
        _COLUMNS,
        lambda _: [_cells(engine) for engine in engines],
        nothing="No engine is running. One starts with the first session.",
        as_json=as_json,
    )


@cli_command(
    "stop",
    "Stop an engine and everything in it.",
    "helmsman hub engines stop 3f2a9c1e",
    "helmsman hub engines stop --all",
    group=engines_command,
)
@click.argument("engine_id", metavar="ID", required=False)
@option("--all", "Stop all of them.", to="every")
@yes_option
def _stop_engine(engine_id: str | None, every: bool, agreed: bool, as_json: bool) -> None:
    """Stop an engine and everything in it: its turns are interrupted; their sessions can be continued later.

    On a terminal you are asked first if turns are running.
    """
    from helmsman.agents.registry import engine_overviews, stop_engine

    if (engine_id is None) is not every:
        raise InvalidInput("Name one engine, or give --all. `helmsman hub engines` lists them.")
    state_dir = settings_of_command().state_dir
    found = [engine for engine in engine_overviews(state_dir) if every or engine["id"].startswith(engine_id or "")]
    if engine_id is not None:
        the_only_one(found, "engine", engine_id, "helmsman hub engines")
    under_way = sum((engine["running"] or 0) + (engine["waiting"] or 0) for engine in found)
    if under_way:
        lost = f"{counted(under_way, 'turn')} under way {'is' if under_way == 1 else 'are'} interrupted."
        agree(f"{lost} Stop?", agreed=agreed, as_json=as_json, otherwise=None)
    for engine in found:
        stop_engine(state_dir, engine["id"])
    said = "\n".join(f"Stopped engine {engine['id']}." for engine in found) or "No engine is running."
    print_result(said, {"stopped": [engine["id"] for engine in found]}, as_json=as_json)


def _cells(engine: dict[str, Any]) -> tuple[str, ...]:
    started = ago(datetime.fromisoformat(engine["startedAt"]))
    known = (
        engine["id"],
        engine["agent"],
        one_line(engine["version"] or ""),
        engine["status"],
        _turns(engine),
        started,
    )
    return *known, one_line(engine["place"])


def _turns(engine: dict[str, Any]) -> str:
    parts = [f"{engine['running']} running"] if engine["running"] else []
    parts += [f"{engine['waiting']} asking"] if engine["waiting"] else []
    return ", ".join(parts) or "none"


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
    parent=command,
)
def store_command(as_json: bool) -> None:
    """Look at the store: the file with the transcripts, tasks, schedules and notices of all sessions.

    Transcripts and results are deleted by themselves 30 days after the last use of their session
    (HELMSMAN_RETENTION_DAYS).
    """
    from helmsman.store.upkeep import summary

    # A snapshot, because the hub continues to write.
    with closing(_store()) as store, store.snapshot() as connection:
        found = summary(connection, store.size())
    days = settings_of_command().retention_days
    if as_json:
        print_json({"path": store.name, **_as_json(found), "retentionDays": days})
        return
    oldest = "none" if found.oldest_at is None else local(found.oldest_at)
    largest = (
        f"{one.session_id}: {counted(one.events, 'event')}, {_in_bytes(one.bytes)}, last used {ago(one.changed_at)}"
        for one in found.largest
    )
    free = "" if found.free_bytes is None else f", of which {_in_bytes(found.free_bytes)} are free"
    print_details(
        {
            "file" if settings_of_command().store is None else "database": one_line(store.name),
            "size": _in_bytes(found.bytes) + free,
            "contents": f"{counted(found.sessions, 'session')}, {counted(found.events, 'event')}, "
            f"{counted(found.tasks, 'task')}",
            "oldest": oldest,
            "kept for": f"{counted(days, 'day')} after the last use of a session",
            "largest": "\n".join(map(one_line, largest)),
        }
    )


@cli_command("check", "Check that the store is whole.", "helmsman hub store check", group=store_command)
def _check_store(as_json: bool) -> int:
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
            # Ends the query on the other thread.
            connection.interrupt()
            raise


@cli_command(
    "compact",
    "Delete what is kept no longer, and free its space.",
    "helmsman hub store compact",
    "helmsman hub store compact --yes",
    group=store_command,
)
@yes_option
def _compact(agreed: bool, as_json: bool) -> None:
    """Delete the transcripts and results of sessions that were not used for the retention time, and free the space.

    You are asked first if there is anything to delete. Sessions with a task that runs or waits are left alone. Their agents
    keep their own transcripts. The hub may keep running.
    """
    from helmsman.store.upkeep import due
    from helmsman.tasks.registry import REGISTRY_NAME, Registry

    settings = settings_of_command()
    retention = timedelta(days=settings.retention_days)
    with closing(_store()) as store:
        if _problems(store).damage:  # a write that hits the damage would move the whole file aside
            raise RegistryUnavailable(f"The store {store.name} is damaged, and nothing was deleted. {DAMAGED}")
        with store.snapshot() as connection:
            # Planned on a snapshot, so that the user agrees to a number.
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
    said = f"Deleted {_amount(done)}. The store had {_in_bytes(before)}, and has {_in_bytes(after)} now."
    print_result(said, {**done._asdict(), "bytesBefore": before, "bytes": after}, as_json=as_json)


@cli_command(
    "export",
    "Write transcripts as lines of JSON.",
    "helmsman hub store export --output store.jsonl",
    "helmsman hub store export --session 3b2d5c8e | jq .type",
    group=store_command,
)
@option("--session SESSION", "Only this session.", to="session_id", shell_complete=complete_session)
@option("--output FILE", "Write to a new file, for you alone.  [default: stdout]", type=click.Path())
def _export(session_id: str | None, output: str | None, as_json: bool) -> int:
    """Write the events of all sessions, one a line, as docs/events.md describes them, each with its `seq` and `at`.

    They hold prompts, messages, commands and diffs in plain text. A damaged store is exported as far as it can be read.
    """
    from helmsman.cli.on_session import the_one_meant
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
        click.echo(
            f"Some events of {counted(len(damaged), 'session')} could not be read: {', '.join(damaged)}", err=True
        )
    return ExitCode.FAILED if damaged else ExitCode.OK


def _write_events(connection: StoreConnection, wanted: list[str], file: TextIO) -> tuple[int, list[str]]:
    """Write the events of sessions; return their number and the sessions with unreadable events."""
    from helmsman.store.upkeep import exported

    events, damaged = 0, dict[str, None]()
    for session_id in wanted:
        for event in exported(connection, session_id):
            # Unreadable events are left out and named.
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
        # Exclusive: an export must not overwrite a file, and holds prompts in plain text.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(f"{path} exists. Choose another name, or remove it.") from None
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            yield file
    except BaseException as error:
        # Half an export looks like a whole one.
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
        # Creates a missing one, or checks that Postgres answers.
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


def _in_bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
