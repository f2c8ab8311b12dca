"""`helmsman` alone on a terminal: all sessions on the left, the chosen one live on the right, and keys to act.

Built on prompt_toolkit. A question takes a key only after it has been on the screen for a moment, and only if all of it is.
"""

from __future__ import annotations

import io
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, FormattedText
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import BufferControl, ConditionalContainer, HSplit, Layout, VSplit, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from rich.console import Console
from rich.text import Text

from helmsman.base.concurrency import background_tasks
from helmsman.base.sanitize import one_line
from helmsman.cli.consoles import result_console, settings_of_command
from helmsman.cli.host import host
from helmsman.cli.on_session import short_id
from helmsman.cli.output import WAITING_FOR_YOU, page_diff, session_word, spent_by
from helmsman.cli.session_commands import recent_lines
from helmsman.errors import HelmsmanError, SessionNotFound
from helmsman.model.answered_by import PERSON_AT_TERMINAL
from helmsman.model.questions import APPROVE, APPROVE_SESSION, DENY
from helmsman.shapes.listed_sessions import listed_sessions
from helmsman.shapes.sub_agents import sub_agents_output
from helmsman.tasks.prices import Prices
from helmsman.terminal.dialogue import CHOICES
from helmsman.terminal.keyboard import MOMENT
from helmsman.terminal.picker import PickerLine, fuzzy
from helmsman.terminal.question_view import question_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prompt_toolkit.key_binding import KeyPressEvent

    from helmsman.client import Helmsman
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

_LISTED: Final = 100
_READ_SECONDS: Final = 1.0
_DRAW_SECONDS: Final = 0.2
_HINT_SECONDS: Final = 6.0
# x is easily pressed by mistake, so it takes two presses within this time.
_AGAIN_SECONDS: Final = 3.0
_LEFT_COLUMNS: Final = (36, 64)
_STATUS_COLUMNS: Final = len(WAITING_FOR_YOU)
_MARKS: Final = {
    "awaiting_approval": ("?", "bold ansiyellow"),
    **dict.fromkeys(("active", "starting", "running"), ("▸", "ansigreen")),
    **dict.fromkeys(("error", "failed"), ("✗", "ansired")),
}
_ORDER: Final = ("awaiting_approval", "active")
_KEYS: Final = "↑↓ choose  Enter join  / search  c changes  {new}x stop  q quit"
_NEW: Final = "n new  "
_ANSWER_KEYS: Final = {CHOICES[option][0]: option for option in (APPROVE, APPROVE_SESSION, DENY)}


