"""Tests of the HTTP server's addresses, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.errors import InvalidSetting
from helmsman.httpd.listening import TOKEN_NAME, HttpOptions, http_token, listen


def test_a_port_in_use_is_named_with_a_next_step() -> None:
    with listen(HttpOptions()) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidSetting, match=rf"port {port}: .*Choose another --port"):
            listen(HttpOptions(port=port))


def test_a_certificate_without_its_key_is_none(tmp_path: Path) -> None:
    for options in (HttpOptions(tls_certificate=tmp_path / "a"), HttpOptions(tls_key=tmp_path / "a")):
        with pytest.raises(InvalidSetting, match="Give both --tls-cert and --tls-key"):
            options.check()
    (tmp_path / "a").write_text("no certificate", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="both as PEM files"):
        HttpOptions(tls_certificate=tmp_path / "a", tls_key=tmp_path / "a").check()


def test_the_token_stays_the_same_and_one_that_is_of_no_use_is_not_used(tmp_path: Path) -> None:
    token = http_token(tmp_path / "state")
    file = tmp_path / "state" / TOKEN_NAME
    assert http_token(tmp_path / "state") == token
    file.chmod(0o644)
    with pytest.raises(InvalidSetting, match="Others can read"):
        http_token(tmp_path / "state")
    file.chmod(0o600)
    file.write_text("short\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="holds no usable token"):
        http_token(tmp_path / "state")
    file.unlink()
    assert http_token(tmp_path / "state") != token


def test_a_token_file_left_empty_by_a_kill_gets_a_token(tmp_path: Path) -> None:
    (tmp_path / TOKEN_NAME).touch(mode=0o600)
    token = http_token(tmp_path)
    assert (tmp_path / TOKEN_NAME).read_text(encoding="utf-8") == f"{token}\n"
    assert http_token(tmp_path) == token


def test_two_servers_that_start_at_once_have_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[str] = []

    def token_urlsafe(_bytes: int) -> str:
        monkeypatch.undo()
        others.append(http_token(tmp_path))
        return "of-the-server-that-came-second"

    monkeypatch.setattr("secrets.token_urlsafe", token_urlsafe)
    assert [http_token(tmp_path)] == others


@pytest.mark.parametrize(
    ("host", "named", "is_ours"),
    [
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", None, False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("0.0.0.0", "192.0.2.7", True),
        ("0.0.0.0", "evil.example", False),
        ("Lab.example", "lab.example", True),
    ],
)
def test_a_name_that_somebodys_dns_leads_here_is_not_ours(host: str, named: str | None, is_ours: bool) -> None:
    assert HttpOptions(host=host).answers_to(named) is is_ours
