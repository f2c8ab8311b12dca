"""Tests of finding Codex, reading its features, and caching the answer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import anyio
import pytest

from helmsman.agents.codex import binary as binary_module
from helmsman.agents.codex.binary import CodexBinary, find_codex
from helmsman.agents.codex.features import Feature, Version
from helmsman.errors import CodexNotFound, ProgramRefused, Unsupported

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name != "posix", reason="the programs in these tests are shell scripts"),
]

FAKE_CODEX = '#!/bin/sh\n[ "$*" = --version ] && echo "codex-cli VERSION"\n'


@pytest.fixture(autouse=True)
def _forget_what_other_tests_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_module, "_KNOWN", {})


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_codex(path: Path, version: str = "0.150.0") -> Path:
    return program(path, FAKE_CODEX.replace("VERSION", version))


def environment(*directories: Path) -> dict[str, str]:
    system = os.defpath.split(os.pathsep)
    return os.environ | {"PATH": os.pathsep.join([*map(str, directories), *system])}


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_module, "_in_wheel", lambda: None)


# --- where it is found -----------------------------------------------------------------------------------------------


async def test_the_explicit_path_comes_before_path_and_wheel(tmp_path: Path) -> None:
    explicit = fake_codex(tmp_path / "mine" / "codex", "0.1.1")
    fake_codex(tmp_path / "bin" / "codex", "0.2.2")
    found = await find_codex(explicit=explicit, env=environment(tmp_path / "bin"))
    assert str(found.version) == "0.1.1"


async def test_path_comes_before_the_wheel(tmp_path: Path) -> None:
    fake_codex(tmp_path / "bin" / "codex", "0.2.2")
    assert str((await find_codex(env=environment(tmp_path / "bin"))).version) == "0.2.2"


async def test_the_wheel_is_used_when_there_is_nothing_on_path(tmp_path: Path) -> None:
    wheel = pytest.importorskip("codex_cli_bin")
    found = await find_codex(env=environment(tmp_path))
    assert found.path == wheel.bundled_codex_path()
    assert found.path_dir == wheel.bundled_path_dir()


async def test_a_bare_name_is_looked_up_on_path(tmp_path: Path) -> None:
    fake_codex(tmp_path / "codex-next", "0.3.3")
    found = await find_codex(explicit=type(tmp_path)("codex-next"), env=environment(tmp_path))
    assert str(found.version) == "0.3.3"


async def test_the_directory_one_stands_in_never_chooses_the_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_codex(tmp_path / "codex")
    monkeypatch.chdir(tmp_path)
    without_wheel(monkeypatch)
    with pytest.raises(ProgramRefused, match="relative to the working directory"):
        await find_codex(env=os.environ | {"PATH": f".{os.pathsep}{os.pathsep}bin"})


async def test_a_broken_codex_on_path_gives_way_to_the_wheel(tmp_path: Path) -> None:
    wheel = pytest.importorskip("codex_cli_bin")
    program(tmp_path / "codex", "#!/bin/sh\nexit 1\n")
    assert (await find_codex(env=environment(tmp_path))).path == wheel.bundled_codex_path()


async def test_without_any_codex_the_error_says_how_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_wheel(monkeypatch)
    with pytest.raises(CodexNotFound) as caught:
        await find_codex(env=environment(tmp_path))
    for advice in ("pip install openai-codex-cli-bin", "npm install -g @openai/codex", "CODEX_CLI_PATH"):
        assert advice in caught.value.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'codex, a book reader 3.0'\n", "is not Codex (--version printed 'codex, a book reader 3.0')"),
        ("#!/bin/sh\necho 'codex 3.0'\n", "is not Codex (--version printed 'codex 3.0')"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "failed with exit code 3 (broken)"),
        ("#!/bin/sh\nkill -SEGV $$\n", "failed with exit code -11"),
        ("#!/no/such/interpreter\n", "failed with exit code 127"),
        ("#!/bin/sh\nexec yes codex\n", "gave no complete answer to --version"),
    ],
)
async def test_a_program_that_is_not_codex_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = program(tmp_path / "codex", text)
    with pytest.raises(CodexNotFound) as caught:
        await find_codex(explicit=path)
    assert f"{path} {reason}" in caught.value.message


async def test_a_program_that_does_not_answer_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary_module, "_ANSWER_SECONDS", 0.5)
    path = program(tmp_path / "codex", "#!/bin/sh\nsleep 600 &\nsleep 600\n")
    with pytest.raises(CodexNotFound, match="gave no complete answer"):
        await find_codex(explicit=path)


async def test_a_cancelled_search_leaves_no_process(tmp_path: Path) -> None:
    started = tmp_path / "started"
    path = program(tmp_path / "codex", f"#!/bin/sh\ntouch {started}\nsleep 600\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: find_codex(explicit=path))
        with anyio.fail_after(20):
            while not started.exists():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_missing_directories_and_plain_files_are_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    dangling = tmp_path / "dangling"
    dangling.symlink_to("nowhere")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, reason in (
        (tmp_path, "is a directory"),
        (plain, "is not executable"),
        (tmp_path / "missing", "does not exist"),
        (dangling, "does not exist"),
        (loop, "does not exist"),
    ):
        with pytest.raises(CodexNotFound, match=reason):
            await find_codex(explicit=path)
    with pytest.raises(
        CodexNotFound, match=r"no program nothing-of-the-kind.* CODEX_CLI_PATH .* names it: correct that"
    ):
        await find_codex(explicit=type(tmp_path)("nothing-of-the-kind"))


# --- npm packages ----------------------------------------------------------------------------------------------------


def npm_package(modules: Path) -> Path:
    """Create the npm package of Codex without its program. Return the script that npm links to."""
    return program(modules / "@openai" / "codex" / "bin" / "codex.js", "#!/usr/bin/env node\n// never run here\n")


def vendor() -> tuple[str, str]:
    target = binary_module._target()
    if target is None:
        pytest.skip("There is no Codex for this platform.")
    return target


@pytest.mark.parametrize("layout", ["bin", "codex"])
async def test_the_program_inside_the_npm_package_is_run_instead_of_the_script(tmp_path: Path, layout: str) -> None:
    triple, _ = vendor()
    script = npm_package(tmp_path / "lib" / "node_modules")
    native = fake_codex(script.parent.parent / "vendor" / triple / layout / "codex")
    tools = program(native.parent.parent / ("codex-path" if layout == "bin" else "path") / "rg", "").parent
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(script)
    found = await find_codex(env=environment(tmp_path / "bin"))
    assert (found.path, found.path_dir) == (native, tools)


@pytest.mark.parametrize("nested", [True, False])
async def test_the_package_of_the_platform_is_found_where_node_would_find_it(tmp_path: Path, *, nested: bool) -> None:
    triple, platform_package = vendor()
    modules = tmp_path / "node_modules"
    script = npm_package(modules)
    inside = script.parent.parent / "node_modules" if nested else modules
    native = fake_codex(inside / "@openai" / platform_package / "vendor" / triple / "bin" / "codex")
    assert (await find_codex(explicit=script)).path == native


async def test_a_launcher_written_by_a_package_manager_is_followed(tmp_path: Path) -> None:
    triple, _ = vendor()
    script = npm_package(tmp_path / "global" / "node_modules")
    native = fake_codex(script.parent.parent / "vendor" / triple / "bin" / "codex")
    launcher = program(
        tmp_path / "bin" / "codex",
        '#!/bin/sh\nbasedir=$(dirname "$0")\n'
        'exec node  "$basedir/../global/node_modules/@openai/codex/bin/codex.js" "$@"\n',
    )
    assert (await find_codex(explicit=launcher)).path == native


async def test_without_the_program_the_wrapper_itself_is_run(tmp_path: Path) -> None:
    script = fake_codex(npm_package(tmp_path / "node_modules"))
    assert (await find_codex(explicit=script)).path == script


async def test_a_version_managers_link_is_called_by_its_own_name(tmp_path: Path) -> None:
    manager = fake_codex(tmp_path / "manager" / "shim")
    shim = tmp_path / "shims" / "codex"
    shim.parent.mkdir()
    shim.symlink_to(manager)
    assert (await find_codex(explicit=shim)).path == shim


# --- features --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.0.0", "unknown"])
async def test_a_development_build_counts_as_the_newest(tmp_path: Path, version: str) -> None:
    found = await find_codex(explicit=fake_codex(tmp_path / "codex", version))
    assert found.version > Version.parse("999.0.0")
    assert found.can(Feature.STEER)


async def test_a_missing_feature_is_refused_with_the_versions_that_have_it(tmp_path: Path) -> None:
    found = await find_codex(explicit=fake_codex(tmp_path / "codex", "0.93.0"))
    found.require(Feature.APP_SERVER)
    with pytest.raises(Unsupported) as caught:
        found.require(Feature.STEER, doing="steer a running turn")
    assert "Codex 0.93.0 cannot steer a running turn; Codex 0.99.0 and newer can." in caught.value.message
    assert caught.value.as_dict()["feature"] == "steer"


async def test_nothing_of_the_users_is_touched(codex_binary: Path, tmp_path: Path) -> None:
    home, codex_home = tmp_path / "home", tmp_path / "codex-home"
    home.mkdir()
    codex_home.mkdir()
    await find_codex(explicit=codex_binary, env=os.environ | {"HOME": str(home), "CODEX_HOME": str(codex_home)})
    assert [*home.iterdir(), *codex_home.iterdir()] == []


@pytest.mark.matrix
async def test_a_real_codex_is_understood(codex_binary: Path, codex_version: tuple[int, int, int]) -> None:
    found = await find_codex(explicit=codex_binary)
    assert found.path.samefile(codex_binary)
    assert (found.version.major, found.version.minor, found.version.patch) == codex_version
    assert found.can(Feature.APP_SERVER)
    assert found.can(Feature.CLOUD)
    assert found.path_dir is not None


METHODS = {
    Feature.STEER: "turn/steer",
    Feature.BACKGROUND_TERMINALS: "thread/backgroundTerminals/clean",
    Feature.THREAD_STATUS: "thread/status/changed",
    Feature.UNSUBSCRIBE: "thread/unsubscribe",
    Feature.COMPACT: "thread/compact/start",
    Feature.ROLLBACK: "thread/rollback",
    Feature.REVERT: "thread/revert",
    Feature.GOALS: "thread/goal/set",
}
WORDS = {
    Feature.ON_FAILURE_APPROVAL: ("v2/ThreadStartParams", "on-failure"),
    Feature.FORK_AT_TURN: ("v2/ThreadForkParams", "lastTurnId"),
}


EXEC_OPTIONS = {
    *("--image", "--json", "--cd", "--sandbox", "--model", "--profile", "--add-dir", "--config"),
    *("--skip-git-repo-check", "--output-schema"),
}
"""Options that Helmsman gives to `codex exec`, whatever its version."""


def help_of(codex: CodexBinary, *command: str) -> str:
    shown = subprocess.run(
        [str(codex.path), *command, "--help"], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    return shown.stdout


def schema(codex: CodexBinary, directory: Path) -> None:
    """Return the protocol's schema from this Codex; the oldest has no experimental part."""
    for options in (["--experimental"], []):
        command = [str(codex.path), "app-server", "generate-json-schema", *options, "--out", str(directory)]
        if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0:
            return
    pytest.fail("This Codex generates no schema.")


