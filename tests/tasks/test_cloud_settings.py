"""The table `[cloud]` of `helmsman.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.cloud_tasks import CloudSettings
from helmsman.errors import InvalidSetting
from helmsman.settings import ConfigFile, load_settings

OWN = """
[cloud]
default_environment = "site"
[cloud.environments]
site = "env_1"
app = "My app"
"""


def own(text: str) -> ConfigFile:
    return ConfigFile(Path("/home/me/helmsman.toml"), tomllib.loads(text), trusted=True)


def project(text: str) -> ConfigFile:
    return ConfigFile(Path("/src/repo/helmsman.toml"), tomllib.loads(text), trusted=False)


def test_names_stand_for_environments() -> None:
    settings = CloudSettings.load([own(OWN)])

    assert settings.reference() == "env_1"
    assert settings.reference("app") == "My app"
    assert settings.reference("env_77") == "env_77"


def test_without_a_default_nothing_is_chosen() -> None:
    settings = CloudSettings.load([own("[cloud.environments]\nsite = 'env_1'")])

    assert settings.reference() is None
    assert CloudSettings().reference("env_1") == "env_1"


def test_a_project_chooses_among_the_users_names() -> None:
    settings = CloudSettings.load([project("cloud.default_environment = 'app'"), own(OWN)])

    assert settings.reference() == "My app"
    assert settings.note is None


@pytest.mark.parametrize("choice", ["env_secret", "My app", "other"])
def test_a_project_cannot_choose_an_environment_that_the_user_did_not_name(choice: str) -> None:
    project_file = project(f"cloud.default_environment = '{choice}'")

    assert CloudSettings.load([project_file, own(OWN)]).reference() == "env_1"
    lonely = CloudSettings.load([project_file])
    assert lonely.reference() is None
    assert choice in (lonely.note or "")


def test_a_project_cannot_give_a_name_another_meaning() -> None:
    settings = CloudSettings.load([project("cloud.environments.site = 'env_evil'"), own(OWN)])
    assert settings == replace(CloudSettings.load([own(OWN)]), note=settings.note)
    assert settings.note is not None
    assert "your own file" in settings.note


@pytest.mark.parametrize(
    "text",
    [
        "cloud = 1",
        "cloud.default = 'x'",
        "cloud.default_environment = 7",
        "cloud.default_environment = ' '",
        "cloud.environments = ['env_1']",
        "cloud.environments.site = 1",
        "cloud.environments.site = ''",
        'cloud.environments.site = "a\\nb"',
    ],
)
def test_invalid_values_are_refused_with_the_file(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"/home/me/helmsman\.toml"):
        CloudSettings.load([own(text)])


def test_the_table_is_read_from_real_files(tmp_path: Path) -> None:
    user_file = tmp_path / "user.toml"
    user_file.write_text(OWN, encoding="utf-8")
    (tmp_path / "helmsman.toml").write_text("[cloud]\ndefault_environment = 'app'\n", encoding="utf-8")

    settings = load_settings(env={"HOME": str(tmp_path)}, cwd=tmp_path, user_file=user_file)

    assert CloudSettings.load(settings.files).reference() == "My app"


def test_only_the_users_own_file_sends_long_work_to_the_cloud() -> None:
    assert CloudSettings.load([own("cloud.takes_long_work = true")]).takes_long_work
    settings = CloudSettings.load([project("cloud.takes_long_work = true"), own(OWN)])
    assert not settings.takes_long_work
    assert "only your own file" in (settings.note or "")
    with pytest.raises(InvalidSetting, match="true or false"):
        CloudSettings.load([own("cloud.takes_long_work = 1")])
