"""Tests of the review loop: changes are read, commented on, sent back to the agent, changed by it, and applied."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, run, say, update
from tests.browser.chromium import SECONDS, Page
from tests.browser.test_appearance import AXE, findings
from tests.browser.test_sessions import settled

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.long, pytest.mark.needs_git]

CODE = 'def total(a, b):\n    """Add."""\n    return a - b\n'


async def test_a_change_is_commented_on_sent_back_changed_and_applied(
    page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    long = "".join(f"entry {number}\n" for number in range(500))
    first = patch(add("src/calc.py", CODE), add("docs/long.txt", long), update("README.md", "# Demo", "# Calculator"))
    fixed = patch(update("src/calc.py", "    return a - b", "    return a + b"))
    (git_repo / "README.md").write_text("# Demo\n", encoding="utf-8")
    (git_repo / "NOTES.md").write_text("mine\n", encoding="utf-8")
    await commit(git_repo)
    model.on("write total", first, say("Written."))
    model.on("I have reviewed", fixed, say("Now it adds."))
    session = await settled(await helm.start("write total", cwd=git_repo, full_auto=True, worktree=True))

    # Files as a tree, code in colours, changed words marked, a large file folded; unified, or side by side.
    await page.click(".row")
    await page.click("[role=tab]:nth-child(2)")
    await page.until_text(".file-tree", "calc.py")
    await page.until_text(".lines .add .kw", "def")
    assert await page.text(".review-file[data-path='README.md'] .remove .word") == "Demo"
    assert await page.get("document.querySelector(\"[data-path='docs/long.txt'] .lines\").hidden")
    await page.click("[data-split='1']")
    await page.until("document.querySelector(\"[data-path='README.md'] .two\")?.innerText.includes('# Calculator')")
    if AXE.exists():
        assert await findings(page) == []

    # A comment on a line survives a reload, and goes back with file, line and code.
    await page.click("[data-path='src/calc.py'] [data-line='3'] .no")
    await page.write("This must add, not subtract.")
    await page.click(".comment.asked [type=submit]")
    await page.until_text(".tray", "1 comment")
    assert (await page.get("location.hash")).endswith(f"{session.id}/changes")
    await page.call("Page.reload")
    await page.until_text(".comment.kept", "This must add")
    await page.click("[data-split='0']")
    await page.until_text(".comment.kept", "This must add")
    if AXE.exists():
        assert await findings(page) == []
    await page.click("[data-send]")
    await page.until_text(".lines .add", "+    return a + b")
    await page.until_text(".state", "Done")
    said = session.state.prompt or ""
    assert "`src/calc.py`, line 3:" in said
    assert "```diff\n+    return a - b\n```" in said
    assert "This must add, not subtract." in said
    assert await page.count("[data-send]") == 0

    # A comment that was sent stays until it is marked as addressed and deleted.
    await page.click(".tray summary")
    await page.until_text(".tray li", "sent")
    await page.click(".tray li button[aria-label^='Mark as addressed']")
    await page.until_text(".tray summary", "1 addressed")
    await page.click(".tray details > .link")
    await page.until("!document.querySelector('.tray').checkVisibility()")

    # What stands in the way of applying is named, with what to do about it: a conflict, and somebody's own changes.
    (git_repo / "README.md").write_text("# Another\n", encoding="utf-8")
    await commit(git_repo)
    await page.click("[data-apply]")
    await page.until_text(".obstacle.bad", "README.md: ")
    await page.until_text(".obstacle.bad pre", "# Another")
    await page.click("[data-fit]")
    assert "no longer fit" in await page.get("document.querySelector('.composer textarea').value")
    (git_repo / "README.md").write_text("# Demo\n", encoding="utf-8")
    await commit(git_repo)
    (git_repo / "NOTES.md").write_text("mine, changed\n", encoding="utf-8")
    await page.click("[data-apply]")
    await page.until_text(".obstacle.bad", "NOTES.md")
    await page.click("[data-beside]")
    await page.until_text(".obstacle.good", "Applied to")
    assert (git_repo / "src" / "calc.py").read_text(encoding="utf-8") == CODE.replace("-", "+")
    assert (git_repo / "NOTES.md").read_text(encoding="utf-8") == "mine, changed\n"

    # A link leads to a line of a file; another to a turn.
    await page.get(f"location.hash = '#/s/{session.id}/changes/docs%2Flong.txt/450'")
    await page.until_text(".found", "+entry 449")
    await page.get(f"location.hash = '#/s/{session.id}/turn/2'")
    await page.until_text(".user_message", "I have reviewed")
    assert await page.get("document.querySelector('[role=tab]').ariaSelected") == "true"

    # What was shown is what is applied, and who writes about a line keeps it. What would be lost is shown first.
    await page.get(f"location.hash = '#/s/{session.id}/changes'")
    assert session.worktree is not None
    await page.click("[data-path='src/calc.py'] [data-line='3'] .no")
    (session.worktree.path / "unseen.txt").write_text("new\n", encoding="utf-8")
    await page.click("[data-apply]")
    await page.until_text(".obstacle.bad", "unseen.txt (new)")
    await page.click("[data-reread]")
    await page.until_text(".file-tree", "unseen.txt")
    await page.click("[data-discard]")
    await page.until_text("dialog .about", "added unseen.txt")
    await page.click("dialog [data-yes]")
    await page.until("!document.querySelector('[data-discard]').checkVisibility()")
    assert session.worktree is None


async def test_files_are_viewed_one_by_one_and_applied_or_discarded_in_parts(
    snapshots: None, page: Page, helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    poem = "".join(f"line {number}\n" for number in range(1, 61))
    for name in ("one.txt", "two.txt", "three.txt"):
        (git_repo / name).write_text(poem, encoding="utf-8")
    await commit(git_repo)
    edits = [
        update("one.txt", "line 3\n", "third\n"),
        update("two.txt", "line 7\n", "  line 7\n"),
        update("three.txt", "line 9\n", "ninth\n"),
    ]
    later = run("sed -i 's/^line 50$/fiftieth/' one.txt")
    model.on("edit", later, patch(*edits), say("Edited."))
    model.on("again", patch(update("three.txt", "line 30\n", "thirtieth\n")), say("Again."))
    session = await settled(await helm.start("edit", cwd=git_repo, full_auto=True, worktree=True))
    assert session.worktree is not None

    # Keys lead from file to file and hunk to hunk; viewed files fold and are counted, also after a reload.
    await page.goto(await page.get(f"location.origin + '/#/s/{session.id}/changes'"))
    await page.until_text(".viewed-count", "0 of 3 viewed")
    await page.press("f")
    focused = "document.activeElement.closest('.review-file')?.dataset.path"
    await page.until(f"{focused}")
    await page.press("v")
    await page.until_text(".viewed-count", "1 of 3 viewed")
    await page.call("Page.reload")
    await page.until_text(".viewed-count", "1 of 3 viewed")
    assert await page.count(".lines[hidden]") == 1
    if AXE.exists():
        assert await findings(page) == []

    # White space can be left out, and then nothing can be applied.
    await page.click("[data-spaces]")
    await page.until("document.querySelectorAll('.review-file').length === 2")
    assert not await page.get("document.querySelector('[data-apply]').checkVisibility()")
    await page.click("[data-spaces]")
    await page.until("document.querySelectorAll('.review-file').length === 3")

    # More of a file can be shown around a change.
    await page.get("document.querySelector(\"[data-path='three.txt'] .fold[aria-expanded=false]\")?.click()")
    assert "line 20" not in await page.text("[data-path='three.txt'] .lines")
    await page.click("[data-path='three.txt'] .line.hunk[data-hunk=''] .expand")
    await page.until_text("[data-path='three.txt'] .lines", "line 20")

    # One hunk is applied, another is discarded; the rest stays in the worktree.
    await page.get("document.querySelector(\"[data-path='one.txt'] .fold[aria-expanded=false]\")?.click()")
    await page.click("[data-path='one.txt'] .hunk[data-hunk='1'] [data-apply-part]")
    await page.until_text(".obstacle.good", "hunk 2 of one.txt")
    changed = (git_repo / "one.txt").read_text(encoding="utf-8")
    assert "fiftieth" in changed
    assert "third" not in changed
    await page.click("[data-path='one.txt'] .hunk[data-hunk='0'] [data-apply-part]")
    await page.until_text(".obstacle.good", "hunk 1 of one.txt")
    assert "third" in (git_repo / "one.txt").read_text(encoding="utf-8")
    assert (git_repo / "two.txt").read_text(encoding="utf-8") == poem
    await page.click("[data-path='two.txt'] .file-head [data-discard-part]")
    await page.click("dialog [data-yes]")
    await page.until("document.querySelectorAll('.review-file').length === 2")
    assert (session.worktree.path / "two.txt").read_text(encoding="utf-8") == poem

    # After everything was viewed, only what changes later is new.
    for _ in range(2):
        await page.get("document.querySelector('.viewed input:not(:checked)')?.click()")
    await page.until_text(".viewed-count", "2 of 2 viewed")
    await settled(await helm.say(session.id, "again"))
    await page.until_text(".viewed-count", "1 of 2 viewed")
    await page.until_text(".pill", "changed since")
    await page.click("[data-since]")
    await page.until("document.querySelectorAll('.review-file').length === 1")
    await page.until_text("[data-path='three.txt'] .lines", "thirtieth")
    assert "ninth" not in await page.text("[data-path='three.txt'] .lines .add")


async def commit(repository: Path) -> None:
    named = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    for arguments in (["add", "."], [*named, "commit", "-q", "-m", "files"]):
        with anyio.fail_after(SECONDS):
            await anyio.run_process(["git", *arguments], cwd=repository)


async def test_output_follows_its_tail_until_the_user_scrolls_up(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    counts = "for n in $(seq 5000); do echo line $n; [ -e enough ] && break; sleep 0.02; done"
    model.on("count", run(counts, yield_ms=30_000), say("Counted."))
    session = await helm.start("count", cwd=folder, full_auto=True)
    await page.get(f"location.hash = '#/s/{session.id}'")
    output = "document.querySelector('.command_execution .output')"
    lines = f"({output}?.innerText.split('\\n').length ?? 0)"
    left = f"({output}.scrollHeight - {output}.scrollTop - {output}.clientHeight)"
    await page.until(f"{lines} > 40 && {output}.scrollTop > 50 && {left} < 8")
    shown = await page.get(f"({output}.scrollTop = 20, {lines})")
    await page.until(f"{lines} > {shown} + 10")
    assert await page.get(f"{output}.scrollTop") == 20
    await page.until_text(".elapsed", "running for")
    (folder / "enough").touch()
    await settled(session)


HOSTILE = """## Findings <b>bold</b> <script>window.hacked = 1</script>

