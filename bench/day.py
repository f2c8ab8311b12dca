"""A simulated working day: three repositories, real Codex with a scripted model, in a terminal, a browser and on a phone.

    python -m bench.day                    # checks everything, prints what it checked
    python -m bench.day --pictures DIR     # and leaves pictures of the screens there

Each check names what would be lost, wrong or a dead end. Needs tmux, a Chromium, git and the `helmsman` package.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from tests.browser.chromium import find_chromium, running_chromium
from tests.tmux import Tmux

from helmsman.cli.exit_codes import ExitCode
from helmsman.testing import (
    ScriptedModel,
    add,
    ask_user,
    fail,
    git,
    patch,
    question,
    run,
    say,
    spawn_agent,
    usage,
    wait_agents,
)
from helmsman.testing.binaries import codex_version, installed_codex
from helmsman.testing.home import HomeTemplates
from helmsman.testing.hubs import end_hub, hub_pid
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from tests.browser.chromium import Chromium, Page

SECONDS = 60
FILES = 30
PHONE = (390, 844)
LIMIT_SECONDS = 15
TOKENS = 1000
"""Usage of each response of the model: the displayed numbers must be sums of it."""
ANSWERS = 20
"""What the model answers on this day, the sub-agent's included."""
LIVE = "document.querySelector('#live')?.dataset.state === 'live'"
FITS = "document.documentElement.scrollWidth <= innerWidth"


@dataclass
class Day:
    """The place, and the checks made there."""

    env: dict[str, str]
    repositories: dict[str, Path]
    model: ScriptedModel
    chromium: Chromium
    pictures: Path | None
    checks: list[tuple[str, bool]] = field(default_factory=list)
    dead_ends: list[str] = field(default_factory=list)

    def check(self, what: str, holds: object) -> None:
        self.checks.append((what, bool(holds)))
        print("✓" if holds else "✗", what, flush=True)

    async def command(self, *words: str, where: str = "shop", expected: int = 0) -> str:
        """Run a command without a terminal; return its stdout."""
        done = await anyio.run_process(
            [sys.executable, "-m", "helmsman", *words], env=self.env, cwd=self.repositories[where], check=False
        )
        if done.returncode != expected:
            self.dead_ends.append(f"{' '.join(words)}: {done.returncode} {done.stderr.decode()[-500:]}")
        return done.stdout.decode()

    async def session(self, title: str) -> dict[str, Any]:
        """Return the session with this prompt, as `helmsman list` shows it."""
        found = json.loads(await self.command("list", "--json", "--limit", "50"))["sessions"]
        return next(one for one in found if title in (one.get("name") or one.get("summary") or ""))

    async def until(self, title: str, *statuses: str) -> dict[str, Any]:
        with anyio.fail_after(SECONDS):
            while (found := await self.session(title)).get("status") not in statuses:  # noqa: ASYNC110 - of other processes
                await anyio.sleep(0.2)
        return found

    async def picture(self, page: Page, name: str) -> None:
        if self.pictures is not None:
            (self.pictures / f"{name}.png").write_bytes(await page.picture())

    def screen(self, terminal: Tmux, name: str) -> None:
        if self.pictures is not None:
            (self.pictures / f"{name}.txt").write_text(terminal.screen, encoding="utf-8")


def script(model: ScriptedModel, resets_at: int) -> None:
    """Write what the model does, by the words of each prompt."""
    cost = usage(TOKENS, output_tokens=10)
    model.on(
        "Publish", [run("touch published.txt", escalate="It leaves the sandbox."), cost], [say("Published."), cost]
    )
    model.on("Deploy", [run("touch deployed.txt", escalate="It leaves the sandbox."), cost], [say("Deployed."), cost])
    model.on("Tag", [run("touch tagged.txt", escalate="It leaves the sandbox."), cost], [say("Not tagged."), cost])
    files = [add(f"src/part{number:02}.py", f"part = {number}\nname = 'part {number}'\n") for number in range(FILES)]
    model.on("Split the module", [patch(*files), cost], [say(f"Split into {FILES} files."), cost])
    model.on("I have reviewed", [patch(add("src/extra.py", "extra = True\n")), cost], [say("Addressed."), cost])
    model.on(
        "Which database", [ask_user(question("Which database?", "Postgres", "SQLite")), cost], [say("Chosen."), cost]
    )
    model.on("Break", fail(400, message="The context is too long.", code="context_length_exceeded"))
    limit = fail(429, error_type="usage_limit_reached", resets_at=resets_at)
    model.on("Reach the limit", limit, [say("After the limit."), cost])
    model.on("Count the", [say("Counted."), cost])
    model.on("Delegate", [spawn_agent("Count the lines"), cost], [wait_agents(), cost], [say("Delegated."), cost])
    model.on("Build slowly", [run("sleep 20", yield_ms=30_000), cost], [say("Built."), cost])
    model.on("And then", [say("And then it was done."), cost])


