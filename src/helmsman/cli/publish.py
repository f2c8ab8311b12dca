"""From a session to a commit and a pull request: commit, pr, watch-pr."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from helmsman.base.sanitize import one_line, visible
from helmsman.base.truncate import counted, listed
from helmsman.cli.command import POSITIVE, cli_command, option, with_options, yes_option
from helmsman.cli.consoles import at_work, echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import session_argument, short_id, with_helmsman
from helmsman.cli.output import agree, can_ask, print_message, print_result
from helmsman.errors import ConfirmationNeeded, HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from helmsman.capabilities.publishing import PullRequestNews, ToCommit, ToPublish
    from helmsman.cli.displays import Display
    from helmsman.client import Helmsman
    from helmsman.git.tree_changes import CommitMade

_SCHEMA: Final = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "description": {"type": "string"}},
    "required": ["title", "description"],
    "additionalProperties": False,
}
# Read-only and without commands: it only describes finished work.
_DRAFT: Final = (
    "Write the message of a commit with all changes of this session: a title of at most 72 characters in the imperative, "
    "and a description of what changed and why, in a few plain sentences. Change nothing and run nothing."
)

_MESSAGE: Final = option(
    "-m --message TEXT", "The message; its first line is the title.  [default: the agent drafts it]"
)
_APPLIED: Final = option("--applied", "Commit in the tree that the changes were applied to, not in the worktree.")
_PULL_REQUEST: Final = (
    option("--base BRANCH", "The branch that it is for.  [default: that of the remote]"),
    option("--remote NAME", "Where to push.  [default: origin]"),
    option("--branch NAME", "The branch to push to.  [default: that of the worktree]"),
    option("--draft", "Open it as a draft."),
)
_ATTEMPTS: Final = 5
_NAMED: Final = 20
"""Files that are named before a commit."""
_EVERY_SECONDS: Final = 30.0
_WATCHING: Final = (
    option("--attempts N", "Turns that are started for it at most.", type=click.IntRange(min=1), default=_ATTEMPTS),
    option("--max-cost-usd USD", "Stop them when they have cost more than this.", type=POSITIVE),
    option("--every SECONDS", "How often to look at it.", type=click.FloatRange(min=0.1), default=_EVERY_SECONDS),
    option(
        "--author LOGIN...",
        "Handle comments of this login too, a bot for example.  [default: only those of members of the repository]",
        to="authors",
    ),
    option("--once", "Look once: handle what is there, and end."),
)


@cli_command(
    "commit",
    "Commit what a session changed.",
    "helmsman session commit",
    'helmsman session commit 3b2d5c8e -m "Fix the parser" --yes',
    changes=True,
)
@session_argument
@_MESSAGE
@_APPLIED
@yes_option
def commit_command(session: str, message: str | None, applied: bool, agreed: bool, as_json: bool) -> None:
    """Commit what a session changed: in its worktree, on the worktree's branch; without a worktree, its files in the tree
    that it worked in.

    The agent drafts the message, and on a terminal you edit it. Hooks of the repository do not run. What `helmsman
    apply` brings over stays the same.
    """
    made = _commit(session, message, applied=applied, agreed=agreed, as_json=as_json)
    shown = [{"commit": one.commit, "branch": one.branch, "directory": str(one.directory)} for one in made]
    lines = [f"Committed {one.commit[:8]} on {one.branch}: {one_line(one.title)}" for one in made]
    print_result("\n".join(lines), {"sessionId": session} | _first(shown), as_json=as_json)


@cli_command(
    "pr",
    "Open a pull request with a session's changes.",
    "helmsman session pr",
    "helmsman session pr 3b2d5c8e --base main --draft",
    "helmsman session pr 3b2d5c8e --watch",
    changes=True,
)
@session_argument
@_MESSAGE
@with_options(*_PULL_REQUEST)
@option("--watch", "Then follow it, as `helmsman session watch-pr` does.")
@yes_option
def pr_command(
    session: str,
    message: str | None,
    base: str | None,
    remote: str | None,
    branch: str | None,
    draft: bool,
    watch: bool,
    agreed: bool,
    as_json: bool,
) -> int:
    """Commit what a session changed in its worktree, push its branch, and open a pull request, or renew the open one.

    You are asked once per session before anything leaves the machine, with the address that it goes to. The pull
    request is opened by `gh`, or at GitLab by `glab`, with its login; without them the branch is pushed, and the
    address to open it is shown. Its text says which commands ran after the last edit.
    """
    host().require_own_process()
    looked = with_helmsman(lambda helm: helm.extras.publishing.look(session))
    text = message or ""
    # With nothing to commit, the existing commits are published.
    if not looked.is_committed:
        text = _commit(session, message, applied=False, agreed=agreed, as_json=as_json, looked=looked)[0].message
    targets = with_helmsman(
        lambda helm: helm.extras.publishing.targets(session, base=base, remote=remote, branch=branch)
    )
    # An empty pull request would be refused by the forge, after the push.
    if not targets:
        raise InvalidInput("There is nothing to publish: the session's branch has no commit of its own.")
    for target in targets:
        _ask_once(target, agreed=agreed, as_json=as_json)
    # The first commit's title, where the work was committed before.
    title, _, body = (text or f"{targets[0].commits[0]}\n\n{looked.text}").strip().partition("\n")

    async def publish(helm: Helmsman) -> list[str | None]:
        from helmsman.capabilities.publishing import verified

        publishing = helm.extras.publishing
        await publishing.push(session, targets)
        # What was verified is derived from events, not from what the agent says.
        whole = "\n\n".join(filter(None, (body.strip(), verified(await helm.session(session)))))
        return [
            # Without the forge's program the branch is pushed, and the user opens the pull request.
            None if one.by is None else await publishing.open(session, one, title.strip(), whole, draft=draft)
            for one in targets
        ]

    with at_work("Publishing", as_json=as_json):
        opened = with_helmsman(publish)
    shown = [
        {"branch": one.branch, "remote": one.url, "pullRequest": url} for one, url in zip(targets, opened, strict=True)
    ]
    lines = [_published(one, url) for one, url in zip(targets, opened, strict=True)]
    print_result("\n".join(lines), {"sessionId": session} | _first(shown), as_json=as_json)
    if not watch:
        return ExitCode.OK
    if not any(opened):
        raise InvalidInput("There is no pull request to follow.")
    return _watch(session, as_json=as_json)


def _first(shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of the first repository, and those of the others as a list."""
    first, *others = shown
    return first | ({"others": others} if others else {})


