"""The configuration of an agent: as it holds, what it is made of, and changes of it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from helmsman.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayer:
    """One source of a configuration. `kind` is for example `user` or `project`; `version` changes with its content."""

    kind: str
    file: str | None = None
    version: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """A configuration as it holds, and what it is made of; of the layers, the first that says something decides."""

    values: Mapping[str, Any]
    layers: tuple[ConfigLayer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """What a session is started with whose caller leaves it all to the configuration; None of what only the agent knows."""

    model: str | None = None
    effort: str | None = None
    sandbox: str | None = None
    approval_policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEdit:
    """A change of the user's configuration: a key, dotted, and its value; None takes the key out."""

    key: str
    value: Any
