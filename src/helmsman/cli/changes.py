"""Commands on the changes of a session or task: diff, apply, discard."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from helmsman.base.sanitize import named, one_line, visible
from helmsman.base.truncate import counted
from helmsman.cli.command import cli_command, cli_group, option, yes_option
from helmsman.cli.completing import complete_session_or_task
from helmsman.cli.consoles import echo, is_terminal, message_console, result_console, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import TreeElsewhere, host, hosted
from helmsman.cli.on_session import (
    Body,
    full_session_id,
    optional_session,
    short_id,
    the_session,
    titles,
    with_helmsman,
)
from helmsman.cli.output import (
    Column,
    ago,
    agree,
    can_ask,
    confirmed,
    page_diff,
    print_diff,
    print_json,
    print_list,
    print_message,
)
from helmsman.errors import ConfirmationNeeded, InvalidInput
from helmsman.git.diff import files_of
from helmsman.git.patches import diff_digest
from helmsman.shapes.rendering import applied_as_dict, diff_as_dict, fields_as_dict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from helmsman.capabilities.changes import SessionDiff
    from helmsman.client import Helmsman
    from helmsman.git.diff import FileStat
    from helmsman.git.lifecycle import Discarded, Leftover
    from helmsman.git.remote_trees import RemoteTree
    from helmsman.git.tree_changes import Unsaved
    from helmsman.git.worktree import Worktree
    from helmsman.tasks.model import Task


async def cloud_task(helm: Helmsman, reference: str) -> Task | None:
    """Return the named cloud task, or None for a local reference.

    Raises:
        TaskNotFound: There is no task with this id.
    """
    if not reference.startswith("T-"):
        return None
    task = await helm.tasks.find(reference)
    # A local task stands for its session.
    return task if task.origin == "cloud" else None


async def local_session(helm: Helmsman, reference: str) -> str:
    """Return the named session, by id, prefix, suffix or task id.

    Raises:
        InvalidInput: Several match, or the task has no local session.
        SessionNotFound: There is no such session.
        TaskNotFound: There is no such task.
    """
    if not reference.startswith("T-"):
        return await full_session_id(helm, reference)
    task = await helm.tasks.find(reference)
    if task.session_id is None:
        where = "is in the cloud" if task.origin == "cloud" else "never became a session"
        raise InvalidInput(f"Task {task.id} {where}, so there is no worktree of it here. Name a session.")
    return task.session_id


def file_line(file: FileStat) -> str:
    """Format a changed file as a line."""
    path = one_line(file.path if file.old_path is None else f"{file.old_path} → {file.path}")
    lines = "binary" if file.binary else f"+{file.added} -{file.removed}"
    return f"{file.kind:<8}  {path}  {lines}"


_LISTED: Final = 15  # files that are named before the question


def _agreed_digest(patch: bytes, about: str, *, agreed: bool, as_json: bool) -> str:
    """Return the digest of a diff that the user approved, interactively or with `--yes`.

    Raises:
        ConfirmationNeeded: There is no terminal to ask on.
        click.exceptions.Exit: The user declined.
    """
    if patch and not agreed:
        # Refused before anything is shown: a script would wait for an answer.
        if not can_ask(as_json=as_json):
            raise ConfirmationNeeded(
                "There is no terminal here to confirm these changes. Look at them with helmsman diff, then give "
                "--digest with the digest it shows, or --yes."
            )

        files = files_of(patch.decode("utf-8", "surrogateescape"))
        added, removed = (sum(getattr(one, name) or 0 for one in files) for name in ("added", "removed"))
        console = message_console()
        # The pager needs stdout to be the terminal.
        if is_terminal(result_console()):
            page_diff(patch, result_console())
        else:
            print_diff(patch, console)
        # After the pager has closed, the screen no longer shows which files there are.
        echo("\n".join(file_line(one) for one in files[:_LISTED]), err=True)
        if len(files) > _LISTED:
            echo(f"and {len(files) - _LISTED} more", err=True)
        if not confirmed(f"{about} Apply {counted(len(files), 'file')} (+{added} -{removed})?"):
            print_message("Nothing was touched.")
            raise click.exceptions.Exit(ExitCode.FAILED)
    # Exactly this diff is applied: the digest fails if the session goes on in between.
    return diff_digest(patch)


ResultT = TypeVar("ResultT")


def remote_session(reference: str) -> RemoteTree | None:
    """Return the remote session with a local tree that matches the reference, or None.

    Raises:
        InvalidInput: Several sessions match.
    """
    # Trees of this machine are known only here.
    if host().is_elsewhere:
        return None
    from helmsman.git.remote_trees import find_remote_tree

    found = find_remote_tree(settings_of_command().state_dir, reference)
    if len(found) > 1:
        raise InvalidInput(f"{reference} may be several sessions. Give more of the id.")
    if not found:
        return None
    # It needs the connection of its own process.
    host().require_own_process()
    return found[0]


def refuse_brought(reference: str) -> None:
    """Refuse to apply remotely what belongs to a tree of the local machine.

    Raises:
        InvalidInput: The session works on a local tree.
    """
    from helmsman.git.remote_trees import find_remote_tree

    name = host().name
    known = find_remote_tree(settings_of_command().state_dir, reference) if host().is_elsewhere else ()
    # A command sent there would look for the tree there.
    if any(one.host == name for one in known):
        raise InvalidInput(f"It works on a tree of this machine. Bring it in here: helmsman apply {reference}")


def on_changes(reference: str, do: Callable[[Any, str], Awaitable[ResultT]]) -> ResultT:
    """Call `do` with what holds the changes of a session, and the session's id.

    That is the hub here, or for a session that works on a tree of this machine elsewhere, the hub there.
    """
    away = remote_session(reference)
    if away is None:

        async def here(helm: Helmsman) -> ResultT:
            return await do(helm.extras.changes, await local_session(helm, reference))

        return with_helmsman(here)
    session_id = away.session_id
    if session_id is None:
        raise InvalidInput(f"No session is known here that works with the tree sent to {away.host}.")
    with hosted(TreeElsewhere(away.host)):
        return with_helmsman(lambda helm: do(helm.workspaces, session_id))


def changes_argument(*, with_worktree: bool = False) -> Callable[[Body], Body]:
    """Add the argument SESSION to a command on changes. It may also be a task, or a session with a tree of this machine.

    `with_worktree`: without it, a session with a worktree is meant.
    """

    def declare(body: Body) -> Body:
        @functools.wraps(body)
        def command(session: str | None, **options: Any) -> Any:
            is_other = session is not None and (session.startswith("T-") or remote_session(session) is not None)
            known = (
                session if is_other else the_session(session, as_json=options["as_json"], with_worktree=with_worktree)
            )
            return body(session=known, **options)

        return optional_session(complete_session_or_task, _OF_WORKTREE if with_worktree else _OF_CHANGES)(command)

    return declare


_OF_CHANGES: Final = "without it, the one running here or the last of this directory. It may be the id of a task."
_OF_WORKTREE: Final = "without it, the one of this directory that has a worktree. It may be the id of a task."


@cli_command(
    "diff",
    "Show what a session changed.",
    "helmsman diff 3b2d5c8e",
    "helmsman diff --stat 3b2d5c8e",
    "helmsman diff T-cloud-1f3a9c0b2d4e > change.patch",
)
@changes_argument()
@option("--stat", "Only the files, and how many lines changed in each.", to="only_stat")
def diff_command(session: str, only_stat: bool, as_json: bool) -> None:
    """Show what a session changed, as one unified diff.

    What a worktree session changed is known exactly. For any other session it is what its last turn edited or, if
    that is not known, everything uncommitted in its directory, by any program; a line on stderr says which. On a
    terminal it goes through your git pager; anywhere else it is exact to the byte, for `git apply`.
    """

    if session.startswith("T-") and (found := with_helmsman(lambda helm: _cloud_diff(helm, session))) is not None:
        task_id, patch = found
        if as_json:
            diff = patch.decode("utf-8", "surrogateescape")
            print_json({"taskId": task_id, "scope": "cloud", "diff": diff, "digest": diff_digest(patch)})
        else:
            _write(patch, f"What cloud task {task_id} changed.")
        return
    changed: SessionDiff = on_changes(session, lambda work, session_id: work.diff(session_id))
    if as_json:
        print_json(diff_as_dict(changed))
    elif only_stat:
        print_message(f"{changed.about} Digest: {changed.diff.digest}")
        echo(visible(changed.diff.stat), nl=False)
    else:
        _write(changed.diff.patch, changed.about)


async def _cloud_diff(helm: Helmsman, reference: str, attempt: int = 1) -> tuple[str, bytes] | None:
    """Return the id of a cloud task and its changes as a diff; None for a local reference."""
    task = await cloud_task(helm, reference)
    if task is None:
        return None
    diff = (await helm.tasks.cloud.results(task, attempt=attempt)).diff or ""
    return task.id, diff.encode("utf-8", "surrogateescape")


def _write(patch: bytes, about: str) -> None:
    """Show the diff on a terminal through the pager; otherwise write it unchanged."""
    print_message(f"{about} Digest: {diff_digest(patch)}" if patch else "Nothing has changed.")
    console = result_console()
    if is_terminal(console):
        page_diff(patch, console)
    else:
        # Bytes: decoding and encoding could change a diff.
        host().stdout.buffer.write(patch)


@cli_command(
    "apply",
    "Bring a session's changes into your tree.",
    "helmsman apply 3b2d5c8e",
    "helmsman apply --yes --allow-dirty 3b2d5c8e",
    "helmsman apply T-cloud-1f3a9c0b2d4e --attempt 2",
    changes=True,
)
@changes_argument(with_worktree=True)
@option("--allow-dirty", "Even if other files have uncommitted changes.")
@option("--attempt N", "Of a cloud task: which attempt.  [default: 1]", type=click.IntRange(min=1))
@option("-C --cd DIR", "Of a cloud task: where to.  [default: here]", to="directory")
@option("--digest DIGEST", "Do not ask: apply the diff with this digest, and nothing else.")
@yes_option
def apply_command(
    session: str,
    allow_dirty: bool,
    attempt: int | None,
    directory: str | None,
    digest: str | None,
    agreed: bool,
    as_json: bool,
) -> None:
    """Bring what a worktree session changed into the repository it was started for, or what a cloud task changed into
    the one around the current directory: all of it, or nothing.

    The changes are shown first, and exactly what you approve is applied. They are then uncommitted in your tree. A
    tree that already has uncommitted changes is left alone; so is one that the changes do not apply to. The
    worktree stays until `helmsman session discard`.
    """
    refuse_brought(session)
    place = None if directory is None else host().place(directory)
    found = with_helmsman(lambda helm: _cloud_diff(helm, session, attempt or 1)) if session.startswith("T-") else None
    if found is not None:
        task_id, patch = found
        seen = digest or _agreed_digest(patch, f"What cloud task {task_id} changed.", agreed=agreed, as_json=as_json)
        applied = with_helmsman(lambda helm: _apply_cloud(helm, task_id, attempt or 1, place, seen, allow_dirty))
    elif attempt is not None or directory is not None:
        # Silently ignoring them would apply something else.
        raise InvalidInput("--attempt and --cd are for cloud tasks. A worktree's changes go where it was made from.")
    else:
        if digest is None:
            changed: SessionDiff = on_changes(session, lambda work, session_id: work.diff(session_id))
            if _is_there(session, changed):
                if not as_json:
                    print_message("Your tree has all of these changes already. Nothing was done.")
                    return
                agreed = True
            # Without a worktree there is nothing to apply, which the next step reports.
            patch = changed.diff.patch if changed.scope == "worktree" else b""
            digest = _agreed_digest(patch, changed.about, agreed=agreed, as_json=as_json)

        applied = applied_as_dict(
            on_changes(session, lambda work, known: work.apply(known, allow_dirty=allow_dirty, digest=digest))
        )
    (print_json if as_json else _print)(applied)


def _is_there(session: str, changed: SessionDiff) -> bool:
    """Return whether the tree that the changes of a worktree go to has all of them."""
    if changed.scope != "worktree" or not changed.diff.patch:
        return False
    missing: Unsaved = on_changes(session, lambda work, known: work.unsaved(known))
    return not (missing.files or missing.nested or missing.unreadable)


async def _apply_cloud(
    helm: Helmsman, task_id: str, attempt: int, directory: Path | None, digest: str, allow_dirty: bool
) -> dict[str, Any]:
    task = await helm.tasks.find(task_id)
    done = await helm.tasks.cloud.apply(
        task, directory or host().place(None), attempt=attempt, allow_dirty=allow_dirty, digest=digest
    )
    shown: dict[str, Any] = {"taskId": task.id, "repository": str(done.repository)}
    how = "three-way" if done.three_way else "clean"
    return shown | {"how": how, "files": [{"path": file} for file in done.files], "digest": done.digest}


def _print(applied: dict[str, Any]) -> None:
    for command_line in applied.get("ended", ()):
        print_message(f"Still running there, and ended first: {one_line(command_line)}")
    merged = ", merged with what had changed there" if applied["how"] == "three-way" else ""
    files = counted(len(applied["files"]), "file")
    places = ", ".join(map(one_line, (applied["repository"], *applied.get("others", ()))))
    print_message(f"{files} brought into {places}{merged}.")
    for note in applied.get("notes", ()):
        print_message(visible(note))
    for file in applied["files"]:
        echo(one_line(file["path"]))


@cli_command(
    "discard",
    "Drop a session's worktree.",
    "helmsman diff --stat 3b2d5c8e && helmsman session discard 3b2d5c8e",
    "helmsman session discard 3b2d5c8e --yes",
    changes=True,
)
@changes_argument(with_worktree=True)
@yes_option
def discard_command(session: str, agreed: bool, as_json: bool) -> None:
    """Drop the worktree of a session, with its branch and everything in it that was not applied. This cannot be undone.

    The session itself stays. Refused while it is still working. On a terminal you are asked first. Without one,
    --yes is needed if the worktree has work that exists nowhere else.
    """

    async def look(work: Any, session_id: str) -> tuple[str, Unsaved]:
        return session_id, await work.unsaved(session_id)

    session_id, losing = on_changes(session, look)
    if losing:
        _agree(losing, session_id, agreed=agreed, as_json=as_json)
    else:
        question = f"Drop the worktree of session {short_id(session_id)}? Nothing in it would be lost."
        agree(question, agreed=agreed, as_json=as_json, otherwise=None)
    # Only the shown work may be lost: with other changes since, discard refuses.
    expected = None if agreed else losing
    gone: Discarded = on_changes(session, lambda work, known: work.discard(known, losing=expected))
    show_discarded((gone,), as_json=as_json)


def _agree(losing: Unsaved, session_id: str, *, agreed: bool, as_json: bool) -> None:
    if not agreed and can_ask(as_json=as_json):
        _show_lost(losing.commits, losing.files, err=True)
        for repository in losing.nested:
            echo(f"  repository  {one_line(repository)}", err=True)
    parts = [
        counted(len(losing.commits), "commit") if losing.commits else "",
        counted(len(losing.files), "changed file") if losing.files else "",
        counted(len(losing.nested), "git repository", "git repositories") if losing.nested else "",
    ]
    what = "what is in there cannot be read" if losing.unreadable else ", ".join(filter(None, parts))
    agree(
        f"This work exists nowhere else and cannot be recovered: {what}. Drop it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"The worktree of session {session_id} has work that is nowhere else and would be lost: {what}.",
    )


def _show_lost(commits: Sequence[str], files: Sequence[FileStat], *, err: bool) -> None:
    for commit in commits:
        echo(f"  commit    {one_line(commit)}", err=err)
    for file in files:
        echo(f"  {file_line(file)}", err=err)


def show_discarded(gone: tuple[Discarded, ...], *, as_json: bool) -> None:
    """Show deleted worktrees and the work lost with them."""
    if as_json:
        shown = [
            {
                "worktree": str(one.worktree.path),
                "branch": one.worktree.branch,
                "branchKept": one.branch_kept,
                "sessionId": one.worktree.session_id,
                "repository": str(one.worktree.repository),
                "commits": list(one.commits),
                "notes": list(one.notes),
                "files": [fields_as_dict(file) for file in one.files],
            }
            for one in gone
        ]
        print_json({"discarded": shown})
        return
    for one in gone:
        print_message(f"Dropped {named(one.worktree.path)}" + (", its branch stays" if one.branch_kept else ""))
        for note in one.notes:
            print_message(visible(note))
        _show_lost(one.commits, one.files, err=False)


_COLUMNS: Final = (
    Column("SESSION", "cyan"),
    Column("STATE"),
    Column("MADE", left_out=2),
    Column("REPOSITORY", gives_way="at its beginning", left_out=1),
    Column("WHAT", gives_way="at its end", usual=""),
)
_NOTHING_LEFT: Final = "No worktree is left over. `helmsman session worktrees` lists them all."


@cli_group(
    "worktrees",
    "List the worktrees of sessions; drop leftovers.",
    "helmsman session worktrees",
    "helmsman session worktrees leftovers",
    "helmsman session worktrees prune",
)
def worktrees_command(as_json: bool) -> None:
    """List the git worktrees that sessions work in, oldest first.

    A process that ends leaves its worktrees, because they may contain work that you have not seen. Look with
    `helmsman diff`, then `helmsman apply` or `helmsman session discard`; or prune those without changes.
    """
    found = with_helmsman(lambda helm: helm.extras.changes.worktrees())
    _print_worktrees(
        {"worktrees": [_as_dict(one.worktree) | {"use": one.use} for one in found]},
        [(one.worktree, one.use) for one in found],
        nothing='There are no worktrees. Start a session in one: helmsman run --worktree "…"',
        as_json=as_json,
    )


@cli_command("leftovers", "List leftover worktrees.", "helmsman session worktrees leftovers", group=worktrees_command)
def _leftovers(as_json: bool) -> None:
    """List the worktrees of ended processes, with the changes in each."""
    found = with_helmsman(lambda helm: helm.extras.changes.leftovers())
    shown = [
        _as_dict(one.worktree) | {"files": None if one.files is None else [fields_as_dict(file) for file in one.files]}
        for one in found
    ]
    rows = [(one.worktree, _content(one)) for one in found]
    _print_worktrees({"leftovers": shown}, rows, nothing=_NOTHING_LEFT, as_json=as_json)


@cli_command(
    "prune", "Drop leftover worktrees.", "helmsman session worktrees prune", group=worktrees_command, changes=True
)
@option("--force", "Also those with changes, which are lost.")
@yes_option
def _prune(force: bool, agreed: bool, as_json: bool) -> None:
    """Drop leftover worktrees without changes.

    With --force work is lost, so you are asked first; without a terminal to ask on, that needs --yes.
    """
    found = with_helmsman(lambda helm: helm.extras.changes.leftovers())
    lost = [one for one in found if one.unsaved]
    if force and lost:
        _agree_to_prune(lost, agreed=agreed, as_json=as_json)
    # Without --force only worktrees without any trace of work are dropped.
    kept = [] if force else [one for one in found if one.files != () or one.unsaved]
    dropped = [one for one in found if one not in kept]
    # Exactly those that were shown: leftovers that appear later are not dropped.
    gone = with_helmsman(lambda helm: helm.extras.changes.prune(dropped))
    show_discarded(gone, as_json=as_json)
    if kept and not as_json:
        stay = f"{counted(len(kept), 'worktree')} with changes {'stays' if len(kept) == 1 else 'stay'}"
        print_message(f"{stay}: `helmsman session worktrees leftovers` lists them, --force drops them.")
    elif not gone and not as_json:
        print_message(_NOTHING_LEFT)


def _agree_to_prune(changed: list[Leftover], *, agreed: bool, as_json: bool) -> None:
    if not agreed and can_ask(as_json=as_json):
        # JSON is for the result alone.
        _print_worktrees({}, [(one.worktree, _content(one)) for one in changed], nothing="", as_json=False)
    what = f"What was changed in {counted(len(changed), 'worktree')}"
    question = f"{what} cannot be recovered. Drop {'it' if len(changed) == 1 else 'them'}?"
    agree(question, agreed=agreed, as_json=as_json, otherwise=f"{what} would be lost.")


def _print_worktrees(shown: dict[str, Any], rows: list[tuple[Worktree, str]], *, nothing: str, as_json: bool) -> None:
    """Print a list of worktrees, each with its remark."""
    about = titles(tree.session_id for tree, _ in rows)
    for one in (*shown.get("worktrees", ()), *shown.get("leftovers", ())):
        one["title"] = about.get(one["sessionId"] or "")

    def row(tree: Worktree, said: str) -> tuple[str | None, ...]:
        made = tree.created_at.isoformat(timespec="seconds")
        title = about.get(tree.session_id or "")
        # Tabs separate full values for programs; people get short ids and ages.
        return tree.session_id, said, made, str(tree.repository), str(tree.path), title

    def cells(tree: Worktree, said: str) -> tuple[str, ...]:
        title = one_line(about.get(tree.session_id or "", ""))
        return short_id(tree.session_id or "none"), said, ago(tree.created_at), one_line(str(tree.repository)), title

    print_list(
        shown,
        [row(*one) for one in rows],
        _COLUMNS,
        lambda _: [cells(*one) for one in rows],
        nothing=nothing,
        as_json=as_json,
    )


def _content(leftover: Leftover) -> str:
    if leftover.files is None:
        return "not readable"
    if leftover.files:
        return f"{counted(len(leftover.files), 'file')} changed"
    return "work of its own" if leftover.unsaved else "nothing changed"


def _as_dict(tree: Worktree) -> dict[str, Any]:
    return {
        "name": tree.name,
        "sessionId": tree.session_id,
        "path": str(tree.path),
        "branch": tree.branch,
        "base": tree.base,
        "repository": str(tree.repository),
        "createdAt": tree.created_at.isoformat(timespec="seconds"),
    }
