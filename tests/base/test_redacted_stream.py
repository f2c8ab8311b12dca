"""Tests that a secret in chunks is not passed on."""

from __future__ import annotations

import random
import time

import pytest

from helmsman.base.redaction import RedactedStream, redact

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq3xyzzyabcdefghijklmnopqrstuvwxyz0123456789ABCD\n" * 60
SECRETS = {
    "key": (f"Here it is: {KEY} and more.\n", "abcdefghij"),
    "variable": ("export MY_API_KEY = hunter2hunter2 now\n", "hunter2"),
    "header": ("Authorization: Bearer qwertzuiop12345 done\n", "qwertz"),
    "argument": ("curl -u me:passw0rdpassw0rd https://x \n", "passw0rd"),
    "private key": (f"{PEM}-----END RSA PRIVATE KEY-----\nafter\n", "MIIEpAIBAAKCAQEA"),
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("length", [1, 3, 7, 40])
def test_no_part_of_a_secret_is_passed_on_wherever_it_is_split(kind: str, length: int) -> None:
    text, part = SECRETS[kind]
    text = f"some words before\n{text}"
    stream = RedactedStream()
    passed = "".join(stream.feed(text[start : start + length]) for start in range(0, len(text), length))
    assert part not in passed
    assert passed.startswith("some words before\n")
    assert redact(text).startswith(passed) or kind == "private key"


def test_ordinary_text_is_passed_on_word_by_word_in_linear_time() -> None:
    chance = random.Random(7)
    text = "".join(f"{'x' * chance.randint(1, 12)}{chance.choice((' ', ' ', chr(10)))}" for _ in range(20_000))
    stream, passed, began = RedactedStream(), "", time.process_time()
    for start in range(0, len(text), 500):
        passed += stream.feed(text[start : start + 500])
        assert text.startswith(passed)
        assert len(passed) > start - 20
    assert passed == text
    assert time.process_time() - began < 10


def test_of_one_endless_word_nothing_is_kept() -> None:
    stream = RedactedStream()
    assert {stream.feed("x" * 10_000) for _ in range(20)} == {""}
    assert stream.feed(" and more words ") == ""
