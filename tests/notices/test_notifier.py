"""What is told, when and to whom: a question that nobody answers, an end that nobody sees, trouble."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.errors import InvalidInput, InvalidSetting
from helmsman.hub.notifier import death_of
from helmsman.model.answered_by import AnsweredBy
from helmsman.model.events import USAGE_LIMIT, AgentMessage, Failure, ItemEnded
from helmsman.notices.config import NotifySettings, QuietHours
from tests.notices.conftest import opened, webhook
from tests.notices.receivers import Receiver
from tests.schedules.test_scheduler import Clock

pytestmark = pytest.mark.anyio

SECRET = f"sk-proj-{'a1B2' * 12}"


async def test_an_unanswered_question_is_notified_after_a_while_without_its_content(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver)) as house:
        session = await house.ask(project)
        await house.pass_time(19)
        await house.settled()
        assert receiver.received == []
        await house.pass_time(1)
        (told,) = await receiver.until(1)
        assert told.json["title"] == "site: Codex asks to run a command outside the sandbox"
        assert (told.json["kind"], told.json["project"], told.json["agent"]) == ("question", "site", "played")
        assert (told.json["sessionId"], told.json["questionId"]) == (session.id, session.questions[0].id)
        assert not {"text", "directory"} & set(told.json)
        assert b"ls" not in told.body.replace(b"false", b"")
        await house.delivered("sent")


async def test_a_rule_that_a_model_has_proposed_is_reported_once(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:
        session = await house.start(project)
        house.engine.ask(command="touch made.txt", directory=str(project))
        assert "approve_always" in session.questions[0].prompts[0].options
        by = AnsweredBy("agent", "cursor", "tool")
        await house.helm.respond(session.id, session.questions[0].id, ["approve_always"], by=by)
        (told,) = await receiver.until(1)
        assert (told.json["kind"], told.json["title"]) == ("question", "site: A rule waits for your confirmation")
        assert "cursor proposes a rule" in told.json["text"]
        (rule,) = house.helm.rules.listed(None)
        assert f"helmsman config rules confirm {rule.id}" in told.json["text"]
        await house.delivered("sent")
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:  # the next hub knows that it was told
        await house.settled()
        assert [one.json["title"] for one in receiver.received].count(told.json["title"]) == 1


async def test_a_question_that_was_answered_in_time_is_not_reported_of(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver)) as house:
        session = await house.ask(project)
        await house.pass_time(10)
        await house.helm.respond(session.id, session.questions[0].id, ["deny"])
        await house.pass_time(60)
        await house.settled()
        assert await house.shared.notices.log(10) == ()
        house.engine.ask()
        house.engine.withdraw()
        await house.pass_time(60)
        await house.settled()
        assert await house.shared.notices.log(10) == ()


async def test_a_question_on_screen_is_reported_only_when_it_has_been_off_it_for_so_long(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver)) as house:
        session = await house.ask(project)
        async with session.on_screen(session.questions[0]):
            with anyio.fail_after(10):
                while not session.deadlines[session.questions[0].id].is_paused:
                    await anyio.sleep(0.01)
            for _ in range(30):
                await house.pass_time(2)
                await house.settled()
        await house.pass_time(19)
        await house.settled()
        assert receiver.received == []
        await house.pass_time(1)
        await receiver.until(1)


async def test_full_notifications_have_everything_but_secrets(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:
        session = await house.start(project, f"Fix the login test with {SECRET}")
        house.engine.ask()
        await house.pass_time(20)
        (asked,) = await receiver.until(1)
        assert asked.json["text"].startswith("Codex asks to run a command outside the sandbox\nCommand: ls\n")
        assert asked.json["directory"] == str(project)
        await house.helm.respond(session.id, session.questions[0].id, ["approve"])
        item = AgentMessage(id="1", text=f"It works now: {SECRET}")
        house.engine.emit(ItemEnded(session_id=session.id, turn_id=house.engine.turn_id, item=item))
        house.engine.end("completed")
        _, done = await receiver.until(2)
        assert (done.json["kind"], done.json["title"]) == ("done", "site: Played is done")
        assert "Fix the login test" in done.json["text"]
        assert "It works now" in done.json["text"]
        assert SECRET not in done.body.decode()


@pytest.mark.parametrize(("outcome", "told"), [("completed", ["done"]), ("failed", ["failed"]), ("interrupted", [])])
async def test_the_end_of_a_turn_is_notified_unless_a_user_stopped_it(
    state_dir: Path, project: Path, receiver: Receiver, outcome: str, told: list[str]
) -> None:
    async with opened(state_dir, webhook(receiver)) as house:
        await house.start(project)
        house.engine.end(outcome)
        await house.settled()
        await receiver.until(len(told))
        assert [one.json["kind"] for one in receiver.received] == told


async def test_a_viewer_of_a_turn_is_not_notified_of_its_end(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver)) as house, anyio.create_task_group() as tasks:
        session = await house.start(project)

        async def wait() -> None:
            await session.wait()

        tasks.start_soon(wait)
        while not session.is_watched:
            await anyio.sleep(0.01)
        house.engine.end("completed")
        await house.settled()
        await session.say("And now this")
        session.shown_for(60)
        house.engine.end("failed")
        await house.settled()
        assert receiver.received == []
        session.shown_for(0)
        await session.say("And that")
        house.engine.end("completed")
        await receiver.until(1)


async def test_notices_held_at_night_are_sent_in_the_morning_if_they_still_matter(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    clock = Clock()
    clock.now = (datetime.now().astimezone() + timedelta(days=1)).replace(hour=23, minute=0, second=0)
    quiet = QuietHours(datetime(1, 1, 1, 22).time(), datetime(1, 1, 1, 7).time())  # noqa: DTZ001
    async with opened(state_dir, webhook(receiver, quiet=quiet), clock=clock) as house:
        answered = await house.ask(project)
        await house.pass_time(20)
        await house.delivered("pending")
        asked = await house.ask(project)
        await house.pass_time(20)
        await house.delivered("pending", "pending")
        await house.settled()
        assert house.notifier.pending == 2, "the hub stays for as long as something waits to be sent"
        await house.helm.respond(answered.id, answered.questions[0].id, ["deny"])
        await house.settled()
        assert receiver.received == []
        clock.move((clock.now + timedelta(days=1)).replace(hour=7, minute=0, second=1))
        (told,) = await receiver.until(1)
        assert told.json["sessionId"] == asked.id
        await house.delivered("dropped", "sent")


async def test_runs_that_are_left_out_or_fail_are_reported(state_dir: Path, project: Path, receiver: Receiver) -> None:
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:
        added = await house.helm.extras.schedules.add("Look at it", every="1h", cwd=project)
        assert added.next_at is not None
        house.clock.move(added.next_at)
        with anyio.fail_after(20):
            while not house.shared.work():
                await anyio.sleep(0.01)
        house.clock.move(added.next_at + timedelta(hours=1))
        (left_out,) = await receiver.until(1)
        assert (left_out.json["kind"], left_out.json["title"]) == ("schedule", "site: A scheduled run was left out")
        assert "The run before was still at work." in left_out.json["text"]
        house.engine.end("failed")
        _, failed = await receiver.until(2)
        assert (failed.json["kind"], failed.json["title"]) == ("schedule", "site: A scheduled run has failed")


async def test_limits_and_the_death_of_a_hub_are_reported_once(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:
        session = await house.helm.start("work", cwd=project, on_limit="wait")
        house.engine.end("failed", Failure(code=USAGE_LIMIT, message="The limit is reached."))
        (reached,) = await receiver.until(1)
        assert (reached.json["kind"], reached.json["taskId"]) == ("limit", session.task_id)
        assert "The task resumes at" in reached.json["text"]
        (task,) = (await house.helm.tasks.list())[0]
        await house.helm.extras.limits.go_on(task, "in 3h")
        house.notifier.notify(death_of(7))
        house.notifier.notify(death_of(7))
        _, died = await receiver.until(2)
        assert died.json["kind"] == "hub"
        await house.settled()
        assert len(receiver.received) == 2


async def test_the_next_hub_reports_ended_and_waiting_turns_once(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir) as house:
        session = await house.start(project)
        task_id = session.task_id
    # Nobody is told by this one; what ended with it is due, as after a crash between the end and its notice.
    with sqlite3.connect(state_dir / "registry.sqlite3") as connection:
        connection.execute("UPDATE tasks SET status = 'working' WHERE id = ?", (task_id,))
        connection.execute("UPDATE tasks SET status = 'completed' WHERE id = ?", (task_id,))
    async with opened(state_dir, webhook(receiver)) as house:
        (told,) = await receiver.until(1)
        assert (told.json["kind"], told.json["taskId"]) == ("done", task_id)
        await house.delivered("sent")
    async with opened(state_dir, webhook(receiver)) as house:
        await house.settled()
        assert len(receiver.received) == 1


async def test_new_settings_hold_at_once_and_wrong_ones_leave_what_held(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    now: list[NotifySettings | InvalidSetting] = [NotifySettings()]

    def read() -> NotifySettings:
        if isinstance(now[0], InvalidSetting):
            raise now[0]
        return now[0]

    async with opened(state_dir, settings=read) as house:
        await house.start(project)
        house.engine.end("completed")
        await house.settled()
        assert await house.shared.notices.log(1) == ()
        now[0] = NotifySettings((webhook(receiver),))
        await house.start(project)
        house.engine.end("completed")
        await receiver.until(1)
        now[0] = InvalidSetting("notify.to[1].url makes no sense. Set it.")
        with pytest.raises(InvalidSetting, match="makes no sense"):
            await house.notifier.settings()
        await house.start(project)
        house.engine.end("completed")
        await receiver.until(2)
        now[0] = NotifySettings((replace(webhook(receiver), url=f"{receiver.url}/other"),))
        await house.start(project)
        house.engine.end("completed")
        assert (await receiver.until(3))[-1].path == "/other"


async def test_deliveries_to_a_removed_recipient_are_dropped(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    receiver.answers = [503]
    now = [NotifySettings((webhook(receiver),))]
    async with opened(state_dir, settings=lambda: now[0]) as house:
        await house.start(project)
        house.engine.end("completed")
        await house.log(lambda known: [one.attempts for one in known] == [1] and known[0].status == "pending")
        now[0] = NotifySettings()
        await house.notifier.settings()
        await house.delivered("dropped")


async def test_settings_that_make_no_sense_when_a_hub_begins_lose_nothing(state_dir: Path, receiver: Receiver) -> None:
    def wrong() -> NotifySettings:
        raise InvalidSetting("notify makes no sense. Correct it.")

    receiver.answers = [503]
    clock = Clock()
    async with opened(state_dir, webhook(receiver), clock=clock) as house:
        house.notifier.notify(death_of(7))
        await house.log(lambda known: [(one.attempts, one.status) for one in known] == [(1, "pending")])
    with pytest.raises(InvalidSetting):
        async with opened(state_dir, settings=wrong, clock=clock) as house:
            pass
    clock.now += timedelta(seconds=10)
    async with opened(state_dir, webhook(receiver), clock=clock) as house:
        await house.delivered("sent")


async def test_trouble_that_cannot_be_written_down_is_reported_once(
    state_dir: Path, project: Path, receiver: Receiver
) -> None:
    async with opened(state_dir, webhook(receiver, is_full=True)) as house:
        await house.start(project)
        await house.settled()
        with sqlite3.connect(state_dir / "registry.sqlite3") as connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON tasks BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END"
            )
        house.engine.end("completed")
        (told,) = await receiver.until(1)
        assert (told.json["kind"], told.json["title"]) == ("hub", "Nothing can be written down")
        with sqlite3.connect(state_dir / "registry.sqlite3") as connection:
            connection.execute("DROP TRIGGER full")
        await house.pass_time(60)
        assert {one.json["kind"] for one in await receiver.until(2)} == {"hub", "done"}


async def test_a_test_message_goes_to_one_or_all_channels_and_reports_the_result(
    state_dir: Path, receiver: Receiver
) -> None:
    dead = webhook(receiver, name="dead", url="http://127.0.0.1:9/")
    async with opened(state_dir, webhook(receiver, events=frozenset({"hub"})), dead) as house:
        sent = await house.notifier.test(None)
        assert [(one.recipient, one.status, one.attempts) for one in sent] == [
            ("dead", "pending", 1),
            ("hook", "sent", 1),
        ]
        assert sent[0].note == "The server cannot be reached (ConnectError)."
        (told,) = receiver.received
        assert told.json["kind"] == "test"
        (one,) = await house.notifier.test("hook")
        assert one.status == "sent"
        with pytest.raises(InvalidInput, match="Use one of: hook, dead"):
            await house.notifier.test("phone")
    async with opened(state_dir) as house:
        with pytest.raises(InvalidInput, match=r"\[\[notify.to\]\]"):
            await house.notifier.test(None)