async def morning(day: Day) -> None:
    """Start the day's work from the shell, see it on one screen, and answer there with one key."""
    ask = ("-s", "read-only", "-a", "on-request")
    for where, words in (
        ("shop", ("--worktree", "--full-auto", "Split the module into files")),
        ("shop", (*ask, "Publish the release")),
        ("api", (*ask, "Tag the release")),
        ("api", (*ask, "Deploy to staging")),
        ("api", ("Which database should it use?",)),
        ("api", ("Reach the limit of the account",)),
        ("site", ("Break on purpose",)),
        ("site", ("Delegate the counting",)),
    ):
        await day.command("run", "--detach", *words, where=where)
    split = await day.until("Split the module", "done")
    day.check("a worktree session belongs to its repository", split.get("repository") == str(day.repositories["shop"]))
    here = await day.command("list", "--json", "--directory", str(day.repositories["shop"]))
    day.check("and is in the repository's list", split["sessionId"] in here)
    for title in ("Publish", "Tag", "Deploy", "Which database"):
        await day.until(title, "awaiting_approval")
    await day.until("Delegate", "done")
    await day.until("Break", "error")
    shown = await day.command()
    day.check("`helmsman` says which session failed", "failed" in shown or "error" in shown)

    with Tmux(columns=120, lines=36) as terminal:
        command = [sys.executable, "-m", "helmsman"]
        terminal.start(command, env=day.env | {"TERM": "tmux-256color"}, directory=day.repositories["shop"])
        screen = await terminal.shows("Publish the release", "Break on purpose", "Split the module", "failed")
        day.screen(terminal, "terminal-overview")
        day.check("those that ask come first", screen.index("Publish the release") < screen.index("Split the module"))
        for title, key in (("Publish the release", "y"), ("Tag the release", "n")):
            terminal.press("/")
            terminal.type(title.split()[0].lower())
            await terminal.shows_no("Break on purpose")
            terminal.press("Enter")
            await terminal.shows("y approve", "touch " + ("published" if key == "y" else "tagged"))
            await terminal.answer(key, "y approve")
        await terminal.shows("Why?")
        terminal.press("Enter")
        await day.until("Publish", "done")
        day.check("an approval with one key is carried out", (day.repositories["shop"] / "published.txt").exists())
        await day.until("Tag", "done")
        day.check("a denial is not", not (day.repositories["api"] / "tagged.txt").exists())
        terminal.press("/")
        terminal.type("split")
        await terminal.shows_no("Break on purpose")
        terminal.press("Enter")
        await terminal.shows(f"Split into {FILES} files.")
        terminal.press("c")
        await terminal.shows("src/part00.py")
        day.screen(terminal, "terminal-changes")
        terminal.press("q")
        terminal.press("n")
        await terminal.shows("New session in")
        terminal.type("Count the files")
        terminal.press("Enter")
        await terminal.shows("Counted.")
        terminal.press("Enter")
        await terminal.shows("› Count the files", "• Counted.", "› your message")
        terminal.type("And then?")
        terminal.press("Enter")
        await terminal.shows("And then it was done.", "tokens")
        day.screen(terminal, "terminal-joined")
        footer = terminal.screen
        day.check("the footer has this turn, and the session in parentheses", "1,000" in footer and "2,000" in footer)
        terminal.press("C-d")
        await terminal.shows("↑↓ choose")
        terminal.press("q")
        day.check("the screen ends well", await terminal.exit_code() == 0)


