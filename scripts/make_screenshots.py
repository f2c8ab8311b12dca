"""Makes the pictures of the dashboard in the documentation: a real Codex on a scripted model, seen by a real Chromium.

    python -m scripts.make_screenshots

They go to `docs/images/dashboard-*.png`. Needs a Chromium, a Codex and git.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
from tests.browser.chromium import find_chromium, running_chromium

from helmsman import load_settings
from helmsman.base.concurrency import background_tasks
from helmsman.httpd.listening import MCP_PATH, HttpOptions
from helmsman.httpd.server import serve_http
from helmsman.service import HelmsmanService
from helmsman.testing import (
    Gate,
    HomeTemplates,
    ScriptedModel,
    add,
    codex_version,
    git,
    installed_codex,
    make_repository,
    patch,
    run,
    say,
    think,
    update,
    usage,
)
from helmsman.web.login import Logins

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.browser.chromium import Page

    from helmsman.sessions.session import Session

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SECONDS = 120

TEST = """\
from tidewater.parser import parse_height


def test_a_height_in_feet():
    assert parse_height("6 ft") == 1.8288
"""
PARSER = """\
# Heights as harbour offices write them.

FEET = 0.3048


def parse_height(text):
    value, unit = text.split()
    return float(value)
"""
OLD = "    return float(value)"
NEW = '    metres = float(value) * (FEET if unit == "ft" else 1)\n    return round(metres, 4)'
ANSWER = """\
The test passes now. `parse_height` ignored the unit; it now converts **feet** to metres:

```python
metres = float(value) * (FEET if unit == "ft" else 1)
```

