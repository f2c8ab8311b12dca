from __future__ import annotations

import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from helmsman.agents.codex.normalise import from_app_server
from helmsman.errors import InvalidInput, RateLimitLow
from helmsman.model.events import RateLimit, RateLimitsReported
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.testing import CodexHome, ScriptedCloud, ScriptedModel, rate_limit, say
from helmsman.testing.local_server import serve
from helmsman.testing.script import Part

pytestmark = pytest.mark.anyio

LATER = int(time.time()) + 86400


async def after_a_turn(helm: HelmsmanService, model: ScriptedModel, directory: Path, *limits: Part) -> None:
    """Wait until Codex has reported limits from a response of the model."""
    model.on("hello", [say("hi"), *limits])
    session = await helm.start("hello", cwd=directory)
    assert await session.wait(until="end", timeout=30)


async def test_models_come_with_their_efforts_and_one_default(helm: HelmsmanService) -> None:
    models = await helm.extras.account.models()
    assert [model.is_default for model in models].count(True) == 1
    assert all(model.efforts and model.default_effort in model.efforts for model in models)


async def test_a_provider_of_ones_own_is_said_as_such(helm: HelmsmanService) -> None:
    report = await helm.extras.account.read()
    assert "needs no OpenAI login" in report.login
    assert (report.kind, report.limits, report.large_task_fits) == (None, (), "unknown")
    assert "reports no rate limits" in report.advice


