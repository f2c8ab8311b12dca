"""Tests of redaction on random texts made from parts of secrets: it is idempotent, and leaves no secret."""

from __future__ import annotations

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.redaction import redact, redact_value
from tests.fuzz.effort import fuzzed

NAMES = [
    *("API_KEY", "password", "clientSecret", "--token", "token", "KEY", "name"),
    *("Authorization", "cookie:", "x-auth-token", "PGPASSWORD", "-storepass", "value", "set "),
    *("curl ", "mysql ", "sshpass ", "docker login ", "redis-cli ", "-u ", "-p", "-a ", "--user=", "me:"),
]
SIGNS = ["=", ":", "=>", "==", " ", "\t", "\n", "\r", ",", ";", "&", "?sig=", "@", "/", ".", "-", "_", *"[]{}"]
QUOTES = ['"', "'", "\\", '\\"', '"""', "'''", "\\n", "\\t"]
BEGINNINGS = ["Bearer ", "basic ", "https://", "user:", "eyJ", "sk-", "ghp_", "AKIA", "xoxb-", "SG."]
KEY_ENDS = ["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"]
VALUES = ["abcdefgh12345678", "A1" * 12, "z" * 30, "[redacted]", "[redac", "ted]", "null", "true", "é"]
PIECES = st.sampled_from([*NAMES, *SIGNS, *QUOTES, *BEGINNINGS, *KEY_ENDS, *VALUES])
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join)
SECRETS = st.text(string.ascii_letters + string.digits, min_size=24, max_size=40).filter(
    lambda text: any(char.isdigit() for char in text)
)
BY_SHAPE = ["sk-proj-1{}", "ghp_{}", "github_pat_{}", "xoxb-{}", "hf_{}", "glpat-{}", "npm_{}aaaaaa", "Bearer 1{}"]
BY_NAME = ["API_KEY={}", 'password: "{}"', "--token {}", '{{"clientSecret": "{}"}}']
BY_NAME += ["PGPASSWORD={} psql", '["--token", "{}"]', '{{"name": "API_KEY", "value": "{}"}}']
BY_PLACE = [
    "https://user:{}@example.org/",
    "https://example.org/?a=1&sig={}",
    "https://hooks.slack.com/services/T/B/{}",
]
BY_PROGRAM = ["curl -u me:{} x", "mysql -p{} db", "sshpass -p '{}' ssh", "redis-cli -a {}", '["sshpass", "-p", "{}"]']
SHAPES = st.sampled_from([*BY_SHAPE, *BY_NAME, *BY_PLACE, *BY_PROGRAM])


@fuzzed(500)
@given(TEXTS)
def test_redacting_again_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@fuzzed(400)
@given(TEXTS, SHAPES, SECRETS, TEXTS, st.sampled_from(["\n", " ", "\n  "]))
def test_no_text_around_it_lets_a_secret_through(before: str, shape: str, secret: str, after: str, gap: str) -> None:
    assert secret not in redact(before + gap + shape.format(secret) + "\n" + after)


@fuzzed(300)
@given(
    st.recursive(
        TEXTS | st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    )
)
def test_data_keeps_its_shape_and_settles_at_once(value: object) -> None:
    once = redact_value(value)
    assert redact_value(once) == once
    json.dumps(once)
    assert type(once) is type(value)