async def noon(day: Day) -> None:
    """Answer and review in the browser, while the hub is killed."""
    shown = json.loads(await day.command("dashboard", "--port", "0", "--no-open", "--json"))
    again = json.loads(await day.command("dashboard", "--no-open", "--json"))
    day.check("a second `helmsman dashboard` opens the first", again["address"] == shown["address"])
    async with day.chromium.page() as page:
        await page.goto(f"{shown['address']}#login={shown['code']}")
        await page.until(LIVE)
        await page.until_text(".home .question", "Which database?")
        await day.picture(page, "browser-questions")
        await page.until_text(".row", "Break on purpose")
        failed = "[...document.querySelectorAll('.row')].find((one) => one.innerText.includes('Break on purpose'))"
        day.check("the page says which session failed", "Failed" in await page.get(f"{failed}.innerText"))
        await page.click("[data-answer=Postgres]")
        await day.until("Which database", "done")

        split = await day.session("Split the module")
        await page.get(f"location.hash = '#/s/{split['sessionId']}'")
        await page.until_text(".transcript", f"Split into {FILES} files.")
        await page.click(".composer textarea")
        await page.write("Half a message")
        before = hub_pid(Path(day.env["HELMSMAN_STATE_DIR"]))
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await page.until(f"!({LIVE})")
        await page.until(LIVE)
        kept = await page.get("document.querySelector('.composer textarea').value")
        day.check("a killed hub takes no typed text along", kept == "Half a message")
        await page.call("Page.reload")
        await page.until("document.querySelector('.composer textarea')?.value === 'Half a message'")
        await page.get("document.querySelector('.composer textarea').select()")
        await page.call("Input.dispatchKeyEvent", type="keyDown", key="Backspace", windowsVirtualKeyCode=8)

        await page.click("[role=tab]:nth-child(2)")
        await page.until_text(".viewed-count", f"0 of {FILES} viewed")
        for _ in range(FILES):
            await page.press("v")
        await page.until_text(".viewed-count", f"{FILES} of {FILES} viewed")
        day.check(f"{FILES} files are viewed with one key each", True)
        await page.get("document.querySelector(\"[data-path='src/part03.py'] .fold[aria-expanded=false]\")?.click()")
        line = "document.querySelector(\"[data-path='src/part03.py'] [data-line='1'] .no\")"
        await page.until(f"{line}?.checkVisibility()")
        await page.get(f"{line}.scrollIntoView({{block: 'center'}})")
        await page.click("[data-path='src/part03.py'] [data-line='1'] .no")
        await page.write("Say why.")
        await page.click(".comment.asked [type=submit]")
        await page.until_text(".tray", "1 comment")
        await day.picture(page, "browser-review")
        await page.click("[data-send]")
        await page.until_text(".file-tree", "extra.py")
        await page.until_text(".state", "Done")
        day.check(
            "what was viewed and has not changed stays viewed",
            f"{FILES} of {FILES + 1}" in await page.text(".viewed-count"),
        )
        await page.click("[data-apply]")
        await page.until_text(".obstacle.good", "Applied to")
        there = len(list((day.repositories["shop"] / "src").glob("*.py")))
        day.check("all files are applied", there == FILES + 1)
        for view in ("tasks", "schedules", "usage", "rules", "engines"):
            await page.get(f"location.hash = '#/{view}'")
            await page.until(f"document.body.dataset.view === '{view}' && !main.innerText.includes('Reading…')")
            await day.picture(page, f"browser-{view}")
        day.check("no script of the page failed", page.problems == [])


async def afternoon(day: Day) -> None:
    """Answer on a phone, let the limit pass, and steer in the terminal."""
    shown = json.loads(await day.command("dashboard", "--no-open", "--json"))
    async with day.chromium.page(width=PHONE[0], height=PHONE[1]) as page:
        await page.goto(f"{shown['address']}#login={shown['code']}")
        await page.until(LIVE)
        await page.until_text(".home .question", "touch deployed.txt")
        await day.picture(page, "phone-question")
        bottom = await page.get("document.querySelector('[data-answer=approve]').getBoundingClientRect().bottom")
        day.check("approve is on the first screen of a phone", bottom <= PHONE[1])
        await page.click("[data-answer=approve]")
        await day.until("Deploy", "done")
        day.check("an approval on a phone is carried out", (day.repositories["api"] / "deployed.txt").exists())
        split = (await day.session("Split the module"))["sessionId"]
        wide: list[str] = []
        for view in ("", "tasks", "schedules", "usage", "rules", "engines", f"s/{split}", f"s/{split}/changes"):
            await page.get(f"location.hash = '#/{view}'")
            name = view.split("/")[0] or "home"
            await page.until(f"document.querySelector('main')?.innerText.trim() && {FITS} !== undefined")
            await page.until("!document.querySelector('main').innerText.includes('Reading…')")
            wide += [] if await page.get(FITS) else [view]
            await day.picture(page, f"phone-{name}{'-changes' if 'changes' in view else ''}")
        day.check(f"no page is wider than a phone {wide}", not wide)
        day.check("no script of the page failed on the phone", page.problems == [])

    limited = await day.until("Reach the limit", "awaiting_approval", "done", "active")
    if limited["status"] == "awaiting_approval":
        status = json.loads(await day.command("status", limited["sessionId"], "--json", expected=ExitCode.ASKED))
        await day.command("respond", limited["sessionId"], status["pendingQuestion"]["id"], "wait")
    limited = await day.until("Reach the limit", "done")
    result = await day.command("status", limited["sessionId"])
    day.check("a turn that hit the limit resumes when it resets", "After the limit." in result)

    with Tmux(columns=100, lines=36) as terminal:
        command = [sys.executable, "-m", "helmsman", "run", "-a", "never", "Build slowly"]
        terminal.start(command, env=day.env | {"TERM": "tmux-256color"}, directory=day.repositories["site"])
        await terminal.shows("running sleep 20", "Enter steers")
        terminal.type("And then stop")
        terminal.press("Enter")
        await terminal.shows("And then stop", "not read yet")
        day.screen(terminal, "terminal-steered")
        day.check("a steered message is seen until it is read", True)
        terminal.press("C-d")
        await terminal.exit_code()
    with Tmux(columns=100, lines=36) as terminal:
        began = time.monotonic()
        command = [sys.executable, "-m", "helmsman", "watch"]
        terminal.start(command, env=day.env | {"TERM": "tmux-256color"}, directory=day.repositories["site"])
        await terminal.shows("Build slowly", "q leaves")
        terminal.press("Escape", "Escape")
        await terminal.shows("Interrupted", "› And then stop")
        day.check("a message that was not read is typed again, and not lost", True)
        terminal.press("C-c")
        await terminal.shows("› your message")
        terminal.press("C-d")
        await terminal.exit_code()
    await day.until("Build slowly", "interrupted")
    day.check("Esc twice stops what `watch` shows", time.monotonic() - began < SECONDS)


