"""Rewind a session to before one of its turns: files, conversation, or both.

A preview has a digest, and only the shown changes are carried out. Files are written all or none, before the agent forgets
its turns; after a crash in between, the same call completes the rewind. Their previous content is saved first, and the
whole conversation is archived as a separate session before turns are forgotten.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from helmsman.agents.protocol import Capability
from helmsman.base.files import is_inside, refuse_outside
from helmsman.base.structs import Value, replace
from helmsman.base.truncate import listed
from helmsman.errors import CannotRewind, DiffChanged, HelmsmanError, InvalidInput
from helmsman.git.command import Git, repository_root
from helmsman.git.tree_changes import TreeDiff, check_present, joined
from helmsman.git.turn_snapshots import (
    FilesRewind,
    RewindTarget,
    SessionSnapshots,
    SnapshotPlace,
    TurnSnapshot,
    Undo,
    all_snapshots,
    change_undo,
    git_of,
    keep_undo,
    plan_rewind,
    read_snapshots,
    rewind_files,
    take_after,
    take_before,
)
from helmsman.git.worktree import read_records
from helmsman.model.events import PastTurn, RewindRequested, TurnRequested, UserMessage
from helmsman.model.nature import ACTS, READS, verb
from helmsman.model.options import ASKS, DEFAULT_AGENT, WRITES
from helmsman.settings import WORKTREES
from helmsman.steering.turn_errors import busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from helmsman.capabilities.upkeep import Upkeep
    from helmsman.sessions.session import Session
    from helmsman.steering.core import Steering
    from helmsman.tasks.model import Task
    from helmsman.tasks.registry import Registry

log = logging.getLogger(__name__)

# --- Take a snapshot of the files before each turn, so that it can be rewound (`helmsman.capabilities.rewinding`) -----

# It must be complete before an agent can change a file: it starts when a turn is requested, and is awaited right
# before the agent gets the request; loading and recording in between take about as long. If it fails or takes too
# long, the turn begins without it, and the session reports that once.

_SECONDS: Final = 10.0
"""Timeout of a snapshot. Ten thousand files take some ten milliseconds once they have been read."""


class Snapshots:
    """`helm.extras.snapshots`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm
        self._tasks: dict[str, str] = {}
        """Tasks of running turns with a snapshot, by session."""
        self._told: set[tuple[str, str]] = set()

    def begin(self, session: Session, task_id: str, sandbox: str | None) -> Callable[[], Awaitable[None]]:
        """Start the snapshot before a turn. Return a function that waits for it and never raises."""
        if not self._is_wanted(session, sandbox):
            return _nothing
        done, is_late = anyio.Event(), False

        def all_is_read() -> bool:
            # Too late, the agent may have changed files already. Such a snapshot must not count.
            if not is_late:
                done.set()
            return not is_late

        def take() -> None:
            *others, last = self.places_of(session) or (None,)
            for place in others:
                take_before(place, task_id, is_in_time=lambda: not is_late)
            if last is not None:  # only now the turn may begin
                take_before(last, task_id, is_in_time=partial(anyio.from_thread.run_sync, all_is_read))

        async def run() -> None:
            try:
                await self._run(session, take)
            finally:
                done.set()

        async def wait() -> None:
            nonlocal is_late
            with anyio.move_on_after(_SECONDS) as scope:
                await done.wait()
            if scope.cancelled_caught:
                is_late = True
                self._warn_once(session, f"it takes more than {_SECONDS:.0f} s")
            self._tasks[session.id] = task_id

        self._helm.in_background(run)
        return wait

    def ended(self, session: Session) -> None:
        """Record the tree at the end of a turn as its work. Later changes are not the session's."""
        task_id = self._tasks.pop(session.id, None)
        if task_id is None:
            return

        def take() -> None:
            for place in self.places_of(session):
                take_after(place, task_id)

        self._helm.in_background(partial(self._run, session, take))

    def places_of(self, session: Session) -> list[SnapshotPlace]:
        """Return the working trees of a session; none without git, or if a part of one is outside the allowed roots.
        Blocks.

        Raises:
            WorktreeError: Git refuses to use one, or it is gone.
        """
        state_dir, roots = self._helm.settings.state_dir, self._helm.allowed_roots
        directory, tree = None if session.directory is None else Path(session.directory), session.worktree
        # The first turn of a fork begins before it has the worktree, and a reviewer has none of its own.
        if tree is None and directory is not None and directory.is_relative_to(state_dir / WORKTREES):
            tree = next((one for one in read_records(state_dir) if directory.is_relative_to(one.path)), None)
        if tree is not None and tree.others:
            places = list[SnapshotPlace]()
            for prefix, one in tree.by_prefix.items():
                check_present(one)
                name = "" if one is tree else one.name
                places.append(
                    SnapshotPlace(
                        git=one.own_git, session_id=session.id, tree=name, prefix=prefix, leave_out=one.included
                    )
                )
        else:
            if directory is None or not directory.is_dir():
                return []
            git = git_of(directory, state_dir, read_snapshots(state_dir, session.id))
            if git is None:
                return []
            leave_out = () if tree is None else tree.included  # copied into its worktree, so not its work
            places = [SnapshotPlace(git=git, session_id=session.id, leave_out=leave_out)]
        return places if not roots or all(is_inside(one.git.work_tree, roots) for one in places) else []

    def _is_wanted(self, session: Session, sandbox: str | None) -> bool:
        settings, options = self._helm.settings, session.options
        is_elsewhere = settings.codex_remote is not None and options.agent == DEFAULT_AGENT
        writes = options.writes or WRITES.get(sandbox or "")
        asks = options.asks or ASKS.get(session.state.approval_policy or "")
        only_reads = writes == "nothing" and asks == "never"  # a session that may ask can write after an approval
        if (
            not settings.snapshots
            or is_elsewhere
            or session.state.turn_kind == "plan"
            or only_reads
            or session.directory is None
        ):
            return False
        return repository_root(session.directory) is not None  # outside of git there are none: no thread need find out

    async def _run(self, session: Session, take: Callable[[], None]) -> None:
        try:
            with anyio.move_on_after(_SECONDS, shield=True):  # a process may end as soon as its turn has
                await anyio.to_thread.run_sync(take, abandon_on_cancel=True)
        except HelmsmanError as error:
            self._warn_once(session, error.message)
        except Exception:
            log.exception("no snapshot of the files of session %s could be taken", session.id)

    def _warn_once(self, session: Session, why: str) -> None:
        if (session.id, why) not in self._told:
            self._told.add((session.id, why))
            session.warn((f"The files of this turn cannot be taken back later: {why}",))


