"""The command that an entry gets still works when this process, and its cache, are gone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.clients.entries import OwnEntry, recognise
from helmsman.clients.launch import Running, launch_words


def nothing_found(_name: str) -> None:
    return None


@pytest.fixture
def running(tmp_path: Path) -> Running:
    (tmp_path / "bin").mkdir()
    return Running(str(tmp_path / "__main__.py"), "/usr/bin/python3", str(tmp_path), str(tmp_path / "bin"))


def test_the_console_script_that_is_running_is_named_by_its_path(running: Running, tmp_path: Path) -> None:
    script = tmp_path / "venv-helmsman"
    script.touch()
    link = tmp_path / "helmsman"
    link.symlink_to(script)
    words = launch_words(replace(running, program=str(link)), shared=False, which=nothing_found)
    assert words == (str(link),)  # the link, not its current target


def test_run_as_a_module_the_console_script_beside_it_is_taken(running: Running) -> None:
    script = Path(running.scripts, "helmsman")
    script.touch()
    assert launch_words(running, shared=False, which=nothing_found) == (str(script),)


def test_without_a_console_script_python_runs_the_module(running: Running) -> None:
    assert launch_words(running, shared=False, which=nothing_found) == ("/usr/bin/python3", "-P", "-m", "helmsman")


@pytest.mark.parametrize(
    "prefix",
    [
        "/home/me/.cache/uv/archive-v0/x8Jk",
        "/Users/me/.cache/uv/environments-v2/helmsman-1",
        "/Users/me/Library/Caches/uv/archive-v0/q",
    ],
)
def test_from_the_cache_of_uvx_the_runner_is_named(running: Running, prefix: str) -> None:
    cached = replace(running, program=f"{prefix}/bin/helmsman", prefix=prefix)
    assert launch_words(cached, shared=False, which=nothing_found) == ("uvx", "codex-helmsman")
    assert launch_words(cached, shared=False, which=lambda name: f"/bin/{name}") == ("/bin/uvx", "codex-helmsman")


@pytest.mark.parametrize("prefix", ["/home/me/.cache/pipx/ab12", "/home/me/.local/pipx/.cache/ab12"])
def test_from_the_cache_of_pipx_a_runner_is_named(running: Running, prefix: str) -> None:
    cached = replace(running, prefix=prefix)
    assert launch_words(cached, shared=False, which=nothing_found) == ("pipx", "run", "codex-helmsman")
    assert launch_words(cached, shared=False, which=lambda name: f"/bin/{name}") == ("/bin/uvx", "codex-helmsman")


def test_a_lasting_environment_of_pipx_is_no_cache(running: Running) -> None:
    lasting = replace(running, prefix="/home/me/.local/share/pipx/venvs/codex-helmsman")
    assert launch_words(lasting, shared=False, which=nothing_found)[0] == "/usr/bin/python3"


def test_a_shared_file_gets_no_path_of_this_machine(running: Running) -> None:
    Path(running.scripts, "helmsman").touch()
    assert launch_words(running, shared=True, which=lambda name: f"/bin/{name}") == ("helmsman",)
    assert launch_words(running, shared=True, which=nothing_found) == ("uvx", "codex-helmsman")


@pytest.mark.parametrize("shared", [True, False])
def test_written_entries_are_recognised_as_ours(shared: bool) -> None:
    words = launch_words(Running.now(), shared=shared)
    kind = recognise({"command": words[0], "args": [*words[1:], "serve"]})
    assert kind == OwnEntry(words, ())
    assert shared or words[0].startswith((str(Path(sys.prefix)), str(Path(sys.executable).parent)))
