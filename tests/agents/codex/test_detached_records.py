"""Tests of the records of detached engines."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from helmsman.agents.codex.app_servers import can_detach, listens, why_bound
from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.features import Version
from helmsman.agents.environment import digest_of
from helmsman.agents.supervisor.directory import (
    forget,
    is_attached,
    make_directory,
    mark_draining,
    private_directory,
    socket_path,
    try_attach,
    try_claim,
    try_own,
    write_content,
)
from helmsman.agents.supervisor.records import ProcessRecord, read_record, read_records
from helmsman.base.caller_context import UMASK
from helmsman.base.processes import Process, running_process
from helmsman.base.structs import replace

pytestmark = pytest.mark.skipif(os.name != "posix", reason="There are no detached engines here.")


@pytest.fixture
def record(tmp_path: Path) -> ProcessRecord:
    """Engine whose supervisor is this process."""
    directory = tmp_path / "engines" / "e1"
    make_directory(directory)
    supervisor = running_process(os.getpid())
    assert supervisor is not None
    child = Process(supervisor.pid, "never")
    content = {
        "socket": str(socket_path(directory)),
        "supervisor": supervisor,
        "child": child,
        "agent": "codex",
        "engine_id": "e1",
        "place": "/home/u/.codex",
        "idle": 60.0,
        "started_at": 1_800_000_000.0,
    }
    write_content(directory, content)
    return ProcessRecord(
        directory=directory,
        socket=socket_path(directory),
        supervisor=supervisor,
        child=child,
        agent="codex",
        engine_id="e1",
        place="/home/u/.codex",
        idle=60.0,
        started_at=1_800_000_000.0,
        about=json.loads(json.dumps(content)),
    )


def test_a_record_is_read_as_it_was_written(record: ProcessRecord, tmp_path: Path) -> None:
    assert read_record(record.directory) == record
    assert read_records(tmp_path) == [record]


def test_only_its_user_can_read_it(record: ProcessRecord) -> None:
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in record.directory.iterdir()}
    assert modes == {"process.json": 0o600, "attached": 0o600}
    assert stat.S_IMODE(record.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"supervisor": 1}', '{"supervisor": ["x"], "codex": []}', "[" * 100_000]
)
def test_a_record_that_makes_no_sense_is_none(record: ProcessRecord, content: str) -> None:
    (record.directory / "process.json").write_text(content, encoding="utf-8")
    assert read_record(record.directory) is None


def test_a_process_is_the_one_that_began_then(record: ProcessRecord) -> None:
    assert record.supervisor.is_alive()
    assert not record.child.is_alive()  # same pid, another beginning
    assert not Process(2**22 + 1, "1").is_alive()


def test_an_engine_of_which_nothing_runs_is_not_listed(record: ProcessRecord, tmp_path: Path) -> None:
    write_content(record.directory, {**record.about, "supervisor": record.child})
    assert read_records(tmp_path) == []
    assert read_records(tmp_path / "elsewhere") == []


def test_a_link_among_the_engines_is_not_followed(record: ProcessRecord, tmp_path: Path) -> None:
    (tmp_path / "engines" / "e2").symlink_to(record.directory)
    assert read_records(tmp_path) == [record]


def test_draining_is_marked_for_everyone(record: ProcessRecord) -> None:
    assert not record.is_draining
    mark_draining(record.directory)
    found = read_record(record.directory)
    assert found is not None
    assert found.is_draining


def test_several_attach_at_once_and_the_supervisor_waits_for_all(record: ProcessRecord) -> None:
    with try_attach(record.directory) as one:
        with try_attach(record.directory) as two, try_claim(record.directory) as claimed:
            assert (one, two, claimed) == (True, True, False)
        assert is_attached(record.directory)
        with try_claim(record.directory) as claimed:
            assert not claimed
    assert not is_attached(record.directory)
    with try_claim(record.directory) as claimed, try_attach(record.directory) as attached:
        assert (claimed, attached) == (True, False)


def test_a_forgotten_engine_is_not_attached_to(record: ProcessRecord) -> None:
    forget(record.directory, record.socket)
    assert not record.directory.exists()
    with try_attach(record.directory) as attached:
        assert not attached


def test_a_socket_lies_with_its_engine_where_its_address_is_short_enough() -> None:
    assert socket_path(Path("/s/engines/e1")) == Path("/s/engines/e1/supervisor.sock")


def test_a_long_address_is_made_short_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Path("/" + "x" * 120)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert len(os.fsencode(socket_path(long))) <= 100
    assert socket_path(long) == socket_path(long)
    assert socket_path(long) != socket_path(long / "e2")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run")
    assert socket_path(long).parent == Path("/run/helmsman")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("y" * 90)))
    assert len(os.fsencode(socket_path(long))) <= 100


def test_a_directory_for_sockets_must_be_ones_own(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert stat.S_IMODE(private_directory(open_to_all).stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(open_to_all)
    with pytest.raises(PermissionError):
        private_directory(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError):
        private_directory(tmp_path / "file")


def test_the_environment_counts_as_far_as_codex_cares() -> None:
    base = {"HOME": "/home/u", "PATH": "/bin", "TERM_SESSION_ID": "1", "OPENAI_API_KEY": "sk-1"}
    assert digest_of(base) == digest_of({**base, "TERM_SESSION_ID": "2", "PWD": "/x", "SHLVL": "3"})
    assert digest_of(base) == digest_of({**base, "CODEX_CLI_PATH": "/usr/bin/codex"})
    assert digest_of(base) == digest_of({**base, "STARSHIP_SESSION_KEY": "7", "VSCODE_GIT_ASKPASS_URL": "x"})
    for name in (
        "PATH",
        "OPENAI_API_KEY",
        "MISTRAL_API_KEY",
        "https_proxy",
        "CODEX_SQLITE_HOME",
        "DATABASE_URL",
        UMASK,
    ):
        assert digest_of(base) != digest_of({**base, name: "other"})
    assert "sk-1" not in digest_of(base)
    assert digest_of({"PATH": "/b\udcffn"}) != digest_of({"PATH": "/bn"})


def test_a_process_has_one_owner(record: ProcessRecord) -> None:
    with try_own(record.directory) as one, try_own(record.directory) as two:
        assert (one, two) == (True, False)
    with try_own(record.directory) as again:
        assert again


def test_a_codex_that_cannot_detach_says_what_that_means() -> None:
    binary = CodexBinary(
        path=Path("/usr/bin/codex"),
        version=Version.parse("0.115.0"),
    )
    assert can_detach(binary)
    assert why_bound(binary) is None
    unable = replace(binary, version=Version.parse("0.20.0"))
    assert not can_detach(unable)
    said = why_bound(unable)
    assert said is not None
    assert said.startswith("Codex 0.20.0 cannot run as an app-server:")
    assert said.endswith("sessions continue from disk.")


@pytest.mark.parametrize(("version", "is_listening"), [("0.93.0", False), ("0.155.0", False), ("0.163.0", True)])
def test_only_a_codex_that_keeps_its_commands_from_its_socket_listens(version: str, is_listening: bool) -> None:
    assert listens(CodexBinary(path=Path("/usr/bin/codex"), version=Version.parse(version))) is is_listening
