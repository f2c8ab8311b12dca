"""Which task an intent means and where work is to run: pure, from the tasks there are.

Without a name, a request means the only task of the last ten minutes, else the only one working, else nobody can know and
the caller is asked, with up to three choices, the newest first. A choice made for the caller always names what else it
could have been.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from helmsman.router.intent import Action, Intent, Reference
    from helmsman.router.markers import Mode
    from helmsman.tasks.model import Task

RECENT: Final = timedelta(minutes=10)
MOST_CHOICES: Final = 3
_ALIKE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Place:
    """Where the request was made: is there a local repository, and which cloud environment is configured."""

    repository: bool = True
    cloud_environment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is to be done. With `choices` or an `error` nothing is done; both empty, the rest says what.

    An error is a sentence: which task was not found, and what to do. `choices` are in the order of their numbers, from 1 on,
    by which the next request may name them. `mode` is where work is to run, or where the chosen task runs. `alternatives`
    are tasks that an automatic choice passed over.
    """

    action: Action
    task_id: str | None = None
    mode: Mode | None = None
    instruction: str = ""
    choices: tuple[Task, ...] = ()
    alternatives: tuple[Task, ...] = ()
    error: str | None = None
    timeout_ms: int | None = None
    poll_frequency_ms: int | None = None
    trace: tuple[str, ...] = ()


def route(
    intent: Intent,
    candidates: Sequence[Task],
    now: datetime,
    place: Place,
    *,
    offered: Sequence[str] = (),
) -> Route:
    """Decide which task is meant and where to run.

    Args:
        offered: The ids of the last disambiguation, in their order, for a request that names a number. Without them a
            number counts in the order in which the choices would be offered now.
    """
    planned = Route(
        action=intent.action,
        instruction=intent.instruction,
        timeout_ms=intent.timeout_ms,
        poll_frequency_ms=intent.poll_frequency_ms,
        trace=intent.trace,
    )
    tasks = sorted(candidates, key=lambda task: (task.created_at, task.id), reverse=True)
    match intent.action:
        case "none" | "setup":
            return planned
        case "run":
            return _place_work(_with_named_task(planned, intent, tasks), intent, place)
        case _:
            return _choose(planned, intent, tasks, now, place, offered)


# --- where work runs -------------------------------------------------------------------------------------------------


def _place_work(planned: Route, intent: Intent, place: Place) -> Route:
    if planned.error is not None:
        return planned
    if intent.mode is not None:
        where = "in the cloud" if intent.mode == "cloud" else "locally"
        return replace(planned, mode=intent.mode, trace=(*planned.trace, f"It runs {where}, as asked."))
    if planned.task_id is not None:
        return replace(planned, mode="local", trace=(*planned.trace, f"It goes on with {planned.task_id}."))
    if not place.repository and place.cloud_environment is not None:
        why = f"There is no local repository and {place.cloud_environment} is configured, so it runs in the cloud."
        return replace(planned, mode="cloud", trace=(*planned.trace, why))
    return replace(planned, mode="local", trace=(*planned.trace, "It runs locally, as nothing says otherwise."))


def _with_named_task(planned: Route, intent: Intent, tasks: Sequence[Task]) -> Route:
    """Work for which a hint names a task: that task is what it follows on."""
    if intent.reference is None:
        return planned
    named = _named(intent.reference.value, tasks)
    return replace(planned, task_id=named.id) if named else _unknown(planned, intent.reference, tasks)


# --- which task is meant ---------------------------------------------------------------------------------------------


def _choose(
    planned: Route,
    intent: Intent,
    tasks: Sequence[Task],
    now: datetime,
    place: Place,
    offered: Sequence[str],
) -> Route:
    reference = intent.reference
    kind = None if reference is None else reference.kind
    if reference is not None and reference.kind in ("id", "alias"):
        if named := _named(reference.value, tasks):
            return _chosen(planned, named, f"{reference.value} is that task.")
        if not reference.sure and not _near(reference, tasks):
            return _work_after_all(planned, intent, place, f"No task is called {reference.value}")
        return _unknown(planned, reference, tasks)
    if reference is not None and reference.kind == "several" and reference.value:
        return _among_ids(planned, reference, tasks)
    if reference is not None and reference.kind == "description":
        described = [task for task in tasks if _answers_to(task, reference.value)]
        if len(described) == 1:
            return _chosen(planned, described[0], f"It is the only task about {reference.value}.")
        if described:
            return _ask(planned, described, f"Several tasks are about {reference.value}.")
        if not reference.sure:
            return _work_after_all(planned, intent, place, f"No task is about {reference.value}")

    if intent.mode is not None:
        tasks = [task for task in tasks if task.origin == intent.mode]
    if not tasks:
        missing = "no task" if intent.mode is None else f"no {intent.mode} task"
        return _refused(planned, f"There is {missing} yet. Say what is to be done to start one.")
    eligible = _eligible(intent.action, tasks)
    working = [task for task in eligible if task.is_running]
    recent = [task for task in eligible if now - task.updated_at <= RECENT]
    if reference is not None and kind == "number":
        return _numbered(planned, int(reference.value), recent or working or eligible, tasks, offered)
    if kind == "last":
        return _chosen(planned, tasks[0], "It is the newest task.", tasks)
    if kind == "several" and len(eligible) > 1:
        return _ask(planned, eligible, "It speaks of several tasks, and one is done at a time.")
    if kind == "running" and len(working) == 1:
        return _chosen(planned, working[0], "It is the only task at work.", eligible)
    if kind == "running" and working:
        return _ask(planned, working, "Several tasks are at work.")
    if len(recent) == 1:
        return _chosen(planned, recent[0], "It is the only task of the last ten minutes.", eligible)
    if len(working) == 1:
        return _chosen(planned, working[0], "It is the only task at work.", eligible)
    if len(eligible) == 1:
        return _chosen(planned, eligible[0], "It is the only task there is.", eligible)
    return _ask(planned, recent or working or eligible, "More than one task may be meant.")