@dataclass
class _View:
    """State of the screen."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    chosen: str | None = None
    session: Session | None = None
    parent: Session | None = None  # the session whose sub-agents are listed below it
    asked: str | None = None  # the question on the screen
    asked_since: float = 0.0
    is_whole: bool = True  # whether all of the question is on the screen
    mode: str = ""  # purpose of the typed text: "search", "new", "deny", or none
    denied: str = ""  # the question that is denied when its reason is typed
    hint: str = ""
    hint_until: float = 0.0
    stops_until: float = 0.0


class FullScreen:
    """Full screen. `run` returns the session that the user joins, or None at the end."""

    def __init__(self, helm: Helmsman, directory: str) -> None:
        self._helm = helm
        self._directory = directory
        self._view = _View()
        self._prices = Prices.load(settings_of_command().files)
        self._typed = Buffer(multiline=False, accept_handler=self._accept, on_text_changed=lambda _: self._search())
        self._tasks: Any = None
        self._watching = ExitStack()
        """Marks the chosen session as watched: its user sees how its turn ends."""
        typing = Condition(lambda: bool(self._view.mode))
        self._list = Window(FormattedTextControl(self._left), width=self._left_columns, wrap_lines=False)
        self._live = Window(FormattedTextControl(self._right), wrap_lines=False)
        line = VSplit(
            [
                Window(FormattedTextControl(self._prompt), dont_extend_width=True, height=1),
                Window(BufferControl(self._typed), height=1),
            ]
        )
        self._input = Window(FormattedTextControl(self._footer, focusable=True, show_cursor=False), height=1)
        body = VSplit([self._list, Window(width=1, char="│", style="fg:ansibrightblack"), self._live])
        self._app = Application[str | None](
            Layout(
                HSplit(
                    [
                        body,
                        ConditionalContainer(line, typing),
                        ConditionalContainer(self._input, ~typing),
                    ]
                ),
                focused_element=self._input,
            ),
            key_bindings=self._bindings(typing),
            full_screen=True,
        )
        # Esc alone must not wait long for the rest of an arrow key.
        self._app.ttimeoutlen = 0.1

    async def run(self) -> str | None:
        async with background_tasks() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._read)
            tasks.start_soon(self._draw)
            joined = await self._app.run_async()
            # The screen is gone, so nothing is to be drawn.
            tasks.cancel_scope.cancel()
        self._watching.close()
        return joined

    # --- content -----------------------------------------------------------------------------------------------------

    @property
    def _question(self) -> Question | None:
        """The question of the chosen session that is asked first."""
        return None if self._view.session is None else next(iter(self._view.session.questions), None)

    async def _read(self) -> None:
        """Read the list of sessions again and again."""
        while True:
            # A hub that restarts must not end the screen.
            with suppress(HelmsmanError):
                found, _ = await self._helm.list(limit=_LISTED)
                listed = await listed_sessions(self._helm, found)
                rank = {status: place for place, status in enumerate(_ORDER)}
                # Stable: within a rank the newest come first.
                self._view.sessions = sorted(listed, key=lambda one: rank.get(one.get("status", ""), len(rank)))
                if self._view.chosen is None and self._view.sessions:
                    await self._choose(self._view.sessions[0]["sessionId"])
                self._app.invalidate()
            await anyio.sleep(_READ_SECONDS)

    async def _draw(self) -> None:
        while True:
            self._app.invalidate()
            await anyio.sleep(_DRAW_SECONDS)

    async def _choose(self, session_id: str) -> None:
        view = self._view
        # Forgotten first: a key must not answer a question of the session before.
        view.chosen, view.session, view.asked = session_id, None, None
        self._watching.close()
        with suppress(HelmsmanError):
            session = await self._helm.session(session_id)
            # The user may have moved on while it was opened.
            if view.chosen == session_id:
                view.session = session
                self._watching.enter_context(session.watched())
                # One of the sub-agents keeps the others on the screen.
                if all(one["sessionId"] != session_id for one in self._sub_agents):
                    view.parent = session

    @property
    def _sub_agents(self) -> list[dict[str, Any]]:
        """Sub-agents of the chosen session, as a tree. Each is a session of its own."""
        if self._view.parent is None:
            return []
        return [
            {
                "sessionId": one["id"],
                "name": f"{'  ' * one['depth']}↳ {one_line(one.get('name') or short_id(one['id']))}",
                "status": one["status"],
                "about": spent_by(one),
            }
            for one in sub_agents_output(self._view.parent, self._prices) or ()
        ]

    @property
    def _shown(self) -> list[dict[str, Any]]:
        """Sessions that match the search, and below the chosen one its sub-agents."""
        sessions, parent = self._view.sessions, self._view.parent
        if self._view.mode != "search" or not self._typed.text:
            at = next((at for at, one in enumerate(sessions) if parent and one["sessionId"] == parent.id), None)
            return sessions if at is None else [*sessions[: at + 1], *self._sub_agents, *sessions[at + 1 :]]
        lines = [PickerLine(one, short_id(one["sessionId"]), _title(one)) for one in sessions]
        return [line.value for line in fuzzy(lines, self._typed.text)]

    def _left_columns(self) -> int:
        least, most = _LEFT_COLUMNS
        return max(least, min(most, self._app.output.get_size().columns * 2 // 5))

    def _left(self) -> FormattedText:
        rows: list[tuple[str, str]] = []
        room = self._left_columns() - len("▸ ") - 2 - _STATUS_COLUMNS
        height = self._app.output.get_size().rows - 2
        shown = self._shown
        at = next((place for place, one in enumerate(shown) if one["sessionId"] == self._view.chosen), 0)
        # The chosen row stays in view.
        begin = max(0, min(at - height // 2, len(shown) - height))
        for one in shown[begin : begin + height]:
            status = one.get("status", "")
            mark, style = _MARKS.get(status, ("·", "fg:ansibrightblack"))
            is_chosen = one["sessionId"] == self._view.chosen
            rows.append((style, f"{mark} "))
            # The indentation of sub-agents is part of their name.
            title = Text(one["name"] if "about" in one else _title(one))
            # In cells, because titles may be wide characters.
            title.truncate(room, overflow="ellipsis", pad=True)
            rows.append(("reverse" if is_chosen else "", title.plain))
            rows.append((style, f" {session_word(status)}\n"))
        return FormattedText(rows or [("", "No agent has a session here yet. n starts one.")])

    def _right(self) -> ANSI:
        view, size = self._view, self._app.output.get_size()
        width, height = max(20, size.columns - self._left_columns() - 2), max(3, size.rows - 1)
        # Rich renders into a string, which prompt_toolkit draws.
        console = Console(
            file=io.StringIO(),
            width=width,
            height=height,
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
        )
        session = view.session
        if session is None:
            return ANSI("")
        about = Text(one_line(session.state.name or session.state.about or ""), "bold")
        about.truncate(width, overflow="ellipsis")
        place = next((one for one in self._shown if one["sessionId"] == session.id), {})
        where = one_line(place.get("about") or place.get("repository") or session.directory or "")
        lines = [about, Text(f"{session.id}  {session_word(session.status)}", "dim"), Text(where, "dim"), Text()]
        question = next(iter(session.questions), None)
        asked = [] if question is None else self._asked(console, session, question, height - 4)
        # The question keeps its room; the transcript gets the rest.
        room = max(0, height - len(lines) - len(asked) - 1)
        lines += [*recent_lines(console, session, room), *asked]
        console.print(*lines, sep="\n", soft_wrap=True)
        return ANSI(console.file.getvalue())  # type: ignore[attr-defined]

    def _asked(self, console: Console, session: Session, question: Question, room: int) -> list[Text]:
        view = self._view
        lines, left_out = question_lines(console, question, directory=session.directory)
        lines = [Text(), *lines]
        # What does not fit was not read, so it takes no answer.
        view.is_whole = not left_out and len(lines) < room
        # The moment begins when this question appears.
        if view.asked != question.id:
            view.asked, view.asked_since = question.id, time.monotonic()
        keys = [f"{key} {option}" for key, option in _ANSWER_KEYS.items() if _is_offered(question, option)]
        offered = "  ".join(keys) if keys and view.is_whole else "Enter shows all of it and answers"
        if view.mode == "deny":
            offered = "Esc goes back"
        return [*lines[: max(1, room - 1)], Text(), Text(offered, "bold yellow")]

    def _prompt(self) -> FormattedText:
        prompts = {"search": "/ ", "deny": "Deny. Why? (Enter for no reason) "}
        return FormattedText([("bold", prompts.get(self._view.mode, f"New session in {self._directory}: "))])

    def _footer(self) -> FormattedText:
        if time.monotonic() < self._view.hint_until:
            return FormattedText([("ansiyellow", self._view.hint)])
        return FormattedText([("fg:ansibrightblack", _KEYS.format(new="" if self._question else _NEW))])

    def _hint(self, text: str) -> None:
        self._view.hint, self._view.hint_until = one_line(text), time.monotonic() + _HINT_SECONDS
        self._app.invalidate()

    # --- keys --------------------------------------------------------------------------------------------------------

    def _bindings(self, typing: Condition) -> KeyBindings:
        keys = KeyBindings()
        plain = ~typing

        def bind(key: str, act: Callable[[], None], *, always: bool = False) -> None:
            def pressed(_: KeyPressEvent) -> None:
                act()

            # Letters are text while the user types.
            keys.add(key, filter=Condition(lambda: True) if always else plain)(pressed)

        for key in ("down", "c-n"):
            bind(key, lambda: self._move(1), always=True)
        for key in ("up", "c-p"):
            bind(key, lambda: self._move(-1), always=True)
        bind("j", lambda: self._move(1))
        bind("k", lambda: self._move(-1))
        bind("enter", lambda: self._leave(self._view.chosen))
        for key in ("q", "c-d"):
            bind(key, lambda: self._leave(None))
        bind("c-c", self._cancel, always=True)
        keys.add("escape", filter=typing)(lambda _: self._cancel())
        bind("/", lambda: self._type("search"))
        bind("c", lambda: self._do(self._page_changes))
        bind("x", lambda: self._do(self._interrupt))
        for key, answer in _ANSWER_KEYS.items():
            # Bound at definition: a plain closure would see the last key only.
            bind(key, lambda answer=answer: self._press(answer))  # type: ignore[misc]
        return keys

    def _press(self, answer: str) -> None:
        """Answer the question on the screen. Without one, the key that denies starts a session."""
        if self._question is not None:
            self._do(lambda: self._answer(answer))
        elif answer == DENY:
            self._type("new")

    def _move(self, by: int) -> None:
        shown = [one["sessionId"] for one in self._shown]
        if not shown:
            return
        at = shown.index(self._view.chosen) + by if self._view.chosen in shown else 0
        self._tasks.start_soon(self._choose, shown[max(0, min(at, len(shown) - 1))])

    def _leave(self, joined: str | None) -> None:
        self._app.exit(result=joined)

    def _cancel(self) -> None:
        if self._view.mode:
            self._stop_typing()
        else:
            self._leave(None)

    def _type(self, mode: str) -> None:
        self._view.mode = mode
        self._typed.reset()
        self._app.layout.focus(self._typed)

    def _search(self) -> None:
        """Choose the best match of what is typed so far."""
        shown = self._shown
        if self._view.mode == "search" and self._typed.text and shown and shown[0]["sessionId"] != self._view.chosen:
            self._tasks.start_soon(self._choose, shown[0]["sessionId"])

    def _stop_typing(self) -> None:
        self._view.mode = ""
        self._app.layout.focus(self._input)

    def _accept(self, buffer: Buffer) -> bool:
        text, mode = buffer.text.strip(), self._view.mode
        self._stop_typing()
        if mode == "new" and text:
            self._do(lambda: self._start(text))
        elif mode == "deny":
            self._do(lambda: self._respond(self._view.denied, f"{DENY}: {text}" if text else DENY))
        # False: the text is not kept in the buffer.
        return False

    def _do(self, act: Callable[[], Awaitable[None]]) -> None:
        """Carry out what a key asks for, and show why it could not be."""

        async def contained() -> None:
            try:
                await act()
            except HelmsmanError as error:
                self._hint(error.message)

        self._tasks.start_soon(contained)

    async def _start(self, text: str) -> None:
        started = await self._helm.start(text, cwd=self._directory)
        await self._choose(started.id)

    async def _interrupt(self) -> None:
        view, session = self._view, self._view.session
        if session is None or not session.state.is_running:
            self._hint("No turn is running in it.")
        elif time.monotonic() > view.stops_until:
            view.stops_until = time.monotonic() + _AGAIN_SECONDS
            self._hint(f"x again stops the turn of session {short_id(session.id)}.")
        else:
            await session.interrupt()
            self._hint(f"Session {short_id(session.id)} is interrupted.")

    async def _page_changes(self) -> None:
        if self._view.session is None:
            return
        changed = await self._helm.extras.changes.diff(self._view.session.id)
        if not changed.diff.patch:
            self._hint("Nothing has changed.")
            return
        # prompt_toolkit leaves the screen to the pager.
        async with in_terminal():
            await anyio.to_thread.run_sync(page_diff, changed.diff.patch, result_console())

    async def _answer(self, answer: str) -> None:
        """Answer the question on the screen, if a person can have read it."""
        view = self._view
        question = self._question
        # Another question may have come up since it was drawn.
        if question is None or question.id != view.asked:
            return
        # A key that was pressed for something else must not answer.
        if time.monotonic() - view.asked_since < MOMENT:
            self._hint("The question has just appeared. Read it, then press the key again.")
        elif not view.is_whole or not _is_offered(question, answer):
            self._hint("Enter shows all of the question and its answers.")
        elif answer == DENY:
            view.denied = question.id
            self._type("deny")
        else:
            await self._respond(question.id, answer)

    async def _respond(self, question_id: str, answer: str) -> None:
        if self._view.session is not None:
            await self._view.session.respond(question_id, answer, by=PERSON_AT_TERMINAL)
            self._hint(f"→ {answer}")


def _is_offered(question: Question, option: str) -> bool:
    return len(question.prompts) == 1 and option in question.prompts[0].options


def _title(session: dict[str, Any]) -> str:
    return one_line(session.get("name") or session.get("summary") or "")


async def choose_session(helm: Helmsman) -> str | None:
    """Show the screen; return the session that the user joins, or None."""
    try:
        return await FullScreen(helm, str(host().place(None))).run()
    except SessionNotFound:
        # The session was deleted while it was opened.
        return None
