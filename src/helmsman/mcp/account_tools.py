"""Tools of the toolset `extras` about Codex itself: the models, the account and what is left of its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from helmsman.mcp.toolset import READS, Tool
from helmsman.shapes.contract import Input, Output

if TYPE_CHECKING:
    from helmsman.mcp.toolset import CallContext


class ModelsInput(Input):
    pass


class ListedModel(Output):
    id: str = Field(description="What codex_start takes as model.")
    name: str
    description: str | None = None
    is_default: bool
    efforts: list[str] = Field(description="What codex_start takes as effort with this model.")
    default_effort: str | None = None


class ModelsOutput(Output):
    models: list[ListedModel]


class AccountInput(Input):
    pass


class LimitOutput(Output):
    name: str = Field(description="primary and secondary are those of the account; others are of single models.")
    remaining_percent: float
    window_minutes: int | None = Field(None, description="How long its window is.")
    resets_at: str | None = Field(None, description="When all of it is there again.")


class AccountOutput(Output):
    kind: str | None = Field(None, description="chatgpt, apiKey, …; absent without a login.")
    email: str | None = None
    plan: str | None = None
    login: str = Field(description="How Codex is logged in, in a sentence.")
    limits: list[LimitOutput] = Field(description="Empty: none are known.")
    large_task_fits: Literal["likely", "uncertain", "unlikely", "no", "unknown"]
    advice: str = Field(description="The same in a sentence.")


async def _models(call: CallContext, _args: ModelsInput) -> ModelsOutput:
    models = [
        ListedModel(
            id=model.id,
            name=model.name,
            description=model.description,
            is_default=model.is_default,
            efforts=list(model.efforts),
            default_effort=model.default_effort,
        )
        for model in await call.helm.extras.account.models()
    ]
    return ModelsOutput(models=models)


async def _account(call: CallContext, _args: AccountInput) -> AccountOutput:
    report = await call.helm.extras.account.read()
    limits = [
        LimitOutput(
            name=limit.name,
            remaining_percent=limit.remaining_percent,
            window_minutes=limit.window_minutes,
            resets_at=None if limit.resets_at is None else limit.resets_at.isoformat(),
        )
        for limit in report.limits
    ]
    return AccountOutput(
        kind=report.kind,
        email=report.email,
        plan=report.plan,
        login=report.login,
        limits=limits,
        large_task_fits=report.large_task_fits,
        advice=report.advice,
    )


def _models_in_words(output: ModelsOutput) -> str:
    return "\n".join(
        f"{model.id}{' (default)' if model.is_default else ''}: {', '.join(model.efforts)}" for model in output.models
    )


def _account_in_words(output: AccountOutput) -> str:
    plan = f" Plan: {output.plan}." if output.plan else ""
    return f"{output.login}{plan}\n{output.advice}"


ACCOUNT_TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="codex_models",
        title="List Codex's models",
        description="The models codex_start can use, each with the efforts it has; the default one is marked.",
        takes=ModelsInput,
        gives=ModelsOutput,
        annotations=READS,
        run=_models,
        in_words=_models_in_words,
    ),
    Tool(
        name="codex_account",
        title="Look at Codex's account",
        description=(
            "How Codex is logged in, its plan, how much of the rate limits is left and when they are reset, and "
            "whether a large task is likely to fit. Look here before starting much work; minRemainingPercent of "
            "codex_start checks it for you."
        ),
        takes=AccountInput,
        gives=AccountOutput,
        annotations=READS,
        run=_account,
        in_words=_account_in_words,
    ),
)
