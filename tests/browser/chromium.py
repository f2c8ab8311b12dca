"""A real Chromium without a window, steered over its own protocol (CDP).

`find_chromium` says which browser there is; `running_chromium` owns the process; `Chromium.page` is one window with
cookies of its own. Waits look at the page until something is so, never for a fixed time.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
from websockets.asyncio.client import ClientConnection, connect

from helmsman.base.concurrency import background_tasks

SECONDS: Final = 30
_LOOK_AGAIN: Final = 0.03
_LOOK_AT_LEAST: Final = 0.15
_START_SECONDS: Final = 60
_END_SECONDS: Final = 10
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_KEYS: Final = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "ArrowRight": (39, "")}


def find_chromium() -> str | None:
    """Return the browser to test with: HELMSMAN_TEST_CHROMIUM, or one on PATH."""
    named = os.environ.get("HELMSMAN_TEST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class PageError(AssertionError):
    """A script of a test, or of the page, failed."""


@dataclass
class Chromium:
    """Running browser."""

    address: str
    _spare: _Window | None = None
    """Window that a test has left clean, for reuse: a new one takes as long as most tests."""

    @asynccontextmanager
    async def page(self, *, width: int = 1280, height: int = 800, scale: float = 1) -> AsyncIterator[Page]:
        """Return a window with its own cookies."""
        async with connect(self.address, max_size=None) as socket, background_tasks() as tasks:
            page = Page(socket)
            tasks.start_soon(page.listen)
            window, self._spare = self._spare or await _new_window(page), None
            attached = await page.call("Target.attachToTarget", targetId=window.target, flatten=True)
            page.target, page.context = attached["sessionId"], window.context
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)  # several windows, each as if in front
            await page.resize(width, height, scale)
            as_new = False
            try:
                yield page
                await page.forget_everything()
                as_new = self._spare is None
            finally:
                page.target = None
                if as_new:
                    self._spare = window
                else:
                    await page.call("Target.disposeBrowserContext", browserContextId=window.context)
                tasks.cancel_scope.cancel()


@dataclass(frozen=True)
class _Window:
    """Target and browser context of a window."""

    target: str
    context: str


async def _new_window(page: Page) -> _Window:
    context = (await page.call("Target.createBrowserContext"))["browserContextId"]
    target = await page.call("Target.createTarget", url="about:blank", browserContextId=context)
    return _Window(target["targetId"], context)


@contextmanager
def running_chromium(program: str, folder: Path) -> Iterator[Chromium]:
    """Run a browser during the block. Its profile and its output are in the folder."""
    arguments = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
    arguments += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"]
    arguments += ["--force-color-profile=srgb", "--hide-scrollbars", "--lang=en-GB"]
    # What turns would be drawn anew sixty times a second, without a graphics card.
    arguments += ["--force-prefers-reduced-motion"]
    # A window keeps its process from one page to the next, and none is kept ready for pages that nobody opens.
    arguments += ["--disable-site-isolation-trials", "--renderer-process-limit=1", "--in-process-gpu"]
    # Nor are the pages that Chromium shows below the address: one for each window, which costs as much as a test.
    needless = ["SpareRendererForSitePerProcess", "BackForwardCache", "Translate", "OptimizationHints"]
    needless += ["WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "AiModeOmniboxEntryPoint"]
    arguments += [f"--disable-features={','.join(needless)}"]
    arguments += ["--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-pings"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium does not run as root otherwise
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Chromium(_address(process, folder))
    finally:
        _end(process)


def _address(process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, ValueError):
            port, path = (folder / "DevToolsActivePort").read_text(encoding="ascii").split()
            return f"ws://127.0.0.1:{port}{path}"
        time.sleep(_LOOK_AGAIN)
    said = (folder / "chromium.log").read_text(encoding="utf-8", errors="replace")
    raise PageError(f"Chromium did not start. It said: {said[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the browser with all the processes it has made."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, number)
            else:
                process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            if number != signal.SIGTERM or not hasattr(os, "killpg"):
                return


@dataclass
class Page:
    """Browser window."""

    socket: ClientConnection
    target: str | None = None
    context: str | None = None
    problems: list[str] = field(default_factory=list[str])
    """Errors of the page: failed scripts, and violations of its policy."""
    workers: list[str] = field(default_factory=list[str])
    """Ids of the registrations of its service workers, once `ServiceWorker` is enabled."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _answers: dict[int, tuple[anyio.Event, list[dict[str, Any]]]] = field(default_factory=dict)

    # --- the protocol ------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        async for message in self.socket:
            told: dict[str, Any] = json.loads(message)
            if "id" in told:
                event, answer = self._answers[told["id"]]
                answer.append(told)
                event.set()
            elif told["method"] == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            elif told["method"] == "ServiceWorker.workerRegistrationUpdated":
                self.workers += [one["registrationId"] for one in told["params"]["registrations"]]
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] != "network":
                self.problems.append(told["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        event, answer = self._answers[number] = anyio.Event(), []
        whose = {} if self.target is None else {"sessionId": self.target}
        await self.socket.send(json.dumps({"id": number, "method": method, "params": params, **whose}))
        with anyio.fail_after(SECONDS):
            await event.wait()
        del self._answers[number]
        if "error" in answer[0]:
            raise PageError(f"{method}: {answer[0]['error']['message']}")
        result: dict[str, Any] = answer[0]["result"]
        return result

    # --- looking -----------------------------------------------------------------------------------------------------

    async def get(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        done = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise PageError(done["exceptionDetails"].get("exception", {}).get("description", script))
        return done["result"].get("value")

    async def until(self, script: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression, once it is truthy."""
        pause = _LOOK_AGAIN
        with anyio.move_on_after(seconds):
            while True:
                if value := await self.get(script):
                    return value
                await anyio.sleep(pause)
                pause = min(pause * 1.3, _LOOK_AT_LEAST)  # each look takes the browser's time
        raise PageError(
            f"This did not become true: {script}\nThe page says: {await self.text('body')}\n{self.problems}"
        )

    async def text(self, selector: str) -> str:
        return str(await self.get(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until_text(self, selector: str, text: str) -> None:
        """Wait until some element that can be seen has this text in it."""
        one, words = json.dumps(selector), json.dumps(text)
        has_it = f"(one) => one.checkVisibility() && one.innerText.includes({words})"
        await self.until(f"[...document.querySelectorAll({one})].some({has_it})")

    async def count(self, selector: str) -> int:
        return int(await self.get(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def allow_notifications(self) -> None:
        """Grant permissions, like a user who accepts the browser's prompt."""
        allowed = {"permissions": ["notifications"], "browserContextId": self.context}
        await self.call("Browser.grantPermissions", **allowed)

    async def forget_everything(self) -> None:
        """Leave the page, and reset the window. Emulation ends when the debugger detaches."""
        origin = await self.get("(sessionStorage.clear(), location.origin)")
        await self.call("Page.navigate", url="about:blank")
        await self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        await self.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        await self.call("Page.resetNavigationHistory")
        whose, self.target = self.target, None
        await self.call("Storage.clearCookies", browserContextId=self.context)
        await self.call("Browser.resetPermissions", browserContextId=self.context)
        await self.call("Target.detachFromTarget", sessionId=whose)

    # --- acting ------------------------------------------------------------------------------------------------------

    async def goto(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href !== {json.dumps('about:blank')}")

    async def resize(self, width: int, height: int, scale: float = 1) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    async def prefer(self, scheme: str) -> None:
        """Emulate the system's light or dark theme."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def click(self, selector: str) -> None:
        """Click in the middle of an element, once it is there, rests, is covered by nothing and takes answers.

        What comes in above it may still move it away from there. Such a click is kept from the page, and there is another.
        """
        found = json.dumps(selector)
        hit = False
        while not hit:
            place = await self.until(self._aim(found))
            await self.click_at(*place)
            # Where there is none any more, it has led to another page.
            hit = await self.get("window.aimed?.over.abort(), window.aimed?.hit ?? true")

    @staticmethod
    def _aim(found: str) -> str:
        return f"""(async () => {{
            const one = [...document.querySelectorAll({found})].find((each) => each.checkVisibility() && !each.disabled);
            if (!one) return null;
            one.scrollIntoView({{block: "nearest"}});
            const before = one.getBoundingClientRect();
            await new Promise(requestAnimationFrame);
            const box = one.getBoundingClientRect();
            const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
            const rests = box.x === before.x && box.y === before.y;
            const guarded = one.closest(".question, dialog.confirm");
            if (guarded && guarded.dataset.settled !== "yes") return null;
            if (!rests || !one.contains(document.elementFromPoint(x, y))) return null;
            const aimed = window.aimed = {{over: new AbortController()}};
            const judge = (event) => {{
                aimed.hit ??= one.contains(event.target);
                if (aimed.hit) return;
                event.stopImmediatePropagation();
                event.preventDefault();
            }};
            for (const type of ["pointerdown", "mousedown", "pointerup", "mouseup", "click"])
                window.addEventListener(type, judge, {{capture: true, signal: aimed.over.signal}});
            return [x, y];
        }})()"""

    async def click_at(self, x: float, y: float) -> None:
        """Click at a place, whatever is there."""
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def press(self, key: str) -> None:
        await self.hold(key, times=1)

    async def hold(self, key: str, *, times: int, release: bool = True) -> None:
        """Press a key down until it has come so many times, as the keyboard repeats it."""
        code, text = _KEYS.get(key, (ord(key.upper()[0]), key))
        which = {"key": key, "code": f"Key{key.upper()}" if key.isalpha() else key, "windowsVirtualKeyCode": code}
        for number in range(times):
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, autoRepeat=number > 0, **which)
        if release:
            await self.call("Input.dispatchKeyEvent", type="keyUp", **which)

    async def type_quickly(self, keys: str) -> None:
        """Press keys faster than the page can follow: none waits for what the one before did."""
        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(self.press, key)
                await anyio.lowlevel.checkpoint()

    async def write(self, text: str) -> None:
        """Put text where the cursor is."""
        await self.call("Input.insertText", text=text)
