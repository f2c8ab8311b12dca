"""The card of a question in a host of MCP Apps: the official bridge, in a real browser, on a real question of Codex."""

from __future__ import annotations

import json
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.extension import ClientExtension

from helmsman.mcp.server import build_server
from helmsman.testing import run, say
from tests.clients.node import CACHE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from helmsman.service import HelmsmanService
    from helmsman.testing import ScriptedModel
    from tests.browser.chromium import Chromium, Page

ESBUILD = CACHE / "node_modules" / "esbuild" / "bin" / "esbuild"
SECONDS = 60
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(
        not ESBUILD.exists(), reason="ext-apps is not there: run scripts/fetch_clients.py, which needs npm."
    ),
]


class Apps(ClientExtension):
    identifier = "io.modelcontextprotocol/ui"

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": ["text/html;profile=mcp-app"]}


HOST = """
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";
window.called = [];
window.host = async (html, result) => {
  const frame = document.querySelector("iframe");
  const bridge = new AppBridge(null, { name: "test-host", version: "1" }, { serverTools: {} }, { hostContext: {} });
  bridge.oncalltool = (params) => new Promise((resolve) => window.called.push({ params, resolve }));
  bridge.oninitialized = async () => {
    await bridge.sendToolInput({ arguments: {} });
    await bridge.sendToolResult(result);
  };
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = html;
};
"""
PAGE = (
    '<!doctype html><iframe sandbox="allow-scripts" width="700" height="500"></iframe><script src="host.js"></script>'
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """The address of a page that hosts views."""
    (tmp_path / "source.js").write_text(HOST)
    (tmp_path / "index.html").write_text(PAGE)
    bundle = [
        str(ESBUILD),
        str(tmp_path / "source.js"),
        "--bundle",
        "--format=iife",
        f"--outfile={tmp_path / 'host.js'}",
    ]
    subprocess.run(bundle, check=True, capture_output=True, env={"NODE_PATH": str(CACHE / "node_modules")})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


async def view_of(page: Page) -> Callable[[str], Awaitable[Any]]:
    """Return a function that waits until an expression in the view is truthy."""
    tree = (await page.call("Page.getFrameTree"))["frameTree"]
    frame = tree["childFrames"][0]["frame"]["id"]

    async def until(script: str) -> Any:
        with anyio.fail_after(SECONDS):
            while True:
                world = await page.call("Page.createIsolatedWorld", frameId=frame)
                context = world["executionContextId"]
                done = await page.call("Runtime.evaluate", expression=script, contextId=context, returnByValue=True)
                if value := done["result"].get("value"):
                    return value
                await anyio.sleep(0.05)

    return until


async def test_a_host_shows_the_question_and_its_button_calls_the_tool(
    chromium: Chromium, host: str, helm: HelmsmanService, model: ScriptedModel, folder: Path
) -> None:
    model.on("touch", run("touch made.txt", escalate="it is needed"), say("done"))
    async with Client(build_server(helm), extensions=[Apps()]) as client, chromium.page() as page:
        tools = {one.name: one.meta for one in (await client.list_tools()).tools}
        uri = (tools["codex_wait"] or {})["ui"]["resourceUri"]
        assert tools["codex_list"] is None
        assert (tools["codex_diff"] or {})["ui"]["resourceUri"] == uri
        (card,) = (await client.read_resource(uri)).contents
        assert isinstance(card, types.TextResourceContents)
        assert card.mime_type == "text/html;profile=mcp-app"
        asks = {"workingDirectory": str(folder), "sandbox": "workspace-write", "approvalPolicy": "on-request"}
        started = await client.call_tool("codex_start", {"prompt": "touch it", **asks})
        session_id = (started.structured_content or {})["sessionId"]
        shown = await client.call_tool("codex_wait", {"sessionId": session_id})
        while "pendingQuestion" not in (shown.structured_content or {}):
            shown = await client.call_tool("codex_wait", {"sessionId": session_id})
        await page.goto(host)
        result = shown.model_dump(mode="json", by_alias=True, exclude_none=True)
        await page.get(f"host({json.dumps(card.text)}, {json.dumps(result)}).then(() => true)")
        view = await view_of(page)
        assert "touch made.txt" in await view("document.querySelector('pre')?.innerText")
        await view("document.querySelector('button:not(:disabled)') !== null")
        await view("[...document.querySelectorAll('button')].find((one) => one.innerText === 'deny').click() ?? true")
        asked = await page.until("called[0]?.params")
        assert asked["name"] == "codex_respond"
        answered = await client.call_tool(asked["name"], asked["arguments"])
        assert not answered.is_error
        told = answered.model_dump(mode="json", by_alias=True, exclude_none=True)
        await page.get(f"called[0].resolve({json.dumps(told)})")
        await view("document.body.innerText.includes('Answered: deny')")
        with anyio.fail_after(SECONDS):
            await (await helm.session(session_id)).wait()
    assert not (folder / "made.txt").exists()


async def test_a_client_without_apps_is_reported_none(helm: HelmsmanService) -> None:
    async with Client(build_server(helm)) as client:
        assert all(one.meta is None for one in (await client.list_tools()).tools)
