"""`[notify]`: who is told of what. Only the user's own file counts, and a mistake is named."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helmsman import load_settings
from helmsman.errors import InvalidSetting
from helmsman.notices.config import NotifySettings, QuietHours, with_recipient
from helmsman.notices.notifications import KINDS, Notification
from helmsman.settings import ConfigFile, read_toml


def load(directory: Path, text: str) -> NotifySettings:
    path = directory / "helmsman.toml"
    path.write_text(text, encoding="utf-8")
    return NotifySettings.load([ConfigFile(path, read_toml(path), trusted=True)])


def to(text: str) -> str:
    return f"[[notify.to]]\n{text}"


def notification(**changes: Any) -> Notification:
    return Notification(**{"kind": "done", "about": "x", "title": "It is done", "agent": "codex", **changes})


def test_each_recipient_may_have_less_than_all_are_reported(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[notify]\nevents = ["question", "done"]\nunanswered_sec = 0\n'
        + to('way = "desktop"\n')
        + to(
            f'way = "command"\nname = "mine"\ncommand = ["true"]\nevents = ["done", "failed"]\nprojects = ["{tmp_path}"]\n'
        )
        + to('way = "browser"\nagents = ["other"]\ndetail = "short"\n'),
    )
    desktop, mine, browser = settings.to
    assert settings.unanswered == 0
    assert (desktop.name, sorted(desktop.events), desktop.is_full) == ("desktop", ["done", "question"], True)
    assert (sorted(mine.events), mine.is_full, browser.is_full) == (["done"], False, False)
    here, elsewhere = notification(directory=str(tmp_path / "deep")), notification(directory="/elsewhere")
    assert [mine.wants(one) for one in (here, elsewhere, notification())] == [True, False, True]
    assert [browser.wants(one) for one in (here, notification(agent="other"), notification(agent=None))] == [
        False,
        True,
        True,
    ]
    assert not desktop.wants(notification(kind="hub"))
    assert mine.wants(notification(kind="test", directory="/elsewhere"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notify = 1", r"notify in .* is 1"),
        ('[notify]\nevent = ["done"]', "unknown key notify.event. Did you mean events"),
        (
            '[notify]\nevents = ["finished"]',
            r"notify.events .*'finished'.*question, done, failed, limit, schedule, hub",
        ),
        ("[notify]\nunanswered_sec = -1", "notify.unanswered_sec .* is -1.*seconds, from 0"),
        ("[notify]\nto = 3", r"notify.to .* is 3.*\[\[notify.to\]\]"),
        (to('way = "pigeon"'), r"notify.to\[1\].way .*'pigeon'.*desktop, browser, command, webhook, ntfy"),
        (to('way = "desktop"\nurl = "https://a"'), r"unknown key notify.to\[1\].url"),
        (to('way = "desktop"\n') + to('way = "desktop"'), r"notify.to\[2\] .*another 'desktop'"),
        (to('way = "desktop"\nname = "-rf"'), "notify.to.*name .*'-rf'"),
        (to('way = "desktop"\nquiet = "22-7"'), "quiet .*'22-7'.*22:00-07:00"),
        (to('way = "desktop"\nprojects = ["here"]'), "projects .*whole paths"),
        (to('way = "desktop"\ndetail = "all"'), "detail .*'all'.*full, short"),
        (to('way = "command"'), "has no command"),
        (to('way = "command"\ncommand = "say hello"'), "command .*in a list"),
        (to('way = "command"\ncommand = ["./here"]'), "command .*whole path"),
        (to('way = "webhook"'), "has no url"),
        (to('way = "webhook"\nurl = "ftp://a"'), "url .*https://example.org"),
        (to('way = "webhook"\nurl = "http://example.org/x"'), "an https address"),
        (to('way = "webhook"\nurl = "https://me:pw@example.org"'), "without a password"),
        (to('way = "ntfy"\ntopic = "a/b"'), "topic .*'a/b'.*letters"),
        (to('way = "ntfy"\ntopic = "a"\nanswers = true'), 'answers .*detail = "full"'),
        (to('way = "ntfy"\ntopic = "a"\nanswers = true\ndetail = "full"'), "answers .*token_file"),
        (to('way = "ntfy"\ntopic = "a"\nreply_topic = "a"'), "reply_topic .*another topic"),
        (to('way = "ntfy"\ntopic = "a"\ntoken_file = "token"'), "token_file .*whole path"),
        (to('way = "ntfy"\ntopic = "a"\ntoken_file = "/nowhere/token"'), "token_file .*can be read"),
        (to('way = "ntfy"\ntopic = "a"\ntoken = "x"\ntoken_file = "/y"'), "token_file .*not both"),
    ],
)
def test_a_mistake_is_an_error_that_names_key_value_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=f"(?s){said}"):
        load(tmp_path, text)


def test_a_table_in_the_place_of_a_list_is_refused_without_its_secrets(tmp_path: Path) -> None:
    for text in ('[notify.to]\ntoken = "verysecret"', '[notify]\nto = [[{ token = "verysecret" }]]'):
        with pytest.raises(InvalidSetting) as refused:
            load(tmp_path, text)
        assert "notify.to" in refused.value.message
        assert "verysecret" not in refused.value.message


def test_a_secret_is_read_from_a_file_that_only_its_user_can_read_and_is_never_shown(tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text("tk_verysecret\n", encoding="utf-8")
    kept.chmod(0o600)
    ntfy = f'way = "ntfy"\ntopic = "mine"\ntoken_file = "{kept}"\n'
    (recipient,) = load(tmp_path, to(ntfy)).to
    assert (recipient.secret, recipient.url, recipient.reply_topic) == (
        "tk_verysecret",
        "https://ntfy.sh",
        "mine-replies",
    )
    assert "verysecret" not in repr(recipient)
    kept.chmod(0o644)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        load(tmp_path, to(ntfy))
    with pytest.raises(InvalidSetting) as refused:
        load(tmp_path, to('way = "webhook"\nurl = "https://a.example"\nsecret = ["verysecret"]'))
    assert "verysecret" not in refused.value.message


def test_an_unencrypted_address_is_for_this_machine_or_by_express_wish(tmp_path: Path) -> None:
    for more in ('url = "http://127.0.0.1:9/x"', 'url = "http://example.org/x"\ninsecure = true'):
        assert load(tmp_path, to(f'way = "webhook"\n{more}')).to[0].url.startswith("http://")


def test_a_project_cannot_configure_notifications(tmp_path: Path) -> None:
    (tmp_path / "helmsman.toml").write_text(to('way = "webhook"\nurl = "https://evil.example"'), encoding="utf-8")
    settings = load_settings({}, {"HOME": str(tmp_path / "home")}, tmp_path)
    assert NotifySettings.load(settings.files) == NotifySettings()
    assert settings.ignored == (
        f"notify in {tmp_path / 'helmsman.toml'} is ignored: only your own file says who is notified.",
    )


@pytest.mark.parametrize(
    ("quiet", "clock", "until"),
    [
        ("22:00-07:00", (23, 30), (2, 7)),
        ("22:00-07:00", (6, 59), (1, 7)),
        ("22:00-07:00", (7, 0), None),
        ("22:00-07:00", (21, 59), None),
        ("12:00-13:00", (12, 0), (1, 13)),
        ("12:00-13:00", (13, 0), None),
    ],
)
def test_quiet_hours_end_at_the_next_time_that_they_do(
    tmp_path: Path, quiet: str, clock: tuple[int, int], until: tuple[int, int] | None
) -> None:
    hours = load(tmp_path, to(f'way = "desktop"\nquiet = "{quiet}"')).to[0].quiet
    assert isinstance(hours, QuietHours)
    now = datetime(2027, 3, 1, *clock).astimezone()
    expected = None if until is None else datetime(2027, 3, until[0], until[1]).astimezone()
    assert hours.until(now.astimezone(UTC)) == expected


def test_all_kinds_are_reported_unless_the_table_says_less(tmp_path: Path) -> None:
    assert load(tmp_path, to('way = "desktop"')).to[0].events == set(KINDS)


def test_without_the_table_a_desktop_is_reported_and_an_empty_table_switches_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys, "platform", "linux")
    assert NotifySettings.load([]).to == (), "there is no notify-send"
    (programs / "notify-send").write_text("#!/bin/sh\n", encoding="utf-8")
    (programs / "notify-send").chmod(0o755)
    (desktop,) = NotifySettings.load([]).to
    assert (desktop.way, desktop.is_full, sorted(desktop.events)) == ("desktop", True, ["done", "failed", "question"])
    assert load(tmp_path, "[notify]\n").to == ()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert NotifySettings.load([]).to == ()


def test_a_recipient_is_added_to_the_file_and_checked_first(tmp_path: Path) -> None:
    path = tmp_path / "helmsman.toml"
    for entry in (
        {"way": "desktop"},
        {"way": "ntfy", "topic": "my-topic"},
        {"way": "command", "name": "mine", "command": ["/bin/tell", 'with "quotes"', "ä\n"]},
    ):
        path.write_text(with_recipient(path, entry), encoding="utf-8")
    settings = load(tmp_path, path.read_text(encoding="utf-8"))
    assert [one.name for one in settings.to] == ["desktop", "ntfy", "mine"]
    assert settings.to[2].command == ("/bin/tell", 'with "quotes"', "ä\n")
    before = path.read_text(encoding="utf-8")
    for wrong in (
        {"way": "desktop"},
        {"way": "webhook", "url": "http://example.org"},
        {"way": "ntfy", "topic": "no topic"},
    ):
        with pytest.raises(InvalidSetting):
            with_recipient(path, wrong)
    assert path.read_text(encoding="utf-8") == before
    path.write_text("[notify]\nto = []\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="Add it by hand"):
        with_recipient(path, {"way": "desktop"})
