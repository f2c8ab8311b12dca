"""The configuration of an agent: as it holds, what it is made of, and changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from helmsman.base.structs import Value


class ConfigLayer(Value, frozen=True, kw_only=True):
    """One source of a configuration. `kind` is for example `user` or `project`; `version` changes with its content."""

    kind: str
    file: str | None = None
    version: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AgentConfig(Value, frozen=True, kw_only=True):
    """A configuration as it holds, and what it is made of; of the layers, the first that says something decides."""

    values: Mapping[str, Any]
    layers: tuple[ConfigLayer, ...]


class InForce(Value, frozen=True, kw_only=True):
    """What a session is started with whose caller leaves it all to the configuration; None of what only the agent knows."""

    model: str | None = None
    effort: str | None = None
    sandbox: str | None = None
    approval_policy: str | None = None


class ConfigEdit(Value, frozen=True, kw_only=True):
    """A change of the user's configuration: a key, dotted, and its value; None takes the key out."""

    key: str
    value: Any
