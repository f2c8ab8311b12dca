"""Table `[worktree]` of `helmsman.toml`: the commands of a repository's worktrees, and their variables.

The commands come with the repository and are asked about. Its variables could make programs run other code, so they count
only where the user trusts the repository. Variables in the user's own file always count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import field

from helmsman.base.structs import Value, replace, unpack_if_valid
from helmsman.errors import InvalidSetting
from helmsman.settings import CONFIG_NAME, read_toml

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.git.worktree import Worktree
    from helmsman.settings import Settings

_TABLE: Final = "worktree"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PORT: Final = "HELMSMAN_PORT"
"""Variable with the port of a worktree."""


class WorktreeTable(Value, frozen=True, kw_only=True):
    """Settings for worktrees."""

    setup: str | None = None
    teardown: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def repository_table(repository: Path) -> WorktreeTable:
    """Return the settings in a repository's current file. Blocks.

    Raises:
        InvalidSetting: The file is invalid.
    """
    path = repository / CONFIG_NAME
    return _read(read_toml(path), path) if path.is_file() else WorktreeTable()


def environment_of(tree: Worktree, settings: Settings, *, trusts_repository: bool) -> dict[str, str]:
    """Return the variables of the programs in a worktree. Blocks, briefly.

    Raises:
        InvalidSetting: A file is invalid.
    """
    tables = [_read(file.content, file.path) for file in settings.files if file.trusted]
    if trusts_repository:
        tables.append(repository_table(tree.repository))
    port = str(tree.port or "")
    found = {name: value for table in reversed(tables) for name, value in table.env.items()}
    made = {name: value.replace("{port}", port).replace("{name}", tree.name) for name, value in found.items()}
    return made | ({PORT: port} if port else {})


def _read(content: Mapping[str, Any], path: Path) -> WorktreeTable:
    table = content.get(_TABLE, {})
    known = unpack_if_valid(table, WorktreeTable)
    if (
        known is None
        or not table.keys() <= {*WorktreeTable.__struct_fields__}
        or not all(map(_NAME.fullmatch, known.env))
    ):
        raise InvalidSetting(
            f'[{_TABLE}] in {path} can say `setup = "…"`, `teardown = "…"` and `env = {{NAME = "…"}}`. Correct it.'
        )
    setup, teardown = ((command and command.strip()) or None for command in (known.setup, known.teardown))
    return replace(known, setup=setup, teardown=teardown)
