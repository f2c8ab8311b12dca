"""`helmsman demo`: run a real agent on the built-in scripted model, without account, cost or leftovers."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.concurrency import background_tasks
from helmsman.base.structs import replace
from helmsman.cli.command import cli_command, option
from helmsman.cli.consoles import is_terminal, message_console, settings_of_command
from helmsman.model.options import DEFAULT_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from helmsman.cli.displays import Display, Outcome
    from helmsman.settings import Settings
    from helmsman.testing.home import CodexHome
    from helmsman.testing.model import ScriptedModel
    from helmsman.testing.script import Chunk, Gate

_PROMPT: Final = "The greeting check fails. Find out why, fix it, and publish the greeting."
_WORD_SECONDS: Final = 0.03  # pace of the scripted model on a terminal

_FILES: Final = {
    "greet.sh": 'echo "Helo, ${1:-world}!"\n',
    "check.sh": """\
passed=0
for name in world Ada Grace; do
  if [ "$(sh greet.sh "$name")" = "Hello, $name!" ]; then
    passed=$((passed + 1))
  else
    echo "expected: Hello, $name!   got: $(sh greet.sh "$name")"
  fi
done
echo "$passed/3 checks passed"
[ "$passed" = 3 ]
""",
}
_GREETING: Final = 'echo "Hello, ${1:-world}!"\n'
# Agents that the test kit can give a scripted model.
_AGENTS: Final = (DEFAULT_AGENT, "claude", "gemini", "opencode", "qwen", "copilot")
_PUBLISH: Final = 'mkdir -p "$HOME/published" && cp greet.sh "$HOME/published/"'
_REASON: Final = "Publishing writes outside the repository, which the sandbox does not allow."


@cli_command("demo", "See a real agent at work, without an account.", "helmsman demo --auto")
@option("--auto", "Answer approvals automatically, as happens without a terminal.")
@option(
    "--agent", "Which agent to show, if it is installed.", choices=_AGENTS, default=DEFAULT_AGENT, show_default=False
)
def command(auto: bool, agent: str, as_json: bool) -> int:
    """See a real agent at work, without an account: it runs a command, fixes a file and asks for an approval.

    Its model is a script that comes with Helmsman; everything else is real. It works in a scratch directory with a
    scratch configuration, which are removed at the end.
    """
    import anyio

    # Codex may still write when the demo ends; what is left is removed by the system.
    with tempfile.TemporaryDirectory(prefix="helmsman-demo-", ignore_cleanup_errors=True) as name:
        # Resolve the path, as Codex does: a temporary directory may be behind a symbolic link.
        return anyio.run(_demo, agent, Path(name).resolve(), auto, as_json)


async def _demo(agent: str, scratch: Path, auto: bool, as_json: bool) -> int:
    from helmsman.cli.follow import follow
    from helmsman.client import Helmsman
    from helmsman.step import run_step
    from helmsman.testing.home import CodexHome
    from helmsman.testing.model import ScriptedModel

    console, home = message_console(), CodexHome(scratch / "home")
    repository, temporary = _make_repository(scratch / "greeting"), scratch / "tmp"
    temporary.mkdir()
    env = {**home.env, "TMPDIR": str(temporary)}  # Codex's sandbox leaves files there
    # `detach=False`: nothing is left running after the demo.
    settings = replace(settings_of_command(), state_dir=scratch / "state", detach=False)
    is_codex = agent == DEFAULT_AGENT
    prepared = await (_with_codex(settings, home, env) if is_codex else _with_other(agent, settings, home, env))
    settings, options = prepared.settings, prepared.options
    if not is_codex:
        (repository / "greet.sh").unlink()  # agents would first read an existing file
    if not as_json:
        _introduce(console, prepared)
    async with ScriptedModel() as model, background_tasks() as tasks:
        env |= prepared.use_model(model)
        # Words appear one by one for a person. A program gets them as fast as it reads.
        paced = is_terminal(console) and not as_json
        gates = _write_script(model, repository, home.home, paced=paced, is_missing=not is_codex)
        tasks.start_soon(_open_one_by_one, gates)
        async with Helmsman(settings, env=env, inside=not is_codex) as helm:
            # One attempt: a script plays once.
            step = partial(run_step, _PROMPT, cwd=repository, attempts=1, helm=helm, **options)
            outcome = await follow(step, _display(settings, auto=auto, as_json=as_json))
        if not as_json:
            _conclude(console, outcome, agent)
    return outcome.exit_code


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Agent in its scratch directory: its name with version, options of the step, and a remark about its sandbox.

    `use_model` lets it use the scripted model, and returns variables for it.
    """

    name: str
    settings: Settings
    options: dict[str, Any]
    use_model: Callable[[ScriptedModel], Mapping[str, str]]
    remark: str = ""


