"""`helmsman hub store`: a person sees how large the store is, checks it, compacts it and takes its contents elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import REGISTRY_NAME, Registry
from tests.cli.conftest import Cli
from tests.faults.test_storage import MOUNT, NAMESPACE, can_mount
from tests.store.stored_sessions import put_session

pytestmark = pytest.mark.anyio

OLD, NEW = "01980000-0000-7000-8000-00000000aaaa", "01980000-0000-7000-8000-00000000bbbb"
NOW = datetime.now(UTC)


@pytest.fixture
def path(bare_cli: Cli) -> Path:
    return Path(bare_cli.env["HELMSMAN_STATE_DIR"]) / REGISTRY_NAME


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    """A store with a session of last summer and one of today, open as a hub has it."""
    with closing(Registry(path)) as registry:
        task, _ = registry.add(TaskDraft(instruction="Fix it", session_id=OLD))
        registry.update(task.id, status="completed", result="Fixed.")
        long_ago = NOW - timedelta(days=100)
        registry.database.write(lambda to: put_session(to, OLD, long_ago, ("Fix it", "x" * 3_000_000)))
        registry.database.write(lambda to: put_session(to, NEW, NOW, ("Test it", "Again", "Done")))
        yield registry


async def test_the_store_is_shown_with_its_size_and_its_largest_sessions(
    bare_cli: Cli, path: Path, registry: Registry
) -> None:
    (shown,) = (await bare_cli.run("hub", "store", "--json")).json
    assert shown["path"] == str(path)
    assert (shown["sessions"], shown["events"], shown["tasks"], shown["retentionDays"]) == (2, 5, 1, 30)
    assert shown["bytes"] > 3_000_000
    assert datetime.fromisoformat(shown["oldestAt"]) == NOW - timedelta(days=100)
    assert [(one["sessionId"], one["events"]) for one in shown["largest"]] == [(NEW, 3), (OLD, 2)]
    assert shown["largest"][1]["bytes"] > 3_000_000
    done = await bare_cli.run("hub", "store", "show", HELMSMAN_RETENTION_DAYS="7")
    assert "2 sessions, 5 events, 1 task\n" in done.stdout
    assert "7 days after the last use of a session" in done.stdout
    assert f"{OLD}: 2 events, 3.0 MB, last used 100 days ago" in done.stdout


async def test_without_a_store_every_command_works_on_an_empty_one(bare_cli: Cli, path: Path) -> None:
    (shown,) = (await bare_cli.run("hub", "store", "--json")).json
    assert (shown["sessions"], shown["events"], shown["oldestAt"]) == (0, 0, None)
    for name in ("check", "compact", "export"):
        assert (await bare_cli.run("hub", "store", name)).exit_code == 0, name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- compact ---------------------------------------------------------------------------------------------------------


async def test_expired_rows_are_deleted_after_a_question_and_their_space_is_freed(
    bare_cli: Cli, registry: Registry
) -> None:
    refused = await bare_cli.run("hub", "store", "compact")
    assert refused.exit_code == 2
    assert "2 events of 1 session and 1 result will be deleted for good. Nothing was done." in refused.stderr
    async with bare_cli.on_terminal("hub", "store", "compact") as program:
        await program.shows("Delete?")
        program.press("n")
        await program.shows("Nothing was done.")
        assert await program.exit_code() == 1
    (done,) = (await bare_cli.run("hub", "store", "compact", "--yes", "--json")).json
    assert (done["sessions"], done["events"], done["results"]) == (1, 2, 1)
    assert done["bytesBefore"] > 3_000_000 > 300_000 > done["bytes"]
    (shown,) = (await bare_cli.run("hub", "store", "--json")).json
    assert (shown["sessions"], shown["events"], shown["freeBytes"]) == (2, 3, 0)
    assert (await bare_cli.run("hub", "store", "check")).exit_code == 0, "a compacted session has no gap"
    task, _ = registry.add(TaskDraft(instruction="What has it open works on"))
    assert registry.get(task.id) == task
    again = await bare_cli.run("hub", "store", "compact")
    assert (again.exit_code, again.stderr[:38]) == (0, "Deleted 0 events of 0 sessions and 0 r")


async def test_the_time_is_a_setting(bare_cli: Cli, registry: Registry) -> None:
    (done,) = (await bare_cli.run("hub", "store", "compact", "--yes", "--json", HELMSMAN_RETENTION_DAYS="101")).json
    assert done["events"] == 0
    wrong = await bare_cli.run("hub", "store", "compact", "--yes", HELMSMAN_RETENTION_DAYS="0")
    assert wrong.exit_code == 2
    assert "HELMSMAN_RETENTION_DAYS" in wrong.stderr


# --- check -----------------------------------------------------------------------------------------------------------


async def test_events_that_are_missing_or_belong_to_no_session_are_found(bare_cli: Cli, registry: Registry) -> None:
    assert (await bare_cli.run("hub", "store", "check")).stderr == "The store is whole.\n"
    registry.database.write(lambda to: to.execute("DELETE FROM events WHERE seq = 2 AND session = 2"))
    registry.database.write(lambda to: to.execute("UPDATE events SET session = 77 WHERE session = 1 AND seq = 2"))
    done = await bare_cli.run("hub", "store", "check", "--json")
    (said,) = done.json
    assert (done.exit_code, said["ok"]) == (1, False)
    assert said["problems"] == [
        "Without a session: 1 event.",
        f"Session {OLD} should have events 1 to 2, and has 1 from 1 to 1.",
        f"Session {NEW} should have events 1 to 3, and has 2 from 1 to 3.",
    ]
    assert "report this" in said["fix"]


def damage(path: Path) -> None:
    """Overwrite pages in the middle of the file, which hold one long text."""
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\xff" * 500_000)


async def test_a_damaged_store_is_kept_and_the_error_says_what_to_do(
    bare_cli: Cli, path: Path, registry: Registry, tmp_path: Path
) -> None:
    registry.close()
    damage(path)
    done = await bare_cli.run("hub", "store", "check")
    assert done.exit_code == 1
    assert "helmsman hub store export" in done.stderr
    copy = tmp_path / "saved.jsonl"
    saved = await bare_cli.run("hub", "store", "export", "--output", str(copy))
    assert saved.exit_code == 1
    assert f"could not be read: {OLD}" in saved.stderr
    read = [json.loads(line) for line in copy.read_text().splitlines()]
    assert [(one["sessionId"], one["seq"]) for one in read] == [(OLD, 1), (NEW, 1), (NEW, 2), (NEW, 3)]
    refused = await bare_cli.run("hub", "store", "compact", "--yes")
    assert (refused.exit_code, "nothing was deleted" in refused.stderr) == (1, True)
    assert [file.name for file in path.parent.iterdir() if "damaged" in file.name] == []


async def test_a_file_that_is_no_store_is_reported_by_every_command(bare_cli: Cli, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(b"not a database, " * 1000)
    for name in ("show", "export", "compact"):
        done = await bare_cli.run("hub", "store", name, "--json")
        (said,) = done.json
        assert (done.exit_code, said["error"]["code"]) == (1, "registry_unavailable")
        assert "damaged" in said["error"]["message"]
    (said,) = (await bare_cli.run("hub", "store", "check", "--json")).json
    assert (said["ok"], said["problems"]) == (False, ["file is not a database"])
    assert path.read_bytes().startswith(b"not a database")


# --- export ----------------------------------------------------------------------------------------------------------


async def test_events_are_exported_one_a_line_with_number_and_time(bare_cli: Cli, registry: Registry) -> None:
    exported = (await bare_cli.run("hub", "store", "export")).json
    assert [(one["sessionId"], one["seq"]) for one in exported] == [
        *((OLD, number) for number in (1, 2)),
        *((NEW, number) for number in (1, 2, 3)),
    ]
    assert exported[2] == {
        "type": "turn_requested",
        "text": "Test it",
        "sessionId": NEW,
        "seq": 1,
        "at": NOW.isoformat(),
    }
    one = (await bare_cli.run("hub", "store", "export", "--session", NEW[-8:])).json
    assert [event["text"] for event in one] == ["Test it", "Again", "Done"]
    unknown = await bare_cli.run("hub", "store", "export", "--session", "ffff0000")
    assert (unknown.exit_code, "There is no session ffff0000" in unknown.stderr) == (2, True)


async def test_an_export_is_for_its_user_alone_and_overwrites_nothing(
    bare_cli: Cli, registry: Registry, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        done = await bare_cli.run("hub", "store", "export", "--output", "mine.jsonl")
    finally:
        os.umask(before)
    file = bare_cli.directory / "mine.jsonl"
    assert done.stderr == "Exported 5 events of 2 sessions to mine.jsonl.\n"
    assert (stat.S_IMODE(file.stat().st_mode), len(file.read_text().splitlines())) == (0o600, 5)
    again = await bare_cli.run("hub", "store", "export", "--output", "mine.jsonl")
    assert (again.exit_code, "exists" in again.stderr) == (2, True)
    nowhere = await bare_cli.run("hub", "store", "export", "--output", "no/such/place.jsonl")
    assert (nowhere.exit_code, "choose another place" in nowhere.stderr) == (2, True)


# --- disks -----------------------------------------------------------------------------------------------------------


def on_file_system(cli: Cli, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script whose state directory is a small separate file system. `$H` is the command."""
    state = cli.env["HELMSMAN_STATE_DIR"]
    Path(state).mkdir(mode=0o700, exist_ok=True)
    mounted = [*NAMESPACE, "sh", "-c", MOUNT, "sh", options, state, "sh", "-c", script]
    env = {**cli.env, "H": f"{sys.executable} -m helmsman hub store", "S": state, "T": str(cli.directory)}
    return subprocess.run(mounted, env=env, cwd=cli.directory, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def copied(registry: Registry, path: Path, tmp_path: Path) -> Path:
    """A store in one file, to be put elsewhere."""
    registry.close()
    return Path(shutil.copy(path, tmp_path / "copy.sqlite3"))


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="This system does not let us mount a file system of our own.")
@pytest.mark.parametrize(
    ("options", "then", "advice"),
    [
        ("size=9M,mode=700", "mount -o remount,ro $S", "HELMSMAN_STATE_DIR"),
        ("size=3300k,mode=700", "head -c 9000000 /dev/zero > $S/full", "Make room on its disk"),
    ],
    ids=["read-only", "full"],
)
async def test_on_a_read_only_disk_reading_works_and_the_error_says_what_to_do(
    bare_cli: Cli, copied: Path, options: str, then: str, advice: str
) -> None:
    script = f"cp {copied} $S/{REGISTRY_NAME}; {then}; $H show; $H check; $H export; $H compact --yes --json"
    done = on_file_system(bare_cli, options, script)
    assert "2 sessions, 5 events" in done.stdout
    assert "The store is whole." in done.stderr
    assert '"seq": 3' in done.stdout
    said = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, said["error"]["code"]) == (1, "registry_unavailable")
    assert advice in said["error"]["message"]


@pytest.mark.skipif(not can_mount(), reason="This system does not let us mount a file system of our own.")
async def test_an_export_that_does_not_fit_leaves_no_half_of_it(bare_cli: Cli, copied: Path) -> None:
    script = f"cp {copied} $T/keep; HELMSMAN_STATE_DIR=$T/other; export HELMSMAN_STATE_DIR; mkdir -m 700 $T/other; "
    script += f"cp {copied} $T/other/{REGISTRY_NAME}; $H export --output $S/out.jsonl; ls $S"
    done = on_file_system(bare_cli, "size=1M,mode=700", script)
    assert "No space left on device. Make room there, or choose another place." in done.stderr
    assert "out.jsonl" not in done.stdout