| file | lines |
| --- | ---: |
| <img src=x onerror='window.hacked = 2'> | 12 |

1. [a page](https://example.org/x?a=1&b=2) and [a trap](javascript:window.hacked=3) and [a place](#/engines)
2. ![remote](https://example.org/pixel.png) ![inline](data:image/png;base64,AAAA)

```python
def f(): return "</code></pre><script>window.hacked = 4</script>"
```

See https://example.org/bare_one_(two), and `https://example.org/code`.

[hidden]: javascript:window.hacked=5 "never seen"
"""


async def test_markdown_is_shown_in_full_and_nothing_in_it_can_act(
    page: Page, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("report", say(HOSTILE))
    session = await settled(await helm.start("report", cwd=folder))
    await page.get(f"location.hash = '#/s/{session.id}'")
    await page.until_text(".agent_message h4", "Findings <b>bold</b> <script>")
    assert await page.text(".agent_message td.right") == "12"
    assert await page.text(".agent_message pre .kw") == "def"
    links = await page.get(
        "[...document.querySelectorAll('.agent_message a')].map((one) => [one.href, one.rel, one.target])"
    )
    outside = ["noopener noreferrer", "_blank"]
    assert links == [
        ["https://example.org/x?a=1&b=2", *outside],
        ["https://example.org/pixel.png", *outside],
        ["https://example.org/bare_one_(two)", *outside],
    ]
    shown = await page.text(".agent_message")
    for words in ("(#/engines)", "javascript:window.hacked=3", "never seen", "<img src=x onerror="):
        assert words in shown
    assert await page.count("main img, main script, main b, main style, main iframe") == 0
    assert await page.get("window.hacked === undefined")
    if AXE.exists():
        chosen = "heading-order"  # the model chooses the levels
        assert [one for one in await findings(page) if chosen not in one] == []

    # A file's name is only ever a path to an editor, and an address that makes no sense leads to the overview.
    names = ["a b/c&line=9#?.py", "../out", "//host/share", "/etc/hosts"]
    opened = f"""import('/editor.js').then(({{ chooseEditor, editorLink }}) => {{
        chooseEditor('idea');
        return {json.dumps(names)}.map((name) => editorLink('/src', name, 3));
    }})"""
    assert await page.get(opened) == [
        "idea://open?file=/src/a%20b/c%26line%3D9%23%3F.py&line=3",
        None,
        None,
        "idea://open?file=/etc/hosts&line=3",
    ]
    for place in ("#/%E0%A4%A", "#/constructor"):
        await page.get(f"location.hash = '{place}'")
        await page.until("document.body.dataset.view === 'home'")
        await page.get(f"location.hash = '#/s/{session.id}'")
        await page.until_text(".agent_message h4", "Findings")

    # What is shown can be taken along: code, the answer, the session's id.
    await page.call("Browser.grantPermissions", permissions=["clipboardReadWrite"], browserContextId=page.context)
    for button, copied in (
        ("pre + .copy", 'def f(): return "'),
        (".who .copy", "## Findings"),
        (".facts .copy", session.id),
    ):
        await page.get(f"document.querySelector({json.dumps(button)}).click()")
        await page.until(f"navigator.clipboard.readText().then((text) => text.startsWith({json.dumps(copied)}))")
