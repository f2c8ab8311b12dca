"""How smoothly the page scrolls through much: the time from frame to frame, as the browser draws them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from helmsman.model.events import AgentMessage, CommandExecution, DiffUpdated, Item, ItemEnded
from helmsman.sessions.session import Session
from tests.browser.chromium import Page

FRAMES: Final = 120
LONGEST: Final = 100.0
"""Milliseconds: a longer frame is seen as a jerk."""


@dataclass(frozen=True)
class Frames:
    """Milliseconds from frame to frame, shortest first; and the processor time that the page spent on each, on average."""

    times: list[float]
    work: float

    @property
    def median(self) -> float:
        return self.times[len(self.times) // 2]

    @property
    def nearly_all(self) -> float:
        """No frame but one in twenty takes longer."""
        return self.times[len(self.times) * 95 // 100]

    @property
    def longest(self) -> float:
        return self.times[-1]


async def scrolled(page: Page, selector: str, *, step: int = 400) -> Frames:
    """Scroll an element by this many pixels in each frame, up and down."""
    await page.call("Performance.enable", timeDomain="threadTicks")
    before = await _processor_ms(page)
    times: list[float] = await page.get(
        f"""(async () => {{
            const scroller = document.querySelector({json.dumps(selector)});
            const times = [];
            let last = await new Promise(requestAnimationFrame);
            for (let frame = 0; frame < {FRAMES}; frame += 1) {{
                scroller.scrollTop += frame < {FRAMES} / 3 ? -{step} : {step};
                const now = await new Promise(requestAnimationFrame);
                times.push(now - last);
                last = now;
            }}
            return times;
        }})()"""
    )
    return Frames(sorted(times), (await _processor_ms(page) - before) / len(times))


async def _processor_ms(page: Page) -> float:
    told = (await page.call("Performance.getMetrics"))["metrics"]
    return 1000 * float(next(one["value"] for one in told if one["name"] == "TaskDuration"))


# --- much to scroll through ------------------------------------------------------------------------------------------

_FILES: Final = 20
_CHANGES: Final = 125
LINES: Final = _FILES * (2 * _CHANGES + 1)
"""Of the large change, with a line for each hunk."""


def something_done(session: Session, number: int) -> None:
    """A command, or now and then a message with Markdown in it, in the turn that runs."""
    item: Item = CommandExecution(id=f"call-{number}", command=f"echo {number}", exit_code=0, output=f"{number}\n")
    if number % 10 == 5:
        text = f"**{number}**\n\n- one\n- two\n\n```py\ndef f(): return {number}\n```"
        item = AgentMessage(id=f"message-{number}", text=text)
    session.apply(ItemEnded(session_id=session.id, turn_id=session.state.turn_id, item=item))


def large_change(session: Session) -> None:
    """5,000 lines in the turn that runs, changed word by word."""
    diff = "".join(map(_changed_file, range(_FILES)))
    session.apply(DiffUpdated(session_id=session.id, turn_id=session.state.turn_id, diff=diff))


def _changed_file(number: int) -> str:
    name = f"src/file_{number}.py"
    lines = range(1, _CHANGES + 1)
    changed = "".join(
        f"-def total_{line}(a, b): return a - {line}\n+def total_{line}(a, b): return a + {line}\n" for line in lines
    )
    return f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1,{_CHANGES} +1,{_CHANGES} @@\n{changed}"
