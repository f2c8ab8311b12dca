"""Tests of the command line of a turn, and of refusals before a process exists."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.exec import ExecCommand, exec_command
from helmsman.agents.codex.features import Version
from helmsman.base.config_values import as_toml
from helmsman.errors import InvalidInput
from helmsman.model.options import SessionOptions, TurnInput


def codex(version: str = "0.166.0") -> CodexBinary:
    return CodexBinary(path=Path("/nowhere/codex"), version=Version.parse(version))


class Place:
    """Working directory, home and scratch directory."""

    def __init__(self, folder: Path) -> None:
        self.repo, self.home, self.scratch = folder / "repo", folder / "home", folder / "scratch"
        for path in (self.repo / ".git", self.home, self.scratch):
            path.mkdir(parents=True)
        (self.repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")

    def command(
        self,
        turn: TurnInput | None = None,
        binary: CodexBinary | None = None,
        session_id: str | None = None,
        directory: Path | None = None,
        **options: Any,
    ) -> ExecCommand:
        return exec_command(
            binary or codex(),
            self.home,
            SessionOptions(**options),
            turn or TurnInput(text="go"),
            directory=directory or self.repo,
            scratch=self.scratch,
            session_id=session_id,
        )

    def arguments(self, *args: Any, **options: Any) -> tuple[str, ...]:
        return self.command(*args, **options).arguments

    def config(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Parse the `--config` arguments like Codex."""
        pairs = [
            item.removeprefix("--config=") for item in self.arguments(*args, **options) if item.startswith("--config=")
        ]
        return {
            key: tomllib.loads(f"value = {value}")["value"] for key, _, value in (pair.partition("=") for pair in pairs)
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_options_left_out_by_the_caller_are_not_sent(place: Place) -> None:
    assert place.arguments() == ("exec", "--json", f"--cd={place.repo}", "-")


def test_everything_asked_for_stands_before_resume(place: Place) -> None:
    image = place.repo / "a.png"
    image.touch()
    arguments = place.arguments(
        TurnInput(text="go", images=(image,), output_schema={"type": "object"}, effort="high"),
        session_id="some-id",
        writes="workspace",
        model="-strange",
        writable_roots=(Path("/data"),),
        skip_git_repo_check=True,
    )
    assert arguments == (
        "exec",
        f"--image={image}",
        "--json",
        f"--cd={place.repo}",
        "--sandbox=workspace-write",
        "--model=-strange",
        "--add-dir=/data",
        '--config=model_reasoning_effort="high"',
        "--skip-git-repo-check",
        f"--output-schema={place.scratch / 'schema.json'}",
        "resume",
        "some-id",
        "-",
    )
    assert json.loads((place.scratch / "schema.json").read_text(encoding="utf-8")) == {"type": "object"}


def test_instructions_of_any_length_go_in(place: Place) -> None:
    config = place.config(base_instructions="x" * 1_000_000, developer_instructions='say "please"\n')
    assert config["developer_instructions"] == 'say "please"\n'
    assert Path(config["model_instructions_file"]).read_text(encoding="utf-8") == "x" * 1_000_000


def test_configuration_keeps_its_keys_as_the_caller_wrote_them(place: Place) -> None:
    config = {"a.b": 1, "table": {"with space": {"x.y": [True, "=", 1.5]}}}
    assert place.config(config=config) == config


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_any_value_survives_the_command_line(value: Any) -> None:
    written = as_toml(value)
    assert "\n" not in written
    assert tomllib.loads(f"value = {written}")["value"] == value


def test_an_image_with_a_comma_in_its_name_is_given_a_plain_one(place: Place) -> None:
    image = place.repo / "a, b.png"
    image.write_bytes(b"picture")
    given = place.arguments(TurnInput(text="look", images=(image,)))[1]
    assert "," not in given
    assert Path(given.removeprefix("--image=")).read_bytes() == b"picture"


# --- trust -----------------------------------------------------------------------------------------------------------


def trust_of(place: Place, **options: Any) -> dict[str, Any]:
    return dict(place.config(**options).get("projects", {}))


@pytest.mark.parametrize("writes", ["workspace", "anything"])
def test_a_repository_one_may_write_to_is_called_untrusted(place: Place, writes: str) -> None:
    assert trust_of(place, writes=writes) == {str(place.repo): {"trust_level": "untrusted"}}


def test_a_directory_inside_a_repository_is_called_untrusted_with_it(place: Place) -> None:
    inside = place.repo / "src"
    inside.mkdir()
    level = {"trust_level": "untrusted"}
    assert trust_of(place, writes="workspace", directory=inside) == {str(place.repo): level, str(inside): level}


@pytest.mark.parametrize(
    "config", [{"sandbox_mode": "workspace-write"}, {"default_permissions": ":workspace"}], ids=["mode", "permissions"]
)
def test_it_is_called_untrusted_when_the_configuration_allows_writing(place: Place, config: dict[str, Any]) -> None:
    assert trust_of(place, config=config) == {str(place.repo): {"trust_level": "untrusted"}}
    (key, value), *_ = config.items()
    (place.home / "config.toml").write_text(f'{key} = "{value}"\n', encoding="utf-8")
    assert trust_of(place) == {str(place.repo): {"trust_level": "untrusted"}}


@pytest.mark.parametrize(
    "options",
    [{}, {"writes": "nothing"}, {"writes": "workspace", "session_id": "some-id"}],
    ids=["nothing", "read-only", "resume"],
)
def test_nothing_is_said_where_codex_would_not_trust_by_itself(place: Place, options: dict[str, Any]) -> None:
    assert trust_of(place, **options) == {}


def test_nothing_is_said_to_a_codex_that_never_trusts_by_itself(place: Place) -> None:
    assert trust_of(place, binary=codex("0.115.0"), writes="workspace") == {}


@pytest.mark.parametrize("level", ["trusted", "untrusted"])
def test_the_decision_of_the_user_stands(place: Place, level: str) -> None:
    (place.home / "config.toml").write_text(f'[projects."{place.repo}"]\ntrust_level = "{level}"\n', encoding="utf-8")
    assert trust_of(place, writes="workspace") == {}


def test_a_broken_configuration_is_left_to_codex(place: Place) -> None:
    (place.home / "config.toml").write_text("= nonsense", encoding="utf-8")
    assert trust_of(place, writes="workspace") == {str(place.repo): {"trust_level": "untrusted"}}


def test_trust_is_given_on_request(place: Place) -> None:
    level = {"trust_level": "trusted"}
    assert trust_of(place, writes="workspace", trust_repository=True) == {str(place.repo): level}
    assert trust_of(place, session_id="some-id", trust_repository=True) == {str(place.repo): level}


def test_other_projects_of_the_caller_are_kept(place: Place) -> None:
    other = {"/other": {"trust_level": "trusted"}}
    assert trust_of(place, writes="workspace", config={"projects": other}) == {
        str(place.repo): {"trust_level": "untrusted"},
        **other,
    }


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="not a directory"):
        place.command(directory=place.repo / ".git" / "HEAD")


def test_writable_roots_without_a_sandbox_for_them_are_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="workspace-write"):
        place.command(writes="nothing", writable_roots=(place.home,))


def test_a_missing_profile_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="profile"):
        place.command(profile="none")


def test_a_profile_is_passed_on(place: Place) -> None:
    (place.home / "work.config.toml").write_text('model = "m"\n', encoding="utf-8")
    assert "--profile=work" in place.arguments(profile="work")


def test_a_value_too_long_for_a_command_line_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        place.command(developer_instructions="x" * 200_000)


def test_a_nul_character_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        place.command(model="a\0b")