async def _nothing() -> None:
    return


RewindPart = Literal["both", "files", "conversation"]

_MANY_TASKS: Final = 1000
_NAMED_FILES: Final = 5
_SHORT: Final = 10
"""Length of an abbreviated commit id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewoundTurn:
    """Turn of a session with its number, counted from 1; `prompt` is its request."""

    number: int
    turn_id: str | None
    task_id: str | None
    prompt: str


class Rewind(Value, frozen=True, kw_only=True):
    """Effect of a rewind, planned or done.

    Attributes:
        turn: The session returns to its state before this turn; None if a rewind is undone.
        forgotten: Turns that the agent forgets.
        diff: Changes of the files; None if they stay.
        left: Files that changed too and stay as they are, because they are not in the snapshots.
        changed_since: Files of `diff` that were changed after the last turn, so not by the session. None: unknown.
        conversation: Session with the whole conversation, once a rewind is done or when it is undone.
        notes: Further remarks, in sentences.
        digest: Digest of the preview, which is all that is done.
    """

    session_id: str
    part: RewindPart
    is_undo: bool
    turn: RewoundTurn | None
    forgotten: tuple[RewoundTurn, ...] = ()
    work_tree: Path | None = None
    diff: TreeDiff | None = None
    left: tuple[str, ...] = ()
    changed_since: tuple[str, ...] | None = None
    conversation: str | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""

    @property
    def is_nothing(self) -> bool:
        """Return whether all is as it would be."""
        return not self.forgotten and not (self.diff and self.diff.patch) and not (self.is_undo and self.conversation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Rewind that is planned. `files` has every repository of the session, or none; `known` has the record of each, or of
    the first one.
    """

    session: Session
    shown: Rewind
    files: Sequence[RewindTarget]
    known: Sequence[SessionSnapshots | None]


