"""Keep secrets out of logs, errors, the audit log and the registry.

`redact` takes text, `redact_value` anything made of dictionaries and lists, `RedactingFilter` every log record. They
look for secrets in three ways: by the name a value is given (`API_KEY=…`, `"password": "…"`, `--token …`), by where it
stands (an authorization header, the password in a URL) and by its own shape (`sk-…`, `ghp_…`, a JWT, a private key).

Log lines are as long as whoever writes them likes, so everything here takes time linear in its input: each pattern can
begin only at the edge of a word, and its repetitions are possessive (`++`), so no stretch of text is tried twice.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "[redacted]"

_MAX_DEPTH: Final = 100
"""Deeper than any honest data; also what ends a structure that contains itself."""


def redact(text: str) -> str:
    """The text without the secrets in it. Redacting twice changes nothing more."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _HEADER.sub(rf"\g<name>{REDACTED}", text)
    text = _BEARER.sub(rf"\g<scheme>{REDACTED}", text)  # before `token: Bearer …` loses the word that gives it away
    text = _redact_assignments(text)
    text = _SIGNATURE.sub(rf"\g<name>{REDACTED}", text)
    text = _URL_PASSWORD.sub(rf"\g<before>{REDACTED}@", text)
    return _TOKEN.sub(REDACTED, text)


def redact_value(value: Any) -> Any:
    """The same data with secrets replaced: under a secret's name whatever stands there, elsewhere inside the texts."""
    return _redact_value(value, ())


