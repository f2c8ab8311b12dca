"""Profiles and configuration values become what this Codex takes, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.agent_process import open_child_process
from helmsman.agents.codex.binary import CodexBinary, find_codex
from helmsman.agents.codex.configuration import check_config, merge_config, profile_config
from helmsman.agents.codex.connection import AppServer
from helmsman.agents.codex.features import Feature, Version
from helmsman.base.jsonrpc import Peer
from helmsman.errors import InvalidInput
from helmsman.testing.home import CodexHome


def codex(version: str) -> CodexBinary:
    return CodexBinary(path=Path("codex"), version=Version.parse(version))


OLD, NEW = codex("0.130.0"), codex("0.166.0")


def test_an_older_codex_gets_the_name(tmp_path: Path) -> None:
    assert profile_config(OLD, tmp_path, "work") == {"profile": "work"}


def test_a_newer_codex_gets_the_content_of_the_profiles_file(tmp_path: Path) -> None:
    (tmp_path / "work.config.toml").write_text(
        'model = "gpt-5.5"\n[sandbox_workspace_write]\nnetwork_access = true\nwritable_roots = ["/data"]\n',
        encoding="utf-8",
    )
    assert profile_config(NEW, tmp_path, "work") == {
        "model": "gpt-5.5",
        "sandbox_workspace_write": {"network_access": True, "writable_roots": ["/data"]},
    }


def test_no_profile_is_no_configuration(tmp_path: Path) -> None:
    assert profile_config(OLD, tmp_path, None) == profile_config(NEW, tmp_path, None) == {}


def test_a_missing_profile_is_an_error_that_names_the_file_and_the_others(tmp_path: Path) -> None:
    for name in ("home", "work"):
        (tmp_path / f"{name}.config.toml").touch()
    with pytest.raises(InvalidInput) as caught:
        profile_config(NEW, tmp_path, "wrk")
    assert str(tmp_path / "wrk.config.toml") in caught.value.message
    assert "home, work" in caught.value.message
    with pytest.raises(InvalidInput, match="Create that file"):
        profile_config(NEW, tmp_path / "nowhere", "work")


@pytest.mark.parametrize("name", ["", "../work", "a/b", "a\\b", "C:x", ".hidden", "a\nb", "a\0b"])
@pytest.mark.parametrize("binary", [OLD, NEW])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, binary: CodexBinary, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name of a profile"):
        profile_config(binary, tmp_path, name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"model = ", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
        (b"when = 2026-01-01", "no configuration value"),
        (b"# " + b"x" * 1024 * 1024, "larger than"),
    ],
)
def test_a_profile_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "work.config.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=reason) as caught:
        profile_config(NEW, tmp_path, "work")
    assert str(path) in caught.value.message


def test_a_directory_in_place_of_a_profile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "work.config.toml").mkdir()
    with pytest.raises(InvalidInput, match="cannot be read"):
        profile_config(NEW, tmp_path, "work")


def test_good_configuration_is_passed_on_as_it_was_written() -> None:
    config = {
        "model_reasoning_effort": "high",
        "sandbox_workspace_write.network_access": True,
        "projects": {"/src/my.repo": {"trust_level": "untrusted"}},
        "list": (1, 2.5, "three\nlines"),
    }
    assert check_config(config) == config | {"list": [1, 2.5, "three\nlines"]}


@pytest.mark.parametrize("key", ["", "a..b", ".a", "a.", "a\nb", "a\tb", "\x7f", " a", "a .b", "\ud800", 7])
def test_a_key_that_codex_would_misread_is_refused(key: Any) -> None:
    with pytest.raises(InvalidInput, match="has the key"):
        check_config({key: 1})


@pytest.mark.parametrize(
    "value", [None, float("nan"), float("inf"), 2**63, object(), b"x", {1}, "\ud800", {"": 1}, {"a\n": 1}, [None]]
)
def test_a_value_that_codex_would_misread_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="config: key"):
        check_config({"key": value})


def test_endless_nesting_is_refused() -> None:
    inside: dict[str, Any] = {}
    inside["again"] = inside
    with pytest.raises(InvalidInput, match="nested too deeply"):
        check_config({"key": inside})


def test_two_forms_of_one_key_are_refused_because_their_order_is_not_certain() -> None:
    with pytest.raises(InvalidInput, match="no certain order"):
        check_config({"a": {"b": 1}, "a.b": 2})


def test_merging_goes_value_by_value_whatever_form_the_keys_have() -> None:
    profile = {"sandbox_workspace_write": {"network_access": False, "writable_roots": ["/a"]}, "model": "one"}
    merged = merge_config(profile, {"sandbox_workspace_write.network_access": True, "model": "two"})
    assert merged == {
        "sandbox_workspace_write": {"network_access": True, "writable_roots": ["/a"]},
        "model": "two",
    }
    assert profile["sandbox_workspace_write"] == {"network_access": False, "writable_roots": ["/a"]}


def test_a_later_table_replaces_an_earlier_value_and_the_other_way_round() -> None:
    assert merge_config({"a": 1}, {"a.b": 2}) == {"a": {"b": 2}}
    assert merge_config({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_real_codex_applies_a_profile_and_what_is_put_over_it(
    codex_binary: Path, codex_home: CodexHome, git_repo: Path
) -> None:
    binary = await find_codex(explicit=codex_binary, env=codex_home.env)
    profile = {"model_reasoning_effort": "high", "model": "not-this-one"}
    if binary.can(Feature.PROFILE_IN_CONFIG):
        codex_home.configure(profiles={"work": profile})
    else:
        text = "".join(f'{key} = "{value}"\n' for key, value in profile.items())
        await anyio.Path(codex_home.path / "work.config.toml").write_text(
            text + "[sandbox_workspace_write]\nnetwork_access = false\n", encoding="utf-8"
        )
    own = check_config({"sandbox_workspace_write.network_access": True, "model": "this-one"})
    params = {
        "cwd": str(git_repo),
        "sandbox": "workspace-write",
        "config": merge_config(profile_config(binary, codex_home.path, "work"), own),
    }
    async with (
        anyio.create_task_group() as tasks,
        open_child_process(tasks, [binary.path, "app-server"], title="Codex", env=codex_home.env) as transport,
    ):
        peer = Peer(transport, other="Codex", on_notification=lambda *_: None, on_request=lambda _: False)
        tasks.start_soon(peer.run)
        await AppServer(peer, binary).initialize()
        thread = await peer.request("thread/start", params)
        tasks.cancel_scope.cancel()
    assert thread["reasoningEffort"] == "high"
    assert thread["sandbox"]["networkAccess"] is True
    # Given the name, Codex puts the profile over everything else in `config`.
    assert thread["model"] == ("not-this-one" if binary.can(Feature.PROFILE_IN_CONFIG) else "this-one")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), _VALUES))
def test_any_map_is_either_refused_or_can_be_sent(config: dict[str, Any]) -> None:
    try:
        checked = check_config(config)
    except InvalidInput:
        return
    assert json.loads(json.dumps(checked, allow_nan=False).encode("utf-8")) == checked
    assert not any("." in key for key in merge_config(checked))
