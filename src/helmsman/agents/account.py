"""What an agent tells of its account: who is logged in, which models and skills there are."""

from __future__ import annotations

from helmsman.base.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model the agent can use; `efforts` are how hard it can think."""

    id: str
    name: str
    description: str | None
    is_default: bool
    efforts: tuple[str, ...]
    default_effort: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who is logged in, if anyone: `kind` is for example `chatgpt` or `apiKey`."""

    kind: str | None
    email: str | None
    plan: str | None
    requires_login: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login that has begun: the page to open, and the code to enter there, if there is one."""

    id: str
    url: str
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Something the agent has been taught. `scope` is whose it is (`user`, `repo`, `system`, …), `path` its file."""

    name: str
    description: str
    scope: str
    path: str
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillList:
    """The skills there are, and in sentences which could not be read."""

    skills: tuple[Skill, ...]
    problems: tuple[str, ...] = ()
