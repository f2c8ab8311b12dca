"""Names for cloud environments: the table `[cloud]` of `helmsman.toml`.

    [cloud]
    default_environment = "site"          # a name from below, or an id or label as the cloud has it
    takes_long_work = true                # in your own file only: work that may take long runs there

    [cloud.environments]                  # in your own file only
    site = "env_0123456789abcdef"

An environment has secrets and network access of its own. A project's file comes with the repository and may be hostile,
so it can only choose among the names that your own file has; a name that is not there counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.config_table import ConfigTable, switch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helmsman.settings import ConfigFile

_KEYS: Final = ("default_environment", "environments", "takes_long_work")


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """`environments` are ids or labels by the user's own names. `note` tells of a project's choice that did not count."""

    environments: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    takes_long_work: bool = False
    note: str | None = None

    def reference(self, asked: str | None = None) -> str | None:
        """Return the reference to send to the cloud for a name, id or label, else for the default, else None."""
        wanted = asked or self.default
        return None if wanted is None else self.environments.get(wanted, wanted)

    @classmethod
    def load(cls, files: Iterable[ConfigFile]) -> CloudSettings:
        """Read the table from `Settings.files`, the file that wins first.

        Raises:
            InvalidSetting: Something in it makes no sense.
        """
        environments: dict[str, str] = {}
        default: str | None = None
        takes_long_work = False
        note: str | None = None
        for file in sorted(files, key=lambda file: not file.trusted):  # the user's first: a project's only chooses
            table = ConfigTable(file.content.get("cloud", {}), "cloud", file.path, _KEYS)
            choice = table.get("default_environment", _reference)
            if file.trusted:
                environments |= table.get("environments", _environments) or {}
                default = choice
                takes_long_work = table.get("takes_long_work", switch) or False
            elif "takes_long_work" in table.content:
                note = f"{file.path} sets cloud.takes_long_work, which is ignored: only your own file can set it."
            elif "environments" in table.content:
                note = (
                    f"{file.path} sets cloud.environments, which is ignored: a repository must not choose where your tasks "
                    "run. Put the names into your own file."
                )
            elif choice in environments:
                default = choice
            elif choice is not None:
                note = (
                    f"{file.path} asks for the environment {choice!r}, which your own helmsman.toml does not list under "
                    "[cloud.environments]; add it there to use it."
                )
        return cls(environments, default, takes_long_work, note)


def _environments(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(map(_is_name, (*value, *value.values()))):
        raise ValueError('names, and ids or labels of environments: site = "env_…"')
    return value


def _reference(value: Any) -> str:
    if not _is_name(value):
        raise ValueError("the name, id or label of an environment")
    return str(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()
