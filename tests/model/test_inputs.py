"""Bad input is refused before anything starts, with the parameter named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput
from helmsman.model.inputs import MAX_PROMPT_CHARS, changed_options, session_options, turn_input
from helmsman.model.options import SessionOptions, StartOptions
from helmsman.settings import load_settings


def test_omitted_options_stay_unset(tmp_path: Path) -> None:
    options = session_options(tmp_path, {}, ())
    assert (options.model, options.writes, options.asks, options.profile) == (None, None, None, None)
    assert options.cwd == tmp_path.resolve()


def test_a_symbolic_link_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert session_options(tmp_path / "link", {}, ()).cwd == (tmp_path / "real").resolve()


def test_full_auto_is_on_request_and_workspace_write(tmp_path: Path) -> None:
    options = session_options(tmp_path, {"full_auto": True}, ())
    assert (options.asks, options.writes) == ("when_needed", "workspace")


def test_bypassing_is_never_and_full_access(tmp_path: Path) -> None:
    options = session_options(tmp_path, {"dangerously_bypass_approvals_and_sandbox": True}, ())
    assert (options.asks, options.writes) == ("never", "anything")


def test_an_agent_is_the_one_named_else_the_usual_one(tmp_path: Path) -> None:
    assert session_options(tmp_path, {}, ()).agent == "codex"
    assert session_options(tmp_path, {}, (), default_agent="other").agent == "other"
    assert session_options(tmp_path, {"agent": None}, (), default_agent="other").agent == "other"
    assert session_options(tmp_path, {"agent": "third"}, (), default_agent="other").agent == "third"


@pytest.mark.parametrize(
    "changes", [{}, {"full_auto": True}, {"agent": None}, {"agent": "other", "sandbox": "read-only"}]
)
def test_a_session_keeps_its_agent(changes: StartOptions) -> None:
    assert changed_options(SessionOptions(agent="other"), changes)["agent"] == "other"


def test_unchanged_options_stay() -> None:
    known = SessionOptions(model="gpt-5.4", config={"model_verbosity": "low"}, writes="nothing", trust_repository=True)
    changed = changed_options(known, {"sandbox": "workspace-write", "config": None})
    assert (changed["model"], changed["config"], changed["trust_repository"]) == (known.model, known.config, True)
    assert (changed["sandbox"], changed_options(known, {"model": "gpt-5.5"})["sandbox"]) == (
        "workspace-write",
        "read-only",
    )
    assert changed_options(known, {"model": "gpt-5.5", "trust_repository": False})["trust_repository"] is False


@pytest.mark.parametrize("more", [{}, {"full_auto": True}])
def test_a_session_cannot_be_given_another_agent(more: StartOptions) -> None:
    with pytest.raises(
        InvalidInput, match="belongs to the agent codex, and a session cannot change its agent"
    ) as refused:
        changed_options(SessionOptions(), {"agent": "other", **more})
    assert refused.value.details["parameter"] == "agent"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sandbox": "open"}, "sandbox cannot be 'open'. Use one of: read-only, workspace-write"),
        ({"approval_policy": "always"}, "approval_policy cannot be 'always'"),
        ({"full_auto": True, "sandbox": "read-only"}, "full_auto means workspace-write and contradicts read-only"),
        ({"dangerously_bypass_approvals_and_sandbox": True, "approval_policy": "untrusted"}, "contradicts untrusted"),
        ({"model": " "}, "model cannot be ' '"),
        ({"agent": ""}, "agent cannot be ''"),
        ({"model": "a\nb"}, "model cannot be"),
        ({"profile": ""}, "profile cannot be ''"),
        ({"writable_roots": ["/no/such/place"]}, "'/no/such/place' does not exist"),
        ({"writable_roots": "/"}, "writable_roots cannot be '/'. Use a list of directories"),
        ({"full_auto": "false"}, "full_auto cannot be 'false'. Use True or False"),
        ({"dangerously_bypass_approvals_and_sandbox": "no"}, "cannot be 'no'"),
        ({"trust_repository": 1}, "trust_repository cannot be 1"),
        ({"config": {"sanbox_mode": "read-only"}}, "Did you mean sandbox_mode?"),
        ({"config": {"aproval_policy": "untrusted"}}, "Did you mean approval_policy?"),
        ({"config": {"sandbox_workspace_writes.network_access": False}}, "Did you mean sandbox_workspace_write?"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, given: StartOptions, sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        session_options(tmp_path, given, ())
    assert sentence in caught.value.message
    assert caught.value.code == "invalid_input"


def test_other_codex_settings_are_passed_on_unchanged(tmp_path: Path) -> None:
    others = {"sandbox_private_desktop": True, "approvals_reviewer": "user", "model_provider": "x", "permissions.a": {}}
    given = {**others, "sandbox_mode": "read-only", "sandbox_workspace_write.network_access": False}
    assert session_options(tmp_path, {"config": given}, ()).config == given


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("hide_agent_reasoning", "true", True),
        ("model_context_window", " 100 ", 100),
        ("model", "o3", "o3"),
        ("model", '"o3"', "o3"),
        ("notify", '["notify-send", "done"]', ["notify-send", "done"]),
        ("tools", "{web_search = true}", {"web_search": True}),
        ("x", '1\ny = "2"', '1\ny = "2"'),
        ("x", "2026-01-31", "2026-01-31"),
        ("x", "inf", "inf"),
        ("x", "", ""),
        ("mcp_servers.a.env.PORT", "8080", "8080"),
        ("mcp_servers.a.env.PORT", '"8080"', "8080"),
        ("tools", {"web_search": "true"}, {"web_search": "true"}),
    ],
)
def test_a_text_in_the_configuration_is_read_as_codex_reads_its_own_option(
    tmp_path: Path, key: str, text: Any, value: Any
) -> None:
    assert session_options(tmp_path, {"config": {key: text}}, ()).config == {key: value}


DEFAULTS = {"model_verbosity": "low", "sandbox_mode": "workspace-write", "tools.view_image": False}


@pytest.mark.parametrize(
    ("given", "model", "profile", "config"),
    [
        ({}, "o3", "work", DEFAULTS),
        ({"model": "gpt"}, "gpt", "work", DEFAULTS),
        ({"config": {"model": "gpt"}}, None, "work", DEFAULTS | {"model": "gpt"}),
        ({"profile": "careful"}, "o3", "careful", {"model_verbosity": "low", "tools.view_image": False}),
        ({"config": {"model_verbosity": "high"}}, "o3", "work", DEFAULTS | {"model_verbosity": "high"}),
        ({"config": {"tools": {"x": 1}}}, "o3", "work", DEFAULTS | {"tools.x": 1}),
        ({"config": {"tools": {"view_image": True}}}, "o3", "work", DEFAULTS | {"tools.view_image": True}),
        ({"agent": "other"}, None, None, {}),
    ],
)  # fmt: skip
def test_a_new_session_has_the_defaults_of_the_settings_where_its_caller_says_nothing(
    tmp_path: Path, given: StartOptions, model: str | None, profile: str | None, config: dict[str, Any]
) -> None:
    defaults = replace(
        load_settings({}, {"HOME": str(tmp_path)}, tmp_path),
        default_model="o3",
        default_profile="work",
        default_config=DEFAULTS,
    )
    options = session_options(tmp_path, given, (), defaults=defaults)
    assert (options.model, options.profile, options.config) == (model, profile, config)


def test_work_stays_inside_the_allowed_roots_whatever_links_say(tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    (allowed / "link").symlink_to(outside)
    roots = [allowed.resolve()]
    assert session_options(allowed, {}, roots).cwd == allowed.resolve()
    for place in (outside, allowed / "link", allowed / ".." / "outside"):
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            session_options(place, {}, roots)
    with pytest.raises(InvalidInput, match="outside the allowed roots"):
        session_options(allowed, {"writable_roots": [outside]}, roots)
    with pytest.raises(InvalidInput, match="Without a sandbox"):
        session_options(allowed, {"agent": "gemini", "unenforced": True}, roots)


def test_a_directory_must_exist_and_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InvalidInput, match="does not exist"):
        session_options(tmp_path / "missing", {}, ())
    with pytest.raises(InvalidInput, match="is not a directory"):
        session_options(tmp_path / "file", {}, ())
    with pytest.raises(InvalidInput, match="does not exist"):
        session_options("a\0b", {}, ())


def test_an_empty_name_is_not_the_directory_we_happen_to_be_in(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is empty"):
        session_options("", {}, ())
    with pytest.raises(InvalidInput, match="is empty"):
        session_options(tmp_path, {"sandbox": "workspace-write", "writable_roots": [""]}, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("x" * (MAX_PROMPT_CHARS + 1), "at most 1048576"),
        ("\ud800", "surrogate"),
    ],
    ids=["empty", "blank", "too long", "half a surrogate pair"],
)
def test_a_prompt_codex_could_not_take_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        turn_input(text)


def test_a_prompt_that_looks_like_an_option_is_just_text() -> None:
    assert turn_input("--help").text == "--help"


def test_an_image_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no image at"):
        turn_input("look", images=[tmp_path / "none.png"])


@pytest.mark.parametrize("schema", [{"type": "banana"}, {"properties": 3}])
def test_an_output_schema_must_be_a_schema(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="not a valid JSON schema"):
        turn_input("x", output_schema=schema)
