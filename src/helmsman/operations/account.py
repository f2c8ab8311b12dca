"""Facts about an agent: its models, skills and account."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from helmsman.agents.protocol import Capability
from helmsman.base.sanitize import exact
from helmsman.model.nature import READS
from helmsman.operations.table import OperationCall, operation
from helmsman.operations.texts import CODEX
from helmsman.shapes.contract import Input, NothingInput, Output

Time = Annotated[str, BeforeValidator(datetime.isoformat)]


class ListedModel(Output):
    id: str = Field(description="What {tool}_start takes as model.")
    name: str
    description: str | None = None
    is_default: bool
    efforts: list[str] = Field(description="What {tool}_start takes as effort with this model.")
    default_effort: str | None = None


class ModelsOutput(Output):
    models: list[ListedModel]


class LimitOutput(Output):
    name: str = Field(description="primary and secondary: of the account; others: of single models.")
    remaining_percent: float
    window_minutes: int | None = None
    resets_at: Time | None = None


class AccountOutput(Output):
    kind: str | None = Field(None, description="chatgpt, apiKey, …; absent without a login.")
    email: str | None = None
    plan: str | None = None
    login: str = Field(description="In a sentence.")
    limits: list[LimitOutput] = Field(description="Empty: none are known.")
    large_task_fits: Literal["likely", "uncertain", "unlikely", "no", "unknown"]
    advice: str = Field(description="In a sentence.")


def _models_in_words(output: ModelsOutput) -> str:
    # The efforts are listed too: some clients show a model only this text, not the structured content.
    return "\n".join(
        f"{model.id}{' (default)' if model.is_default else ''}: {', '.join(model.efforts)}" for model in output.models
    )


@operation("{tool}_models", "List {agent}'s models", READS, _models_in_words, needs=Capability.MODELS)
async def models(call: OperationCall, _args: NothingInput) -> ModelsOutput:
    """The models {tool}_start can use, each with the efforts it has; the default one is marked."""
    models = await call.helm.extras.account.models(CODEX)
    return ModelsOutput(models=[ListedModel.model_validate(model, from_attributes=True) for model in models])


class SkillsInput(Input):
    working_directory: str | None = Field(
        None, description="Where the work would be, e.g. /src/app: a repository has skills of its own."
    )


class ListedSkill(Output):
    name: str
    description: str
    scope: str = Field(description="Whose it is: user, repo, system or admin.")
    path: str
    enabled: bool


class SkillsOutput(Output):
    skills: list[ListedSkill]
    problems: list[str] | None = Field(None, description="Which could not be read, and why.")


def _skills_in_words(output: SkillsOutput) -> str:
    rows = [f"{one.name}{'' if one.enabled else ' (off)'}: {one.description}" for one in output.skills]
    # Names and problems come from files of the repository, so control characters must not get through.
    return "\n".join(map(exact, [*rows, *(output.problems or ())])) or "Codex has no skills."


@operation("{tool}_skills", "List {agent}'s skills", READS, _skills_in_words, needs=Capability.SKILLS)
async def skills(call: OperationCall, args: SkillsInput) -> SkillsOutput:
    """The skills {agent} has for work in a directory: name one in a prompt ($name) to have it used."""
    found = await call.helm.extras.account.skills(args.working_directory, CODEX)
    skills = [ListedSkill.model_validate(skill, from_attributes=True) for skill in found.skills]
    return SkillsOutput(skills=skills, problems=list(found.problems) or None)


def _account_in_words(output: AccountOutput) -> str:
    plan = f" Plan: {output.plan}." if output.plan else ""
    return f"{output.login}{plan}\n{output.advice}"


@operation("{tool}_account", "Look at {agent}'s account", READS, _account_in_words, needs=Capability.ACCOUNT)
async def account(call: OperationCall, _args: NothingInput) -> AccountOutput:
    """How {agent} is logged in, its plan, what is left of the rate limits, when they are reset, and whether a large task is
    likely to fit. Look here before starting much work; minRemainingPercent of {tool}_start checks it for you."""
    return AccountOutput.model_validate(await call.helm.extras.account.read(CODEX), from_attributes=True)
