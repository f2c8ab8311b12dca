"""Each way by itself: what arrives, and what is said where nothing does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from helmsman.notices.channels import Command, Desktop, MaybeSent, NeverSent, NotSent, Webhook
from helmsman.notices.config import Recipient
from helmsman.notices.notifications import Notification
from helmsman.notices.store import Delivery
from tests.notices.conftest import webhook
from tests.notices.receivers import Receiver

pytestmark = pytest.mark.anyio


def delivery(title: str = "Codex is done") -> Delivery:
    now = datetime.now(UTC)
    notification = Notification(
        kind="done", about="x", title=title, text="--all <b>of</b> it & more", directory="/src/site"
    )
    return Delivery(
        id="N-1",
        notification=notification,
        recipient="x",
        status="sending",
        attempts=1,
        is_doubtful=False,
        created_at=now,
        next_at=now,
        changed_at=now,
    )


async def test_a_webhook_is_signed_over_id_time_and_body(receiver: Receiver) -> None:
    key = b"0123456789abcdef"
    secret = f"whsec_{base64.b64encode(key).decode()}"
    await Webhook(webhook(receiver, secret=secret, is_full=True)).send(delivery())
    (got,) = receiver.received
    at = got.headers["webhook-timestamp"]
    assert abs(int(at) - time.time()) < 60
    signed = hmac.new(key, f"N-1.{at}.".encode() + got.body, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert (got.headers["webhook-id"], got.json["id"], got.json["mayBeRepeated"]) == ("N-1", "N-1", False)
    assert got.json["text"] == "--all <b>of</b> it & more"
    await Webhook(webhook(receiver)).send(delivery())
    assert "webhook-signature" not in receiver.received[1].headers


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (302, NeverSent),
        (400, NeverSent),
        (404, NeverSent),
        (429, NotSent),
        (500, MaybeSent),
        (502, MaybeSent),
        (503, NotSent),
    ],
)
async def test_a_servers_reply_decides_delivery_and_redirects_are_not_followed(
    receiver: Receiver, status: int, raised: type[Exception]
) -> None:
    receiver.answers = [status]
    with pytest.raises(raised, match=f"HTTP {status}"):
        await Webhook(webhook(receiver)).send(delivery())
    assert [one.path for one in receiver.received] == ["/hook"]


async def test_a_server_that_is_not_there_or_does_not_answer(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotSent, match="cannot be reached"):
        await Webhook(webhook(receiver, url="http://127.0.0.1:9/?key=hidden")).send(delivery())
    monkeypatch.setattr("helmsman.notices.channels.HTTP_SECONDS", 0.2)
    receiver.before_answer = lambda _: time.sleep(0.5)
    with pytest.raises(MaybeSent, match="did not answer"):
        await Webhook(webhook(receiver)).send(delivery())


def by_command(*words: str, **more: float) -> Recipient:
    return Recipient(name="mine", way="command", command=words, is_full=True, **more)  # type: ignore[arg-type]


async def test_a_command_gets_json_on_stdin_and_the_environment_of_the_hub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kept = tmp_path / "kept"
    words = (
        "/bin/sh",
        "-c",
        f'cat > "{kept}"; pwd >> "{kept}"; echo token=abcdefabcdefabcdef1234 heard',
        "--",
        "$(touch x)",
    )
    await Command(by_command(*words)).send(delivery())
    told, where = kept.read_text("utf-8").splitlines()
    assert json.loads(told)["title"] == "site: Codex is done"
    assert where == "/"
    assert "heard" in caplog.text
    assert "abcdefabcdefabcdef1234" not in caplog.text


async def test_a_command_that_fails_cannot_be_started_or_does_not_end_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NeverSent, match="exit code 3: no luck"):
        await Command(by_command("/bin/sh", "-c", "echo no luck >&2; exit 3")).send(delivery())
    with pytest.raises(NeverSent, match="cannot be started"):
        await Command(by_command(str(tmp_path / "nowhere"))).send(delivery())
    pid = tmp_path / "pid"
    stays = f'sleep 60 & echo $! > "{pid}"; wait'
    with pytest.raises(MaybeSent, match="did not end within"):
        await Command(by_command("/bin/sh", "-c", stays, timeout=1.0)).send(delivery())
    with anyio.fail_after(10):
        while True:
            try:
                os.kill(int(pid.read_text("utf-8")), 0)
            except ProcessLookupError:
                break
            await anyio.sleep(0.02)


async def test_a_command_that_reads_nothing_and_says_too_much_is_as_good_as_any() -> None:
    await Command(by_command("/bin/sh", "-c", "exec <&-; head -c 1000000 /dev/zero")).send(delivery())


async def test_processes_left_by_a_command_are_not_awaited_and_end_with_it() -> None:
    with anyio.fail_after(10):
        await Command(by_command("/bin/sh", "-c", "sleep 60 & exit 0", timeout=30.0)).send(delivery())


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="with notify-send")
async def test_the_desktop_is_reported_in_words_that_are_neither_options_nor_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, program = tmp_path / "kept", tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{kept}"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await Desktop(Recipient(name="d", way="desktop", is_full=True)).send(delivery(title="--help"))
    *options, marker, title, text = kept.read_text("utf-8").splitlines()
    assert (marker, title, text) == ("--", "site: --help", "--all &lt;b&gt;of&lt;/b&gt; it &amp; more")
    assert all(word.startswith("--") for word in options)
    program.write_text("#!/bin/sh\necho no bus >&2\nexit 1\n", encoding="utf-8")
    with pytest.raises(NeverSent, match="no bus"):
        await Desktop(Recipient(name="d", way="desktop")).send(delivery())
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(NeverSent, match="no notify-send"):
        await Desktop(Recipient(name="d", way="desktop")).send(delivery())
