"""Sessions on disk: of real Codex versions, of formats long gone, and of files that are no sessions at all."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex import storage as rollouts
from helmsman.agents.codex.storage import PROMPT_LIMIT, CodexSessions, _Tree, read_head
from helmsman.agents.protocol import SessionInfo
from helmsman.errors import InvalidInput

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Home:
    """CODEX_HOME made by hand, and an index that counts its reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[str] = []
        self.index = CodexSessions(path, open_file=self._open)

    def _open(self, path: Path) -> BinaryIO:
        self.opened.append(path.name)
        return path.open("rb")

    def file(
        self, content: bytes, *, session_id: str | None = None, age: float = 0, place: str = "sessions/2026/03/01"
    ) -> str:
        """Create a rollout that changed `age` seconds before noon; return its id."""
        session_id = session_id or str(uuid.uuid4())
        path = self.path / place / f"rollout-2026-03-01T10-00-00-{session_id}.jsonl"
        self.write(path, content, age)
        return session_id

    def write(self, path: Path, content: bytes, age: float = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        changed_ns = int((NOON.timestamp() - age) * 1_000_000_000)
        os.utime(path, ns=(changed_ns, changed_ns))
        return path

    def session(self, prompt: str | None = "hello", *, age: float = 0, **meta: Any) -> str:
        session_id = meta.setdefault("id", str(uuid.uuid4()))
        return self.file(rollout(prompt, **meta), session_id=session_id, age=age)

    def ids(self, **options: Any) -> list[str]:
        return [info.session_id for info in self.index.list(**options)[0]]

    def only(self, **options: Any) -> SessionInfo:
        (info,) = self.index.list(**options)[0]
        return info


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def lines(*entries: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def meta(**payload: Any) -> dict[str, Any]:
    payload = {"cwd": "/src/repo", "source": "exec", "originator": "codex_exec", "cli_version": "0.130.0"} | payload
    return {"timestamp": "2026-03-01T10:00:00.5Z", "type": "session_meta", "payload": payload}


def event(**payload: Any) -> dict[str, Any]:
    return {"type": "event_msg", "payload": payload}


TURN = {"type": "turn_context", "payload": {"model": "gpt-5.5", "cwd": "/src/repo"}}


def rollout(prompt: str | None, **payload: Any) -> bytes:
    said = () if prompt is None else (event(type="user_message", message=prompt),)
    return lines(meta(**{"timestamp": "2026-03-01T10:00:00Z"} | payload), TURN, *said)


# --- formats ---------------------------------------------------------------------------------------------------------


def test_a_legacy_session_is_read(home: Home) -> None:
    session_id = home.session("fix it")
    info = home.only()
    assert (info.session_id, info.first_prompt, info.model, info.source) == (session_id, "fix it", "gpt-5.5", "exec")
    assert info.created_at == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert info.updated_at == NOON


def test_a_session_that_continues_in_a_second_file_is_one_session(home: Home) -> None:
    session_id = home.session("fix it", age=60)
    name = f"rollout-2026-03-01T11-00-00-{session_id}_{uuid.uuid4()}.jsonl"
    latest = home.write(home.path / "sessions/2026/03/01" / name, lines(meta(id=session_id)))
    info = home.only()
    assert (info.session_id, info.first_prompt, info.model, info.path) == (session_id, "fix it", "gpt-5.5", latest)
    assert info.updated_at == NOON
    assert home.index.find(session_id) == info


def test_a_paginated_session_is_read(home: Home) -> None:
    user = {"type": "UserMessage", "content": [{"type": "localImage"}, {"type": "text", "text": "fix it"}]}
    agent = {"type": "AgentMessage", "content": [{"type": "Text", "text": "no"}]}
    home.file(lines(meta(), TURN, event(type="item_completed", item=agent), event(type="item_completed", item=user)))
    assert home.only().first_prompt == "fix it"


def test_the_model_may_be_named_after_the_prompt(home: Home) -> None:
    home.file(lines(meta(), event(type="user_message", message="hi"), event(type="token_count"), TURN))
    assert home.only().model == "gpt-5.5"


def test_the_environment_is_not_taken_for_the_prompt(home: Home) -> None:
    context = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]}
    home.file(lines(meta(), {"type": "response_item", "payload": context}, TURN))
    assert home.only().first_prompt is None