def _published(target: ToPublish, opened: str | None) -> str:
    if opened is not None:
        return f"Pull request: {opened}"
    pushed = f"Pushed {target.branch} to {target.url}."
    return pushed if target.open_at is None else f"{pushed} Open a pull request: {target.open_at}"


@cli_command(
    "watch-pr",
    "Follow a session's pull request, and handle what comes.",
    "helmsman session watch-pr",
    "helmsman session watch-pr 3b2d5c8e --attempts 3 --max-cost-usd 2",
    changes=True,
)
@session_argument
@with_options(*_WATCHING)
def watch_pr_command(session: str, as_json: bool, **options: Any) -> int:
    """Follow the pull request of a session until it is merged or closed. When a check fails or a reviewer comments, the next
    turn starts with exactly that, in the same worktree; then the result is committed and pushed, and the comment answered.

    Only comments of members of the repository start a turn. Texts from the forge are quoted to the agent as data,
    and never answer a question. It needs what you allowed with `helmsman session pr`. Ctrl-C ends it.
    """
    host().require_own_process()
    return _watch(session, as_json=as_json, **options)


# --- commits ---------------------------------------------------------------------------------------------------------


def _commit(
    session: str, message: str | None, *, applied: bool, agreed: bool, as_json: bool, looked: ToCommit | None = None
) -> tuple[CommitMade, ...]:
    shown = looked or with_helmsman(lambda helm: helm.extras.publishing.look(session, applied=applied))
    if shown.is_committed or not shown.files:
        raise InvalidInput(f"There is nothing to commit in {', '.join(map(str, shown.directories))}.")
    on, places = ("on", shown.branches) if shown.branches else ("in", tuple(map(str, shown.directories)))
    where = f"{on} {' and '.join(map(one_line, places))}"
    files = counted(len(shown.files), "file")
    if not agreed and not can_ask(as_json=as_json):  # before the agent drafts a message for nothing
        raise ConfirmationNeeded(f"{files} would be committed {where}. Nothing was done. Add --yes to do it.")
    text = message or _drafted(shown, as_json=as_json, agreed=agreed)
    if not agreed:
        # Exactly: wrapping would drop spaces.
        echo(f"{visible(text)}\n\nFiles: {listed(map(one_line, shown.files), _NAMED)}", err=True)
    agree(f"Commit {files} {where}?", agreed=agreed, as_json=as_json, otherwise=None)
    return with_helmsman(
        lambda helm: helm.extras.publishing.commit(session, text, digest=shown.digest, applied=applied)
    )