async def _with_codex(settings: Settings, home: CodexHome, env: Mapping[str, str]) -> _Prepared:
    from helmsman.agents.codex.agent import find_agent
    from helmsman.agents.codex.sandbox import check_sandbox

    # The session ends before a snapshot of the shell would finish.
    settings = replace(settings, codex_home=home.path, engine="app-server", shell_snapshots="off", files=())
    binary = await find_agent(settings, None)
    version = binary.version

    def use_model(model: ScriptedModel) -> Mapping[str, str]:
        home.use_model(model.base_url, (version.major, version.minor, version.patch))
        return {}

    options = {"sandbox": "workspace-write", "approval_policy": "on-request"}
    remark = ""
    # Without a working sandbox the demo still runs, and says so.
    if (await check_sandbox(binary, env)).works is False:
        options = {"sandbox": "danger-full-access", "approval_policy": "untrusted"}
        remark = (
            "Codex's sandbox does not work on this machine (`helmsman doctor` says why), so the harmless commands of this "
            "demo run without it, and Codex asks before each."
        )
    return _Prepared(f"Codex {version}", settings, options, use_model, remark)


async def _with_other(agent: str, settings: Settings, home: CodexHome, env: Mapping[str, str]) -> _Prepared:
    """Prepare another agent, which asks before every action because it has no sandbox."""
    from helmsman.service import HelmsmanService
    from helmsman.testing.agents import agent_environment

    own = [file for file in settings.files if file.trusted and "agents" in file.content]
    # Own agents are defined in the user's file; nothing else of it applies.
    files = tuple(replace(file, content={"agents": file.content["agents"]}) for file in own)
    settings = replace(settings, claude_home=home.home / ".claude", files=files)
    async with HelmsmanService(settings, env=env) as service:
        await service.engine(agent=agent)  # report a missing agent before the introduction
        found = service.agents[agent]
        installed = await found.installed(settings, env)
    version = f" {installed.version}" if installed and installed.version else ""
    # No sandbox, so each step is asked about.
    options = {"agent": agent, "sandbox": "workspace-write", "unenforced": True}
    remark = "No sandbox is put around it here, so it asks before each step."
    return _Prepared(
        f"{found.title}{version}",
        settings,
        options,
        lambda model: agent_environment(agent, model.address, home.home),
        remark,
    )


def _display(settings: Settings, *, auto: bool, as_json: bool) -> Display:
    from helmsman.cli.displays import approve, new_display
    from helmsman.terminal import has_terminal

    # Without a terminal nobody could answer, and the demo would wait.
    answer = approve if auto or not has_terminal() else None
    why = ", because of --auto" if auto else ": no terminal here"
    remark = "" if answer is None else f"answered by the demo itself{why}"
    return new_display(settings, as_json=as_json, answer=answer, remark=remark, lasting=False)


def _make_repository(folder: Path) -> Path:
    from helmsman.testing.repository import make_repository

    make_repository(folder)
    for name, content in _FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


# --- the script ------------------------------------------------------------------------------------------------------


