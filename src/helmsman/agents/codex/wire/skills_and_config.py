"""Skills and configuration as Codex tells of them: `skills/list` and `config/read`, read tolerantly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helmsman.agents.account import Skill, SkillList
from helmsman.agents.configured import AgentConfig, ConfigLayer
from helmsman.base.json_values import mapping, optional_text, present, rows, sequence

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_skills(answer: Mapping[str, Any]) -> SkillList:
    """The skills for the directories that were asked about."""
    places = rows(answer.get("data"))
    skills = [_skill(row) for place in places for row in rows(place.get("skills"))]
    problems = [f"{row.get('path')}: {row.get('message')}" for place in places for row in rows(place.get("errors"))]
    return SkillList(skills=tuple(skill for skill in skills if skill.name), problems=tuple(problems))


def _skill(row: Mapping[str, Any]) -> Skill:
    shown = mapping(row.get("interface"))
    short = optional_text(shown.get("shortDescription")) or optional_text(row.get("shortDescription"))
    return Skill(
        name=str(row.get("name") or ""),
        description=short or str(row.get("description") or ""),
        scope=str(row.get("scope") or ""),
        path=str(row.get("path") or ""),
        enabled=row.get("enabled") is not False,
    )


def read_config(answer: Mapping[str, Any]) -> AgentConfig:
    """The configuration, without the keys that nobody has set."""
    layers = tuple(_layer(mapping(row)) for row in sequence(answer.get("layers")))
    return AgentConfig(values=present(mapping(answer.get("config"))), layers=layers)


def _layer(row: Mapping[str, Any]) -> ConfigLayer:
    name = mapping(row.get("name"))
    folder = optional_text(name.get("dotCodexFolder"))
    return ConfigLayer(
        kind=str(name.get("type")),
        file=f"{folder}/config.toml" if folder is not None else optional_text(name.get("file")),
        version=optional_text(row.get("version")),
        values=mapping(row.get("config")),
    )
