"""No secret gets through, ordinary text does, and no text takes long."""

from __future__ import annotations

import io
import logging
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.redaction import REDACTED, RedactingFilter, is_secret_name, redact, redact_value

SECRET = "Zq7hUnter2xKjW94mPdL"  # looks like one, is none
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    "text",
    [
        f"OPENAI_API_KEY={SECRET}",
        f'export GITHUB_TOKEN="{SECRET}"',
        f"DB_PASSWORD='{SECRET} with spaces'",
        f"DB_PASSWORD={SECRET},;)}}more",
        f"KEY={SECRET}",
        f"client_secret: {SECRET}",
        f'{{"access_token": "{SECRET}", "user": "me"}}',
        f'{{"accessToken":"{SECRET}"}}',
        f'"{{\\"api_key\\": \\"{SECRET}\\"}}"',
        f"{{'password': '{SECRET}'}}",
        f'password = """{SECRET}"""',
        f'password="{SECRET} and the text was cut',
        f"tool --api-key {SECRET} --verbose",
        f"tool --token={SECRET}",
        f":password => '{SECRET}'",
        f"//registry.example/:_authToken={SECRET}",
        f"_auth={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}==",
        f"curl -H 'Authorization: token {SECRET}' https://x.example",
        f'"Authorization": "Bearer {SECRET}"',
        f"Proxy-Authorization: Digest username={SECRET}, realm=x",
        f"Cookie: session={SECRET}; theme=dark",
        f"set-cookie: id={SECRET}; HttpOnly",
        f"X-Api-Key: {SECRET}",
        f"sent with bearer {SECRET}",
        f"https://user:{SECRET}@host.example/path",
        f"postgres://app:p@{SECRET}@db.example:5432/x",
        f"https://x.example/?a=1&token={SECRET}&b=2",
        f"https://x.example/blob?sig={SECRET}&se=2026",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\\n{SECRET}\\n",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nProc-Type: 4\n\n{SECRET}",
    ],
)
def test_a_named_or_placed_secret_is_replaced(text: str) -> None:
    shown = redact(text)
    assert SECRET not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "token",
    [
        "sk-proj-abcDEF123456ghiJKL789",
        "sk-ant-api03-abcDEF123456ghiJKL789",
        "sk_live_abcDEF123456",
        "whsec_abcDEF123456ghiJKL",
        "ghp_abcDEF123456ghiJKL789mnoPQR",
        "gho_abcDEF123456ghiJKL789mnoPQR",
        "github_pat_11ABCDEFG0abcdefghijklm_nopqrstuvw",
        "glpat-abcDEF123456ghiJKL78",
        "xoxb-123456789012-abcdefghij",
        "xapp-1-A012345-abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ya29.a0AfH6SMBabcdefghijklmnop",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZmdoaWprbG0",
        "hf_abcdefghijklmnopqrstuv",
        "dop_v1_0123456789abcdef0123456789abcdef",
        "SG.abcdefghijklmnop.qrstuvwxyz0123456789",
        "AGE-SECRET-KEY-1ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
        JWT,
    ],
)
@pytest.mark.parametrize("around", ["{}", "use {} now", '"{}"', "({})", "x={}", "/tmp/{}/y", "line\n{}\nline"])
def test_a_token_of_a_known_shape_is_replaced_anywhere(token: str, around: str) -> None:
    assert token not in redact(around.format(token))


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox: it jumps = lazily over https://example.com:8080/a?b=c",
        "PWD=/home/me",
        "max_tokens=100, total_tokens: 5",
        'primary_key="id"',
        '"idempotencyKey": "abc"',
        '{"key": "ctrl+c"}',
        '"token": null, "password": ""',
        "use_password: true",
        "std::token::Ident == other",
        "a bearer of good news, basic understanding",
        "task-list-with-a-very-long-name",
        "risk-assessment-of-all-things-long",
        "git@github.com:owner/repository.git and ssh://git@host:22/x",
        "01a1dd3a-7cfc-7f50-a060-0a221ee5bfd4",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "diff --git a/x b/x",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_what_surrounds_a_secret_stays_readable() -> None:
    assert redact(f"f(token={SECRET}, x=1)") == f"f(token={REDACTED}, x=1)"
    assert redact(f'{{"apiKey": "{SECRET}", "n": 1}}') == f'{{"apiKey": "{REDACTED}", "n": 1}}'
    assert redact(f"https://me:{SECRET}@host/x") == f"https://me:{REDACTED}@host/x"
    assert redact(f"A=1 API_KEY={SECRET} B=2") == f"A=1 API_KEY={REDACTED} B=2"
    assert redact(f"env: API_KEY={SECRET}") == f"env: API_KEY={REDACTED}"


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "apiKey", "x-auth-token", "clientSecret", "DB_PWD", "Passphrase"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["", "key", "PWD", "tokens", "keyboard", "public_key", "monkey", "secretary", "___"])
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