class Rewinding:
    """`helm.extras.rewinding`."""

    def __init__(self, helm: Steering, snapshots: Snapshots, upkeep: Upkeep) -> None:
        self._helm = helm
        self._snapshots = snapshots
        self._upkeep = upkeep

    @verb(READS)
    async def preview(
        self, session_id: str, *, to: int | str | None = None, part: RewindPart | None = None, undo: bool = False
    ) -> Rewind:
        """Return the changes that a rewind would make, without touching anything.

        Args:
            session_id: The session.
            to: Turn to go back before: its number, counted from 1, its id, or that of its task. By default the last one.
            part: Files, conversation or both. By default both, or only files if the agent cannot forget turns.
            undo: Undo the last rewind of this session instead.

        Raises:
            SessionBusy: It is at work.
            InvalidInput: There is no such turn.
            CannotRewind: There is no snapshot to go back to, or another session works in the same tree; `reason` says which.
            Unsupported: Its agent cannot forget turns, and only that was requested.
        """
        return (await self._plan(session_id, to, part, undo=undo)).shown

    @verb(ACTS)
    async def rewind(
        self,
        session_id: str,
        *,
        digest: str,
        to: int | str | None = None,
        part: RewindPart | None = None,
        undo: bool = False,
    ) -> Rewind:
        """Rewind a session, if the effect is still that of the `preview` with this digest.

        Raises:
            SessionBusy: It is at work, or another call rewinds it.
            DiffChanged: The effect has changed. Nothing was touched.
            ApplyConflict: An unknown file is in the way. Nothing was touched.
            WorktreeError: A file cannot be written. Everything was restored.
        """
        await self._helm.require_own(session_id, "rewind it")
        session = await self._helm.session_with_queue(session_id)
        with session.reserved("taken back"):  # a turn would begin among half of the files, and its work be overwritten
            plan = await self._plan(session_id, to, part, undo=undo)
            self._check(plan.shown, digest)
            return await self._do(plan, digest)

    async def _do(self, plan: _Plan, digest: str) -> Rewind:
        session_id, undo = plan.session.id, plan.shown.is_undo
        if plan.files and plan.session.engine is not None:
            await self._helm.end_leftovers(session_id)  # a command that it left running would continue writing
        # Recorded before it happens: after a crash, the next hub knows that it may have happened.
        plan.session.apply(RewindRequested(session_id=session_id, digest=digest, undo=undo))
        await self._helm.task_writer.write_intents()
        done, undos = list[FilesRewind](), [Undo(taken_at=datetime.now(UTC))]
        if plan.files:
            done, undos = await anyio.to_thread.run_sync(self._write, plan, digest)
        conversation = plan.shown.conversation
        try:
            if undo and conversation is not None:
                await self._bring_back(conversation)
            elif plan.shown.forgotten:
                conversation = await self._keep_conversation(plan)
                # Before the agent forgets: after a crash in between, the same call completes the rewind.
                await anyio.to_thread.run_sync(partial(self._note, plan, undos, conversation, is_done=False))
                await self._upkeep.roll_back(session_id, len(plan.shown.forgotten))
        except HelmsmanError:
            await anyio.to_thread.run_sync(self._put_back, plan, done)
            raise
        await anyio.to_thread.run_sync(self._note, plan, undos, conversation)
        return replace(plan.shown, conversation=conversation)

    # --- what would be done ------------------------------------------------------------------------------------------

    async def _plan(self, session_id: str, to: int | str | None, part: RewindPart | None, *, undo: bool) -> _Plan:
        session = await self._helm.session_with_queue(session_id)
        if session.state.is_running or session.queue:
            raise busy(session.id)
        await self._helm.agent_records.refuse_archived(session.id)
        known = await anyio.to_thread.run_sync(read_snapshots, self._helm.settings.state_dir, session.id)
        if undo:
            return await self._plan_undo(session, known)
        cannot = Capability.ROLL_BACK in (await self._helm.capabilities(session.options.agent)).lacking
        if part in ("both", "conversation"):
            await self._helm.engine(Capability.ROLL_BACK, agent=session.options.agent)
        chosen: RewindPart = part or ("files" if cannot else "both")
        turns = await self._turns(session, known)
        turn = _chosen(session.id, turns, to)
        notes: list[str] = []
        files: Sequence[RewindTarget] = ()
        if chosen != "conversation":
            files = await self._files(session, known, turns, turn, notes)
        shown = Rewind(session_id=session.id, part=chosen, is_undo=False, turn=turn)
        if chosen == "files":
            agent = self._helm.agents.title(session.options.agent)
            why = f"{agent} cannot forget turns" if cannot else "only the files are taken back"
            notes.append(f"The conversation stays: {why}. Say in your next message that the files are as before.")
        else:
            shown = replace(shown, forgotten=tuple(turns[turn.number - 1 :]))
            if not await self._keeps_conversations(session):
                notes.append("The conversation does not come back: this agent cannot keep a copy of it.")
        return await self._planned(session, known, files, replace(shown, notes=tuple(notes)))

    async def _plan_undo(self, session: Session, known: SessionSnapshots | None) -> _Plan:
        undo = None if known is None else known.undo
        if known is None or undo is None:
            raise CannotRewind(
                f"Session {session.id} was not taken back, so there is nothing to undo. Rewind it first.",
                reason="no_rewind",
            )
        files = list[RewindTarget]()
        if undo.before is not None:
            places = await self._places(session)
            others = await self._turns_of_others(session, places, undo.taken_at, ())
            for place, turns in zip(places, others, strict=True):
                one = None if place.known is None else place.known.undo
                if one is None or one.before is None or one.taken_at != undo.taken_at:
                    raise CannotRewind(
                        f"The rewind of session {session.id} ended before it had touched a file, so there is nothing to "
                        "undo. Rewind it again.",
                        reason="no_rewind",
                    )
                files.append(RewindTarget(place=place, wanted=one.before, after=one.wanted, others=turns))
        notes: tuple[str, ...] = ()
        if undo.conversation is not None:
            notes = (f"The conversation continues as session {undo.conversation}. This one stays as it is.",)
        part: RewindPart = "files" if undo.conversation is None else "both" if files else "conversation"
        shown = Rewind(
            session_id=session.id, part=part, is_undo=True, turn=None, conversation=undo.conversation, notes=notes
        )
        return await self._planned(session, known, files, shown)

    async def _planned(
        self, session: Session, known: SessionSnapshots | None, files: Sequence[RewindTarget], shown: Rewind
    ) -> _Plan:
        if files:
            plans = [await anyio.to_thread.run_sync(plan_rewind, one) for one in files]
            lost: dict[str, list[str]] = {}
            for session_id, paths in (found for plan in plans for found in plan.lost.items()):
                lost.setdefault(session_id, []).extend(paths)
            if lost:
                trees = [one.place.git.work_tree for one in files]
                raise _shared_tree(trees, {one: listed(paths, _NAMED_FILES) for one, paths in lost.items()})
            shown = _with_files(shown, files, plans)
        records = [one.place.known for one in files] or [known]
        return _Plan(session=session, shown=_named(shown), files=files, known=records)

    async def _files(
        self,
        session: Session,
        known: SessionSnapshots | None,
        turns: Sequence[RewoundTurn],
        turn: RewoundTurn,
        notes: list[str],
    ) -> list[RewindTarget]:
        places = await self._places(session)
        records = [place.known for place in places]
        found = [None if one is None else one.of_task(turn.task_id) for one in records]
        if None in found:
            there = [
                str(one.number) for one in turns if all(record and record.of_task(one.task_id) for record in records)
            ]
            instead = f"Choose one of turns {', '.join(there)}" if there else "Take back the conversation alone"
            raise CannotRewind(
                f"There is no snapshot of the files before turn {turn.number} of session {session.id}: the turn could not "
                f"write, it is one of long ago, or snapshots are switched off. {instead}, or take the files from git.",
                reason="no_snapshot",
                turns=there,
            )
        ours = [one.turn_id for one in turns if one.turn_id is not None]
        since = min(one.taken_at for one in found if one is not None)
        others = await self._turns_of_others(session, places, since, ours)
        files = list[RewindTarget]()
        for place, record, one, theirs in zip(places, records, found, others, strict=True):
            assert record is not None
            assert one is not None
            head = await anyio.to_thread.run_sync(place.git.commit, "HEAD")
            if head != one.head:
                was, now = (commit[:_SHORT] if commit else "no commit" for commit in (one.head, head))
                where = f" of {place.prefix.rstrip('/')}" if place.prefix else ""
                notes.append(f"HEAD{where} was at {was} and is at {now}. Commits stay; only the files are taken back.")
            after = record.turns[-1].after
            files.append(RewindTarget(place=place, wanted=one.before, after=after, others=theirs))
        return files

    async def _places(self, session: Session) -> list[SnapshotPlace]:
        directory = session.directory
        if directory is not None:
            root = await anyio.to_thread.run_sync(repository_root, Path(directory))
            refuse_outside(root or directory, self._helm.allowed_roots, "session_id")
        places = await anyio.to_thread.run_sync(self._snapshots.places_of, session)
        if not places:
            raise CannotRewind(
                f"{directory or 'The directory of this session'} is not in a git repository, so what its files were is not "
                "known. Take back the conversation alone, and the files by hand; `git init` there lets later turns be "
                "taken back.",
                reason="no_git",
            )
        return places

    async def _turns(self, session: Session, known: SessionSnapshots | None) -> list[RewoundTurn]:
        """Return the turns of a session, oldest first, as its agent has them if it lists them."""

        def look(registry: Registry) -> list[Task]:
            own = [task for task in reversed(registry.tasks_of_session(session.id)) if task.status != "pending"]
            ids = {task.id for task in own}  # snapshots may belong to a session that was forked or rewound
            others = (registry.get(turn.task_id) for turn in (known.turns if known else ()) if turn.task_id not in ids)
            return [*filter(None, others), *own]

        await self._helm.task_writer.write()  # a turn may have ended just now
        tasks = await self._helm.task_writer.registry(look)
        history: Sequence[PastTurn] = ()
        if Capability.HISTORY not in (await self._helm.capabilities(session.options.agent)).lacking:
            history = await self._helm.history(session.id)
        return _numbered(history, tasks)

    async def _turns_of_others(
        self, session: Session, places: Sequence[SnapshotPlace], since: datetime, ours: Collection[str]
    ) -> list[dict[str, list[TurnSnapshot]]]:
        """Return, for each of these trees, the snapshots of other sessions' turns in them since then, oldest first.

        Raises:
            CannotRewind: One of them is running, or has no snapshot to show its changes.
        """
        trees = [place.git.work_tree for place in places]

        def look(registry: Registry) -> list[Task]:
            tasks, _ = registry.list(origin="local", limit=_MANY_TASKS)
            later = (task for task in tasks if task.is_running or (task.completed_at or task.updated_at) > since)
            return [
                task
                for task in later
                if task.session_id not in (None, session.id)
                and task.turn_id not in ours
                and (task.is_running or task.asked_at is not None)  # else its agent never learned of it
                and not cannot_write(task)
                and _is_in(task.directory, trees)
            ]

        found = [dict[str, list[TurnSnapshot]]() for _ in places]
        unknown: dict[str, str] = {}
        for task in reversed(await self._helm.task_writer.registry(look)):
            assert task.session_id is not None
            known = await anyio.to_thread.run_sync(all_snapshots, self._helm.settings.state_dir, task.session_id)
            by_place = {one.git_dir: one.of_task(task.id) for one in known}
            turns = [turn for place in places if (turn := by_place.get(place.git.git_dir)) is not None]
            if task.is_running:
                unknown[task.session_id] = f"{task.alias} is running"
            elif len(turns) == len(places):
                for turns_there, turn in zip(found, turns, strict=True):
                    turns_there.setdefault(task.session_id, []).append(turn)
            elif not await self._is_plan(task):  # a plan changes nothing, so there is no snapshot
                unknown[task.session_id] = f"no snapshot tells what {task.alias} has changed"
        if unknown:
            raise _shared_tree(trees, unknown)
        return found

    async def _is_plan(self, task: Task) -> bool:
        """Return whether the turn of a task made a plan."""
        logged = await self._helm.task_writer.registry(lambda registry: registry.events(task.session_id or ""))
        requests = (event for event in logged.events if isinstance(event, TurnRequested))
        return any(event.task_id == task.id and event.kind == "plan" for event in requests)

    # --- done --------------------------------------------------------------------------------------------------------

    def _check(self, shown: Rewind, digest: str) -> None:
        if shown.digest != digest.strip().lower():
            raise DiffChanged(
                f"Taking back session {shown.session_id} would change something else than shown. Nothing was touched. Look "
                "at it again, then rewind with its digest.",
                digest=shown.digest,
                shown=digest,
                stat=None if shown.diff is None else shown.diff.stat,
            )

    def _write(self, plan: _Plan, digest: str) -> tuple[list[FilesRewind], list[Undo]]:
        """Take the files back, and return how to undo it for each record. Blocks."""
        undos = list[Undo]()

        def agree(found: Sequence[tuple[FilesRewind, Git]]) -> None:
            if plan.session.state.is_running:  # since just now
                raise busy(plan.session.id)
            plans = [one for one, _ in found]
            self._check(_named(_with_files(plan.shown, plan.files, plans)), digest)
            # This runs before the first file is written, so no state is without its undo.
            undos.extend(_undos_of(plan.known, plans))
            for target, undo, (_, git) in zip(plan.files, undos, found, strict=True):
                keep_undo(target.place, git, undo)

        return rewind_files(plan.files, agree), undos

    def _put_back(self, plan: _Plan, done: Sequence[FilesRewind]) -> None:
        """Undo all steps that were done. Blocks."""
        if plan.files:
            before = [replace(target, wanted=one.now, after=None) for target, one in zip(plan.files, done, strict=True)]
            rewind_files(before, lambda _: None)
        for place, known in zip(self._records(plan), plan.known, strict=True):
            change_undo(place, None if known is None else known.undo)

    def _note(self, plan: _Plan, undos: Sequence[Undo], conversation: str | None, *, is_done: bool = True) -> None:
        """Write down how it is taken back, and whether it is done. Blocks."""
        is_undo = plan.shown.is_undo
        for place, undo in zip(self._records(plan), undos, strict=True):
            noted = replace(undo, conversation=None if is_undo else conversation, is_done=is_done)
            change_undo(place, noted, heir=conversation if is_undo else None)

    def _records(self, plan: _Plan) -> list[SnapshotPlace]:
        """Return where snapshots are recorded; for a session without any, its directory."""
        if plan.files:
            return [one.place for one in plan.files]
        place = Path(plan.session.directory or "/")
        (known,) = plan.known
        work_tree, git_dir = (place, place / ".git") if known is None else (known.work_tree, known.git_dir)
        git = Git(work_tree=work_tree, git_dir=git_dir, place=self._helm.settings.state_dir)
        return [SnapshotPlace(git=git, session_id=plan.session.id)]

    # --- conversations -----------------------------------------------------------------------------------------------

    async def _keeps_conversations(self, session: Session) -> bool:
        lacking = (await self._helm.capabilities(session.options.agent)).lacking
        return Capability.FORK not in lacking and Capability.ARCHIVE not in lacking

    async def _keep_conversation(self, plan: _Plan) -> str | None:
        """Keep the whole conversation as its own session, in the archive."""
        if not await self._keeps_conversations(plan.session):
            return None
        kept = await self._helm.fork(plan.session.id)
        await self._upkeep.archive(kept.id)
        return kept.id

    async def _bring_back(self, session_id: str) -> None:
        info = await self._helm.agent_records.find(session_id)
        if info is None or info.archived:
            await self._upkeep.unarchive(session_id)


