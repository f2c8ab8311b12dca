"""Agents of the ACP registry that can be installed by name: a stored copy, with a checksum of each package.

npm checks what it downloads against what its registry says now. The package itself is also checked against the stored
checksum, so a version that was replaced later is refused. Its dependencies are what npm resolves. On demand the registry
itself is asked; the checksum is then the one that npm names at that time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.caller_context import environment
from helmsman.base.json_values import mapping, optional_text, sequence, text, texts
from helmsman.base.programs import environment_for, find_program
from helmsman.base.sanitize import one_line
from helmsman.base.structs import Value, unpack
from helmsman.base.user_directories import data_directory
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE: Final = Path(__file__).with_name("acp_registry.json")
REGISTRY: Final = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json"
_REGISTRY_SECONDS: Final = 20
_SECONDS: Final = 600
_PROJECT: Final = '{"private": true}\n'
_QUIET: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


class NotInstalled(HelmsmanError):
    """Package cannot be installed, or is not the one of the registry."""


class RegisteredAgent(Value, frozen=True, kw_only=True):
    """Agent in the registry. `integrity` is the checksum of its package, as npm writes it.

    Of an `examined` one, Helmsman knows which files of a repository it runs.
    """

    id: str
    name: str
    description: str
    license: str
    package: str
    version: str
    program: str
    integrity: str
    args: tuple[str, ...] = ()
    examined: bool = False

    def table(self, command: Sequence[str]) -> str:
        """Return the table of `helmsman.toml` that makes it an agent of the user."""
        return f"[agents.{self.id}]\ncommand = {json.dumps(command)}\ntitle = {json.dumps(self.name)}\n"

    def install(self) -> tuple[str, ...]:
        """Install the agent in the user's data directory, and return its command. Blocks.

        Sandboxes hide the state directory, so it cannot be there.

        Raises:
            NotInstalled: There is no npm, it fails, or the package has another checksum.
        """
        npm = _npm()
        folder = Path(data_directory(environment()), "agents", f"{self.id}-{self.version}")
        with tempfile.TemporaryDirectory() as scratch:
            # Without it, npm takes the settings of a project in a directory above, where other users may write.
            (Path(scratch) / "package.json").write_text(_PROJECT, encoding="utf-8")
            # Pack first, then install that very file: installing by name would download again, past the checksum.
            _run(npm, "pack", f"{self.package}@{self.version}", *_QUIET, where=Path(scratch))
            (packed,) = Path(scratch).glob("*.tgz")
            digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
            if f"sha512-{digest}" != self.integrity:
                raise NotInstalled(
                    f"{self.package} {self.version} is not the package of the registry. It was left out."
                )
            folder.mkdir(parents=True, exist_ok=True)
            # As above: npm would otherwise install into a project further up.
            (folder / "package.json").write_text(_PROJECT, encoding="utf-8")
            _run(npm, "install", "--omit=dev", *_QUIET, str(packed), where=folder)
        program = folder / "node_modules" / ".bin" / self.program
        if not program.exists():
            raise NotInstalled(f"{self.package} {self.version} has no program {self.program}.")
        return (str(program), *self.args)


def registry() -> Mapping[str, RegisteredAgent]:
    """Return the agents of the registry, by id."""
    found = unpack(json.loads(_FILE.read_bytes())["agents"], list[RegisteredAgent])
    return {agent.id: agent for agent in found}


def registered(name: str) -> RegisteredAgent:
    """Return an agent of the registry.

    Raises:
        InvalidInput: There is none of this name.
    """
    known = registry()
    if name not in known:
        raise InvalidInput(f"The registry has no {name!r}. Use one of: {', '.join(known)}.", parameter="name")
    return known[name]


def look_up(name: str, address: str = REGISTRY) -> RegisteredAgent:
    """Return an agent as the registry and npm describe it now. Blocks.

    Raises:
        InvalidInput: The registry has no such agent.
        NotInstalled: The registry or npm does not answer, or the agent is no package of npm.
    """
    try:
        with urllib.request.urlopen(address, timeout=_REGISTRY_SECONDS) as answer:  # noqa: S310 - a fixed address
            listed = [mapping(one) for one in sequence(mapping(json.load(answer)).get("agents"))]
    except (OSError, ValueError) as error:
        raise NotInstalled(f"The registry does not answer: {one_line(str(error))[:300]}") from None
    entry = next((one for one in listed if one.get("id") == name), None)
    if entry is None or not name.replace("-", "").isalnum():
        raise InvalidInput(f"The registry has no {name!r}.", parameter="name")
    launched = mapping(mapping(entry.get("distribution")).get("npx"))
    package, _, version = text(launched.get("package")).rpartition("@")
    if not package or package.startswith("-") or not version.replace(".", "").isalnum():
        raise NotInstalled(f"{name} is not offered as a package of npm with an exact version. Install it by hand.")
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "package.json").write_text(_PROJECT, encoding="utf-8")
        fields = ("dist.integrity", "bin", "license")
        told = mapping(json.loads(_run(_npm(), "view", f"{package}@{version}", *fields, "--json", where=Path(scratch))))
    programs, usual = mapping(told.get("bin")), package.rpartition("/")[2]
    return RegisteredAgent(
        id=name,
        name=one_line(text(entry.get("name"))) or name,
        description=one_line(text(entry.get("description"))),
        license=optional_text(told.get("license")) or text(entry.get("license")),
        package=package,
        version=version,
        program=usual if usual in programs or not programs else next(iter(programs)),
        integrity=text(told.get("dist.integrity")),
        args=tuple(texts(launched.get("args"))),
    )


def _npm() -> str:
    npm = find_program("npm")
    if npm is None:
        raise NotInstalled("There is no npm on PATH. Install Node.js first.")
    return npm


def _run(*command: str, where: Path) -> str:
    """Run npm outside of any project. Return its output.

    Raises:
        NotInstalled: It fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env=environment_for(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"npm does not answer: {one_line(str(error))[:300]}") from None
    if done.returncode != 0:
        raise NotInstalled(f"npm fails: {one_line(done.stderr or done.stdout)[:300]}")
    return done.stdout
