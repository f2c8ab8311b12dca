"""Programs that Helmsman starts are taken only from where no session and no other user could have put them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmsman.base import programs
from helmsman.errors import ProgramRefused


class Machine:
    """Directories with programs, and the environment of a user who has them on PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.home = self.directory("home")
        self.state = self.directory("home/.local/state/helmsman")

    def directory(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def repository(self, name: str) -> Path:
        path = self.directory(name)
        (path / ".git").mkdir()
        (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
        return path

    def program(self, place: Path, name: str = "tool") -> Path:
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
        return place / name

    def env(self, *path: object) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.pathsep.join(map(str, path))}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusal(machine: Machine, *path: object) -> str:
    with pytest.raises(ProgramRefused) as refused:
        programs.find_program("tool", machine.env(*path))
    assert refused.value.code == "program_refused"
    return refused.value.message


def test_a_program_in_a_repository_on_path_is_passed_over_for_the_next(machine: Machine) -> None:
    planted = machine.program(machine.repository("work") / ".venv/bin")
    own = machine.program(machine.directory("tools"))
    assert programs.find_program("tool", machine.env(planted.parent, own.parent)) == str(own)


def test_a_program_only_in_a_repository_is_refused_by_name_with_the_next_step(machine: Machine) -> None:
    planted = machine.program(machine.repository("work") / ".venv/bin")
    said = refusal(machine, planted.parent)
    assert str(planted) in said
    assert "put that directory on PATH" in said


def test_a_program_in_a_worktree_whose_git_is_a_file_is_refused(machine: Machine) -> None:
    tree = machine.directory("trees/one")
    (tree / ".git").write_text("gitdir: elsewhere\n")
    assert "inside the repository" in refusal(machine, machine.program(tree / "bin").parent)


def test_a_program_in_what_a_session_may_write_is_refused_from_then_on(machine: Machine) -> None:
    own = machine.program(machine.directory("scratch/bin"))
    env = machine.env(own.parent)
    assert programs.find_program("tool", env) == str(own)
    programs.remember_writable(machine.state, [machine.root / "scratch"])
    assert "sessions may write in" in refusal(machine, own.parent)
    with pytest.raises(ProgramRefused):
        programs.check_program(own, env)


def test_writable_roots_of_sessions_are_known_to_later_processes(machine: Machine) -> None:
    programs.remember_writable(machine.state, [machine.root / "odd\nname", machine.root / "other"])
    own = machine.program(machine.directory("odd\nname/bin"))
    programs._FILES.clear()
    programs._ROOTS.clear()
    assert "sessions may write in" in refusal(machine, own.parent)


def test_writable_roots_count_here_even_if_they_cannot_be_recorded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_UNRECORDED", set())
    own = machine.program(machine.directory("scratch/bin"))
    (machine.state / programs.ROOTS_FILE).mkdir()  # nothing can be written to it, as on a full disk
    assert programs.remember_writable(machine.state, [machine.root / "scratch"]) == [str(machine.root / "scratch")]
    assert programs.remember_writable(machine.state, [machine.root / "scratch"]) == []
    assert "sessions may write in" in refusal(machine, own.parent)


def test_a_record_that_was_cut_costs_no_later_one(machine: Machine) -> None:
    (machine.state / programs.ROOTS_FILE).write_bytes(b"/somewhere/cu")
    programs.remember_writable(machine.state, [machine.root / "scratch"])
    own = machine.program(machine.directory("scratch/bin"))
    assert "sessions may write in" in refusal(machine, own.parent)


@pytest.mark.parametrize("entry", ["", ".", "bin", "./node_modules/.bin"])
def test_relative_entries_of_path_are_refused(machine: Machine, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.program(machine.root / entry)
    monkeypatch.chdir(machine.root)
    assert "relative to the working directory" in refusal(machine, entry)


def test_a_link_into_a_repository_is_refused_and_so_is_one_that_passes_through(machine: Machine) -> None:
    repository, tools, own = machine.repository("work"), machine.directory("tools"), machine.directory("own")
    machine.program(repository / "bin")
    (tools / "tool").symlink_to(repository / "bin/tool")
    assert "inside the repository" in refusal(machine, tools)
    (repository / "hop").symlink_to(machine.program(own).parent)  # leads out again, until the session changes it
    (tools / "tool").unlink()
    (tools / "tool").symlink_to(repository / "hop/tool")
    assert "inside the repository" in refusal(machine, tools)


def test_an_entry_of_path_that_links_into_a_repository_is_refused(machine: Machine) -> None:
    repository = machine.repository("work")
    machine.program(repository / ".venv/bin")
    (machine.root / "current").symlink_to(repository / ".venv/bin")
    assert "inside the repository" in refusal(machine, machine.root / "current")


def test_a_link_between_safe_places_keeps_its_name(machine: Machine) -> None:
    """Programs of many names (busybox, version managers) go by the name that they are called with."""
    many = machine.program(machine.directory("lib"), "many")
    (machine.directory("bin") / "tool").symlink_to(many)
    assert programs.find_program("tool", machine.env(machine.root / "bin")) == str(machine.root / "bin/tool")


@pytest.mark.parametrize(("mode", "said"), [(0o777, "other users"), (0o1777, "other users"), (0o775, "group")])
def test_a_place_that_others_can_write_is_refused(machine: Machine, mode: int, said: str) -> None:
    own = machine.program(machine.directory("shared"))
    if os.geteuid() == 0:
        os.chown(own.parent, 0, 12345)
    own.parent.chmod(mode)
    if mode == 0o775 and os.geteuid() != 0:
        pytest.skip("Only root can give a directory to another group.")
    assert said in refusal(machine, own.parent)


def test_a_program_that_others_can_write_is_refused(machine: Machine) -> None:
    own = machine.program(machine.directory("tools"))
    own.chmod(0o757)
    assert "other users can write" in refusal(machine, own.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can give a file to another user.")
def test_a_program_of_another_user_is_refused(machine: Machine) -> None:
    own = machine.program(machine.directory("tools"))
    os.chown(own, 12345, 12345)
    assert "another user" in refusal(machine, own.parent)


def test_shims_which_choose_by_the_working_directory_are_passed_over(machine: Machine) -> None:
    shim = machine.program(machine.home / ".pyenv/shims")
    own = machine.program(machine.directory("tools"))
    assert programs.find_program("tool", machine.env(shim.parent, own.parent)) == str(own)
    assert "shim" in refusal(machine, shim.parent)


@pytest.mark.parametrize("repository", ["home", "home/.nvm", "home/.config/nvm", "home/.local/share/tools"])
def test_a_home_under_version_control_and_version_managers_are_no_repositories_to_work_in(
    machine: Machine, repository: str
) -> None:
    own = machine.program(machine.repository(repository) / "versions/bin")
    assert programs.find_program("tool", machine.env(own.parent)) == str(own)


def test_a_worktree_below_a_home_under_version_control_is_refused_all_the_same(machine: Machine) -> None:
    machine.repository("home")
    own = machine.program(machine.repository("home/.local/state/helmsman/worktrees/one") / "bin")
    assert "inside the repository" in refusal(machine, own.parent)


def test_an_empty_directory_that_a_killed_sandbox_left_makes_no_repository(machine: Machine) -> None:
    own = machine.program(machine.directory("tools"))
    (machine.root / ".git").mkdir()
    assert programs.find_program("tool", machine.env(own.parent)) == str(own)


def test_a_repository_that_appears_around_a_known_program_ends_its_use(machine: Machine) -> None:
    own = machine.program(machine.directory("later/bin"))
    assert programs.find_program("tool", machine.env(own.parent)) == str(own)
    machine.repository("later")
    assert "inside the repository" in refusal(machine, own.parent)


def test_the_path_of_what_is_started_has_only_safe_entries_and_the_rest_of_the_environment_stays(
    machine: Machine,
) -> None:
    planted = machine.program(machine.repository("work") / ".venv/bin").parent
    own = machine.program(machine.directory("tools")).parent
    env = {**machine.env(planted, ".", own, own, "/nowhere/at/all"), "KEPT": "yes"}
    assert programs.environment_for(env) == {**env, "PATH": str(own)}


def test_a_program_that_is_not_there_is_none(machine: Machine) -> None:
    assert programs.find_program("tool", machine.env(machine.directory("tools"))) is None
    planted = machine.program(machine.repository("work") / "bin")
    assert programs.available("tool", machine.env(planted.parent)) is None


def test_an_explicit_path_counts_for_repositories_but_not_for_sessions(machine: Machine) -> None:
    named = machine.program(machine.repository("work") / "tools")
    assert programs.check_program(named, machine.env()) == str(named)