def _drafted(shown: ToCommit, *, as_json: bool, agreed: bool) -> str:
    """Return the message: as the agent drafts it, edited by the user on a terminal."""
    with at_work("The agent drafts the message", as_json=as_json):
        draft = with_helmsman(lambda helm: _draft(helm, shown))
    if agreed or not can_ask(as_json=as_json):
        return draft
    edited = click.edit(
        f"{draft}\n\n# Lines that begin with # are left out. An empty message stops.\n", extension=".md"
    )
    # Lines with # are comments, as in git.
    kept = draft if edited is None else "\n".join(line for line in edited.splitlines() if not line.startswith("# "))
    # An empty message stops, as in git.
    if not kept.strip():
        raise InvalidInput("The message is empty. Nothing was committed.")
    return kept.strip()


async def _draft(helm: Helmsman, shown: ToCommit) -> str:
    """Let the agent write the message in a fork of the session; without one, use the facts of the session."""
    from helmsman.step import run_step

    try:
        # In a fork, so that the request is not part of the session's history.
        fork = await helm.fork(shown.session_id)
        try:
            done = await run_step(
                _DRAFT,
                session_id=fork.id,
                helm=helm,
                sandbox="read-only",
                approval_policy="never",
                output_schema=_SCHEMA,
                attempts=1,
            )
        finally:
            await helm.extras.upkeep.archive(fork.id)
        return f"{one_line(done.output['title'])}\n\n{done.output['description']}".strip()
    except HelmsmanError as error:
        # A session that cannot be forked, or an agent without a login: facts are enough for a message.
        print_message(f"The agent drafted no message ({one_line(error.message)[:200]}).")
        return f"{shown.title}\n\n{shown.text}".strip()


# --- what leaves the machine -----------------------------------------------------------------------------------------


def _ask_once(target: ToPublish, *, agreed: bool, as_json: bool) -> None:
    """Ask whether this session may publish, unless the user has allowed it before.

    Raises:
        ConfirmationNeeded: There is no terminal to ask on.
        click.exceptions.Exit: The user declined.
    """
    url = one_line(target.url)
    rule = f"Session {short_id(target.session_id)} may push to {url}"
    if target.repository is not None:
        rule += f", and open and answer a pull request at {target.repository}"
    # Allowed once for each session and address.
    if target.is_allowed:
        if not as_json:
            print_message(f"Allowed before: {rule}.")
        return
    if not (agreed or as_json):
        listed = "\n".join(f"  {one_line(title)}" for title in target.commits)
        print_message(f"{counted(len(target.commits), 'commit')} of branch {target.branch}:\n{listed}")
    agree(
        f"{rule}. This holds for the session from now on. Allow it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"{rule}.",
    )
    with_helmsman(lambda helm: helm.extras.publishing.allow(target.session_id, target.url))


# --- following -------------------------------------------------------------------------------------------------------