def test_data_keeps_its_shape_and_loses_its_secrets() -> None:
    data: dict[str, Any] = {
        "api_key": SECRET,
        "pin_password": 1234,
        "credentials": {"user": "me", "password": SECRET},
        "secrets": [SECRET],
        "token": None,
        "use_password": True,
        "nested": [{"text": f"TOKEN={SECRET}"}, ("x", b"API_KEY=" + SECRET.encode()), {"a"}],
        "count": 3,
        f"TOKEN={SECRET}": 1,
    }
    assert redact_value(data) == {
        "api_key": REDACTED,
        "pin_password": REDACTED,
        "credentials": {"user": "me", "password": REDACTED},
        "secrets": REDACTED,
        "token": None,
        "use_password": True,
        "nested": [{"text": f"TOKEN={REDACTED}"}, ("x", b"API_KEY=" + REDACTED.encode()), {"a"}],
        "count": 3,
        f"TOKEN={REDACTED}": 1,
    }


def test_data_that_contains_itself_ends() -> None:
    data: list[Any] = []
    data += [data, data, {"again": data}]
    assert redact_value(data) == [REDACTED, REDACTED, {"again": REDACTED}]


# --- any text whatever -----------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        "KEY",
        "_",
        "TOKEN",
        "=",
        ":",
        '"',
        "'",
        "\\",
        "\n",
        " ",
        "--",
        "://",
        "@",
        "eyJ",
        ".",
        "sk-",
        "Bearer ",
        "[redacted]",
    ]
)
_TEXT = st.lists(_PIECES | st.text(max_size=5)).map("".join)
_SECRETS = st.text(string.ascii_letters + string.digits, max_size=40).map(lambda text: SECRET + text)


@given(_TEXT)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(before=_TEXT, secret=_SECRETS, after=_TEXT)
def test_no_text_around_it_saves_a_secret_from_an_env_line(before: str, secret: str, after: str) -> None:
    assert secret not in redact(f"{before}\nAPI_KEY={secret}\n{after}")


@given(before=_TEXT, secret=_SECRETS, after=_TEXT)
def test_no_text_around_it_saves_a_token_of_a_known_shape(before: str, secret: str, after: str) -> None:
    assert secret not in redact(f"{before} ghp_{secret} {after}")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    )
)
def test_any_data_can_be_redacted_again_and_again(data: Any) -> None:
    once = redact_value(data)
    assert redact_value(once) == once
    assert type(once) is type(data)


HARD = [
    "a",
    "KEY",
    "A_KEY=",
    'A_KEY="',
    "A_KEY='",
    'A_KEY=\\"',
    "A_KEY:  ",
    "--token ",
    "eyJ",
    "eyJaaaaaaaaa.",
    "sk-",
    "a://",
    "a://b:",
    "a://b:c@",
    "Bearer ",
    "Authorization: ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN A ",
    "-----END ",
    "?sig=",
    " ",
    "\\",
    '"',
    "SG.aaaaaaaaaaaaaaaa.",
    "Cookie:",
]


@pytest.mark.parametrize("piece", HARD)
@pytest.mark.timeout(20)  # a pattern that goes back over its text would take minutes for these
def test_200000_characters_of_anything_end(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    assert len(redact(text)) <= len(text) * len(REDACTED)


# --- logging ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactingFilter())
    handler.setFormatter(logging.Formatter("%(message)s %(extra)s", defaults={"extra": ""}))
    logger = logging.Logger("test of redaction")  # noqa: LOG001 - outside the tree of loggers on purpose
    logger.addHandler(handler)
    return logger, stream


def test_a_log_record_is_redacted_with_its_arguments(logged: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = logged
    logger.info("API_KEY=%s for %s", SECRET, "me")
    assert stream.getvalue().strip() == f"API_KEY={REDACTED} for me"


def test_a_traceback_is_redacted(logged: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = logged
    try:
        raise ValueError(f"password={SECRET}")  # noqa: TRY301 - to have a traceback
    except ValueError:
        logger.exception("failed", stack_info=True)
    assert "ValueError: password=" + REDACTED in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_what_was_added_to_a_record_is_redacted(logged: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = logged
    logger.info("hello", extra={"extra": {"token": SECRET}})
    assert stream.getvalue().strip() == f"hello {{'token': '{REDACTED}'}}"


def test_a_record_that_cannot_be_formatted_is_still_redacted(logged: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = logged
    logger.info("too few: %s %s", f"TOKEN={SECRET}")
    assert "too few" in stream.getvalue()
    assert SECRET not in stream.getvalue()
