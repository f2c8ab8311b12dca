"""No yes leads outside the allowed roots, whoever gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helmsman import Helmsman
from helmsman.agents.codex.access import NO_ROOTS, Confinement, Policy
from helmsman.agents.codex.agent import agent_in_use
from helmsman.agents.codex.features import Feature, Version
from helmsman.approvals.policy import beyond_roots
from helmsman.base.structs import replace
from helmsman.errors import AnswerInvalid, InvalidInput
from helmsman.model.answered_by import PERSON_IN_DASHBOARD, AnsweredBy
from helmsman.model.questions import Question
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, patch, request_permissions, run, say
from tests.security.roots import SECONDS, finished

# --- a yes that would lead outside -----------------------------------------------------------------------------------


async def say_yes(_session: Session, _question: Question) -> str:
    return "approve"


def decisions(settings: Settings) -> list[tuple[str, str]]:
    lines = (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    return [(entry["decision"], entry["by"]) for entry in map(json.loads, lines)]


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_patch_outside_cannot_be_approved(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path
) -> None:
    (git_repo / "link").symlink_to(outside)
    targets = [str(outside / "a.txt"), "link/b.txt", "../outside/c.txt"]
    for number, target in enumerate(targets):
        model.on(f"patch {number}", patch(add(target, "x\n")), say("tried"))
    model.on("patch inside", patch(add("in.txt", "x\n")), say("done"))
    async with Helmsman(narrow, env=codex_home.env, on_question=say_yes) as helm:
        for number, _ in enumerate(targets):
            await finished(await helm.start(f"patch {number}", cwd=git_repo, approval_policy="on-request"))
        await finished(await helm.start("patch inside", cwd=git_repo, approval_policy="on-request"))
    assert list(outside.iterdir()) == []
    assert (git_repo / "in.txt").exists()
    assert decisions(narrow) == [*[("deny", "rule: allowed roots")] * 3, ("approve", "handler")]
    told = [text for request in model.requests for text in request.user_texts if "outside the allowed roots" in text]
    assert told or not Feature.STEER.is_in(await version_of(narrow, codex_home))


async def version_of(settings: Settings, codex_home: CodexHome) -> Version:
    async with Helmsman(settings, env=codex_home.env) as helm:
        return (await agent_in_use(helm.settings, helm.environment)).version


@pytest.mark.anyio
async def test_permissions_outside_cannot_be_approved(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path
) -> None:
    codex_home.configure(features={"request_permissions_tool": True})
    for name, place in {"outside": outside, "inside": git_repo / "sub"}.items():
        touch = run(f"touch {place}/made.txt")
        model.on(f"ask {name}", request_permissions("please", write=[str(place)]), touch, say("tried"))
    (git_repo / "sub").mkdir()
    async with Helmsman(narrow, env=codex_home.env, on_question=say_yes) as helm:
        for name in ("outside", "inside"):
            options: dict[str, Any] = {"sandbox": "read-only", "approval_policy": "on-request"}
            await finished(await helm.start(f"ask {name}", cwd=git_repo, **options))
    assert list(outside.iterdir()) == []
    assert (git_repo / "sub" / "made.txt").exists()
    assert decisions(narrow) == [("deny", "rule: allowed roots"), ("approve", "handler")]


@pytest.mark.anyio
async def test_a_command_that_leaves_the_sandbox_is_for_a_person_and_not_for_an_agent(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, outside: Path
) -> None:
    model.on("leave", run(f"touch {outside}/made.txt", escalate="please"), say("done"))
    async with Helmsman(narrow, env=codex_home.env) as helm:
        session = await helm.start("leave", cwd=git_repo, approval_policy="on-request", sandbox="workspace-write")
        assert await session.wait(timeout=SECONDS)
        (question,) = session.questions
        with pytest.raises(AnswerInvalid, match="only a person"):
            await helm.respond(session.id, question.id, ["approve"], by=AnsweredBy("agent", "some client"))
        assert not (outside / "made.txt").exists()
        await helm.respond(session.id, question.id, ["approve"], by=PERSON_IN_DASHBOARD)
        await finished(session)
    assert (outside / "made.txt").exists()


WRITES = [
    {"fileSystem": {"write": ["{outside}"]}},
    {"fileSystem": {"write": ["{inside}", "/"]}},
    {"fileSystem": {"write": ["{inside}/../../outside"]}},
    {"fileSystem": {"entries": [{"path": {"type": "path", "path": "{outside}"}, "access": "write"}]}},
    {"fileSystem": {"entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"}]}},
    {"fileSystem": {"entries": [{"path": {"type": "glob_pattern", "pattern": "/**"}, "access": "write"}]}},
    {"fileSystem": {"entries": [{"access": "something new"}]}},
    {"fileSystem": {"entries": "all"}},
    {"fileSystem": {"something new": True}},
    {"fileSystem": True},
    {"something new": {"write": True}},
    "all",
]


NO_WRITES = [
    {},
    {"network": {"enabled": True}},
    {"fileSystem": None, "network": None},
    {"fileSystem": {"read": ["/"], "write": None}},
    {"fileSystem": {"write": ["{inside}"]}},
    {"fileSystem": {"entries": [{"path": {"type": "path", "path": "{inside}"}, "access": "write"}]}},
    {"fileSystem": {"entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]}},
]


@pytest.mark.parametrize("kind", ["permission_approval", "command_approval"])
def test_permissions_that_write_outside_or_cannot_be_read_are_beyond_the_roots(kind: Any, tmp_path: Path) -> None:
    roots = [(tmp_path / "inside").resolve()]

    def beyond(permissions: Any) -> bool:
        text = (
            json.dumps(permissions).replace("{inside}", str(roots[0])).replace("{outside}", str(tmp_path / "outside"))
        )
        key = "permissions" if kind == "permission_approval" else "additionalPermissions"
        asked = Question(
            asker="Codex", id="q", type=kind, session_id="s", turn_id=None, prompts=(), details={key: json.loads(text)}
        )
        assert beyond_roots(asked, (), str(tmp_path)) is None  # nobody set any roots
        return beyond_roots(asked, roots, str(tmp_path)) is not None

    assert [one for one in WRITES if not beyond(one)] == []
    assert [one for one in NO_WRITES if beyond(one)] == []


def test_a_patch_that_names_no_file_or_asks_for_a_root_outside_is_beyond_the_roots(tmp_path: Path) -> None:
    def beyond(**details: Any) -> bool:
        asked = Question(
            asker="Codex", id="q", type="patch_approval", session_id="s", turn_id=None, prompts=(), details=details
        )
        return beyond_roots(asked, [tmp_path.resolve()], str(tmp_path)) is not None

    assert beyond()
    assert beyond(paths=[str(tmp_path / "a")], grantRoot="/")
    assert beyond(files={"/a": {}})
    assert beyond(files={str(tmp_path / "a"): {"update": {"unified_diff": "", "move_path": "/a"}}})
    assert not beyond(paths=["a", str(tmp_path / "b")])
    assert not beyond(files={str(tmp_path / "a"): {}}, grantRoot=str(tmp_path))


# --- the comparison itself -------------------------------------------------------------------------------------------


def test_unknown_permissions_count_as_outside(tmp_path: Path) -> None:
    held = Confinement((tmp_path.resolve(),))
    inside: dict[str, Any] = {"type": "workspaceWrite", "excludeSlashTmp": True, "excludeTmpdirEnvVar": True}
    known = Policy(directory=str(tmp_path), sandbox={**inside, "writableRoots": [str(tmp_path / "a")]})
    held.refuse(known)
    held.refuse(Policy(directory=str(tmp_path), sandbox={"type": "readOnly"}, workspace_roots=("/",)))
    for unknown in (
        replace(known, directory=None),
        replace(known, directory="/"),
        replace(known, sandbox=None),
        replace(known, sandbox="workspace-write"),
        replace(known, sandbox={"type": "externalSandbox"}),
        replace(known, sandbox={"type": "somethingNew"}),
        replace(known, sandbox=inside),
        replace(known, sandbox={**inside, "writableRoots": ["relative"]}),
        replace(known, sandbox={**inside, "writableRoots": [], "excludeSlashTmp": False}),
        replace(known, sandbox={"type": "workspaceWrite", "writableRoots": []}),
        replace(known, workspace_roots=("/",)),
        replace(known, profile="mine"),
        replace(known, reviewer="auto_review"),
    ):
        with pytest.raises(InvalidInput, match="the allowed roots"):
            held.refuse(unknown)
        NO_ROOTS.refuse(unknown)  # nobody set any roots


@pytest.mark.parametrize(
    ("text", "allows"),
    [
        ("", False),
        ("# prefix_rule(pattern=['touch'])\n", False),
        ('prefix_rule(pattern=["rm"], decision="forbidden")\nprefix_rule(pattern=["git"], decision="prompt")\n', False),
        ('prefix_rule(pattern=["rm"])\n', True),
        ('prefix_rule(pattern=["rm"], decision="allow")\n', True),
        ('d = "allow"\nprefix_rule(pattern=["rm"], decision=d)\n', True),
        ('[prefix_rule(pattern=[x]) for x in ["rm"]]\n', True),
        ('something_new(pattern=["rm"], decision="prompt")\n', True),
        ("prefix_rule(\n", True),
        ("\0", True),
    ],
)
def test_codexs_own_rules_may_only_narrow(tmp_path: Path, text: str, allows: bool) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "default.rules").write_text(text, encoding="utf-8")
    held = Confinement((tmp_path,))
    if allows:
        with pytest.raises(InvalidInput, match="the allowed roots"):
            held.refuse_rules([tmp_path / "none", tmp_path])
    else:
        held.refuse_rules([tmp_path / "none", tmp_path])
    NO_ROOTS.refuse_rules([tmp_path])