def _redact_value(value: Any, inside: tuple[int, ...]) -> Any:
    """`inside` are the containers around the value, by identity: a structure may contain itself."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes):
        return redact(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    if id(value) in inside or len(inside) >= _MAX_DEPTH:
        return REDACTED
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return {
            _redact_value(key, inside): REDACTED if _names_secret(key, item) else _redact_value(item, inside)
            for key, item in value.items()
        }
    items = [_redact_value(item, inside) for item in value]
    if isinstance(value, list):
        return items
    return tuple(items) if isinstance(value, tuple) else set(items)


def _names_secret(key: object, item: object) -> bool:
    if not isinstance(key, str) or isinstance(item, bool | Mapping) or not item:
        return False  # what is empty, a switch, or a table with names of its own is no secret by itself
    return is_secret_name(key)


class RedactingFilter(logging.Filter):
    """Redacts each record that passes: message, arguments, traceback and whatever was added to it.

    Add it to handlers: a logger's own filters do not see what its children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging would print the arguments as they are, secrets included
            message = f"{record.msg} {record.args}"
        record.msg, record.args = redact(message), None
        if isinstance(record.exc_info, tuple):
            # A handler that formats the exception by itself would show it unredacted, so only the text is left.
            record.exc_text = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        record.exc_text = record.exc_text and redact(record.exc_text)
        record.stack_info = record.stack_info and redact(record.stack_info)
        added = {name: value for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
        record.__dict__.update(redact_value(added))
        return True


_RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


# --- by name ---------------------------------------------------------------------------------------------------------

_SECRET_WORDS: Final = frozenset(
    [
        *("token", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode"),
        *("credential", "credentials", "apikey", "authorization", "cookie"),
    ]
)
_SECRET_AFTER_ANOTHER_WORD: Final = frozenset(["key", "pwd", "pass", "auth"])
"""Last words that mean a secret in `api_key` or `DB_PWD`, and something else alone: `PWD`, `key`."""

_HARMLESS_BEFORE_KEY: Final = frozenset(
    [
        *("primary", "foreign", "public", "sort", "cache", "partition", "idempotency", "group", "hash"),
        *("map", "dict", "object", "row", "column", "tab", "shortcut", "first", "second"),
    ]
)
_WORD: Final = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z0-9]++|[A-Z0-9]++")


def is_secret_name(name: str) -> bool:
    """Whether what is called this must not be shown: `OPENAI_API_KEY`, `clientSecret`, `x-auth-token`."""
    words = [word.lower() for word in _WORD.findall(name[-100:])]
    if not words or words[-1] in _SECRET_WORDS:
        return bool(words)
    if words[-1] not in _SECRET_AFTER_ANOTHER_WORD:
        return False
    if len(words) == 1:
        return name in ("KEY", "_auth")  # a line of an .env file, a line of an .npmrc
    return words[-2] not in _HARMLESS_BEFORE_KEY


_NAME_BEFORE_VALUE: Final = re.compile(
    r"""(?<![\w.-])(?:
        (?P<option>--[\w-]++) [ \t]++ (?!-)
      | (?P<name>[\w.-]++) (?:\\?["'])?+ [ \t]*+ (?:=>|=(?!=)|:(?![:=])) [ \t]*+
    )""",
    re.VERBOSE,
)
_QUOTED: Final = r"""
        (?:\"{3}|'{3}) [^\n]*+
      | \\" (?:[^\\\n]|\\(?!["\n]))*+ \\"
      | (?P<quote>["']) (?:[^"'\\\n]|\\[^\n]|(?!(?P=quote))["'])++ (?P=quote)
      | (?!""|'')["'] [^\n]*+                                            # cut off before its end
      | \[redacted\]
"""
_VALUE: Final = re.compile(
    rf"""{_QUOTED} | (?!(?:true|false|null|none|undefined)(?:[\s,;&"')}}\]]|\Z)) [^\s,;&"'\\)}}\]>]++""",
    re.VERBOSE | re.IGNORECASE,
)
_ENV_VALUE: Final = re.compile(rf"""{_QUOTED} | (?:[^\s"'\\]|\\(?![nrt"']))++""", re.VERBOSE)
"""The value of an environment variable ends at a space; elsewhere a comma or a bracket may follow it."""


def _redact_assignments(text: str) -> str:
    pieces: list[str] = []
    position = 0
    while match := _NAME_BEFORE_VALUE.search(text, position):
        end = match.end()
        pieces.append(text[position:end])
        name = match["option"] or match["name"]
        inner = _NAME_BEFORE_VALUE.match(text, end) if match[0][-1] in " \t" else None
        if is_secret_name(name) and (inner is None or not is_secret_name(inner["option"] or inner["name"])):
            # else what follows is another name (`token: password: "…"`), and the secret is its value
            grammar = _ENV_VALUE if name.isupper() and match[0].endswith("=") else _VALUE
            if value := grammar.match(text, end):
                pieces.append(_quoted_like(value[0]))
                end = value.end()
        position = end
    return "".join([*pieces, text[position:]]) if pieces else text


def _quoted_like(value: str) -> str:
    for quote in ('\\"', '"', "'"):
        if value.startswith(quote):
            return f"{quote}{REDACTED}{quote}"
    return REDACTED


# --- by place and by shape -------------------------------------------------------------------------------------------

# Each begins at the edge of a word, or after an escape such as `\t` in JSON, which stands for one.

_HEADER: Final = re.compile(
    r"""(?:(?<![\w-])|(?<=\\[bfnrt]))
    (?P<name>(?:proxy-)?authorization(?:\\?["'])?[ \t]*+[:=][ \t]*+(?:\\?["'])?+|(?:set-)?cookie:[ \t]*+)
    [^\s"'\\](?:
        [^"'\\\r\n]
      | (?:(?<=[=:])|(?<=[=:][ ]))\\?["'](?=[^\s"'\\,;:)}\]])[^"'\\\r\n]*+(?:\\?["'])?+  # a part in quotes: `sid="…"`
    )*+""",
    re.VERBOSE | re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"""(?:(?<!\w)|(?<=\\[bfnrt]))(?P<scheme>(?:bearer|basic)[ \t]++)
    (?=[A-Za-z._~+/=-]{0,60}+[0-9]|[A-Za-z._~+/=-]{24})[A-Za-z0-9._~+/=-]++  # not an ordinary word""",
    re.VERBOSE | re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(
    r"(?:(?<![A-Za-z0-9+.-])|(?<=\\[bfnrt]))(?P<before>[A-Za-z][A-Za-z0-9+.-]*+://[^\s/@:\"'<>]*+:)[^\s/\"'<>]+@"
)
_SIGNATURE: Final = re.compile(
    r"(?P<name>[?&](?:sig|signature|x-amz-signature|x-amz-credential|x-goog-signature)=)[^&\s\"'<>]++", re.IGNORECASE
)
_PRIVATE_KEY: Final = re.compile(
    # One that is cut off before its end is a secret all the same.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,50}-----|\Z)"
)
_TOKEN: Final = re.compile(
    r"""(?:(?<![A-Za-z0-9_-])|(?<=\\[bfnrt]))(?:
        sk-(?=[A-Za-z_-]{0,40}+[0-9])[A-Za-z0-9_-]{16,}+       # OpenAI, Anthropic and others
      | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,}+ | whsec_[A-Za-z0-9]{16,}+
      | gh[pousr]_[A-Za-z0-9]{20,}+ | github_pat_[A-Za-z0-9_]{20,}+ | glpat-[A-Za-z0-9_-]{16,}+
      | xox[a-z]-[A-Za-z0-9-]{10,}+ | xapp-[A-Za-z0-9-]{10,}+
      | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
      | AIza[A-Za-z0-9_-]{30,}+ | ya29\.[A-Za-z0-9_-]{20,}+
      | npm_[A-Za-z0-9]{30,}+ | pypi-[A-Za-z0-9_-]{30,}+ | hf_[A-Za-z0-9]{20,}+ | dop_v1_[a-f0-9]{32,}+
      | SG\.[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+
      | AGE-SECRET-KEY-1[A-Z0-9]{30,}+
      | eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?  # JWT
    )""",
    re.VERBOSE,
)
