"""Records what real Codex binaries say, for the tests of `helmsman.agents.codex.normalise`.

    python scripts/record_goldens.py                    record every story on every binary there is
    python scripts/record_goldens.py -v 0.166.0 -s patch      … only these
    python scripts/record_goldens.py --update           write the expected events anew from the recordings there are

Each story is a turn on a scripted model. Its notifications (`app-server`) or lines (`exec`) go to
`tests/golden/<version>/<dialect>-<story>.jsonl`, with ids, times and paths replaced by stable names, so that recording
again changes nothing unless Codex has changed. Beside it `….events.json` holds the events that are expected from it: read
the difference after `--update`, it is the specification.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from helmsman.agents.child_process import open_child
from helmsman.base.concurrency import background_tasks
from helmsman.base.line_framer import LineFramer
from helmsman.base.structs import Value
from helmsman.model.events import Event, Item
from helmsman.testing import (
    CodexHome,
    Gate,
    HomeTemplates,
    ScriptedModel,
    add,
    call_tool,
    codex_version,
    codex_versions,
    delete,
    fail,
    git,
    make_repository,
    mcp_server,
    patch,
    plan,
    run,
    say,
    search,
    spawn_agent,
    think,
    update,
    wait_agents,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from helmsman.agents.child_process import Child
    from helmsman.testing.model import ScriptStep

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
STORY_SECONDS = 90
EXEC_SESSION, EXEC_TURN = "session", "turn"
"""Placeholders: `exec` names no turns, and its session is known before its lines are read."""

Version = tuple[int, int, int]
Message = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Story:
    """One turn: actions of the model, and reactions of the recorder."""

    steps: tuple[ScriptStep, ...]
    retries: int = 0
    since: Version = (0, 0, 0)
    before: Version = (9999, 0, 0)
    with_mcp: bool = False
    interrupt_after: str | None = None
    dialects: tuple[str, ...] = ("app-server", "exec")


PROMPT = "Tell the story"
HELPER_PROMPT = "Help with the story"

STORIES: dict[str, Story] = {
    "message": Story(steps=(say("Hel", "lo"),)),
    "reasoning": Story(steps=([think("First ", "look."), say("Looked.")],)),
    "command": Story(steps=(run("echo hello"), say("Done"))),
    "command-failed": Story(steps=(run("echo oops; exit 3"), say("It failed"))),
    "patch": Story(
        steps=(
            patch(
                add("new.txt", "hello\nworld\n"),
                update("changed.txt", "two", "TWO"),
                update("moved.txt", "two", "TWO", move_to="renamed.txt"),
                delete("gone.txt"),
            ),
            say("Patched"),
        )
    ),
    "plan": Story(
        before=(0, 155, 0),
        steps=(
            plan(("Look", "in_progress"), "Mend", explanation="Two steps"),
            plan(("Look", "completed"), ("Mend", "completed")),
            say("Planned and done"),
        ),
    ),
    "mcp-tool": Story(steps=(call_tool("lab", "read", {"key": "k"}), say("Read")), with_mcp=True),
    "web-search": Story(steps=([search("tide tables"), say("Found")],)),
    "sub-agent": Story(since=(0, 115, 0), steps=(spawn_agent(HELPER_PROMPT), wait_agents(), say("Helped"))),
    "retry": Story(steps=(fail(503), say("Second time lucky")), retries=1),
    "failed": Story(steps=(fail(429, error_type="usage_limit_reached", resets_at=1894706501),)),
    "interrupted": Story(
        steps=(lambda _: say("Hel", Gate()),), interrupt_after="item/agentMessage/delta", dialects=("app-server",)
    ),
    "declined": Story(
        steps=(run("touch /elsewhere", escalate="It is elsewhere"), say("Not allowed")), dialects=("app-server",)
    ),
}


# --- recording -------------------------------------------------------------------------------------------------------


def record(version: str, binary: Path, names: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        templates = HomeTemplates(folder / "templates")
        for name in names:
            story = STORIES[name]
            if not story.since <= codex_version(binary) < story.before:
                continue  # this Codex does not offer the tool to its model
            for dialect in story.dialects:
                stage = folder / f"{dialect}-{name}"
                home = templates.new_home(binary, stage / "home")
                if story.with_mcp:
                    home.configure(mcp_servers={"lab": mcp_server(stage / "notes.json")})
                messages = anyio.run(play, story, dialect, binary, home, make_stage(stage))
                write_recording(GOLDEN / version / f"{dialect}-{name}.jsonl", Stabiliser(stage), messages)
                print(f"{version} {dialect}-{name}: {len(messages)} messages", flush=True)


def make_stage(stage: Path) -> Path:
    """Return the repository of a story."""
    repository = make_repository(stage / "repo")
    for name in ("changed.txt", "moved.txt", "gone.txt"):
        (repository / name).write_text("one\ntwo\nthree\n", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=Files")
    return repository


async def play(story: Story, dialect: str, binary: Path, home: CodexHome, repository: Path) -> list[Message]:
    arguments = ["exec", "--json", "-s", "workspace-write", "-"] if dialect == "exec" else ["app-server"]
    async with ScriptedModel() as model, background_tasks() as tasks:
        model.on(PROMPT, *story.steps)
        model.on(HELPER_PROMPT, say("Helping"))
        home.use_model(model.base_url, codex_version(binary))
        home.configure(model_providers={"scripted": {"stream_max_retries": story.retries}})
        environment = home.env | {"TZ": "UTC"}
        async with open_child(tasks, [binary, *arguments], env=environment, cwd=repository) as child:
            with anyio.fail_after(STORY_SECONDS):
                if dialect == "exec":
                    await child.stdin.send(PROMPT.encode())
                    await child.stdin.aclose()
                    messages = [message async for message in received(child)]
                else:
                    messages = await Conversation(child, story).notifications(repository)
        if model.problems:
            raise RuntimeError(f"The scripted model had problems: {model.problems}")
    return messages


async def received(child: Child) -> AsyncIterator[Message]:
    framer = LineFramer()
    async for chunk in child.stdout:
        for line in framer.feed(chunk):
            yield json.loads(line)


class Conversation:
    """Minimal client that can run one turn, independent of the code under test."""

    def __init__(self, child: Child, story: Story) -> None:
        self._child = child
        self._story = story
        self._messages = received(child)
        self._notifications: list[Message] = []

    async def notifications(self, repository: Path) -> list[Message]:
        client = {"name": "helmsman-goldens", "title": "Helmsman goldens", "version": "1"}
        await self._ask("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        await self._send({"method": "initialized"})
        policy = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
        thread = (await self._ask("thread/start", cwd=str(repository), **policy))["thread"]["id"]
        prompt = [{"type": "text", "text": PROMPT}]
        turn = (await self._ask("turn/start", threadId=thread, input=prompt))["turn"]["id"]
        if self._story.interrupt_after is not None:
            await self._seen(self._story.interrupt_after, thread)
            await self._send({"id": "stop", "method": "turn/interrupt", "params": {"threadId": thread, "turnId": turn}})
        await self._seen("turn/completed", thread)
        await self._ask("thread/loaded/list")  # the rest of the turn arrives before this answer
        return self._notifications

    async def _seen(self, method: str, thread: str) -> None:
        while not any(
            message["method"] == method and message["params"]["threadId"] == thread for message in self._notifications
        ):
            await self._next()

    async def _send(self, message: Message) -> None:
        await self._child.stdin.send(json.dumps(message).encode() + b"\n")

    async def _ask(self, method: str, **params: Any) -> Any:
        await self._send({"id": method, "method": method, "params": params})
        while True:
            answer = await self._next()
            if answer is not None and answer.get("id") == method:
                return answer.get("result")

    async def _next(self) -> Message | None:
        """Read one message: a notification is kept, a question declined, an answer returned."""
        message: Message = await anext(self._messages)
        if "method" not in message:
            return message
        if "id" in message:
            await self._send({"id": message["id"], "result": {"decision": "decline"}})
        elif not message["method"].startswith("codex/event/"):  # 0.93 sends everything twice
            self._notifications.append(message)
        return None


# --- stable names ----------------------------------------------------------------------------------------------------


class Stabiliser:
    """Replaces values that differ between recordings, and puts messages without a fixed time in order."""

    _UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    _ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
    _TIMES = re.compile(r".*(?:At|AtMs|Ms)$")
    _VOLATILE = ("cliVersion", "processId", "serverName")
    _BACKGROUND = (
        "account/rateLimits/updated",
        "mcpServer/startupStatus/updated",
        "remoteControl/status/changed",
        "skills/changed",
        "thread/started",
        "thread/tokenUsage/updated",
    )
    """Messages without a fixed time: moved to the beginning, sorted, without repetitions."""

    def __init__(self, stage: Path) -> None:
        self._paths = {str(stage / "repo"): "/repo", str(stage): "/stage", sys.prefix: "/python"}
        self._ids: dict[str, str] = {}

    def stable(self, messages: Iterable[Message]) -> list[Message]:
        kept = [message for message in messages if "bubblewrap" not in json.dumps(message)]  # not on every machine
        once = {self._UUID.sub("", json.dumps(message)): message for message in kept}
        background = [message for _, message in sorted(once.items()) if message.get("method") in self._BACKGROUND]
        rest = self._output_in_one([message for message in kept if message.get("method") not in self._BACKGROUND])
        threads = list(dict.fromkeys(self._thread(message) for message in rest))
        rest.sort(key=lambda message: threads.index(self._thread(message)))  # a sub-agent works beside its parent
        return [self._value(message) for message in background + rest]

    @staticmethod
    def _output_in_one(messages: list[Message]) -> list[Message]:
        """Join output, whose pieces have random sizes."""
        whole: list[Message] = []
        for message in messages:
            previous = whole[-1] if whole else {}
            method = message.get("method", "")
            if method.endswith("/outputDelta") and method == previous.get("method"):
                previous["params"]["delta"] += message["params"]["delta"]
            else:
                whole.append(message)
        return whole

    @staticmethod
    def _thread(message: Message) -> Any:
        return message.get("params", {}).get("threadId")

    def _value(self, value: Any, key: str = "") -> Any:
        match value:
            case {"method": "thread/started"}:  # it contains all settings
                return {"method": "thread/started", "params": {}}
            case dict():
                return {
                    self._text(name): self._value(inner, name) for name, inner in value.items() if name != "emittedAtMs"
                }
            case list() if key == "changes":  # Codex keeps them in a map
                return [self._value(inner) for inner in sorted(value, key=lambda change: str(change["path"]))]
            case list():
                return [self._value(inner) for inner in value]
            case str() if key in self._VOLATILE:
                return key
            case str():
                return self._text(value)
            case int() if self._TIMES.match(key):
                return 0
            case _:
                return value

    def _text(self, text: str) -> str:
        for path, name in self._paths.items():
            text = text.replace(path, name)
        return self._UUID.sub(self._id, self._ADDRESS.sub("127.0.0.1:PORT", text))

    def _id(self, match: re.Match[str]) -> str:
        return self._ids.setdefault(match[0], f"id-{len(self._ids) + 1}")


def write_recording(path: Path, stabiliser: Stabiliser, messages: Iterable[Message]) -> None:
    lines = [json.dumps(message, ensure_ascii=False) + "\n" for message in stabiliser.stable(messages)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    secrets = [line for line in lines if tempfile.gettempdir() + "/" in line or str(Path.home()) in line]
    if secrets:
        raise SystemExit(f"{path} still names this machine: {secrets[0]}")


# --- expected events -------------------------------------------------------------------------------------------------


def recordings() -> list[Path]:
    return sorted(GOLDEN.glob("*/*.jsonl"))


def events_path(recording: Path) -> Path:
    return recording.with_suffix(".events.json")


def normalised(recording: Path) -> list[Event]:
    """Return the events of a recording, as the current code normalises them."""
    from helmsman.agents.codex.normalise import from_app_server, from_exec

    messages = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    if recording.name.startswith("exec-"):
        return [event for message in messages for event in from_exec(message, EXEC_SESSION, EXEC_TURN)]
    events = (from_app_server(message["method"], message["params"]) for message in messages)
    return [event for event in events if event is not None]


def described(value: Any) -> Any:
    """Return a value of the event model as JSON: the type of an event or item, and whatever is not None, False or
    empty.
    """
    if isinstance(value, tuple):
        return [described(inner) for inner in value]
    if not isinstance(value, Value):
        return value
    kind: Message = {"type": value.type} if isinstance(value, Item) else {}
    if isinstance(value, Event):
        kind = {"event": type(value).__name__}
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return kind | {
        name: described(inner) for name, inner in fields.items() if inner or (inner == 0 and inner is not False)
    }


def write_expected_events(recording: Path) -> None:
    lines = [json.dumps(described(event), ensure_ascii=False) for event in normalised(recording)]
    events_path(recording).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--version", action="append", help="a Codex version there is a binary of; all by default")
    parser.add_argument("-s", "--story", action="append", choices=sorted(STORIES), help="all by default")
    parser.add_argument("--update", action="store_true", help="write the expected events anew, record nothing")
    options = parser.parse_args()
    if options.update:
        for recording in recordings():
            write_expected_events(recording)
        return
    for version, binary in codex_versions().items():
        if options.version is None or version in options.version:
            record(version, binary, options.story or STORIES)


if __name__ == "__main__":
    main()
