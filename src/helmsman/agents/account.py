"""What an agent tells of its account: who is logged in, which models and skills there are."""

from __future__ import annotations

from helmsman.base.structs import Value


class Model(Value, frozen=True, kw_only=True):
    """A model the agent can use; `efforts` are how hard it can think."""

    id: str
    name: str
    description: str | None
    is_default: bool
    efforts: tuple[str, ...]
    default_effort: str | None


class Account(Value, frozen=True, kw_only=True):
    """Who is logged in, if anyone: `kind` is for example `chatgpt` or `apiKey`."""

    kind: str | None
    email: str | None
    plan: str | None
    requires_login: bool


class Login(Value, frozen=True, kw_only=True):
    """A login that has begun: the page to open, and the code to enter there, if there is one."""

    id: str
    url: str
    code: str | None = None


class Skill(Value, frozen=True, kw_only=True):
    """Something the agent has been taught. `scope` is whose it is (`user`, `repo`, `system`, …), `path` its file."""

    name: str
    description: str
    scope: str
    path: str
    enabled: bool


class SkillList(Value, frozen=True, kw_only=True):
    """The skills there are, and in sentences which could not be read."""

    skills: tuple[Skill, ...]
    problems: tuple[str, ...] = ()
