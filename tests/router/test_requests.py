"""The labelled requests are routed as a person would expect, and no job is ever taken for a cancel."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from helmsman.router.intent import Action, parse
from helmsman.router.route import Place, Route, route
from tests.router.shelf import ASKING, NOW, SHELF, Labelled, labelled_requests

REQUESTS = labelled_requests()
PLACE = Place(repository=True, cloud_environment="main")
ALIASES = {task.id: task.alias for task in SHELF}


def routed(request: str, *, asking: bool = False) -> Route:
    return route(parse(request), ASKING if asking else SHELF, NOW, PLACE)


def mistake(entry: Labelled) -> str | None:
    found = routed(entry.request, asking=entry.action == "respond")
    if found.action != entry.action:
        return f"{entry.request!r} is {entry.action}, taken for {found.action}"
    if entry.task is not None and ALIASES.get(found.task_id or "") != entry.task:
        return f"{entry.request!r} means {entry.task}, taken for {found.task_id}"
    if entry.mode is not None and found.mode != entry.mode:
        return f"{entry.request!r} runs {entry.mode}, taken for {found.mode}"
    if entry.instruction is not None and found.instruction != entry.instruction:
        return f"{entry.request!r} is to do {entry.instruction!r}, taken for {found.instruction!r}"
    if entry.answer is not None and (found.answer is None or found.answer.kind != entry.answer):
        return f"{entry.request!r} is to {entry.answer}, taken for {found.answer}"
    return None


def accuracy(entries: list[Labelled]) -> float:
    return sum(mistake(entry) is None for entry in entries) / len(entries)


def test_requests_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    held_out = [entry for entry in REQUESTS if entry.held_out]
    with capsys.disabled():
        print(f"\n{len(REQUESTS)} labelled requests, {accuracy(REQUESTS):.1%} understood")
        for register, count in Counter(entry.register for entry in REQUESTS).items():
            print(f"  {register:12} {count:4} {accuracy([e for e in REQUESTS if e.register == register]):7.1%}")
        print(f"  {'held out':12} {len(held_out):4} {accuracy(held_out):7.1%}")
        for wrong in filter(None, map(mistake, REQUESTS)):
            print(f"  - {wrong}")
    assert accuracy([entry for entry in REQUESTS if not entry.held_out]) >= 0.95
    assert accuracy(held_out) >= 0.8
    asked = [entry for entry in held_out if routed(entry.request, asking=entry.action == "respond").action == "choose"]
    assert accuracy(held_out) + len(asked) / len(held_out) >= 0.92


def test_a_question_about_tasks_starts_no_work() -> None:
    """It is answered, or asked back. What people say in idioms that nobody foresaw may slip through, rarely."""
    talk = [entry for entry in REQUESTS if entry.action not in ("run", "setup")]
    started = [
        entry.request for entry in talk if routed(entry.request, asking=entry.action == "respond").action == "run"
    ]
    assert len(started) <= 0.025 * len(talk), started


def test_hardly_a_job_is_asked_back() -> None:
    jobs = [entry for entry in REQUESTS if entry.action == "run"]
    asked = [entry.request for entry in jobs if routed(entry.request).action != "run"]
    assert len(asked) <= 0.01 * len(jobs), asked


def approves(request: str) -> bool:
    found = routed(request, asking=True)
    return found.action == "respond" and found.answer is not None and found.answer.kind == "approve"


@pytest.mark.parametrize("before", ["", "please ", "Hey, ", "could you ", "ok, ", "  \n", "yes, ", "I "])
def test_no_job_is_taken_for_an_approval_however_it_is_introduced(before: str) -> None:
    others = [entry for entry in REQUESTS if entry.answer != "approve"]
    assert [entry.request for entry in others if approves(before + entry.request)] == []


def _said(text: str) -> list[str]:
    return [request for line in text.strip().splitlines() for request in line.split(" / ")]


NO_ORDERS = _said("""
approve it? no / approve? no. / allow it? no / approve it, no / cancel it? no / stop? no. / cancel it, no
cancel the task? no need / cancel it? I don't want that / I want no task cancelled / cancel it, not
approve no command / approve it? / approve? / can I approve it? / may I allow it? / deny it? / I'd approve it
I would approve it / I'll approve it / can I cancel it? / I would cancel it / quick question: approve it?
~~approve it~~ / [ ] approve it / !approve it / // cancel it / ~~cancel it~~ / could I stop it?
approve for the rest of the task / approve, deny / danke / merci! / lol / should I approve it?
I did not approve that / I can't approve it / don't approve it / do not cancel it
can you approve it for me only if the tests passed? / never approve anything without asking me / cancel 2 tasks?
""")


@pytest.mark.parametrize("asking", [False, True])
def test_a_doubt_a_no_and_what_was_struck_out_are_no_orders_and_no_work(asking: bool) -> None:
    found = {request: routed(request, asking=asking).action for request in NO_ORDERS}
    assert {request for request, action in found.items() if action not in ("check", "choose")} == set()


JOBS_LIKE_ORDERS = _said("""
allow only one task / allow 2 tasks / allow 3 runs / accept 2 jobs / allow edits / permit edits / allow tasks
refuse sessions / stop at the first one / stop on first / halt on first run / allow no changes
""")


def test_work_about_allowing_and_stopping_is_work() -> None:
    assert {request: routed(request).action for request in JOBS_LIKE_ORDERS} == dict.fromkeys(JOBS_LIKE_ORDERS, "run")
    asked = {request: routed(request, asking=True).action for request in JOBS_LIKE_ORDERS}
    assert set(asked.values()) <= {"run", "choose"}, asked


def test_no_job_is_taken_for_a_cancel() -> None:
    jobs = [entry for entry in REQUESTS if entry.action != "cancel"]
    assert [entry.request for entry in jobs if routed(entry.request).action == "cancel"] == []


@pytest.mark.parametrize("before", ["please ", "Hey, ", "could you ", "ok, ", "  \n"])
def test_no_job_is_taken_for_a_cancel_however_it_is_introduced(before: str) -> None:
    jobs = [entry for entry in REQUESTS if entry.action == "run"]
    assert [entry.request for entry in jobs if routed(before + entry.request).action == "cancel"] == []


def test_there_are_enough_requests_of_every_kind() -> None:
    actions = Counter(entry.action for entry in REQUESTS)
    assert set(actions) == set(get_args(Action))
    assert len({entry.request for entry in REQUESTS}) >= 1500
    assert actions["run"] >= 150
    assert actions["cancel"] >= 50
    assert actions["respond"] >= 50
    assert sum(entry.held_out for entry in REQUESTS) >= 300


def test_no_request_has_two_labels() -> None:
    labels: dict[str, set[str]] = {}
    for entry in REQUESTS:
        labels.setdefault(entry.request, set()).add(entry.action)
    assert {request: actions for request, actions in labels.items() if len(actions) > 1} == {}


def test_a_routed_command_on_a_known_task_names_it_or_asks() -> None:
    for entry in REQUESTS:
        found = routed(entry.request)
        if found.action in ("check", "wait", "cancel", "results", "respond"):
            answers = (found.task_id is not None, found.choices, found.error is not None, found.all)
            assert sum(map(bool, answers)) == 1, entry.request


def test_jobs_in_free_wording_are_never_taken_for_other_requests() -> None:
    """The first 147 from the names of the operations alone."""
    unseen = json.loads((Path(__file__).parent / "unseen.json").read_text(encoding="utf-8"))
    assert len(unseen) == 80 + 67 + 68
    asked = []
    for entry in unseen:
        found = routed(entry["request"], asking=entry["label"] == "respond").action
        if entry["label"] in ("run", "cloud"):
            assert found in ("run", "choose"), entry
            asked += [entry] if found == "choose" else []
        elif entry["label"] not in ("cancel", "respond", "apply"):
            assert found not in ("cancel", "respond", "apply"), entry
    assert len(asked) <= 1, asked
