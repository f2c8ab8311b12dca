"""Configuration of an agent: effective values, their origins, and edits of the user's file by the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from helmsman.agents.protocol import AgentConfig, Capability, ConfigEdit, ConfigLayer, InForce
from helmsman.base.config_values import key_path
from helmsman.base.files import refuse_outside
from helmsman.base.json_values import present
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput
from helmsman.model.inputs import directory as existing_directory
from helmsman.model.nature import ACTS, READS, verb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from helmsman.model.options import PathLike
    from helmsman.steering.core import Steering


class ConfigChange(Value, frozen=True, kw_only=True):
    """Planned edit of a configuration file: file, version and the current values of the keys."""

    file: str
    version: str | None
    edits: tuple[ConfigEdit, ...]
    before: Mapping[str, Any]

    @property
    def is_nothing(self) -> bool:
        """Return whether the file says all of it already."""
        return all(self.before.get(edit.key) == edit.value for edit in self.edits)


class AgentConfiguration:
    """`Helmsman.extras.configuration`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    @verb(READS)
    async def read(self, directory: Path | None = None, agent: str | None = None) -> AgentConfig:
        """Return the configuration for a directory."""
        return await (await self._helm.engine(Capability.CONFIGURE, agent=agent)).read_config(directory)

    @verb(READS)
    async def in_force(self, directory: PathLike, agent: str | None = None) -> InForce:
        """Return the defaults of a session in a directory: `helmsman.toml`, then the agent's configuration.

        Raises:
            InvalidInput: There is no such directory, or it is outside the allowed roots.
            Unsupported: Only the agent itself knows.
        """
        place = existing_directory("cwd", directory)
        refuse_outside(place, self._helm.allowed_roots, "cwd")
        found = await (await self._helm.engine(Capability.CONFIGURE, agent=agent)).in_force(place)
        return replace(found, model=self._helm.settings.default_model or found.model)

    @verb(READS)
    async def plan(self, edits: Sequence[ConfigEdit], agent: str | None = None) -> ConfigChange:
        """Return what these edits would change in the user's file, without writing.

        Raises:
            InvalidInput: A key is named twice, or the agent does not know it and would ignore it.
        """
        if len({edit.key for edit in edits}) < len(edits):
            raise InvalidInput("A key is named twice. Name each once.", parameter="edits")
        engine = await self._helm.engine(Capability.CONFIGURE, agent=agent)
        await engine.refuse_unknown_settings(edits, self._helm.environment)
        layers = (await engine.read_config(None)).layers
        users = next((layer for layer in layers if layer.kind == "user"), ConfigLayer(kind="user"))
        held = {edit.key: value_at(users.values, edit.key) for edit in edits}
        return ConfigChange(
            file=users.file or "config.toml",
            version=users.version,
            edits=tuple(edits),
            before=present(held),
        )

    @verb(ACTS)
    async def write(self, change: ConfigChange, agent: str | None = None) -> str | None:
        """Write a planned edit if the file is unchanged. Return what overrides it, if anything.

        Raises:
            EngineRefused: The file has changed, or the agent rejects a value; nothing was written.
            InvalidInput: There are allowed roots, which an edit could circumvent for all sessions.
        """
        if self._helm.allowed_roots:
            raise InvalidInput(
                "There are allowed roots, and a change there would also apply to sessions outside them. Change "
                f"{change.file} by hand."
            )
        engine = await self._helm.engine(Capability.CONFIGURE, agent=agent)
        return await engine.write_config(change.edits, version=change.version)


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, whose names may be quoted; None if it is missing."""
    found: Any = values
    for name in key_path(key):
        found = found.get(name) if isinstance(found, dict) else None
    return found