def _watch(session: str, *, as_json: bool, **options: Any) -> int:
    from helmsman.cli.displays import new_display

    settings = settings_of_command()
    display = new_display(settings, as_json=as_json)
    watching = partial(_follow, session, display, **options)
    return with_helmsman(watching, settings=settings, on_question=display.on_question)


async def _follow(
    session: str,
    display: Display,
    helm: Helmsman,
    *,
    attempts: int = _ATTEMPTS,
    max_cost_usd: float | None = None,
    every: float = _EVERY_SECONDS,
    authors: tuple[str, ...] = (),
    once: bool = False,
) -> int:
    import anyio

    publishing, left, told = helm.extras.publishing, attempts, ""
    known = await helm.session(session)
    # Pushing without asking needs an answer that was given before.
    if not known.state.publication.allowed:
        raise ConfirmationNeeded(f"This session may not publish yet. Allow it: helmsman session pr {short_id(session)}")
    while True:
        news = await publishing.news(session, authors)
        still_open = [one for one in news if one.state.is_open]
        if not still_open:
            for one in news:
                print_message(f"{one.state.url} is {'merged' if one.state.is_merged else 'closed'}.")
            return ExitCode.OK
        to_handle = [one for one in still_open if one.failed or one.comments]
        if to_handle:
            if left == 0:
                raise HelmsmanError(f"{counted(attempts, 'turn')} were not enough. Look at {to_handle[0].state.url}.")
            left -= 1
            code = await _handle(helm, session, display, to_handle, max_cost_usd)
            if code != ExitCode.OK:
                return code
        elif (standing := "\n".join(map(_standing, still_open))) != told:
            # Said only when it changes.
            told = standing
            print_message(standing)
        if once:
            return ExitCode.OK
        await anyio.sleep(every)


def _standing(news: PullRequestNews) -> str:
    pending = news.state.pending
    running = f"{counted(pending, 'check')} still running."
    standing = f"{news.state.url}: {running if pending else 'nothing to do; waiting for checks and reviews.'}"
    if not news.ignored:
        return standing
    who = ", ".join(one_line(author) for author in news.ignored)
    return f"{standing} Comments by {who} start no turn: not a member of the repository (--author LOGIN changes that)."


async def _handle(
    helm: Helmsman,
    session: str,
    display: Display,
    news: list[PullRequestNews],
    max_cost_usd: float | None,
) -> int:
    """Run one turn for failed checks and comments, publish the result, and answer the comments."""
    from helmsman.capabilities.publishing import prompt_for
    from helmsman.cli.follow import Talk, follow
    from helmsman.step import run_step

    publishing = helm.extras.publishing
    # Noted before the turn: after a crash nothing is handled twice.
    failed = [check for one in news for check in one.failed]
    comments = [(one.state.url, comment) for one in news for comment in one.comments]
    await publishing.handled(session, [*(check.id for check in failed), *(comment.id for _, comment in comments)])
    options: dict[str, Any] = {} if max_cost_usd is None else {"max_cost_usd": max_cost_usd}
    step = partial(run_step, prompt_for(news), session_id=session, helm=helm, attempts=1, **options)
    outcome = await follow(step, display, talk=Talk(helm=helm))
    # A turn that fails publishes nothing.
    if outcome.exit_code != ExitCode.OK or outcome.result is None:
        return outcome.exit_code
    answer = outcome.result.text.strip()
    looked = await publishing.look(session)
    # The agent may have committed itself, or changed nothing.
    if not looked.is_committed and looked.files:
        about = f"Fix {failed[0].name}" if failed else f"Answer {comments[0][1].author}'s comment"
        # The digest is of what was looked at.
        made = await publishing.commit(session, f"{one_line(about)}\n\n{answer}", digest=looked.digest)
        await publishing.push(session, await publishing.targets(session))
        for one in made:
            print_message(f"Pushed {one.commit[:8]}: {one_line(one.title)}")
        answer = "\n\n".join([answer, *(one.commit for one in made)])
    for url, comment in comments:
        await publishing.answer(session, url, comment, answer)
    return ExitCode.OK
