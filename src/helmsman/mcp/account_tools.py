"""Tools of the toolset `extras` about Codex itself: the models, the account and what is left of its limits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from helmsman.mcp.toolset import CODEX, READS, CallContext, tool
from helmsman.shapes.contract import NothingInput, Output

Time = Annotated[str, BeforeValidator(datetime.isoformat)]


class ListedModel(Output):
    id: str = Field(description="What codex_start takes as model.")
    name: str
    description: str | None = None
    is_default: bool
    efforts: list[str] = Field(description="What codex_start takes as effort with this model.")
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
    return "\n".join(
        f"{model.id}{' (default)' if model.is_default else ''}: {', '.join(model.efforts)}" for model in output.models
    )


@tool("List Codex's models", READS, _models_in_words)
async def codex_models(call: CallContext, _args: NothingInput) -> ModelsOutput:
    """The models codex_start can use, each with the efforts it has; the default one is marked."""
    models = await call.helm.extras.account.models(CODEX)
    return ModelsOutput(models=[ListedModel.model_validate(model, from_attributes=True) for model in models])


def _account_in_words(output: AccountOutput) -> str:
    plan = f" Plan: {output.plan}." if output.plan else ""
    return f"{output.login}{plan}\n{output.advice}"


@tool("Look at Codex's account", READS, _account_in_words)
async def codex_account(call: CallContext, _args: NothingInput) -> AccountOutput:
    """How Codex is logged in, its plan, what is left of the rate limits, when they are reset, and whether a large task is
    likely to fit. Look here before starting much work; minRemainingPercent of codex_start checks it for you."""
    return AccountOutput.model_validate(await call.helm.extras.account.read(CODEX), from_attributes=True)