def _undos_of(records: Sequence[SessionSnapshots | None], plans: Sequence[FilesRewind]) -> list[Undo]:
    """Return how to undo this in each tree. Undoing a resumed rewind restores the files from before the first attempt."""
    begun = [known.undo for known in records if known is not None and known.undo is not None]
    if len(begun) == len(plans) and all(
        not undo.is_done and undo.taken_at == begun[0].taken_at and undo.wanted == one.wanted == one.now.tree
        for undo, one in zip(begun, plans, strict=True)
    ):
        return begun
    now = datetime.now(UTC)
    return [Undo(taken_at=now, before=one.now, wanted=one.wanted) for one in plans]


def _with_files(shown: Rewind, targets: Sequence[RewindTarget], plans: Sequence[FilesRewind]) -> Rewind:
    since = [path for plan in plans for path in plan.changed_since or ()]
    return replace(
        shown,
        work_tree=targets[0].place.git.work_tree,
        diff=joined([plan.diff for plan in plans]),
        left=tuple(path for plan in plans for path in plan.left),
        changed_since=None if any(plan.changed_since is None for plan in plans) else tuple(since),
    )


def _named(shown: Rewind) -> Rewind:
    """Return the preview with its digest."""
    turns = [turn.turn_id or turn.task_id for turn in shown.forgotten]
    patch = None if shown.diff is None else shown.diff.digest
    told = [shown.session_id, shown.part, shown.is_undo, shown.conversation, turns, patch, shown.left]
    return replace(shown, digest=hashlib.sha256(json.dumps(told).encode()).hexdigest())