@pytest.mark.matrix
async def test_the_table_of_features_agrees_with_what_a_real_codex_says(codex_binary: Path, tmp_path: Path) -> None:
    codex = await find_codex(explicit=codex_binary)
    await anyio.to_thread.run_sync(schema, codex, tmp_path)
    protocol = "".join(
        (tmp_path / f"{name}.json").read_text(encoding="utf-8")
        for name in ("ClientRequest", "ServerRequest", "ServerNotification")
    )
    says = {feature: f'"{method}"' in protocol for feature, method in METHODS.items()}
    for feature, (name, word) in WORDS.items():
        says[feature] = f'"{word}"' in (tmp_path / f"{name}.json").read_text(encoding="utf-8")
    commands, options = help_of(codex), help_of(codex, "exec")
    says |= {Feature.APP_SERVER: "app-server" in commands, Feature.CLOUD: "cloud" in commands}
    assert says == {feature: feature.is_in(codex.version) for feature in says}
    assert set(re.findall(r"--[a-z][\w-]*", options)) >= EXEC_OPTIONS


# --- remembering -----------------------------------------------------------------------------------------------------


async def test_a_codex_that_changed_is_asked_again(tmp_path: Path) -> None:
    triple, _ = vendor()
    script = npm_package(tmp_path / "node_modules")
    native = fake_codex(script.parent.parent / "vendor" / triple / "bin" / "codex", "0.1.1")
    assert str((await find_codex(explicit=script)).version) == "0.1.1"
    fake_codex(native, "0.22.22")
    assert str((await find_codex(explicit=script)).version) == "0.22.22"


async def test_a_codex_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_codex(tmp_path / "codex")
    first = await find_codex(explicit=path)
    monkeypatch.setattr(binary_module, "_version", None)  # the next caller fails
    assert await find_codex(explicit=path) == first