async def evening(day: Day) -> None:
    """Check all sums."""
    sessions = json.loads(await day.command("list", "--json", "--limit", "50"))["sessions"]
    asked = {"Split", "Publish", "Tag", "Deploy", "Which", "Reach", "Break", "Delegate", "Count", "Build"}
    titles = [(one.get("name") or one.get("summary") or "") for one in sessions if "parentId" not in one]
    day.check(f"every session is in the list {titles}", asked <= {title.split()[0] for title in titles})
    spent = json.loads(await day.command("usage", "--json", "--by", "session"))["total"]["inputTokens"]
    day.check(f"the tokens are those of the model's {ANSWERS} answers ({spent:,})", spent == ANSWERS * TOKENS)
    state = Path(day.env["HELMSMAN_STATE_DIR"])
    trouble = [line for line in (state / "hub.log").read_text(encoding="utf-8").splitlines() if "Traceback" in line]
    day.check(f"nothing failed in the hub {trouble}", not trouble)
    day.check(f"the model's script was followed {day.model.problems}", not day.model.problems)
    day.check(f"no command was a dead end {day.dead_ends}", not day.dead_ends)
    devices = json.loads(await day.command("dashboard", "devices", "--json"))["devices"]
    for device in devices:
        await day.command("dashboard", "devices", "--revoke", device["id"])
    left = json.loads(await day.command("dashboard", "devices", "--json"))["devices"]
    day.check(f"{len(devices)} browsers were remembered, and are revoked", devices and not left)
    await day.command("dashboard", "stop")


async def play(pictures: Path | None) -> int:
    binary, program = installed_codex(), find_chromium()
    if binary is None or program is None:
        raise SystemExit("The day needs a Codex and a Chromium. Install openai-codex-cli-bin, and Debian's chromium.")
    with tempfile.TemporaryDirectory(prefix="helmsman-day-", dir="/var/tmp") as name:
        folder = Path(name)
        home = HomeTemplates(folder / "template").new_home(binary, folder / "home")
        home.configure(features={"default_mode_request_user_input": True})
        repositories = {one: make_repository(folder / one) for one in ("shop", "api", "site")}
        for repository in repositories.values():
            (repository / "README.md").write_text("# Here\n", encoding="utf-8")
            git(repository, "add", ".")
            git(repository, "commit", "--quiet", "--message", "Begin")
        state = folder / "state"
        env = {**home.env, "HELMSMAN_DETACH": "1", "HELMSMAN_STATE_DIR": str(state), "CODEX_CLI_PATH": str(binary)}
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(ScriptedModel())
            home.use_model(model.base_url, codex_version(binary))
            script(model, int(time.time()) + LIMIT_SECONDS)
            (folder / "chromium").mkdir()
            chromium = stack.enter_context(running_chromium(program, folder / "chromium"))
            day = Day(env, repositories, model, chromium, pictures)
            try:
                for part in (morning, noon, afternoon, evening):
                    print(f"\n{part.__name__}: {(part.__doc__ or '').strip()}", flush=True)
                    await part(day)
            finally:
                with anyio.CancelScope(shield=True):
                    for words in (("dashboard", "stop"), ("hub", "engines", "stop", "--all", "--yes")):
                        await anyio.run_process(
                            [sys.executable, "-m", "helmsman", *words], env=env, stdin=subprocess.DEVNULL, check=False
                        )
                    await anyio.to_thread.run_sync(end_hub, state)
    wrong = [what for what, holds in day.checks if not holds]
    print(f"\n{len(day.checks)} checks, {len(wrong)} failed")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="where to leave pictures of the screens")
    given = parser.parse_args()
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    return anyio.run(play, given.pictures)


if __name__ == "__main__":
    sys.exit(main())