def _chosen(session_id: str, turns: Sequence[RewoundTurn], to: int | str | None) -> RewoundTurn:
    """Return the selected turn.

    Raises:
        InvalidInput: There is no such turn.
    """
    if turns and to is None:
        return turns[-1]
    number = int(to) if isinstance(to, int) or (to is not None and to.isdecimal()) else None
    for turn in turns:
        if turn.number == number if number is not None else to in (turn.turn_id, turn.task_id):
            return turn
    there = f"Give a number from 1 to {len(turns)}, or the id of a turn." if turns else "It has no turns."
    raise InvalidInput(
        f"There is no turn {to if to is not None else 1} in session {session_id}. {there}", parameter="to"
    )


def _numbered(history: Sequence[PastTurn], tasks: Sequence[Task]) -> list[RewoundTurn]:
    by_turn = {task.turn_id: task for task in tasks if task.turn_id is not None}
    if any(turn.id in by_turn for turn in history):
        pairs = [(turn, by_turn.get(turn.id)) for turn in history]
    elif len(history) == len(tasks):  # of an agent that names its turns by other names, or not at all
        pairs = list(zip(history, tasks, strict=True))
    else:
        return [_of_task(number, task) for number, task in enumerate(tasks, 1)]
    return [
        RewoundTurn(
            number=number, turn_id=turn.id, task_id=None if task is None else task.id, prompt=_prompt(turn, task)
        )
        for number, (turn, task) in enumerate(pairs, 1)
    ]


