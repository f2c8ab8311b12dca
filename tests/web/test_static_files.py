"""The page's files: right types, caching, headers that keep everything else out, and nothing else served."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from helmsman.web import static_files

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of our own in place of the real one."""
    folder = tmp_path / "static"
    (folder / "parts").mkdir(parents=True)
    for name in ("index.html", "app.js", "app.css", "icon.svg", "manifest.webmanifest", "parts/list.js", "notes.py"):
        (folder / name).write_text(f"this is {name}", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / ".hidden.txt").write_text("secret", encoding="utf-8")
    monkeypatch.setattr(static_files, "_ROOT", folder)
    return folder


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("path", "name", "media_type"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/index.html", "index.html", "text/html; charset=utf-8"),
        ("/app.js", "app.js", "text/javascript; charset=utf-8"),
        ("/parts/list.js", "parts/list.js", "text/javascript; charset=utf-8"),
        ("/app.css", "app.css", "text/css; charset=utf-8"),
        ("/icon.svg", "icon.svg", "image/svg+xml"),
        ("/manifest.webmanifest", "manifest.webmanifest", "application/manifest+json"),
    ],
)
async def test_files_come_with_their_types_and_a_strict_policy(
    anybody: httpx2.AsyncClient, path: str, name: str, media_type: str
) -> None:
    answer = await anybody.get(path)
    assert (answer.status_code, answer.text) == (200, f"this is {name}")
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_files_in_the_browser_cache_are_not_sent_again(anybody: httpx2.AsyncClient, root: Path) -> None:
    first = await anybody.get("/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'W/{tag}, "other"'):
        again = await anybody.get("/app.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    (root / "app.js").write_text("new", encoding="utf-8")
    changed = await anybody.get("/app.js", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.text) == (200, "new")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    "path",
    [
        "/none.js",
        "/notes.py",
        "/.hidden.txt",
        "/parts",
        "/parts/",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/parts/..%2f..%2fsecret.txt",
        "//etc/passwd.txt",
        "/app.js%00.txt",
        "/APP.JS",
    ],
)
async def test_nothing_else_is_served(anybody: httpx2.AsyncClient, token: str, path: str) -> None:
    """Nor is a stranger told what there is."""
    assert (await anybody.get(path)).json()["code"] in ("wrong_token", "bad_path")
    answer = await anybody.get(path, headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["code"]) in ((404, "not_found"), (400, "bad_path"))


async def test_every_file_of_the_real_page_can_be_had_and_keeps_to_the_policy(anybody: httpx2.AsyncClient) -> None:
    files = [file for file in static_files._ROOT.rglob("*") if file.is_file()]
    assert static_files._ROOT / "index.html" in files
    for file in files:
        answer = await anybody.get("/" + file.relative_to(static_files._ROOT).as_posix())
        assert answer.status_code == 200, file
        if file.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son[a-z]+=|\sstyle=", answer.text), file
        if file.suffix in (".html", ".css", ".js"):
            assert not re.search(r"""(src|href|import|url\()\s*[=(]?\s*["']?https?:""", answer.text), file


def test_the_page_works_below_a_path_of_a_proxy() -> None:
    """Its files, its scripts and its requests are named relative to the page."""
    static = static_files._ROOT
    named = re.compile(r"""["'`(=]/[a-z][\w./-]*""")
    imported = re.compile(r"""(?:from|import)\s*\(?"([^"]+\.js)\"""")
    for file in static.rglob("*"):
        if file.suffix in (".js", ".html", ".css", ".webmanifest"):
            text = re.sub(r"^\s*//.*", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert named.findall(text) == [], file
            missing = [one for one in imported.findall(text) if not (file.parent / one).resolve().is_file()]
            assert missing == [], file
