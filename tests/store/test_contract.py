"""What every store does, whether it is SQLite or Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from helmsman.agents.registry import Agents
from helmsman.base.processes import Process
from helmsman.errors import OutcomeUnknown, RegistryTooNew, RegistryUnavailable
from helmsman.model.events import (
    AgentMessage,
    DiffUpdated,
    Event,
    HistoryImported,
    ItemEnded,
    ProcessState,
    ProcessStateChanged,
    QuestionAsked,
    QuestionClosed,
    Source,
    TurnEnded,
    TurnRequested,
    Unknown,
    Usage,
)
from helmsman.model.questions import Prompt, Question
from helmsman.notices.notifications import Notification
from helmsman.notices.store import NoticeStore
from helmsman.schedules.store import Schedule, ScheduleRun, ScheduleStore, new_schedule_id
from helmsman.schedules.when import When
from helmsman.store import leases, open_store, schema
from helmsman.store.connection import StoreConnection
from helmsman.store.database import Database, Fence
from helmsman.store.log import LogReader, NewEvent, StoredEvents, append, read
from helmsman.store.upkeep import RETENTION, Compacted, exported, problems, session_ids, summary
from helmsman.tasks.agent_records import AgentRecords
from helmsman.tasks.calls import AnsweredBefore, CallId, CallLog
from helmsman.tasks.model import ENDED, TaskDraft
from helmsman.tasks.registry import Batch, Registry
from helmsman.tasks.writer import TaskWriter
from tests.store.servers import running_postgres

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
SECONDS = 20


class Store:
    """A store that tests open several times, as several processes do."""

    def __init__(self, path: Path, address: str | None) -> None:
        self.path, self.address = path, address
        self._opened = ExitStack()

    def open(self, fence: Fence | None = None) -> Database:
        return self._opened.enter_context(closing(open_store(self.path, self.address, fence=fence)))

    def registry(self, clock: Callable[[], datetime] = lambda: NOW) -> Registry:
        return self._opened.enter_context(closing(Registry(self.path, address=self.address, clock=clock)))

    def task_writer(self) -> TaskWriter:
        return TaskWriter(self.path.parent, AgentRecords(Agents()), Fence(1, lambda _: None), store=self.address)

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def store(store_address: str | None, tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "state" / "registry.sqlite3", store_address)) as store:
        yield store


@pytest.fixture
def database(store: Store) -> Database:
    return store.open()


@pytest.fixture
def registry(store: Store) -> Registry:
    return store.registry()


def said(text: str, session: str = "s-1") -> Event:
    return ItemEnded(session_id=session, turn_id="t-1", item=AgentMessage(id=text, text=text))


def put(database: Database, *events: Event, at: datetime = NOW) -> None:
    by_session: dict[str, list[NewEvent]] = {}
    for event in events:
        by_session.setdefault(event.session_id, []).append(NewEvent.of(event.with_time(at)))
    database.write(lambda connection: append(connection, by_session))


def stored(database: Database, session: str = "s-1", since: int = 0) -> StoredEvents:
    return database.read(lambda connection: read(connection, session, since))


def execute(database: Database, sql: str, values: Sequence[Any] = ()) -> None:
    database.write(lambda connection: connection.execute(sql, values))


def due(database: Database) -> list[str]:
    sql = "SELECT about FROM notices_due ORDER BY about"
    return database.read(lambda connection: [row["about"] for row in connection.execute(sql)])


# --- the log ---------------------------------------------------------------------------------------------------------


def test_events_are_numbered_in_each_session_and_read_from_a_cursor(database: Database) -> None:
    put(database, TurnRequested(session_id="s-1", text="go"), said("a"), said("x", "s-2"))
    put(database, said("b"))
    assert stored(database) == ((TurnRequested(session_id="s-1", text="go"), said("a"), said("b")), 3, NOW, None)
    assert stored(database, since=2).events == (said("b"),)
    assert stored(database, "s-2").cursor == 1
    assert stored(database, "s-3").events == ()


def test_the_state_of_a_process_is_no_activity_of_its_session(database: Database) -> None:
    def state(at: datetime) -> None:
        put(database, ProcessStateChanged(session_id="s-1", state=ProcessState.IDLE), at=at)

    state(NOW)
    assert stored(database).changed_at == NOW, "unless nothing else has happened"
    put(database, said("hello"), at=NOW + timedelta(hours=1))
    state(NOW + timedelta(hours=2))
    assert stored(database).changed_at == NOW + timedelta(hours=1)


def test_a_log_that_lost_events_is_numbered_on_as_its_writer_counts(database: Database) -> None:
    put_behind(database, 5, said("f"))
    put_behind(database, 6, said("g"))
    put_behind(database, 2, said("h"))
    assert stored(database, since=5) == ((said("f"), said("g"), said("h")), 8, NOW, None)
    put_behind(database, 10, said("k"))
    assert stored(database, since=8).events == (said("k"),)
    assert stored(database).cursor == 11


def put_behind(database: Database, before: int, event: Event) -> None:
    events = {event.session_id: [NewEvent.of(event.with_time(NOW), before + 1)]}
    database.write(lambda connection: append(connection, events))


def test_the_offset_of_the_source_is_committed_with_the_events_and_only_grows(database: Database) -> None:
    put(database, said("a"))
    assert stored(database).source is None
    put(database, said("b").with_source(Source("first", 30)))
    put(database, said("c").with_source(Source("first", 20)), said("d"))
    assert stored(database).source == ("first", 30)
    put(database, said("e").with_source(Source("second", 5)))
    assert stored(database).source == ("second", 5)


def test_many_events_and_the_newest_diff_are_kept(database: Database) -> None:
    put(database, *(said(str(number)) for number in range(1001)))
    put(database, *(DiffUpdated(session_id="s-1", turn_id="t-1", diff=text) for text in ("one", "two")))
    put(database, DiffUpdated(session_id="s-1", turn_id="t-1", diff="three"))
    events = stored(database).events
    assert len(events) == 1004
    assert [event.diff for event in events if isinstance(event, DiffUpdated)] == ["", "", "three"]


def test_unknown_kinds_and_fields_and_any_character_survive(database: Database) -> None:
    body = '{"type": "mood_changed", "sessionId": "s-1", "mood": "50 % good? :so \\u0000"}'
    known = '{"sessionId":"s-1","text":"go","colour":"red"}'
    new = [NewEvent(1, "mood_changed", body), NewEvent(1, TurnRequested.event_type(), known)]
    database.write(lambda connection: append(connection, {"s-1": new}))
    unknown, requested = stored(database).events
    assert isinstance(unknown, Unknown)
    assert unknown.payload["mood"] == "50 % good? :so \0"
    assert isinstance(requested, TurnRequested)
    assert requested.stored == known
    put(database, said("a\ud83d"), said("nul \0"))
    assert stored(database).cursor == 4


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    put(database, said("a"))

    def fail(connection: StoreConnection) -> None:
        append(connection, {"s-1": [NewEvent.of(said("b"))]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(fail)
    put(database, said("c"))
    assert stored(database).events == (said("a"), said("c"))


async def test_a_reader_waits_for_the_next_commit(store: Store) -> None:
    database = store.open()
    put(database, said("a"))
    cursor = stored(database).cursor
    with anyio.fail_after(SECONDS), ThreadPoolExecutor(1) as threads:
        wake = database.next_commit()
        threads.submit(put, database, said("b"))
        await wake.wait()
        while not (found := stored(database, since=cursor).events):
            wake = database.next_commit()
            if not stored(database, since=cursor).events:
                await wake.wait()
    assert found == (said("b"),)


async def test_a_reader_of_all_logs_learns_which_sessions_have_news(store: Store) -> None:
    database = store.open()
    put(database, said("a"), TurnRequested(session_id="s-1", text="go"))
    reader = LogReader(database, ItemEnded, TurnEnded)
    assert reader.read() is None  # it begins behind what is there
    assert reader.read() == {}
    put(database, said("b"), said("x", "s-2"), TurnRequested(session_id="s-3", text="go"))
    put(database, said("c"), TurnEnded(session_id="s-1", outcome="completed"))
    assert reader.read() == {"s-1": {"item_ended", "turn_ended"}, "s-2": {"item_ended"}}
    assert reader.read() == {}
    with anyio.fail_after(20):
        while database.version_of_others() is None:  # it wakes all readers when it begins to listen
            await anyio.sleep(0.01)
    wake = database.next_commit()
    execute(database, "DELETE FROM sessions WHERE id = 'none'")  # nothing was written: no reader wakes
    await anyio.lowlevel.checkpoint()
    assert not wake.is_set()


async def test_a_commit_of_another_process_shows(store: Store) -> None:
    database, other = store.open(), store.open()
    assert database.version_of_others() is None, "it is not open yet"
    put(database, said("a"))
    with anyio.fail_after(SECONDS):
        while (before := database.version_of_others()) is None:  # Postgres has yet to listen
            await anyio.sleep(0.01)
    version = database.version()
    put(database, said("c"))
    own = database.version()
    assert database.version_of_others() == before
    put(other, said("d"))
    assert len({version, own, database.version()}) == 3
    with anyio.fail_after(SECONDS):
        while database.version_of_others() == before:
            await anyio.sleep(0.01)


async def test_on_postgres_a_commit_of_another_process_wakes_readers(store: Store) -> None:
    if store.address is None:
        pytest.skip("Other processes ask the hub.")
    database, other = store.open(), store.open()
    put(database, said("a"))
    with anyio.fail_after(SECONDS):
        while database.version_of_others() is None:
            await anyio.sleep(0.01)
        wake = database.next_commit()
        await anyio.to_thread.run_sync(put, other, said("b"))
        await wake.wait()
    assert stored(database).cursor == 2


def test_several_writers_take_turns(store: Store) -> None:
    databases = [store.open() for _ in range(4)]

    def write(number: int) -> None:
        put(databases[number % 4], said(str(number)), said(f"{number} again"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(60)))
    texts = [event.item.id for event in stored(databases[0]).events if isinstance(event, ItemEnded)]
    assert sorted(texts) == sorted(text for number in range(60) for text in (str(number), f"{number} again"))
    assert all(texts[texts.index(str(number)) + 1] == f"{number} again" for number in range(60))


# --- who may write ---------------------------------------------------------------------------------------------------


def test_a_hub_that_was_replaced_writes_nothing(store: Store) -> None:
    refused: list[int] = []
    old = store.open(Fence(7, refused.append, "here"))
    put(old, said("a"))
    new = store.open(Fence(8, refused.append, "here"))
    put(new, said("b"))
    with pytest.raises(RegistryUnavailable, match="later hub"):
        put(old, said("c"))
    with pytest.raises(RegistryUnavailable, match="later hub"):
        Registry(store.path, database=old).add(TaskDraft(instruction="x"))
    assert refused == [8, 8]
    assert stored(old).events == (said("a"), said("b")), "it may read"
    assert new.newest_epoch() == 8
    put(store.open(), said("d"))  # a process that is no hub


def test_a_lease_keeps_other_owners_out_until_it_ends(store: Store) -> None:
    database = store.open()
    database.write(lambda connection: leases.enter(connection, "hub", "here", 1, 60))
    with pytest.raises(RegistryUnavailable, match="hub of here uses this store"):
        database.write(lambda connection: leases.enter(connection, "hub", "there", 2, 60))
    database.write(lambda connection: leases.enter(connection, "hub", "here", 2, 60))
    assert database.write(lambda connection: leases.renew(connection, "hub", 2, 0.0))
    assert not database.write(lambda connection: leases.renew(connection, "hub", 1, 60))
    held = database.read(lambda connection: leases.held(connection, "hub"))
    assert held is not None
    assert (held.owner, held.epoch, held.is_alive) == ("here", 2, False)
    database.write(lambda connection: leases.enter(connection, "hub", "there", 3, 60))
    assert database.newest_epoch() == 3


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_is_stored_changed_and_found(registry: Registry) -> None:
    task, is_new = registry.add(TaskDraft(instruction="Fix 100 % of it?\0", session_id="s-1", idempotency_key="key"))
    assert is_new
    again, is_new = registry.add(TaskDraft(instruction="other", idempotency_key="key"))
    assert (again.id, is_new) == (task.id, False)
    usage = Usage(input_tokens=10, output_tokens=5)
    registry.update(task.id, status="working", usage=usage, input_required=True, progress={"text": "half"})
    registry.update(task.id, status="completed", result="Done.", granted={"note": "ü"})
    found = registry.find(task.alias)
    assert found is not None
    assert (found.status, found.result, found.usage, found.revision) == ("completed", "Done.", usage, 2)
    assert found.granted["note"] == "ü"
    assert registry.tasks_of_session("s-1") == (found,)
    assert [one.usage for one in registry.turn_usages()] == [usage]
    assert registry.list(status=ENDED, directories=())[0] == ()
    page, following = registry.list(status=ENDED, limit=1)
    assert (page, following) == ((found,), None)
    assert registry.running() == ()


@pytest.mark.parametrize(
    ("event", "tells_all"),
    [
        (TurnRequested(session_id="s-1", text="go"), True),
        (TurnRequested(session_id="s-1", text="review it", kind="other"), False),
        (ItemEnded(session_id="s-1", agent_id="child", item=AgentMessage(id="m", text="hi")), False),
        (HistoryImported(session_id="s-1", turns=()), False),
    ],
)
def test_the_tasks_of_a_session_say_all_that_was_spent_unless_others_spent_too(
    registry: Registry, event: Event, tells_all: bool
) -> None:
    task, _ = registry.add(TaskDraft(instruction="go", session_id="s-1", turn_id="t-1"))
    registry.commit(Batch(events={"s-1": [NewEvent.of(event, 1)]}))
    assert registry.only_in_tasks() == {}, "its usage is not known yet"
    registry.update(task.id, usage=Usage(1))
    assert list(registry.only_in_tasks()) == (["s-1"] if tells_all else [])
    registry.commit(Batch(events={"s-1": [NewEvent.of(said("later"), 9)]}))
    assert registry.only_in_tasks() == {}, "some of its events are not here"


def test_a_task_that_was_to_begin_belongs_to_the_session_opened_for_it(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="x"))
    registry.update(task.id, opened_session="s-9")
    assert [one.id for one in registry.tasks_of_session("s-9")] == [task.id]
    assert registry.tasks_of_session("s-8") == ()


def test_events_and_tasks_of_a_session_are_one_transaction(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="x", session_id="s-1"))
    question = Question(
        id="q-1",
        type="command_approval",
        session_id="s-1",
        turn_id="t-1",
        prompts=(Prompt(text="Run it?"),),
        details={"command": "rm -r build"},
        asker="codex",
    )
    asked = [
        NewEvent.of(event.with_time(NOW))
        for event in (
            QuestionAsked(session_id="s-1", question=question),
            QuestionClosed(session_id="s-1", question_id="q-1", answer="approve", by="user"),
        )
    ]

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.commit(Batch(changes={task.id: {"status": "working"}}, events={"s-1": asked}), also=fail)
    assert registry.events("s-1").events == ()
    registry.commit(Batch(changes={task.id: {"status": "working"}}, events={"s-1": asked}))
    opened, closed = registry.events("s-1").events
    assert isinstance(opened, QuestionAsked)
    assert opened.question == question
    assert isinstance(closed, QuestionClosed)
    known = registry.get(task.id)
    assert known is not None
    assert known.status == "working"


def test_the_outbox_gets_ends_and_limits_in_the_transaction_of_the_change(registry: Registry) -> None:
    ended, _ = registry.add(TaskDraft(instruction="a"))
    registry.update(ended.id, status="completed")
    canceled, _ = registry.add(TaskDraft(instruction="b"))
    registry.update(canceled.id, status="canceled")
    limited, _ = registry.add(TaskDraft(instruction="c"))
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    registry.update(limited.id, status="working", waiting_for="quota", resumes_at=at)
    registry.update(limited.id, waiting_for="quota", resumes_at=at + timedelta(hours=1))
    fresh = TaskDraft(id="T-9", instruction="d")
    registry.commit(Batch(drafts={"T-9": fresh}, changes={"T-9": {"status": "failed"}}))
    assert due(registry.database) == sorted([f"limit {limited.id} {at.isoformat()}", f"task {ended.id}", "task T-9"])
    registry.commit(Batch(seen={ended.id}))
    assert f"task {ended.id}" not in due(registry.database)


def test_threads_change_one_task_without_losing_anything(store: Store) -> None:
    registries = [store.registry() for _ in range(3)]
    task, _ = registries[0].add(TaskDraft(instruction="x"))

    def change(number: int) -> None:
        registries[number % 3].update(task.id, granted={f"key-{number}": number})

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(change, range(30)))
    found = registries[0].get(task.id)
    assert found is not None
    assert (found.granted, found.revision) == ({f"key-{number}": number for number in range(30)}, 30)


# --- calls, schedules, notices ---------------------------------------------------------------------------------------


async def test_a_call_is_done_once(store: Store) -> None:
    writer = store.task_writer()
    calls, call = CallLog(writer), CallId("client", 1, Process.me())
    await calls.begin(call, "apply", repeatable=False)
    later = CallLog(writer)  # as the next hub finds it
    with pytest.raises(OutcomeUnknown):
        await later.begin(call, "apply", repeatable=False)
    await later.answer(call, '{"structuredContent": {"sessionId": "s-1"}}')
    with pytest.raises(AnsweredBefore, match="s-1"):
        await CallLog(writer).begin(call, "apply", repeatable=False)
    assert await calls.sessions_of("client") == ["s-1"]
    await calls.forget_gone()
    await writer.close()


def schedule(**fields: Any) -> Schedule:
    given = {
        "prompt": "Run it",
        "when": When(timezone="UTC", since=NOW, every=timedelta(hours=1)),
        "directory": "/",
        "spec": {},
        "policy": {},
    }
    return Schedule(**{"id": new_schedule_id(), "created_at": NOW, "next_at": NOW, **given, **fields})


async def test_a_due_run_is_entered_once_with_the_next_due_time(store: Store) -> None:
    registry, schedules = store.registry(), ScheduleStore(store.open())
    one, proposed = schedule(), schedule(proposed_by="model", next_at=None)
    await schedules.add(one)
    await schedules.add(proposed)
    run, later = ScheduleRun(due_at=NOW, entered_at=NOW), NOW + timedelta(hours=1)
    draft = TaskDraft(instruction="Run it")
    task = schedules.begin(registry, one, run, draft, later)
    assert task is not None
    assert schedules.begin(registry, one, run, draft, later) is None
    assert await schedules.still_runs(one.id)
    (now,) = [known for known in await schedules.all() if known.id == one.id]
    assert now.next_at == later
    assert now.last is not None
    assert now.last.task_id == task.id
    await schedules.skip(now, ScheduleRun(due_at=later, entered_at=later, note="It still runs."), None)
    assert [known.note for known in await schedules.runs(one.id, 5)] == ["It still runs.", None]
    await schedules.pause(proposed.id, is_paused=False, next_at=later)
    (confirmed,) = [known for known in await schedules.all() if known.id == proposed.id]
    assert confirmed.proposed_by is None
    assert [about.split()[0] for about in due(registry.database)] == ["proposal", "run"]
    await schedules.remove(one.id)
    assert [known.id for known in await schedules.all()] == [proposed.id]


async def test_a_notification_is_delivered_or_says_that_it_is_doubtful(store: Store) -> None:
    notices = NoticeStore(store.open())
    notices.clock = lambda: NOW
    notification = Notification(kind="done", about="task T-1", title="Done", text="It is done.")
    execute(store.open(), "INSERT INTO notices_due VALUES ('task T-1', NULL, NULL, 1)")
    assert [one.about for one in await notices.due()] == ["task T-1"]
    await notices.add(notification, {"a": NOW, "b": NOW})
    assert await notices.add(notification, {"a": NOW}) is None
    assert (await notices.due(), notices.revision) == ((), 1)
    first = await notices.next_for("a")
    assert first is not None
    assert await notices.begin(first)
    assert not await notices.begin(first)
    await notices.recover("a")
    again = await notices.next_for("a")
    assert again is not None
    assert again.is_doubtful
    await notices.add_code(again, "digest", "approve")
    code = await notices.code("digest")
    assert code is not None
    assert (code.recipient, code.choice) == ("a", "approve")
    await notices.drop_others(("a",), "gone")
    await notices.finish(again, "sent")
    assert {one.recipient: one.status for one in await notices.log(5)} == {"a": "sent", "b": "dropped"}
    await notices.drop_others((), "gone")
    assert await notices.pending() == 0


# --- upkeep ----------------------------------------------------------------------------------------------------------


def test_unused_sessions_are_compacted_and_the_rest_is_exported_and_checked(store: Store) -> None:
    registry = store.registry()
    database = registry.database
    task, _ = registry.add(TaskDraft(instruction="x", session_id="busy"))
    put(database, said("a", "old"), at=NOW - 2 * RETENTION)
    put(database, said("b", "busy"), at=NOW - 2 * RETENTION)
    put(database, said("c", "new"))
    assert registry.compact() == Compacted(1, 1, 0)
    with database.snapshot() as connection:
        assert session_ids(connection) == ["old", "busy", "new"]
        assert [event and event["seq"] for event in exported(connection, "new")] == [1]
        assert problems(database, connection) == ((), ())
        found = summary(connection, database.size())
    assert (found.sessions, found.events, found.tasks) == (3, 2, 1)
    assert found.bytes > 0
    database.reclaim()
    execute(database, "DELETE FROM events")
    with database.snapshot() as connection:
        assert len(problems(database, connection).gaps) == 2
    registry.update(task.id, status="completed")


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_store_of_a_newer_version_is_refused_and_an_older_one_migrated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = store.registry()
    task, _ = registry.add(TaskDraft(instruction="x"))
    put(store.open(), said("a"))
    later = (*schema.VERSIONS, ("ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "VERSIONS", later)
        patched.setattr(schema, "CURRENT", len(later))
        databases = [store.open() for _ in range(12)]
        with ThreadPoolExecutor(12) as threads:
            assert [found.cursor for found in threads.map(stored, databases)] == [1] * 12
        moods = databases[0].read(lambda one: one.execute("SELECT mood FROM tasks").fetchall())
        assert [row["mood"] for row in moods] == ["good"]
    with pytest.raises(RegistryTooNew, match=r"newer Helmsman.*Upgrade this Helmsman") as refused:
        stored(store.open())
    assert refused.value.as_dict()["retryable"] is False
    assert registry.get(task.id) == task, "one that is open already continues"
    done = registry.update(task.id, status="completed")
    assert done is not None
    assert done.status == "completed"


def test_a_migration_that_fails_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store.open(), said("a"))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "VERSIONS", (*schema.VERSIONS, ("CREATE TABLE half (a TEXT)", "NONSENSE")))
        patched.setattr(schema, "CURRENT", len(schema.VERSIONS))
        with pytest.raises(RegistryUnavailable, match="NONSENSE"):
            stored(store.open())
    assert stored(store.open()).cursor == 1


def test_a_store_that_cannot_be_written_says_so_and_writing_works_again_later(store: Store) -> None:
    database = store.open()
    put(database, said("a"))
    forbid, allow = (
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0")
        if store.address is None
        else ("SET default_transaction_read_only = on", "SET default_transaction_read_only = off")
    )
    database.read(lambda connection: connection.execute(forbid))
    advice = "HELMSMAN_STATE_DIR" if store.address is None else ""
    with pytest.raises(RegistryUnavailable, match=rf"read.?only.*{advice}") as refused:
        put(database, said("b"))
    assert refused.value.retryable
    assert stored(database).cursor == 1
    database.read(lambda connection: connection.execute(allow))
    put(database, said("c"))
    assert stored(database).events == (said("a"), said("c"))


def test_a_full_disk_is_reported_and_writing_works_again_later(store: Store) -> None:
    if store.address is not None:
        pytest.skip("The disk of a Postgres server is not ours to fill.")
    database = store.open()
    put(database, said("a"))
    database.read(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(RegistryUnavailable, match=r"full.*Make room on its disk\.$") as refused:
        put(database, *(said("x" * 10_000 + str(number)) for number in range(200)))
    assert refused.value.retryable
    assert stored(database).events == (said("a"),), "what is there can still be read"
    database.read(lambda connection: connection.execute("PRAGMA max_page_count = 1000000"))
    put(database, said("b"))
    assert stored(database).events == (said("a"), said("b"))


def test_a_connection_that_was_ended_is_opened_again(postgres_address: str, tmp_path: Path) -> None:
    with (
        closing(open_store(tmp_path / "none", postgres_address)) as database,
        closing(open_store(tmp_path / "none", postgres_address)) as other,
    ):
        put(database, said("a"))
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        other.read(lambda connection: connection.execute(f"{end} AND datname = current_database()").fetchall())
        put(database, said("b"))
        assert stored(database).events == (said("a"), said("b"))


def test_a_commit_whose_connection_is_lost_is_done_once(postgres_address: str, tmp_path: Path) -> None:
    """The server is asked what became of it: committed here, and rolled back there."""
    with closing(open_store(tmp_path / "none", postgres_address)) as database:
        put(database, said("a"))
        for after_commit in (True, False):
            raw = database._connection.raw  # type: ignore[attr-defined]
            execute_one = raw.execute

            def lose(
                sql: Any, *rest: Any, execute: Any = execute_one, raw: Any = raw, done: bool = after_commit
            ) -> Any:
                if sql != "COMMIT":
                    return execute(sql, *rest)
                if done:
                    execute(sql)
                raw.close()
                return execute("SELECT 1")

            raw.execute = lose
            put(database, said("committed" if after_commit else "rolled back first"))
        assert stored(database).events == (said("a"), said("committed"), said("rolled back first"))


def test_a_server_that_is_down_is_reported_and_used_again_when_it_is_back(tmp_path: Path) -> None:
    with running_postgres() as server, closing(open_store(tmp_path / "none", server.url())) as database:
        put(database, said("a", "down"))
        before = stored(database, "down").cursor
        server.stop()
        try:
            with pytest.raises(RegistryUnavailable, match="HELMSMAN_STORE") as refused:
                put(database, said("b", "down"))
            assert "helmsman@" not in str(refused.value), "an address may hold a password"
        finally:
            server.start()
        put(database, said("c", "down"))
        assert stored(database, "down", before).events == (said("c", "down"),)