I added a test for it, and all 13 tests pass."""
CHANGELOG = "# Changes\n\n## 2.4\n\n- Heights in feet and in fathoms.\n- Tide tables are made in half the time."
RUN_TESTS = "printf '............F\\nE   assert 6.0 == 1.8288\\n1 failed, 12 passed in 0.31s\\n'; exit 1"
RUN_AGAIN = "printf '.............\\n13 passed in 0.28s\\n'"
SEED = "Explain how tide tables are made"
EARLIER = (
    "Review the pull request about moorings",
    "Draw depth contours on the harbour map",
    "Why does the nightly build fail on arm64?",
    "Replace the date picker in the logbook",
    "Find out where the tide tables round twice",
    "Write tests for the weather import",
    "Move the configuration to TOML",
    "Upgrade the map renderer and fix what breaks",
    "Make the logbook searchable",
    "Document the import formats",
)
MODELS = ("gpt-5.5", "gpt-5.5", "gpt-5.5-codex", "gpt-5.5", "gpt-5.5-mini")
DAYS = 26


def tell(model: ScriptedModel) -> Gate:
    """Return the actions of the model, by the words of each prompt; the gate keeps one session at work."""
    model.on(
        "Fix the failing test",
        [
            think("**Looking at the failure**\n\nThe parser drops the unit, so feet come out as metres."),
            say("I will run the tests first to see what fails.", phase="commentary"),
            run(RUN_TESTS),
            usage(18_400, 9_200, 640, 320),
        ],
        [patch(update("tidewater/parser.py", OLD, NEW), add("tests/test_units.py", TEST)), usage(21_900, 18_400, 910)],
        [run(RUN_AGAIN), usage(23_800, 21_900, 120)],
        [say(ANSWER), usage(24_300, 23_800, 380, 90)],
    )
    model.on(
        "fathoms", [run("git diff --stat"), usage(25_900, 24_000, 90)], say("Fathoms are accepted too, and tested.")
    )
    reason = "The release branch has to be on the server for the build to begin."
    push = run("git push origin release/2.4", escalate=reason, prefix_rule=["git", "push"])
    model.on("Publish", [push, usage(12_000, 4_000, 310)], say("Done."))
    changelog = patch(update("CHANGELOG.md", "# Changes", CHANGELOG))
    model.on("changelog", [changelog, usage(9_300, 2_100, 500)], say("Done."))
    gate = model.gate()
    model.on("Speed up", say("Profiling the tide tables. Most of the time goes into ", gate, "sorting."))
    model.on(SEED, [say("From harmonic constants; see docs/tides.md."), usage(14_000, 6_000, 1_800, 700)])
    return gate


@dataclass
class Stage:
    """Helmsman with sessions that have run their scripts, and its server."""

    helm: HelmsmanService
    url: str
    logins: Logins
    fixed: Session
    published: Session


async def play(folder: Path, stack: AsyncExitStack) -> tuple[Stage, Gate]:
    binary = installed_codex()
    if binary is None:
        sys.exit("There is no Codex. Install openai-codex-cli-bin, or set HELMSMAN_TEST_CODEX.")
    model = await stack.enter_async_context(ScriptedModel())
    gate = tell(model)
    home = HomeTemplates(folder / "templates").new_home(binary, folder / "home")
    home.use_model(model.base_url, codex_version(binary))
    settings = load_settings({"codex_path": str(binary), "detach": False}, home.env, folder)
    helm = await stack.enter_async_context(HelmsmanService(settings, env=home.env))
    places = [make_repository(folder / "src" / name) for name in ("tidewater", "harbour-map", "logbook")]
    write_project(places[0])

    seed = await settled(await helm.start(SEED, cwd=places[0], full_auto=True))
    info = await helm.agent_records.find(seed.id)
    if info is None or info.path is None:
        sys.exit("Codex did not write its session down.")
    make_past(info.path, seed.id, places)
    fixing = "Fix the failing test of the height parser"
    fixed = await settled(await helm.start(fixing, cwd=places[0], full_auto=True, worktree=True))
    await settled(await helm.say(fixed.id, "Also accept fathoms, the old charts use them"))
    await helm.start("Speed up the tide tables, they take eight seconds", cwd=places[0], full_auto=True)
    published = await settled(await helm.start("Publish release 2.4", cwd=places[0], full_auto=True))
    changelog = await helm.start(
        "Write the changelog of release 2.4", cwd=places[0], sandbox="read-only", approval_policy="on-request"
    )
    await settled(changelog)

    logins = Logins(secure=False)
    tasks = await stack.enter_async_context(background_tasks())
    listening = anyio.Event()
    address: list[str] = []

    def announce(url: str, _token_file: Path) -> None:
        address.append(url.removesuffix(MCP_PATH))
        listening.set()

    tasks.start_soon(serve_http, helm, HttpOptions(), announce, logins)
    await listening.wait()
    return Stage(helm, address[0], logins, fixed, published), gate


async def settled(session: Session) -> Session:
    with anyio.fail_after(SECONDS):
        await session.wait()
    return session


def write_project(folder: Path) -> None:
    for name, content in (("tidewater/parser.py", PARSER), ("CHANGELOG.md", "# Changes\n")):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Begin")


def make_past(path: Path, session_id: str, places: list[Path]) -> None:
    """Create sessions of earlier days from one of today: other days, places, models and prompts, and more spending."""
    content = path.read_text(encoding="utf-8")
    today = re.findall(r"\d{4}-\d\d-\d\d", content)[0]
    number = 0
    for age in range(DAYS, 0, -1):
        day = datetime.now(UTC) - timedelta(days=age, hours=number % 5)
        for _ in range(0 if day.weekday() == 6 else 1 + age * 7 % 4):
            number += 1
            new_id = str(uuid.uuid4())
            copy = content.replace(session_id, new_id).replace(today, f"{day:%Y-%m-%d}")
            copy = re.sub(r'"turn_id":"[^"]+"', f'"turn_id":"{uuid.uuid4()}"', copy)
            copy = copy.replace(SEED, EARLIER[number % len(EARLIER)]).replace("gpt-5.5", MODELS[number % len(MODELS)])
            copy = copy.replace(str(places[0]), str(places[number * number % 3]))
            copy = re.sub(r'(?<=_tokens":)\d+', partial(times, 3 + number * 13 % 17), copy)
            file = path.with_name(path.name.replace(session_id, new_id))
            file.write_text(copy, encoding="utf-8")
            os.utime(file, (day.timestamp(), day.timestamp() - number * 60))


def times(factor: int, number: re.Match[str]) -> str:
    return str(factor * int(number[0]))


# --- the pictures ----------------------------------------------------------------------------------------------------


async def overview(page: Page, _stage: Stage) -> None:
    await page.until("document.querySelectorAll('.home .question').length === 2")


async def session(page: Page, stage: Stage) -> None:
    await page.get(f"location.hash = '#/s/{stage.fixed.id}'")
    await page.until_text(".entry", "Fathoms are accepted")
    await page.get("document.querySelector('.transcript .scroller').scrollTop = 0")


async def reviewed(page: Page, stage: Stage) -> None:
    await page.get(f"location.hash = '#/s/{stage.fixed.id}/changes'")
    await page.until_text(".lines .add", "metres = float(value)")
    await page.click("[data-path='tidewater/parser.py'] .add .no")
    await page.write("Fathoms too: 1.8288 metres each.")
    await page.click(".comment.asked [type=submit]")
    await page.until_text(".tray", "1 comment")
    await page.get("document.querySelector('.changes').scrollTop = 130")


async def asked(page: Page, stage: Stage) -> None:
    await page.get(f"location.hash = '#/s/{stage.published.id}'")
    await page.until_text(".question", "git push")
    await page.until_text(".session h1", "Publish release")


async def spent(page: Page, _stage: Stage) -> None:
    await page.get("location.hash = '#/usage'")
    await page.until("document.querySelectorAll('.chart svg').length === 3")


async def found(page: Page, _stage: Stage) -> None:
    await page.until("document.querySelectorAll('.home .question').length === 2")
    await page.press("/")
    await page.write("tide tables")
    await page.until(
        "document.querySelectorAll('.row .excerpt').length > 5 && !document.querySelector('.rows-end').innerText"
    )


async def begun(page: Page, _stage: Stage) -> None:
    await page.until("document.querySelectorAll('.home .question').length === 2")
    await page.click("#new")
    await page.until("document.activeElement.name === 'prompt'")
    await page.write("Draw the depth contours in the colours of the old charts")
    await page.until_text(".configured", "it asks")
    await page.until("document.querySelectorAll('dialog select[name=model] option').length > 1")


Show: TypeAlias = "Callable[[Page, Stage], Awaitable[None]]"

PICTURES: dict[str, tuple[Show, str, int, int]] = {
    "light": (overview, "light", 1280, 800),
    "dark": (session, "dark", 1280, 800),
    "session": (session, "light", 1280, 800),
    "review": (reviewed, "light", 1280, 800),
    "search": (found, "light", 1280, 800),
    "new": (begun, "light", 1280, 800),
    "usage": (spent, "light", 1280, 800),
    "narrow": (asked, "light", 390, 780),
    "narrow-dark": (overview, "dark", 390, 780),
}


async def main(only: list[str]) -> None:
    program = find_chromium()
    if program is None:
        sys.exit("There is no Chromium. Install Debian's `chromium` (or Chrome), or set HELMSMAN_TEST_CHROMIUM.")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="helmsman-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "chromium").mkdir()
        async with AsyncExitStack() as stack:
            chromium = stack.enter_context(running_chromium(program, folder / "chromium"))
            stage, gate = await play(folder, stack)
            for picture in only or PICTURES:
                show, scheme, width, height = PICTURES[picture]
                async with chromium.page(width=width, height=height, scale=1.5 if width < 500 else 1) as page:
                    await page.prefer(scheme)
                    await page.goto(stage.url + stage.logins.new_code().path)
                    await page.until("document.querySelector('.list-pane .scroller')?.dataset.ready")
                    await show(page, stage)
                    await page.get("document.fonts.ready.then(() => new Promise(requestAnimationFrame)).then(() => 1)")
                    (IMAGES / f"dashboard-{picture}.png").write_bytes(await page.picture())
            gate.release()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