def _write_script(
    model: ScriptedModel, repository: Path, home: Path, *, paced: bool, is_missing: bool = False
) -> list[Gate]:
    """Script the model. Return the gates that pace its words, in the order it reaches them.

    With `is_missing` there is no greet.sh, and the model writes one.
    """
    from helmsman.testing.script import add, patch, run, say, think, update

    gates: list[Gate] = []

    def speak(text: str) -> Sequence[Chunk]:
        return _words(text, gates) if paced else [text]

    fault = "The greeting is misspelled: `Helo` instead of `Hello`. I will fix that."
    change = patch(update("greet.sh", 'echo "Helo, ${1:-world}!"', 'echo "Hello, ${1:-world}!"'))
    cause = "because of a typo in greet.sh"
    greeting = repository / "greet.sh"
    if is_missing:
        fault, cause = "There is no greet.sh. I will write one.", "because greet.sh was missing"
        change = patch(add(str(greeting), _GREETING))
    model.on(
        _PROMPT,
        [
            think("Looking at the check first"),
            say(*speak("I will run the check to see what it expects."), phase="commentary"),
            run("sh check.sh"),
        ],
        [say(*speak(fault), phase="commentary"), change],
        run("sh check.sh"),
        run(_PUBLISH, escalate=_REASON),
        # The last message depends on the user's decisions, so it is made when it is asked for.
        lambda _: say(*speak(_final_message(cause, greeting, home / "published" / "greet.sh")), phase="final_answer"),
    )
    return gates


def _final_message(cause: str, greeting: Path, published: Path) -> str:
    """Return a summary derived from the files, because agents word denials differently."""
    is_fixed = greeting.exists() and greeting.read_text(encoding="utf-8") == _GREETING
    fix = "It is fixed: 3 of 3 checks pass." if is_fixed else "I did not fix it, as you decided."
    end = "The greeting is published." if published.exists() else "I did not publish it, as you decided."
    return f"The check failed {cause}. {fix} {end}"


def _words(text: str, gates: list[Gate]) -> list[Chunk]:
    """Split the text into words, each followed by a gate."""
    from helmsman.testing.script import Gate

    chunks: list[Chunk] = []
    for word in text.split(" "):
        gates.append(Gate())
        chunks += [f" {word}" if chunks else word, gates[-1]]
    return chunks


async def _open_one_by_one(gates: list[Gate]) -> None:
    import anyio

    passed = 0
    while True:
        if passed == len(gates):
            # The list grows when the model reaches the next message.
            await anyio.sleep(_WORD_SECONDS)
            continue
        await gates[passed].reached()
        await anyio.sleep(_WORD_SECONDS)
        gates[passed].release()
        passed += 1


# --- introduction and closing text -----------------------------------------------------------------------------------


def _introduce(console: Console, agent: _Prepared) -> None:
    console.print(
        f"A real {agent.name} works in a scratch directory, on a scripted model: no account, no cost.", style="bold"
    )
    if agent.remark:
        console.print(agent.remark, style="yellow")


def _conclude(console: Console, outcome: Outcome, agent: str) -> None:
    from rich.text import Text

    from helmsman.terminal.diffs import diff_lines
    from helmsman.terminal.layout import fold_all

    diff = outcome.session.state.diff if outcome.session is not None else None
    if diff:
        console.print(Text("\nWhat changed", "bold"))
        console.print(*fold_all(console, diff_lines(diff)), sep="\n")
    console.print(Text("\nTry next", "bold"))
    steps = {}
    activate = Path(sys.argv[0]).with_name("activate")
    if Path(sys.argv[0]).name == "helmsman" and shutil.which("helmsman") is None and activate.exists():
        # In a clone, helmsman is not on the PATH, but the printed commands call it by name.
        steps[f". {os.path.relpath(activate)}"] = "so that this shell finds helmsman"
    if agent == DEFAULT_AGENT:
        steps["helmsman doctor"] = "is your own Codex there, and logged in?"
        steps["helmsman agents login"] = "once, if it is not logged in"
        steps['helmsman run "Explain this project"'] = "the same with your own Codex, where you are"
    else:
        steps["helmsman agents"] = "which agents are here, and what each cannot do"
        steps[f'helmsman run --agent {agent} "Explain this project"'] = "the same with your own model, where you are"
    steps["helmsman list"] = "your sessions"
    width = max(map(len, steps))
    for step, what in steps.items():
        console.print(Text(f"  {step:<{width}}  {what}"))
