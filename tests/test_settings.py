"""Where settings come from, who wins, and what is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.cli.checks import check_settings
from helmsman.errors import InvalidSetting
from helmsman.settings import PROJECT_CAN, SETTINGS, Settings, ensure_state_dir, load_settings


class Place:
    """A user's file, a repository and a directory inside it, all empty."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.user_file = self.home / "helmsman.toml"
        self.repository = root / "repository"
        self.cwd = self.repository / "packages" / "one"
        self.home.mkdir()
        self.cwd.mkdir(parents=True)
        (self.repository / ".git").mkdir()
        (self.repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")

    def user(self, text: str) -> None:
        self.user_file.write_text(text, encoding="utf-8")

    def project(self, text: str) -> None:
        (self.repository / "helmsman.toml").write_text(text, encoding="utf-8")

    def load(self, env: Mapping[str, str] | None = None, **flags: object) -> Settings:
        return load_settings(flags, {"HOME": str(self.home), **(env or {})}, self.cwd, user_file=self.user_file)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_with_nothing_set_the_defaults_of_the_specification_hold(place: Place) -> None:
    settings = place.load()
    assert settings.codex_path is None
    assert settings.codex_home == place.home / ".codex"
    assert (settings.claude_path, settings.claude_home) == (None, place.home / ".claude")
    assert settings.approval_timeout is None
    assert (settings.max_sessions, settings.event_buffer_size) == (10, 500)
    assert (settings.log_level, settings.engine, settings.tools) == ("info", "auto", ("sessions",))
    assert settings.detach is True
    assert settings.expose_primitives is False
    assert settings.state_dir.is_absolute()
    assert settings.files == ()


def test_every_variable_is_read(place: Place) -> None:
    codex_home = place.home / "codex"
    codex_home.mkdir()
    settings = place.load(
        {
            "CODEX_CLI_PATH": "/opt/codex",
            "CODEX_HOME": str(codex_home),
            "CLAUDE_CLI_PATH": "/opt/claude",
            "CLAUDE_CONFIG_DIR": "~/claude",
            "APPROVAL_TIMEOUT_MS": "1500",
            "MAX_SESSIONS": "3",
            "EVENT_BUFFER_SIZE": "7",
            "LOG_LEVEL": "DEBUG",
            "HELMSMAN_DEFAULT_AGENT": "Another",
            "HELMSMAN_ENGINE": "exec",
            "HELMSMAN_TOOLS": "sessions, extras,sessions",
            "HELMSMAN_STATE_DIR": "~/state",
            "HELMSMAN_DETACH": "no",
            "HELMSMAN_EXPOSE_PRIMITIVES": "1",
        }
    )
    assert settings == Settings(
        user_file=place.user_file,
        default_agent="another",
        codex_path=Path("/opt/codex"),
        codex_home=codex_home,
        claude_path=Path("/opt/claude"),
        claude_home=place.home / "claude",
        approval_timeout=1.5,
        max_sessions=3,
        event_buffer_size=7,
        log_level="debug",
        engine="exec",
        tools=("sessions", "extras"),
        state_dir=place.home / "state",
        detach=False,
        expose_primitives=True,
    )


def test_some_variables_have_another_name(place: Place) -> None:
    settings = place.load({"LOG_LEVEL": "warn", "CODEX_OUTPUT_TIMEOUT_MS": "2000"})
    assert (settings.log_level, settings.inactivity_timeout) == ("warning", 2)
    both = place.load({"HELMSMAN_INACTIVITY_TIMEOUT_MS": "1000", "CODEX_OUTPUT_TIMEOUT_MS": "2000"})
    assert both.inactivity_timeout == 1
    with pytest.raises(InvalidSetting, match="CODEX_OUTPUT_TIMEOUT_MS is 'soon', which is not valid"):
        place.load({"CODEX_OUTPUT_TIMEOUT_MS": "soon"})


def test_defaults_for_sessions_come_from_a_table_a_variable_or_flags(place: Place) -> None:
    place.user("[default_config]\nmodel_verbosity = 'low'\n[default_config.tools]\nview_image = true\n")
    assert place.load().default_config == {"model_verbosity": "low", "tools": {"view_image": True}}
    assert place.load({"HELMSMAN_DEFAULT_CONFIG": "a.b = 1\nc = 'x'"}).default_config == {"a": {"b": 1}, "c": "x"}
    assert place.load(default_config=["a.b=1", "c=x"]).default_config == {"a.b": 1, "c": "x"}
    assert place.load(default_model="o3", default_profile="work").default_model == "o3"
    with pytest.raises(InvalidSetting, match="--config cannot be read") as refused:
        place.load(default_config=["tok-secret"])
    assert "tok-secret" not in refused.value.message


def test_flags_beat_environment_beats_project_beats_user(place: Place) -> None:
    place.user("max_sessions = 9\nevent_buffer_size = 9\napproval_timeout_ms = 9000\nlog_level = 'error'")
    place.project("max_sessions = 3\nevent_buffer_size = 3\napproval_timeout_ms = 3000")
    settings = place.load({"MAX_SESSIONS": "14", "EVENT_BUFFER_SIZE": "14"}, max_sessions=15, log_level=None)
    assert settings.max_sessions == 15
    assert settings.event_buffer_size == 14
    assert settings.approval_timeout == 3
    assert settings.log_level == "error"
    assert [file.trusted for file in settings.files] == [False, True]


def test_toml_values_have_their_own_types(place: Place) -> None:
    place.user("detach = false\ntools = ['sessions', 'compat']\napproval_timeout_ms = 10")
    settings = place.load()
    assert (settings.detach, settings.tools, settings.approval_timeout) == (False, ("sessions", "compat"), 0.01)


def test_primitives_are_exposed_by_either_of_two_names(place: Place) -> None:
    assert place.load({"HELMSMAN_ALLOW_INTERNAL_TOOLS": "true"}).expose_primitives is True
    both = {"HELMSMAN_EXPOSE_PRIMITIVES": "0", "HELMSMAN_ALLOW_INTERNAL_TOOLS": "1"}
    assert place.load(both).expose_primitives is False
    with pytest.raises(InvalidSetting, match="HELMSMAN_ALLOW_INTERNAL_TOOLS is 'maybe'"):
        place.load({"HELMSMAN_ALLOW_INTERNAL_TOOLS": "maybe"})


def test_an_empty_variable_is_one_that_is_not_set(place: Place) -> None:
    assert place.load({"MAX_SESSIONS": "", "CODEX_HOME": ""}) == place.load()


def test_relative_paths_begin_where_they_are_written(place: Place) -> None:
    place.user("codex_path = 'bin/codex'")
    assert place.load().codex_path == place.home / "bin" / "codex"
    assert place.load({"CODEX_CLI_PATH": "./codex"}).codex_path == place.cwd / "codex"


def test_a_program_without_a_directory_stays_a_name_to_look_up(place: Place) -> None:
    assert place.load({"CODEX_CLI_PATH": "codex-next"}).codex_path == Path("codex-next")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("APPROVAL_TIMEOUT_MS", "0", "from 1"),
        ("APPROVAL_TIMEOUT_MS", "5s", "whole number"),
        ("MAX_SESSIONS", "-1", "from 1"),
        ("MAX_SESSIONS", "١٢", "whole number"),  # other digits are no number here
        ("MAX_SESSIONS", "1e3", "whole number"),
        ("EVENT_BUFFER_SIZE", "9" * 50, "whole number"),
        ("LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("HELMSMAN_DEFAULT_AGENT", "two words", "the name of an agent"),
        ("HELMSMAN_DEFAULT_AGENT", "-x", "the name of an agent"),
        ("HELMSMAN_ENGINE", "cloud", "auto, app-server, exec"),
        ("HELMSMAN_TOOLS", "session", "sessions, agents, extras, capabilities, compat, router"),
        ("HELMSMAN_TOOLS", ",", "sessions, agents, extras, capabilities, compat, router"),
        ("HELMSMAN_DETACH", "maybe", "1 or 0"),
        ("HELMSMAN_STATE_DIR", "a\nb", "a path"),
        ("CODEX_HOME", "/no/such/directory", "a directory that exists"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_what_is_allowed(
    place: Place, variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        place.load({variable: value})
    assert variable in caught.value.message
    assert repr(value) in caught.value.message
    assert allowed in caught.value.message


@pytest.mark.parametrize(
    "text", ["max_sessions = true", "max_sessions = 2.5", "detach = 2", "tools = [1]", "expose_primitives = {}"]
)
def test_a_wrong_type_in_a_file_names_key_and_file(place: Place, text: str) -> None:
    place.project(text)
    with pytest.raises(InvalidSetting) as caught:
        place.load()
    assert f"{text.split()[0]} in {place.repository / 'helmsman.toml'}" in caught.value.message


def test_a_codex_home_that_is_a_file_is_refused(place: Place) -> None:
    file = place.home / "file"
    file.touch()
    with pytest.raises(InvalidSetting, match="directory that exists"):
        place.load({"CODEX_HOME": str(file)})


def test_a_mistake_is_an_error_even_where_something_else_wins(place: Place) -> None:
    place.user("max_sessions = 'many'")
    with pytest.raises(InvalidSetting, match="max_sessions in "):
        place.load({"MAX_SESSIONS": "3"})


@pytest.mark.parametrize(
    ("key", "hint"), [("max_session", "max_sessions"), ("[[rule]]\nx", "rules"), ("zzzzz", "codex_home")]
)
def test_an_unknown_key_is_refused_and_the_nearest_one_named(place: Place, key: str, hint: str) -> None:
    place.user(f"{key} = 1")
    with pytest.raises(InvalidSetting, match="unknown key") as caught:
        place.load()
    assert hint in caught.value.message


def test_an_unknown_flag_is_refused(place: Place) -> None:
    with pytest.raises(InvalidSetting, match=r"Did you mean max_sessions\?"):
        place.load(max_session=1)


def test_tables_of_other_modules_are_kept_for_them(place: Place) -> None:
    place.user("[[rules]]\nallow = ['git status']\n[prices]\nx = 1\n[cloud]\ny = 2")
    (file,) = place.load().files
    assert file.content["rules"] == [{"allow": ["git status"]}]
    assert file.trusted


@pytest.mark.parametrize("key", ["codex_path", "codex_home", "state_dir"])
def test_a_project_cannot_choose_what_runs_or_where_state_is_kept(place: Place, key: str) -> None:
    usual = getattr(place.load(), key)
    place.project(f"{key} = '/'")
    settings = place.load()
    assert getattr(settings, key) == usual
    assert f"{key} in {place.repository / 'helmsman.toml'} is ignored" in settings.ignored[0]
    (place.repository / "helmsman.toml").unlink()
    place.user(f"{key} = '/'")
    assert getattr(place.load(), key) == Path("/")


ONLY_YOURS = {
    "channel",
    "oauth",
    "otel",
    "snapshots",
    "workspace_from_remote",
    "claude_path",
    "claude_home",
    "default_agent",
    "default_model",
    "default_profile",
    "default_config",
    "codex_path",
    "fleet_url",
    "store",
    "codex_remote",
    "codex_home",
    "state_dir",
    "allowed_roots",
    "log_level",
    "engine",
    "hub_idle_ms",
    "retention_days",
    "shell_snapshots",
    "sandbox_readable",
    "sandbox_variables",
}

NARROWED: dict[str, tuple[str, list[tuple[str, object]], list[tuple[str, object]]]] = {
    # What the user has; what a project makes of it; and what it asks for in vain, with what holds then.
    "approval_timeout_ms": ("300000", [("1000", 1.0)], [("2592000000", 300.0)]),
    "max_sessions": ("10", [("3", 3)], [("1000", 10)]),
    "workspace_limit_mb": ("512", [("3", 3)], [("1000", 512)]),
    "workspace_file_limit_mb": ("64", [("3", 3)], [("1000", 64)]),
    "event_buffer_size": ("500", [("50", 50)], [("1000000", 500)]),
    "engine_idle_ms": ("900000", [("1000", 1.0)], [("2592000000", 900.0)]),
    "first_event_timeout_ms": ("60000", [("1000", 1.0)], [("0", 60.0), ("60001", 60.0)]),
    "inactivity_timeout_ms": ("0", [("1000", 1.0), ("0", 0.0)], []),
    "tools": (
        "['sessions', 'extras']",
        [("['extras']", ("extras",)), ("'sessions'", ("sessions",))],
        [("['extras', 'router']", ("extras",)), ("['compat']", ("sessions", "extras"))],
    ),
    "detach": ("true", [("false", False)], []),
    "require_confirmation": ("false", [("true", True), ("false", False)], []),
    "on_limit": ("'ask'", [("'fail'", "fail"), ("'ask'", "ask")], [("'wait'", "ask")]),
    "expose_primitives": ("false", [("false", False)], [("true", False)]),
}


def test_every_setting_says_what_a_project_can_do_with_it() -> None:
    texts = {key: PROJECT_CAN[setting.project] for key, setting in SETTINGS.items()}
    assert set(texts) == ONLY_YOURS | set(NARROWED)
    assert {key for key, text in texts.items() if text == "nothing"} == ONLY_YOURS


@pytest.mark.parametrize("key", NARROWED)
def test_a_project_can_narrow_and_never_widen(place: Place, key: str) -> None:
    own, narrower, wider = NARROWED[key]
    place.user(f"{key} = {own}")
    name = key.removesuffix("_ms")
    for text, holds in narrower:
        place.project(f"{key} = {text}")
        settings = place.load()
        assert (getattr(settings, name), settings.ignored) == (holds, ())
    for text, holds in wider:
        place.project(f"{key} = {text}")
        settings = place.load()
        assert getattr(settings, name) == holds
        assert f"{key} in {place.repository / 'helmsman.toml'} is" in settings.ignored[0]


@pytest.mark.parametrize("key", sorted(ONLY_YOURS))
def test_user_only_settings_are_ignored_in_a_project_with_a_warning(place: Place, key: str) -> None:
    usual = place.load()
    for value in ("'debug'", "'exec'", "'on'", "'/'", "['/']", "3"):  # right or wrong, nobody looks at it
        place.project(f"{key} = {value}")
        settings = place.load()
        assert replace(settings, files=(), ignored=()) == usual
        assert len(settings.ignored) == 1
        assert f"{key} in {place.repository / 'helmsman.toml'} is ignored" in settings.ignored[0]


def test_a_project_is_held_against_the_defaults_too(place: Place) -> None:
    usual = place.load()
    place.project(
        "approval_timeout_ms = 2592000000\nmax_sessions = 1000\ntools = ['sessions', 'extras', 'router']\n"
        "expose_primitives = true\nengine_idle_ms = 2592000000\nevent_buffer_size = 1000000\n"
    )
    settings = place.load()
    assert replace(settings, files=(), ignored=()) == usual
    assert len(settings.ignored) == 6


def test_a_project_cannot_turn_on_what_the_user_turned_off(place: Place) -> None:
    place.user("detach = false")
    place.project("detach = true")
    settings = place.load()
    assert settings.detach is False
    assert "HELMSMAN_DETACH" in settings.ignored[0]
    assert place.load({"HELMSMAN_DETACH": "1"}).detach is True  # the person may


@pytest.mark.anyio
async def test_the_user_learns_which_project_settings_were_ignored(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.project("max_sessions = 1000")
    settings = place.load(state_dir=str(place.home / "state"))
    async with Helmsman(settings, inside=True):
        pass
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == list(settings.ignored)
    checks = check_settings(settings)
    assert [(check.status, check.detail) for check in checks[1:]] == [("warning", settings.ignored[0])]


def test_compat_and_router_together_are_refused_with_the_reason(place: Place) -> None:
    with pytest.raises(InvalidSetting, match="both have a tool named codex"):
        place.load({"HELMSMAN_TOOLS": "compat,router"})


def test_every_file_of_a_project_narrows(place: Place) -> None:
    place.project("max_sessions = 3\nevent_buffer_size = 300")
    (place.cwd / "helmsman.toml").write_text("max_sessions = 4\nevent_buffer_size = 200", encoding="utf-8")
    settings = place.load()
    assert (settings.max_sessions, settings.event_buffer_size) == (3, 200)
    assert [file.path for file in settings.files] == [place.cwd / "helmsman.toml", place.repository / "helmsman.toml"]
    assert ["max_sessions in" in line and "4" in line for line in settings.ignored] == [True]


@pytest.mark.parametrize("planted", [".git", "packages/one/.git", "packages/.git"])
def test_a_repository_made_inside_a_project_hides_no_setting_of_it(place: Place, planted: str) -> None:
    place.project("max_sessions = 3\nrequire_confirmation = true\ntools = ['sessions']\non_limit = 'fail'")
    (place.repository / planted).mkdir(exist_ok=True)
    (place.repository / planted / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (place.cwd / "helmsman.toml").write_text("max_sessions = 9\nrequire_confirmation = false", encoding="utf-8")
    place.user("tools = ['sessions', 'extras']")
    settings = place.load()
    assert (settings.max_sessions, settings.require_confirmation, settings.on_limit) == (3, True, "fail")
    assert settings.tools == ("sessions",)


def test_a_repository_in_the_home_is_not_the_project_of_what_is_in_another(place: Place) -> None:
    place.user("default_agent = 'codex'")
    (place.home / ".git").write_text("gitdir: elsewhere", encoding="utf-8")
    inner = place.home / "code" / "one"
    (inner / ".git").mkdir(parents=True)
    (inner / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (place.home / "code" / "helmsman.toml").write_text("max_sessions = 3", encoding="utf-8")
    settings = load_settings({}, {"HOME": str(place.home)}, inner, user_file=place.user_file)
    assert settings.max_sessions == 10


def test_a_file_above_the_git_root_is_not_read(place: Place) -> None:
    (place.repository.parent / "helmsman.toml").write_text("max_sessions = 4", encoding="utf-8")
    assert place.load().max_sessions == 10


def test_allowed_roots_are_directories_as_path_lists_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    text = f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    env = {"HOME": str(tmp_path), "HELMSMAN_ALLOWED_ROOTS": text}
    assert load_settings({}, env, tmp_path).allowed_roots == ((tmp_path / "a").resolve(),) * 2
    with pytest.raises(InvalidSetting, match="HELMSMAN_ALLOWED_ROOTS"):
        load_settings({}, {**env, "HELMSMAN_ALLOWED_ROOTS": str(tmp_path / "none")}, tmp_path)
    with pytest.raises(InvalidSetting, match="allowed-roots"):
        load_settings({"allowed_roots": 3}, {"HOME": str(tmp_path)}, tmp_path)


def test_outside_a_repository_only_the_directory_itself_is_looked_at(tmp_path: Path) -> None:
    cwd = tmp_path / "one" / "two"
    cwd.mkdir(parents=True)
    (tmp_path / "helmsman.toml").write_text("max_sessions = 4", encoding="utf-8")
    user_file = tmp_path / "none.toml"
    assert load_settings({}, {"HOME": str(tmp_path)}, cwd, user_file=user_file).max_sessions == 10
    (cwd / "helmsman.toml").write_text("max_sessions = 5", encoding="utf-8")
    assert load_settings({}, {"HOME": str(tmp_path)}, cwd, user_file=user_file).max_sessions == 5


def test_the_users_own_file_is_trusted_even_when_it_is_in_the_working_directory(place: Place) -> None:
    place.user("state_dir = '/state'")
    settings = load_settings({}, {"HOME": str(place.home)}, place.home, user_file=place.user_file)
    assert settings.state_dir == Path("/state")
    assert len(settings.files) == 1


@pytest.mark.parametrize("content", [b"= 1", b"\xff\xfe", b"x = " + b"[" * 5000, b"a = 1\n" * 200_000])
def test_a_file_that_is_not_toml_is_an_error_that_names_it(place: Place, content: bytes) -> None:
    place.user_file.write_bytes(content)
    with pytest.raises(InvalidSetting) as caught:
        place.load()
    assert str(place.user_file) in caught.value.message


def test_a_directory_in_place_of_the_file_is_an_error(place: Place) -> None:
    place.user_file.mkdir()
    with pytest.raises(InvalidSetting, match="not a file"):
        place.load()


def test_the_platforms_directories_are_used_when_nothing_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, state = tmp_path / "config" / "helmsman", tmp_path / "state" / "helmsman"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent))
    config.mkdir(parents=True)
    (config / "helmsman.toml").write_text("max_sessions = 6", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAX_SESSIONS", raising=False)
    monkeypatch.delenv("HELMSMAN_STATE_DIR", raising=False)
    settings = load_settings()
    assert (settings.max_sessions, settings.state_dir) == (6, state)


def test_the_state_directory_is_made_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state"
    assert ensure_state_dir(path) == path
    assert ensure_state_dir(path) == path
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_a_state_directory_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidSetting, match="Other users can write"):
        ensure_state_dir(tmp_path)


def test_a_state_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="cannot be made"):
        ensure_state_dir(tmp_path / "file" / "state")


_TOML_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text()), st.dictionaries(st.text(), st.integers())
)


@given(
    key=st.sampled_from(sorted({*Settings.__struct_fields__, "approval_timeout_ms"} - {"files"})), value=_TOML_VALUES
)
def test_any_value_is_either_taken_or_refused_clearly(key: str, value: object) -> None:
    try:
        load_settings({key: value}, {"HOME": "/"}, Path("/"), user_file=Path("/no/helmsman.toml"))
    except InvalidSetting as error:
        assert error.message.rstrip().endswith((".", "?"))  # noqa: PT017 - refusing is one of two right outcomes