async def test_without_a_login_the_error_asks_to_log_in(
    codex_binary: Path, codex_home: CodexHome, tmp_path: Path
) -> None:
    codex_home.config_path.write_text("", encoding="utf-8")
    settings = load_settings({"codex_path": str(codex_binary)}, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        report = await helm.extras.account.read()
    assert "Run `helmsman agents login`" in report.login
    assert report.large_task_fits == "no"


async def test_an_api_key_is_said_as_such(codex_binary: Path, codex_home: CodexHome, tmp_path: Path) -> None:
    codex_home.config_path.write_text("", encoding="utf-8")
    (codex_home.path / "auth.json").write_text('{"OPENAI_API_KEY": "sk-not-a-key"}', encoding="utf-8")
    settings = load_settings({"codex_path": str(codex_binary)}, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        report = await helm.extras.account.read()
    assert report.kind == "apiKey"
    assert "API key" in report.login
    assert report.large_task_fits == "unknown"


@pytest.mark.parametrize(
    ("used", "fits"), [(20.0, "likely"), (75.0, "uncertain"), (95.0, "unlikely"), (100.0, "no"), (120.0, "no")]
)
async def test_reported_limits_say_whether_a_large_task_fits(
    helm: HelmsmanService, model: ScriptedModel, folder: Path, used: float, fits: str
) -> None:
    limits = rate_limit(used, window_minutes=300, resets_at=LATER), rate_limit(10, name="secondary", resets_at=LATER)
    await after_a_turn(helm, model, folder, *limits)
    report = await helm.extras.account.read()
    primary, secondary = report.limits
    assert (primary.name, primary.remaining_percent, primary.window_minutes) == ("primary", max(0, 100 - used), 300)
    assert primary.resets_at is not None
    assert int(primary.resets_at.timestamp()) == LATER
    assert (secondary.name, secondary.remaining_percent) == ("secondary", 90)
    assert report.large_task_fits == fits
    assert primary.resets_at.isoformat(timespec="minutes") in report.advice


async def test_a_window_that_has_been_reset_says_nothing(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    await after_a_turn(helm, model, folder, rate_limit(99, window_minutes=300, resets_at=int(time.time()) - 10))
    assert (await helm.extras.account.read()).limits == ()


# --- minRemainingPercent ---------------------------------------------------------------------------------------------


async def test_a_start_is_refused_when_less_is_left_than_asked_for(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    limits = rate_limit(90, window_minutes=300, resets_at=LATER), rate_limit(10, name="secondary", resets_at=LATER)
    await after_a_turn(helm, model, folder, *limits)
    asked = len(model.requests)
    with pytest.raises(RateLimitLow) as caught:
        await helm.start("more", cwd=folder, min_remaining_percent=20)
    error = caught.value.as_dict()
    assert (error["code"], error["remaining_percent"], error["limit"]) == ("rate_limit_low", 10, "primary")
    assert error["resets_at"] is not None
    assert len(helm.sessions) == 1
    assert len(model.requests) == asked


async def test_a_start_continues_when_enough_is_left(helm: HelmsmanService, model: ScriptedModel, folder: Path) -> None:
    await after_a_turn(helm, model, folder, rate_limit(50, window_minutes=300, resets_at=LATER))
    model.on("more", say("ok"))
    session = await helm.start("more", cwd=folder, min_remaining_percent=50)
    assert await session.wait(until="end", timeout=30)
    assert (session.result, session.notes) == ("ok", ())


async def test_the_limit_of_a_single_model_does_not_hold_up_others(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    await after_a_turn(helm, model, folder, rate_limit(10, window_minutes=300, resets_at=LATER))
    engine = await helm.engine()
    known = await engine.rate_limits()
    assert known is not None
    of_a_model = {"limitId": "codex_small", "primary": {"usedPercent": 99, "resetsAt": LATER}}
    news = from_app_server("account/rateLimits/updated", {"rateLimits": of_a_model})
    assert isinstance(news, RateLimitsReported)
    both = news.over(known)
    assert [limit.name for limit in both.limits] == ["primary", "codex_small primary"]
    assert both.limits[0] == RateLimit(name="primary", used_percent=10, window_minutes=300, resets_at=LATER)


async def test_unknown_limits_let_the_start_continue_and_say_so(
    helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("hello", say("hi"))
    session = await helm.start("hello", cwd=folder, min_remaining_percent=20)
    assert any("Nothing is known of the account's rate limits" in note for note in session.notes)
    assert await session.wait(until="end", timeout=30)
    assert session.result == "hi"


@pytest.mark.parametrize("percent", [-1, 101, float("nan")])
async def test_an_invalid_percentage_is_refused(helm: HelmsmanService, folder: Path, percent: float) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 100"):
        await helm.start("hello", cwd=folder, min_remaining_percent=percent)


# --- with a ChatGPT login --------------------------------------------------------------------------------------------


async def test_with_a_chatgpt_login_codex_is_asked(
    codex_binary: Path, codex_version: tuple[int, int, int], codex_home: CodexHome, tmp_path: Path, folder: Path
) -> None:
    window = {"limit_window_seconds": 18000, "reset_after_seconds": 86400, "reset_at": LATER}
    limits = {"allowed": True, "limit_reached": False, "primary_window": {"used_percent": 85, **window}}
    usage = {"plan_type": "pro", "rate_limit": limits | {"secondary_window": None}, "credits": None}

    async def answer(_request: Request) -> JSONResponse:
        return JSONResponse(usage)

    async with serve(Starlette(routes=[Route("/backend-api/wham/usage", answer)])) as address:
        codex_home.config_path.write_text(f'chatgpt_base_url = "{address}/backend-api"\n', encoding="utf-8")
        ScriptedCloud().log_in(codex_home)
        settings = load_settings({"codex_path": str(codex_binary)}, codex_home.env, tmp_path)
        async with HelmsmanService(settings, env=codex_home.env) as helm:
            report = await helm.extras.account.read()
            with pytest.raises(RateLimitLow):
                await helm.start("hello", cwd=folder, min_remaining_percent=20)
    assert report.plan == "pro"
    if codex_version < (0, 163, 0):
        assert (report.kind, report.login) == ("chatgpt", "Codex is logged in with ChatGPT.")
    else:  # it asks its backend more than this one can answer
        assert "is not known now" in report.login
    (primary,) = report.limits
    assert (primary.remaining_percent, primary.window_minutes) == (15, 300)
    assert report.large_task_fits == "uncertain"
