"""Commands as a real Codex shows them in its approval requests are read as the words the model wrote."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman import Helmsman
from helmsman.approvals.shell_words import SimpleCommand, innermost_script, parse_command
from helmsman.settings import load_settings
from helmsman.testing import CodexHome, ScriptedModel, run

pytestmark = pytest.mark.anyio

# None of these is a command that some Codex runs without asking.
SCRIPTS: dict[str, tuple[SimpleCommand, ...] | None] = {
    "git fetch && touch x": (SimpleCommand(("git", "fetch")), SimpleCommand(("touch", "x"))),
    "touch it\\'s 'a b' \"c d\"": (SimpleCommand(("touch", "it's", "a b", "c d")),),
    "touch '%s\\n' '$x' '!' '`y`'": (SimpleCommand(("touch", "%s\\n", "$x", "!", "`y`")),),
    "touch one\ntouch two": (SimpleCommand(("touch", "one")), SimpleCommand(("touch", "two"))),
    "A=1 touch x > y": (SimpleCommand(("touch", "x"), env=("A",), writes=True),),
    "git push HEAD~1 'ü^~é'": (SimpleCommand(("git", "push", "HEAD~1", "ü^~é")),),
    'touch "it\'s \\"so\\"" \\\\': (SimpleCommand(("touch", 'it\'s "so"', "\\")),),
    "cd sub && touch z": (SimpleCommand(("cd", "sub")), SimpleCommand(("touch", "z"))),
    "touch $(id)": None,
    "cat > x <<'EOF'\nhi\nEOF": None,
    "touch it's": None,
}


async def test_the_shown_command_is_the_one_the_model_wrote(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path, git_repo: Path
) -> None:
    settings = load_settings({"codex_path": str(codex_binary), "max_sessions": 50}, codex_home.env, tmp_path)
    for number, script in enumerate(SCRIPTS):
        model.on(f"go {number}.", run(script, escalate="please"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        for number, (script, expected) in enumerate(SCRIPTS.items()):
            with anyio.fail_after(30):
                session = await helm.start(
                    f"go {number}.", cwd=git_repo, sandbox="workspace-write", approval_policy="on-request"
                )
                await session.wait()
                (question,) = session.questions
                await session.respond(question.id, "abort")
                await session.wait(until="end")
            shown = question.details["command"]
            assert innermost_script(shown) == script
            assert parse_command(shown) == expected