def _of_task(number: int, task: Task) -> RewoundTurn:
    return RewoundTurn(number=number, turn_id=task.turn_id, task_id=task.id, prompt=task.instruction)


def _prompt(turn: PastTurn, task: Task | None) -> str:
    said = next((item.text for item in turn.items if isinstance(item, UserMessage)), "")
    return task.instruction if task is not None else said


def _shared_tree(trees: Sequence[Path], sessions: Mapping[str, str]) -> CannotRewind:
    named = "; ".join(f"{session} ({why})" for session, why in sessions.items())
    where = listed(map(str, trees), _NAMED_FILES)
    return CannotRewind(
        f"Another session has worked in {where} since then, and taking the files back would lose its work: {named}. "
        "Nothing was touched. Take back the conversation alone, or restore the files yourself. To keep sessions apart, "
        "start them with --worktree.",
        reason="shared_tree",
        sessions=list(sessions),
    )


def cannot_write(task: Task) -> bool:
    """Return whether a turn was read-only. One that may ask can write after an approval."""
    options = task.options
    return options is not None and (options.writes, options.asks) == ("nothing", "never")


def _is_in(directory: str | None, trees: Sequence[Path]) -> bool:
    root = None if directory is None else repository_root(Path(directory))
    return root is not None and any(root.resolve() == tree.resolve() for tree in trees)