def test_a_session_of_the_first_versions_is_read(home: Home) -> None:
    session_id = str(uuid.uuid4())

    def user(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    home.file(
        lines(
            {"id": session_id, "timestamp": "2025-08-01T10:00:00Z", "instructions": None, "git": {}},
            {"record_type": "state"},
            user("<user_instructions>be kind</user_instructions>"),
            user("<environment_context>\n<cwd>/old/repo</cwd>\n</environment_context>"),
            user("the old prompt"),
        ),
        session_id=session_id,
    )
    info = home.only()
    assert (info.session_id, info.first_prompt, info.directory) == (session_id, "the old prompt", "/old/repo")


def test_a_fork_with_its_parents_lines_keeps_its_own_id(home: Home) -> None:
    parent, fork = str(uuid.uuid4()), str(uuid.uuid4())
    content = lines(meta(id=fork, forked_from_id=parent), meta(id=parent, cwd="/other"), TURN)
    home.file(content, session_id=fork)
    assert (home.only().session_id, home.only().directory) == (fork, "/src/repo")


def test_a_fork_without_a_prompt_shows_that_of_its_ancestors(home: Home) -> None:
    parent = home.session("the beginning", age=9)
    child = home.session(None, forked_from_id=parent, age=5)
    grandchild = home.session(None, forked_from_id=child, age=1)
    own = home.session("my own", forked_from_id=parent)
    prompts = {info.session_id: info.first_prompt for info in home.index.list()[0]}
    assert prompts == {parent: "the beginning", child: "the beginning", grandchild: "the beginning", own: "my own"}


def test_forks_that_name_each_other_end(home: Home) -> None:
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    home.session(None, id=one, forked_from_id=two)
    home.session(None, id=two, forked_from_id=one)
    home.session(None, forked_from_id=str(uuid.uuid4()))
    assert [info.first_prompt for info in home.index.list()[0]] == [None, None, None]


def test_subagents_are_hidden_unless_asked_for(home: Home) -> None:
    parent = home.session(age=5)
    spawned = home.session(source={"subagent": {"thread_spawn": {"parent_thread_id": parent, "depth": 1}}}, age=3)
    reviewer = home.session(source={"subagent": "review"}, session_id=parent, age=2)
    newer = home.session(source={"subagent": "review"}, parent_thread_id=parent, age=1)
    assert home.ids() == [parent]
    agents = {info.session_id: info.parent_id for info in home.index.list(include_sub_agents=True)[0]}
    assert agents == {parent: None, spawned: parent, reviewer: None, newer: parent}
    assert home.index.find(spawned) is not None


@pytest.mark.parametrize("size", [22_000, 1_000_000])
def test_a_first_line_of_any_size_is_read(home: Home, size: int) -> None:
    home.session("hi", base_instructions={"text": "x" * size})
    assert home.only().first_prompt == "hi"


def test_a_head_without_end_is_given_up_at_a_bound(home: Home) -> None:
    session_id = str(uuid.uuid4())
    huge = event(type="user_message", message="x" * rollouts.HEAD_LIMIT)
    home.file(lines(meta(id=session_id), huge), session_id=session_id)
    assert home.only().first_prompt is None
    path = home.index.list()[0][0].path
    assert path is not None
    home.write(path, path.read_bytes() + b"more\n", age=-5)
    home.only()
    assert len(home.opened) == 1


def test_a_long_prompt_is_cut_for_the_listing(home: Home) -> None:
    home.session("y" * 10_000)
    assert home.only().first_prompt == "y" * PROMPT_LIMIT + "…"


def test_a_compressed_session_is_read(tmp_path: Path) -> None:
    zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    home = Home(tmp_path)
    home.index = CodexSessions(tmp_path)
    session_id = str(uuid.uuid4())
    place = tmp_path / "sessions"
    for number, content in enumerate(
        (zstd.compress(rollout("packed", id=session_id)), b"not zstd at all", zstd.compress(rollout("cut"))[:-20], b"")
    ):
        name = session_id if number == 0 else uuid.uuid4()
        home.write(place / f"rollout-2026-{name}.jsonl.zst", content)
    assert (home.only().session_id, home.only().first_prompt) == (session_id, "packed")


def test_a_session_that_is_there_twice_is_shown_once(home: Home) -> None:
    session_id = home.session("unpacked", age=10)
    archived = home.file(rollout("old copy"), session_id=session_id, place="archived_sessions")
    place = home.path / "sessions" / "2026" / "03" / "01"
    home.write(place / f"rollout-2026-03-01T10-00-00-{session_id}.jsonl.zst", b"", age=0)
    assert archived == session_id
    assert home.only(include_archived=True).first_prompt == "unpacked"


def test_a_file_without_an_id_in_its_name_has_it_inside(home: Home) -> None:
    session_id = str(uuid.uuid4())
    home.write(home.path / "sessions" / "rollout-strange.jsonl", rollout("hi", id=session_id))
    home.write(home.path / "sessions" / "rollout-stranger.jsonl", b"garbage\n")
    assert home.ids() == [session_id]
    assert home.index.find(session_id) is not None


# --- files that are not sessions -------------------------------------------------------------------------------------


def test_an_invalid_session_is_left_out(home: Home) -> None:
    for content in (
        b"",
        b"\n",
        b"garbage",
        b"\x00\xff" * 1000,
        b"[]\n",
        b"{}\n",
        b'{"type":"session_meta"}\n',
        b"[" * 99999,
    ):
        home.file(content)
    for name in ("notes.txt", "rollout-x.json", "session.jsonl"):
        home.write(home.path / "sessions" / name, rollout("hi"))
    (home.path / "sessions" / f"rollout-{uuid.uuid4()}.jsonl").mkdir()
    assert home.ids() == []


def test_damaged_lines_in_the_head_are_passed_over(home: Home) -> None:
    home.file(b"\xff\xfe\n" + lines(meta()) + b"{half\n" + lines(TURN, event(type="user_message", message="hi")))
    assert home.only().first_prompt == "hi"


def test_values_of_wrong_types_are_left_out(home: Home) -> None:
    odd = {"cwd": 7, "originator": ["x"], "cli_version": {}, "source": 5, "timestamp": "soon", "parent_thread_id": []}
    home.file(lines(meta(**odd), {"type": "turn_context", "payload": {"cwd": [], "model": {}}}, {"type": "event_msg"}))
    info = home.only()
    assert (info.directory, info.originator, info.engine_version, info.source, info.created_at) == (None,) * 5


def test_half_of_a_surrogate_pair_can_be_shown(home: Home) -> None:
    home.session("broken \ud83d text")
    assert (home.only().first_prompt or "").encode("utf-8")


def test_a_home_with_nothing_in_it_has_no_sessions(tmp_path: Path) -> None:
    index = CodexSessions(tmp_path / "missing")
    assert index.list() == ([], None)
    assert index.find("x") is None


@pytest.mark.skipif(os.name != "posix", reason="permissions and links as POSIX has them")
def test_unreadable_rollouts_are_left_out(home: Home) -> None:
    visible = home.session("visible")
    home.session("hidden")
    sessions = home.path / "sessions"
    (sessions / "dangling").symlink_to("nowhere")
    (sessions / f"rollout-{uuid.uuid4()}.jsonl").symlink_to("nowhere")
    os.mkfifo(sessions / f"rollout-{uuid.uuid4()}.jsonl")
    (sessions / "loop").symlink_to(sessions, target_is_directory=True)

    def refuse(path: Path) -> BinaryIO:
        if visible not in path.name:
            raise PermissionError(13, "Permission denied")
        return path.open("rb")

    assert [info.session_id for info in CodexSessions(home.path, open_file=refuse).list()[0]] == [visible]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_without_permission_is_left_out(home: Home) -> None:
    visible = home.session("visible")
    home.file(rollout("hidden"), place="sessions/2027")
    (home.path / "sessions" / "2027").chmod(0)
    try:
        assert home.ids() == [visible]
    finally:
        (home.path / "sessions" / "2027").chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_sessions_kept_elsewhere_by_a_link_are_found(home: Home, tmp_path: Path) -> None:
    session_id = home.session("hi")
    (home.path / "sessions").rename(tmp_path / "elsewhere")
    (home.path / "sessions").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert home.ids() == [session_id]


# --- order, pages, filters -------------------------------------------------------------------------------------------


def test_the_session_that_last_changed_comes_first(home: Home) -> None:
    old, new, middle = home.session(age=30), home.session(age=10), home.session(age=20)
    assert home.ids() == [new, middle, old]


def test_pages_lose_nothing_and_repeat_nothing_even_when_all_changed_in_one_moment(home: Home) -> None:
    expected = sorted((home.session() for _ in range(7)), reverse=True)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page, cursor = home.index.list(limit=2, cursor=cursor)
        seen += [info.session_id for info in page]
    assert seen == expected
    assert cursor is None


def test_a_session_that_appears_between_pages_disturbs_nothing(home: Home) -> None:
    ids = [home.session(age=age) for age in (1, 2, 3, 4)]
    page, cursor = home.index.list(limit=2)
    home.session(age=0)
    rest, end = home.index.list(limit=2, cursor=cursor)
    assert [info.session_id for info in page + rest] == ids
    assert end is None


@pytest.mark.parametrize("cursor", ["", "zzz", "1", "1:", ":x", "9" * 30 + ":x", "1:x\n"])
def test_a_cursor_of_something_else_is_refused(home: Home, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="not a cursor"):
        home.index.list(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_makes_no_sense_is_refused(home: Home, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        home.index.list(limit=limit)


def test_sessions_of_one_directory(home: Home, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real, target_is_directory=True)
    through_link = home.session(cwd=str(link), age=1)
    direct = home.session(cwd=str(real), age=2)
    home.session(cwd=str(real / "below"))
    home.session(cwd="bad\0path")
    home.session(cwd=None)
    assert home.ids(directories=[str(real)]) == [through_link, direct]
    assert home.ids(directories=["\0"]) == []


def test_a_query_matches_name_prompt_directory_and_id(home: Home) -> None:
    one, two = home.session("Fix the Parser", age=1, cwd="/src/alpha"), home.session("other", age=2, cwd="/src/beta")
    home.write(home.path / "session_index.jsonl", lines({"id": two, "thread_name": "Straße"}))
    assert home.ids(query="parser FIX") == [one]
    assert home.ids(query="STRASSE") == [two]
    assert home.ids(query="beta") == [two]
    assert home.ids(query=one[:13]) == [one]
    assert home.ids(query="nothing of the kind") == []
    assert home.ids(query="  ") == [one, two]


def test_the_last_name_given_counts(home: Home) -> None:
    session_id = home.session()
    names = home.path / "session_index.jsonl"
    home.write(names, b"garbage\n[]\n" + lines({"id": session_id, "thread_name": "one"}, {"id": 7, "thread_name": "x"}))
    assert home.only().name == "one"
    home.write(names, lines({"id": session_id, "thread_name": "one"}, {"id": session_id, "thread_name": "two"}))
    assert home.only().name == "two"
    home.write(names, lines({"id": session_id, "thread_name": None}))
    assert home.only().name is None
    names.unlink()
    assert home.only().name is None


def test_archived_sessions_are_listed_on_request_and_always_found(home: Home) -> None:
    archived = home.file(rollout("old"), place="archived_sessions")
    assert home.ids() == []
    assert home.ids(include_archived=True) == [archived]
    found = home.index.find(archived)
    assert found is not None
    assert found.archived


def test_an_unknown_id_is_not_found(home: Home) -> None:
    home.session()
    for session_id in (str(uuid.uuid4()), "", "../x", "rollout"):
        assert home.index.find(session_id) is None


# --- reads and their number ------------------------------------------------------------------------------------------


def test_a_page_reads_the_heads_it_needs_and_no_head_twice(home: Home) -> None:
    for age in range(10):
        home.session(age=age)
    first, cursor = home.index.list(limit=3)
    assert len(home.opened) == 4  # one more tells whether there is another page
    home.index.list(limit=3)
    assert home.index.find(first[0].session_id) == first[0]
    assert len(home.opened) == 4
    home.index.list(limit=3, cursor=cursor)
    assert len(home.opened) == 7
    home.index.list(limit=100)
    home.index.list(limit=100)
    assert len(home.opened) == len(set(home.opened)) == 10


@pytest.mark.long
def test_thousands_of_sessions_are_listed_and_only_what_is_new_is_read_again(home: Home) -> None:
    for number in range(3_000):
        content = rollout(f"prompt {number}") if number < 1000 else rollout("x")
        home.file(content, age=number, place=f"sessions/2026/{number % 12:02}/{number % 28:02}")
    home.index.list(limit=50)
    assert len(home.opened) == 51
    assert len(home.ids(query="prompt", limit=2000)) == 1000
    assert len(home.opened) == 3_000
    newest = home.session("brand new", age=-1)
    assert home.ids(query="brand")[0] == newest
    assert len(home.opened) == 3_001


def test_a_session_that_continues_is_not_read_again_but_moves_to_the_front(home: Home) -> None:
    going_on, other = home.session("hi", age=5), home.session(age=1)
    assert home.ids() == [other, going_on]
    path = next(home.path.glob(f"sessions/**/*{going_on}.jsonl"))
    home.write(path, path.read_bytes() + lines(event(type="agent_message", message="…")), age=0)
    assert home.ids() == [going_on, other]
    assert len(home.opened) == 2


def test_a_head_that_is_still_being_written_is_read_again_when_it_has_grown(home: Home) -> None:
    content = rollout("at last")
    session_id = home.file(b"", age=9)
    path = next(home.path.glob(f"sessions/**/*{session_id}.jsonl"))
    assert home.ids() == []
    home.write(path, content[:50], age=8)
    assert home.ids() == []
    home.write(path, content[: content.index(b"\n") + 20], age=7)
    assert home.only().first_prompt is None
    home.only()
    assert len(home.opened) == 3
    home.write(path, content, age=6)
    assert home.only().first_prompt == "at last"
    home.only()
    assert len(home.opened) == 4


def test_a_file_that_was_replaced_is_read_again(home: Home) -> None:
    session_id = home.session("before")
    assert home.only().first_prompt == "before"
    path = next(home.path.glob(f"sessions/**/*{session_id}.jsonl"))
    home.write(path.with_suffix(".new"), rollout("after", id=session_id))
    path.with_suffix(".new").replace(path)
    assert home.only().first_prompt == "after"


def test_a_deleted_session_is_gone(home: Home) -> None:
    session_id = home.session()
    assert home.ids() == [session_id]
    next(home.path.glob(f"sessions/**/*{session_id}.jsonl")).unlink()
    assert home.ids() == []
    assert home.index.find(session_id) is None


def test_several_threads_may_ask_at_once(home: Home) -> None:
    ids = [home.session(age=age) for age in range(200)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: home.ids(limit=200), range(16)))
    assert answers == [ids] * 16
    assert len(home.opened) == 200


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_list_that_is_asked_again_says_what_a_new_one_says(home: Home) -> None:
    """Whatever changed in between, and whether or not the system tells of it."""
    first, second = home.session("first", age=50), home.session("second", age=40)
    day, other_day = home.path / "sessions" / "2026" / "03" / "01", home.path / "sessions" / "2026" / "03" / "02"
    elsewhere = home.path / "elsewhere.jsonl"

    def file_of(session_id: str) -> Path:
        return day / f"rollout-2026-03-01T10-00-00-{session_id}.jsonl"

    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: home.write(file_of(first), rollout("first", id=first) + b"{}\n", age=30),
        lambda: os.utime(file_of(second), (NOON.timestamp(), NOON.timestamp())),
        lambda: home.session("third", age=20),
        lambda: home.file(rollout("next day"), place="sessions/2026/03/02", age=10),
        lambda: home.file(rollout("next day again"), place="sessions/2026/03/02", age=5),
        lambda: file_of(first).replace(home.path / "sessions" / file_of(first).name),
        lambda: other_day.rename(home.path / "sessions" / "moved"),
        lambda: file_of(second).replace(elsewhere),
        lambda: file_of(second).symlink_to(elsewhere),
        lambda: home.write(elsewhere, rollout("second", id=second) + b"{}\n", age=1),
        lambda: shutil.rmtree(home.path / "sessions" / "moved"),
        lambda: shutil.rmtree(home.path / "sessions"),
        lambda: home.session("anew"),
    )
    for number, change in enumerate(changes):
        home.index.list()
        change()
        shown, _ = home.index.list()
        assert shown == CodexSessions(home.path).list()[0], number
        home.index.list()


@pytest.mark.skipif(sys.platform != "linux", reason="Elsewhere the system does not tell of changes.")
def test_unchanged_directories_are_not_looked_at_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.session("quiet", age=10)
    busy = home.file(rollout("busy"), place="sessions/2026/03/02")
    for _ in range(2):
        home.index.list()
    looked_at: list[str] = []
    look_into = _Tree._look_into

    def noted(tree: _Tree, directory: str, known: Mapping[str, Any]) -> tuple[Any, Any, bool]:
        looked_at.append(directory)
        return look_into(tree, directory, known)

    monkeypatch.setattr(_Tree, "_look_into", noted)
    assert len(home.ids()) == 2
    assert looked_at == []
    home.file(rollout("busy"), session_id=busy, place="sessions/2026/03/02", age=-10)
    assert home.ids()[0] == busy
    assert [Path(directory).name for directory in looked_at] == ["02"]


# --- any content whatever --------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
_KEYS = ["type", "payload", "id", "timestamp", "cwd", "source", "message", "item", "content", "role", "model", "text"]
_WORDS = [
    "session_meta",
    "event_msg",
    "turn_context",
    "user_message",
    "item_completed",
    "UserMessage",
    "message",
    "user",
]
_ENTRIES = st.recursive(
    _JSON | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
)


@given(st.lists(st.binary(max_size=200) | _ENTRIES.map(lambda entry: json.dumps(entry).encode()), max_size=8))
def test_no_content_raises(parts: list[bytes]) -> None:
    for beginning in (b"", lines(meta())):
        head, _complete = read_head(io.BytesIO(beginning + b"\n".join(parts)))
        assert head is not None or not beginning
