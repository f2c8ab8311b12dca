"""Agents of the ACP registry: installed by name in the version of the registry, and by no other package."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import tomllib
from typing import TYPE_CHECKING

import pytest

from helmsman.agents.acp_registry import NotInstalled, look_up, registered, registry
from helmsman.base.caller_context import CallerContext
from helmsman.base.structs import replace
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NPM = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
pack) test -f package.json && echo content > package.tgz ;;
install) mkdir -p node_modules/.bin && touch node_modules/.bin/pi-acp ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """What a program in the place of npm was asked. It packs a file with `content`."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "npm"
    program.write_text(_NPM.format(log=tmp_path / "log"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    env = {"HOME": str(tmp_path), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    with CallerContext(env, tmp_path).entered():
        yield tmp_path / "log"


def test_a_package_with_another_checksum_is_not_installed(log: Path) -> None:
    with pytest.raises(NotInstalled, match="not the package"):
        registered("pi-acp").install()
    assert "install" not in log.read_text()
    assert not (log.parent / ".local").exists()


def test_the_package_is_installed_in_the_version_of_the_registry_without_its_scripts(log: Path) -> None:

    checksum = f"sha512-{base64.b64encode(hashlib.sha512(b'content' + os.linesep.encode()).digest()).decode()}"
    (command,) = replace(registered("pi-acp"), integrity=checksum).install()
    assert command == f"{log.parent}/.local/share/helmsman/agents/pi-acp-0.0.34/node_modules/.bin/pi-acp"
    packed, installed = log.read_text().splitlines()
    assert packed.startswith("pack pi-acp@0.0.34 --ignore-scripts")
    assert installed.startswith("install --omit=dev --ignore-scripts")


def test_the_table_of_an_agent_is_one_of_the_settings() -> None:
    table = tomllib.loads(registered("kimi").table(("/bin/kimi", "acp")))["agents"]["kimi"]
    assert table == {"command": ["/bin/kimi", "acp"], "title": "Kimi Code"}


def test_every_entry_has_an_exact_version_and_a_checksum() -> None:
    for agent in registry().values():
        assert agent.version.replace(".", "").isdigit(), agent.id
        assert len(agent.integrity) == len("sha512-") + 88, agent.id
    with pytest.raises(InvalidInput, match="pi-acp"):
        registered("nonsense")


def test_the_registry_is_asked_on_demand(log: Path, tmp_path: Path) -> None:
    index, npm = tmp_path / "registry.json", log.parent / "programs" / "npm"
    told = {"dist.integrity": "sha512-x", "bin": {"other": "o.js", "agent": "a.js"}, "license": "MIT"}
    npm.write_text(f"#!/bin/sh\necho \"$*\" >> {log}\necho '{json.dumps(told)}'\n")
    npx = {"package": "@company/agent@1.2.3", "args": ["--acp"]}
    entries = [
        {"id": "new-agent", "name": "New", "version": "1.2.3", "description": "An agent", "distribution": {"npx": npx}},
        {"id": "binary", "name": "Binary", "version": "1.0.0", "distribution": {"binary": {}}},
        {"id": "range", "name": "Range", "distribution": {"npx": {"package": "agent@^1"}}},
    ]
    index.write_text(json.dumps({"version": "1", "agents": entries}))
    found = look_up("new-agent", index.as_uri())
    assert (found.package, found.version, found.program, found.args) == ("@company/agent", "1.2.3", "agent", ("--acp",))
    assert (found.integrity, found.license) == ("sha512-x", "MIT")
    assert log.read_text() == "view @company/agent@1.2.3 dist.integrity bin license --json\n"
    for name in ("binary", "range"):
        with pytest.raises(NotInstalled, match="not offered as a package of npm"):
            look_up(name, index.as_uri())
    with pytest.raises(InvalidInput, match="no 'nonsense'"):
        look_up("nonsense", index.as_uri())
    with pytest.raises(NotInstalled, match="does not answer"):
        look_up("new-agent", (tmp_path / "missing").as_uri())


@pytest.mark.long
@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_npm_has_the_package_of_the_registry(tmp_path: Path) -> None:
    with CallerContext({**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}, tmp_path).entered():
        try:
            (command,) = registered("pi-acp").install()
        except NotInstalled as error:
            if "npm" not in str(error):
                raise
            pytest.skip(f"the npm registry cannot be reached: {error}")
    assert os.access(command, os.X_OK)