def _eligible(action: Action, tasks: Sequence[Task]) -> Sequence[Task]:
    """Only a task at work is cancelled or waited for, as long as there is one."""
    if action in ("cancel", "wait") and (at_work := [task for task in tasks if task.is_running]):
        return at_work
    return tasks


def _named(name: str, tasks: Sequence[Task]) -> Task | None:
    """Ids match exactly; an alias as people write it. Of two tasks with one alias the newer is meant."""
    by_id = next((task for task in tasks if task.id == name), None)
    return by_id or next((task for task in tasks if task.alias == name.lower()), None)


def _among_ids(planned: Route, reference: Reference, tasks: Sequence[Task]) -> Route:
    known = [task for task in tasks if task.id in reference.value.split()]
    missing = [name for name in reference.value.split() if all(task.id != name for task in known)]
    if missing:
        return _unknown(planned, replace(reference, kind="id", value=missing[0]), tasks)
    return _ask(planned, known, "It names several tasks, and one is done at a time.")


def _answers_to(task: Task, description: str) -> bool:
    known = set(task.alias.split("-")) | set(task.instruction[:1000].lower().split())
    return all(word in known for word in description.split())


def _numbered(
    planned: Route, number: int, now_offered: Sequence[Task], tasks: Sequence[Task], offered: Sequence[str]
) -> Route:
    names = list(offered) or [task.id for task in now_offered[:MOST_CHOICES]]
    if number > len(names):
        message = f"There is no choice {number}. Use a number up to {len(names)}, or name the task by its id or alias."
        return _refused(planned, message)
    task = next((task for task in tasks if task.id == names[number - 1]), None)
    if task is None:
        return _refused(planned, f"Choice {number} is no longer there. List the tasks to see what is.")
    others = [other for other in tasks if other.id in names]
    return _chosen(planned, task, f"It is number {number} of the choices.", others)


# --- the answers -----------------------------------------------------------------------------------------------------


def _chosen(planned: Route, task: Task, why: str, among: Sequence[Task] = ()) -> Route:
    others = [other for other in among if other.id != task.id]
    return replace(
        planned,
        task_id=task.id,
        mode="cloud" if task.origin == "cloud" else "local",
        alternatives=tuple(others[:MOST_CHOICES]),
        trace=(*planned.trace, f"{why} ({task.id}, {task.alias})"),
    )


def _ask(planned: Route, tasks: Sequence[Task], why: str) -> Route:
    return replace(
        planned, choices=tuple(tasks[:MOST_CHOICES]), trace=(*planned.trace, f"{why} The caller has to choose.")
    )


def _work_after_all(planned: Route, intent: Intent, place: Place, why: str) -> Route:
    work = replace(planned, action="run", trace=(*planned.trace, f"{why}, so it is work."))
    return _place_work(work, intent, place)


def _near(reference: Reference, tasks: Sequence[Task]) -> tuple[str, ...]:
    wanted = reference.value.lower()
    names = [name for task in tasks for name in ((task.id,) if reference.kind == "id" else (task.alias, task.id))]
    rated = {name: _likeness(name.lower(), wanted) for name in names}
    near = [name for name in rated if rated[name] >= _ALIKE]
    return tuple(sorted(near, key=lambda name: -rated[name])[:MOST_CHOICES])


def _likeness(name: str, wanted: str) -> float:
    """How much of two names is the same at their beginning and end: 1 when one begins the other.

    That finds a slip in one place, a name cut short and another case, at a hundredth of what `difflib` takes.
    """
    shorter, longer = min(len(name), len(wanted)), max(len(name), len(wanted))
    begin = next((place for place in range(shorter) if name[place] != wanted[place]), shorter)
    if begin == len(wanted):
        return 1.0
    end = next((place for place in range(shorter - begin) if name[-1 - place] != wanted[-1 - place]), shorter - begin)
    return (begin + end) / longer


def _unknown(planned: Route, reference: Reference, tasks: Sequence[Task]) -> Route:
    near = _near(reference, tasks)
    advice = f"Did you mean {' or '.join(near)}?" if near else "List the tasks to see their ids and aliases."
    return _refused(planned, f"There is no task {reference.value}. {advice}")


def _refused(planned: Route, message: str) -> Route:
    return replace(planned, error=message, trace=(*planned.trace, message))
