"""Keep secrets out of logs, errors, the audit log and the registry.

`redact` takes text, `redact_value` anything made of dictionaries and lists, `RedactingFilter` every log record. They look
for secrets in four ways: by the name of a value (`API_KEY=…`, `"password": "…"`, `--token …`, also in lists of arguments),
by its position (an authorization header, the password in a URL, a webhook), by the option of a program (`curl -u me:…`) and
by its own shape (`sk-…`, `ghp_…`, a JWT, a private key).

Log lines may have any length, so everything here takes time linear in its input: each pattern can begin only at the edge of
a word, and its repetitions are possessive (`++`), so no stretch of text is tried twice.
"""

from __future__ import annotations

import functools
import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from helmsman.base.structs import Value

REDACTED: Final = "[redacted]"

_MAX_DEPTH: Final = 100
"""Deeper than any honest data; also what ends a structure that contains itself."""


_CONTAINERS: Final = (dict, list, tuple, set, frozenset, Mapping)
_PLAIN: Final = frozenset({bool, int, float})


def redact(text: str) -> str:
    """Return the text without the secrets in it. Redacting twice changes nothing more."""
    if text in _CLEAN:
        return text
    clean = text if _HARMLESS.fullmatch(text) else _redact(text)
    # Long texts are rarely repeated, and would fill the memory.
    if clean == text and len(text) <= _CLEAN_CHARS:
        if len(_CLEAN) >= _MOST_CLEAN:
            _CLEAN.clear()
        _CLEAN.add(text)
    return clean


_CLEAN: Final[set[str]] = set()
"""Short texts without secrets: names and paths, the same with every task."""
_CLEAN_CHARS: Final = 200
_MOST_CLEAN: Final = 2000


def _redact(text: str) -> str:
    folded = (
        text.replace("ı", "i").replace("İ", "i").replace("ſ", "s").lower()
    )  # as patterns fold them that ignore case
    # A pattern takes much longer than to see that a word is not there without which it cannot match.
    if "private key" in folded:
        text = _PRIVATE_KEY.sub(REDACTED, text)
    if not _PROGRAM_WORDS.isdisjoint(_WORDS.findall(text)):
        text = _redact_spans(text, secret_spans(text))
    if "authorization" in folded or "cookie" in folded:
        text = _HEADER.sub(rf"\g<name>{REDACTED}", text)
    if "bearer" in folded or "basic" in folded:
        text = _BEARER.sub(rf"\g<scheme>{REDACTED}", text)  # before `token: Bearer …` loses the word that gives it away
    # The exact pattern is slow, and most texts with such a word only mention it.
    if any(word in folded for word in _IN_SECRET_NAMES) and _may_assign(folded):
        text = _redact_assignments(text)
    if "?" in folded or "&" in folded:
        text = _SIGNATURE.sub(rf"\g<name>{REDACTED}", text)
    if "://" in folded:
        text = _URL_PASSWORD.sub(rf"\g<before>{REDACTED}@", text)
    if any(place in folded for place in _IN_WEBHOOKS):
        text = _WEBHOOK.sub(rf"\g<before>{REDACTED}", text)
    # The pattern has many branches, so try it on long words alone first.
    if _TOKEN.search(" ".join(_LONG_WORDS.findall(text))):
        text = _TOKEN.sub(REDACTED, text)
    return text


def _may_assign(folded: str) -> bool:
    """Return whether a text in lower case may assign a value to a secret name. Most texts only mention one."""
    return (
        _names_a_secret(_WORD_BEFORE_SEPARATOR, folded)
        or ("-" in folded and _names_a_secret(_WORD_BEFORE_BLANK, folded))
        or "value" in folded
        or "set" in folded
    )


def _names_a_secret(pattern: re.Pattern[str], folded: str) -> bool:
    words = "\n".join(pattern.findall(folded))
    return any(name in words for name in _IN_SECRET_NAMES)


_IN_SECRET_NAMES: Final = ("pass", "secret", "token", "credential", "auth", "cookie", "key", "pwd", "psk", "pat")
"""Each name that `is_secret_name` recognizes contains one of these."""
_IN_WEBHOOKS: Final = ("hook", "api.telegram.org/", "maker.ifttt.com/", "hc-ping.com/", "ntfy.sh/")
"""Each address that `_WEBHOOK` matches contains one of these."""
_WORD_BEFORE_SEPARATOR: Final = re.compile(r"""(?<![\w./-])[\w./-]++(?=\\?["'=:]|[ \t]++[=:])""")
_WORD_BEFORE_BLANK: Final = re.compile(r"(?<![\w-])[\w-]++(?=[ \t])")
"""Options with a secret value match this: `--password …`."""
_LONG_WORDS: Final = re.compile(r"[^\s\"',;(){}\[\]<>]{15,}+")
"""Each token is part of such a word."""
_WORDS: Final = re.compile(r"[\w-]+")

_HARMLESS: Final = re.compile(
    r"[\w.-]{0,14}|[A-Za-z]{0,19}|[0-9a-f-]{0,100}|[0-9-]{10}T[0-9:.]{5,15}(?:[+-][0-9:]{5}|Z)?"
)
"""Matches most stored values: single words too short to be a token, ids and digests, and times.

All other secrets that are looked for contain blanks, quotes or one of `:=/`.
"""


def _redact_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces: list[str] = []
    position = 0
    for start, stop in spans:
        pieces += [text[position:start], REDACTED]
        position = stop
    return "".join([*pieces, text[position:]]) if pieces else text


def redact_value(value: Any) -> Any:
    """Return the same data with secrets replaced: under a secret's name whatever stands there, elsewhere inside the
    texts.
    """
    return _redact_value(value, ())


def _redact_value(value: Any, inside: tuple[int, ...]) -> Any:
    """`inside` are the containers around the value, by identity: a structure may contain itself."""
    if isinstance(value, str):
        return redact(value)
    if value is None or type(value) in _PLAIN:  # checked first: `isinstance` with an abstract class is slow
        return value
    if isinstance(value, bytes):
        # Bytes that are not text must come back unchanged.
        return redact(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if not isinstance(value, _CONTAINERS):
        return value
    if id(value) in inside or len(inside) >= _MAX_DEPTH:
        return REDACTED
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        # Kubernetes and others write name and value as two fields.
        named = next((value[key] for key in _NAMES_OF_NAMES if isinstance(value.get(key), str)), "")
        return {
            _redact_value(key, inside): REDACTED
            if _names_secret(named if key in _NAMES_OF_VALUES and is_secret_name(named) else key, item)
            else _redact_value(item, inside)
            for key, item in value.items()
        }
    items = [_redact_value(item, inside) for item in _without_arguments(value)]
    if isinstance(value, list):
        return items
    return tuple(items) if isinstance(value, tuple) else set(items)


def _without_arguments(value: list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]) -> Iterable[Any]:
    """Return a list of words without the values of secret options: `["--token", "…"]`, `["curl", "-u", "me:…"]`."""
    if not isinstance(value, list | tuple) or not any(isinstance(item, str) for item in value):
        return value
    words = list(value)
    # By the options of known programs first, then by the names of options.
    for number, start, stop in secret_words([item if isinstance(item, str) else "" for item in words]):
        words[number] = words[number][:start] + REDACTED + words[number][stop:]
    for number, word in enumerate(words[:-1]):
        follows = words[number + 1]
        if isinstance(word, str) and isinstance(follows, str) and follows and not follows.startswith("-"):
            words[number + 1] = REDACTED if _OPTION.fullmatch(word) and _is_secret_option(word) else follows
    return words


_OPTION: Final = re.compile(r"--?[A-Za-z][\w-]++")


def _names_secret(key: object, item: object) -> bool:
    if not isinstance(key, str) or isinstance(item, bool | Mapping) or not item:
        return False  # an empty value, a switch, or a table with named values is not a secret
    return is_secret_name(key)


class RedactingFilter(logging.Filter):
    """Redacts each record that passes: message, arguments, traceback and whatever was added to it.

    Add it to handlers: a logger's own filters do not see what its children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        # A wrong number of arguments must not lose the record.
        except Exception:  # noqa: BLE001 - logging would print the arguments as they are, secrets included
            message = f"{record.msg} {record.args}"
        record.msg, record.args = redact(message), None
        if isinstance(record.exc_info, tuple):
            # A handler that formats the exception again would show it unredacted, so only the text is left.
            record.exc_text = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        record.exc_text = record.exc_text and redact(record.exc_text)
        record.stack_info = record.stack_info and redact(record.stack_info)
        # Extra fields are printed by JSON formatters.
        added = {name: value for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
        record.__dict__.update(redact_value(added))
        return True


_RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


# --- by name ---------------------------------------------------------------------------------------------------------

_SECRET_WORD: Final = re.compile(
    # At the end of a name, also where it is written as one word: `PGPASSWORD`, `accesstoken`, `SSHPASS`.
    r"""(?:
        (?<!no)passwd | passwords? | passphrase | passcode | secrets? | token | credentials? | authorization | cookie
      | (?:api|access|secret|private|signing|master|encryption|account|auth|shared|session)key
      | (?:ssh|db|store|key|root|user|auth|admin)pass
    )\Z""",
    re.VERBOSE,
)
_SECRET_AFTER_ANOTHER_WORD: Final = frozenset(["key", "pwd", "pass", "auth", "psk", "pat"])
"""Last words that mean a secret in `api_key` or `DB_PWD`, and something else alone: `PWD`, `key`."""

_HARMLESS_BEFORE_KEY: Final = frozenset(
    [
        *("primary", "foreign", "public", "sort", "cache", "partition", "idempotency", "group", "hash"),
        *("map", "dict", "object", "row", "column", "tab", "shortcut", "first", "second"),
    ]
)
_STILL_SECRET: Final = re.compile(
    r"v?\d+|base|value|string|text|plain|b64|base64|prod|production|staging|dev|test|live|old|new|ro|rw"
)
"""Words after the one that tells, which change nothing: `SECRET_KEY_BASE`, `API_KEY_2`. `TOKEN_FILE` is another thing."""

_NAMES_OF_NAMES: Final = ("name", "key", "Name", "Key")
_NAMES_OF_VALUES: Final = ("value", "Value")
"""`{"name": "DB_PASSWORD", "value": "…"}`, as Kubernetes and others write it."""

_WORD: Final = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[0-9]++|[A-Z]++")


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name must not be shown:

    `OPENAI_API_KEY`, `clientSecret`, `x-auth-token`, `PGPASSWORD`.
    """
    # Names end with the telling word, and a hostile name may be long.
    return _is_secret_name(name[-100:])


@functools.lru_cache(1000)  # of the names in what Helmsman itself writes down there are few
def _is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    # Suffixes such as `_2` or `_BASE` do not make it harmless.
    while len(words) > 1 and _STILL_SECRET.fullmatch(words[-1]):
        words.pop()
    if not words:
        return False
    if _SECRET_WORD.search(words[-1]):
        return True
    if words[-1] not in _SECRET_AFTER_ANOTHER_WORD:
        return False
    if len(words) == 1:
        return name in ("KEY", "_auth")  # a line of an .env file, a line of an .npmrc
    return words[-2] not in _HARMLESS_BEFORE_KEY


_SWITCHES: Final = frozenset(["no", "with", "use", "ask", "prompt", "show", "skip", "require", "enable", "disable"])
"""First words of options that take no value: what follows `--ask-vault-pass` or `--with-token` is something else."""


def _is_secret_option(name: str) -> bool:
    first = _WORD.search(name[-100:])
    return is_secret_name(name) and (first is None or first[0].lower() not in _SWITCHES)


_NAME_BEFORE_VALUE: Final = re.compile(
    r"""(?:(?<![\w.-])|(?<=\\[bfnrt]))(?:
        (?P<option>--?[A-Za-z][\w-]++) (?:[ \t]++ | \\?["'][ \t]*+,\s*+ (?=\\?["'])) (?!\\?["']?-)
      | (?:set|setx)[ \t]++ (?:-\w++[ \t]++)*+ (?P<variable>[\w./:-]++)[ \t]++ (?!=)
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
"""Value of an environment variable ends at a space; elsewhere a comma or a bracket may follow it."""


_SAID: Final = re.compile(r"""\\?["']?([\w.-]{1,100}+)""")


def _redact_assignments(text: str) -> str:
    pieces: list[str] = []
    position = 0
    named = ""
    while match := _NAME_BEFORE_VALUE.search(text, position):
        end = match.end()
        # The name stays, so that a reader sees which value is missing.
        pieces.append(text[position:end])
        name = match["option"] or match["variable"] or match["name"]
        inner = _NAME_BEFORE_VALUE.match(text, end) if match[0][-1] in " \t" else None
        if name in _NAMES_OF_NAMES and (said := _SAID.match(text, end)):
            named = said[1]
        elif name in _NAMES_OF_VALUES and is_secret_name(named):
            name = named
        secret = _is_secret_option(name) if match["option"] else is_secret_name(name)
        if secret and (inner is None or not is_secret_name(inner["option"] or inner["name"] or "")):
            # else what follows is another name (`token: password: "…"`), and the secret is its value
            # A shell ends the value of a variable at a blank; elsewhere punctuation may end it.
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

# Each begins at the edge of a word, or after an escape such as `\t` in JSON, which represents one.

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
    r"""(?P<name>[?&](?:
        (?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|code)=
      | key=(?=[\w-]{16})
    ))[^&\s\"'<>]++""",
    re.VERBOSE | re.IGNORECASE,
)
_WEBHOOK: Final = re.compile(
    # Anyone with the address may send, so the address is the secret.
    r"""(?P<before>(?:
        hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/
      | discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks/\d{1,30}/
      | \.webhook\.office\.com/webhookb2/
      | api\.telegram\.org/(?:file/)?bot
      | hooks\.zapier\.com/hooks/catch/
      | maker\.ifttt\.com/trigger/[\w-]{1,100}/(?:json/)?with/key/
      | hook\.[\w.]{1,20}\.make\.com/
      | hc-ping\.com/ | ntfy\.sh/ | //[\w.:-]{1,200}/(?:hooks|webhook)/(?=[\w-]{20})
    ))[^\s"'<>?#\[\])]++""",
    re.VERBOSE | re.IGNORECASE,
)
_PRIVATE_KEY: Final = re.compile(
    # One that is cut off before its end is a secret all the same.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,50}-----|\Z)"
)
_TOKEN: Final = re.compile(
    r"""(?:(?<![A-Za-z0-9_-])|(?<=\\[bfnrt]))(?:
        sk-(?=[A-Za-z_-]{0,40}+[0-9])[A-Za-z0-9_-]{16,}+       # OpenAI, Anthropic and others
      | (?:xai|nvapi|pplx|tvly|csk|gsk|fw|r8|tgp_v1|lsv2_(?:pt|sk)|rnd|nfp|figd)[-_]
        (?=[A-Za-z_-]{0,30}+[0-9])[A-Za-z0-9_-]{20,}+
      | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,}+ | whsec_[A-Za-z0-9+/=]{16,}+
      | sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{20,}+ | shp(?:at|ss|ca|pa)_[a-fA-F0-9]{32}
      | gh[pousr]_[A-Za-z0-9]{20,}+ | github_pat_[A-Za-z0-9_]{20,}+
      | gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt)-[A-Za-z0-9_.-]{16,}+
      | xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}+ | xapp-[A-Za-z0-9-]{10,}+
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9]) | ABSK[A-Za-z0-9+/=]{60,}+
      | AIza[A-Za-z0-9_-]{30,}+ | ya29\.[A-Za-z0-9_-]{20,}+ | GOCSPX-[A-Za-z0-9_-]{20,}+ | 1//0[A-Za-z0-9_-]{30,}+
      | AQ\.[A-Za-z0-9_-]{30,}+
      | npm_[A-Za-z0-9]{30,}+ | pypi-[A-Za-z0-9_-]{30,}+ | rubygems_[a-f0-9]{40,}+ | dckr_[po]at_[A-Za-z0-9_-]{20,}+
      | hf_[A-Za-z0-9]{20,}+ | do[opr]_v1_[a-f0-9]{32,}+ | dapi[a-f0-9]{32}(?![A-Za-z0-9])
      | SG\.[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+ | key-[a-f0-9]{32}(?![A-Za-z0-9]) | xkeysib-[a-f0-9]{40,}+[A-Za-z0-9-]*+
      | re_[A-Za-z0-9]{8,12}_[A-Za-z0-9]{20,}+ | SK[a-f0-9]{32}(?![A-Za-z0-9])
      | AGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]{30,}+
      | hv[sbr]\.[A-Za-z0-9_-]{20,}+ | dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{20,}+
      | tskey-[a-z]{2,12}-[A-Za-z0-9-]{10,}+
      | lin_api_[A-Za-z0-9]{20,}+ | ntn_[A-Za-z0-9]{30,}+ | ATATT3[A-Za-z0-9_=-]{30,}+ | sntry[su]_[A-Za-z0-9_=+/-]{30,}+
      | gl(?:sa|c)_[A-Za-z0-9_=]{20,}+ | PMAK-[a-f0-9]{20,}+-[a-f0-9]{20,}+ | NRAK-[A-Z0-9]{20,}+ | pul-[a-f0-9]{40}
      | sbp_[a-f0-9]{40} | sb_secret_[A-Za-z0-9_-]{20,}+ | pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_-]{20,}+
      | HRKU-[A-Za-z0-9_-]{30,}+
      | [0-9]{8,10}:AA[A-Za-z0-9_-]{32,}+                     # a Telegram bot
      | [A-Za-z0-9_~.-]{3}8Q~[A-Za-z0-9_~.-]{31,}+            # an Azure application
      | eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?  # JWT
    )""",
    re.VERBOSE,
)


# --- secrets among the arguments of commands --------------------------------------------------------------------------

# Secrets that only a program's own options give away: `curl -u me:…`, `mysql -p…`, `sshpass -p …`, `openssl -pass pass:…`.
#
# `-p` is a password for one program and a port for the next, so the words of a command are read with the program in mind:
# in a text (a shell's command, or a list of arguments in JSON, TOML or Python) and in a list of words. Every character is
# looked at once, so a text of any length takes time linear in it.


_Part = Literal["all", "after :", "after %", "after ,", "after ="]
"""Secret part of an option's value: all of it, or the part after the user's name."""


class _Program(Value, frozen=True):
    """Options of a program whose value is a secret; `attached` ones may share a word with it: `-pSECRET`.

    With `only_after`, they count only after that word: in `docker login -p …`, since in `docker run -p …` it is a port.
    """

    separate: frozenset[str] = frozenset()
    attached: tuple[str, ...] = ()
    part: _Part = "all"
    only_after: str | None = None


def _program(*separate: str, attached: Sequence[str] = (), part: _Part = "all", after: str | None = None) -> _Program:
    return _Program(frozenset(separate), tuple(attached), part, after)


_PASSWORD: Final = _program("-p", attached=["-p"])
_CAPITAL: Final = _program("-P", attached=["-P"])
_LOGIN: Final = _program("-p", attached=["-p"], after="login")
_PROGRAMS: Final[dict[str, tuple[_Program, ...]]] = {
    name: tuple(programs)
    for names, *programs in (
        (
            "curl",
            _program("-u", "--user", "-U", "--proxy-user", attached=["-u", "-U"], part="after :"),
            _program("-b", "--cookie", attached=["-b"], part="after ="),
            _program("--oauth2-bearer", "--pass", "--proxy-pass", "--tlspassword"),
        ),
        ("http https", _program("-a", "--auth", attached=["-a"], part="after :")),
        ("lftp", _program("-u", attached=["-u"], part="after ,")),
        ("mysql mysqldump mysqladmin mysqlimport mysqlshow mycli", _program(attached=["-p"])),
        ("mariadb mariadb-dump mariadb-admin", _program(attached=["-p"])),
        ("mongo mongosh mongodump mongorestore mongoexport mongoimport sshpass", _PASSWORD),
        ("docker podman nerdctl buildah helm oras crane az cf", _LOGIN),
        ("skopeo", _LOGIN, _program("--creds", "--src-creds", "--dest-creds", part="after :")),
        ("redis-cli", _program("-a", "--pass", attached=["-a"])),
        ("openssl", _program("-k", "-K", "-passin", "-passout", "-pass")),
        ("ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami", _program("-w", attached=["-w"])),
        ("smbclient rpcclient smbget", _program("-U", "--user", attached=["-U"], part="after %")),
        ("plink pscp psftp putty", _program("-pw")),
        ("twine cqlsh useradd usermod", _program("-p")),
        ("mosquitto_pub mosquitto_sub", _program("-P")),
        ("sqlcmd bcp ipmitool zip unzip", _CAPITAL),
        ("7z 7za 7zz rar unrar", _program(attached=["-p"])),
        ("ssh-keygen", _program("-N", "-P")),
        ("nmcli", _program("password", "psk")),
        ("kubectl", _program("--from-literal", part="after =")),
    )
    for name in names.split()
}
_READ_FROM: Final = ("env:", "file:", "fd:", "stdin")
_LITERALLY: Final = "pass:"
"""OpenSSL's prefixes for the source of a password, and the one for a literal password."""
_LONGEST_PATH: Final = 200
_BETWEEN_WORDS: Final = " \t\n,[]()|&;"
_BEFORE_A_PATH: Final = _BETWEEN_WORDS + "\"'\\="
_BUNDLE: Final = re.compile(r"-[A-Za-z]{2,10}")
"""Several options in one word, of which the last may take a value: `curl -sSu me:…`."""

_NAMES: Final = "|".join(re.escape(name) for name in sorted(_PROGRAMS, key=len, reverse=True))
_PROGRAM: Final = re.compile(rf"(?:(?<![\w.-])|(?<=\\[bfnrt]))(?:{_NAMES})(?=[\s\"'\\])")
_PROGRAM_WORDS: Final = frozenset(f"{escape}{name}" for name in _PROGRAMS for escape in ("", *"bfnrt"))
"""Programs as words of a text. The last letter of an escape sequence, such as `\\n` in JSON, may be in front."""
_TOKEN_WORD: Final = re.compile(
    r"""(?P<redacted>\[redacted\])
      | (?P<gap>(?:[ \t,\]()]|\[(?!redacted\])|\\\r?\n|\r?\n(?<=[,\[]\n)|\r?\n(?<=[,\[]\r\n))++)
      | (?P<end>\|\|?&?|&&?|;|\r?\n)
      | \\"(?P<escaped>(?:[^\\\n]|\\(?!["\n]))*+)(?:\\"|(?=\n)|\Z)
      | "(?P<double>(?:[^"\\\n]|\\[^\n])*+)(?:"|(?=\n)|\Z|\\)
      | '(?P<single>[^'\n]*+)(?:'|(?=\n)|\Z)
      | (?P<bare>(?:[^\s"'|&;,\[\]()\\]|,(?![\s"'\]])|\\(?!["\n]))++)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def secret_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of secrets in the commands of a text, in order, without quotes around them.

    Each program is read up to the next one, even if quotes are open: a command may be in a word of another, and a quote that
    was never closed must not hide a secret.
    """
    done = 0
    found = _PROGRAM.search(text)
    while found:
        following = _PROGRAM.search(text, found.end())
        for start, stop in _of_one_program(text, found, following.start() if following else len(text)):
            # Programs may overlap: one command can be quoted inside another.
            if stop > done:
                yield max(start, done), stop
                done = stop
        found = following


def _of_one_program(text: str, program: re.Match[str], end: int) -> Iterator[tuple[int, int]]:
    reader = _Reader()
    first = position = _beginning(text, program)
    while position < end and (token := _TOKEN_WORD.match(text, position)):
        position = token.end()
        kind = token.lastgroup
        if kind == "end":
            return
        if kind is None or kind in ("gap", "other"):
            continue
        begin = token.start(kind)
        # A quote in the middle of a word continues it.
        glued = token.start() > first and text[token.start() - 1] not in _BETWEEN_WORDS
        spans = reader.read(token[kind], glued=glued)
        if kind != "redacted":
            for start, stop in spans:
                yield begin + start, begin + stop


def _beginning(text: str, program: re.Match[str]) -> int:
    """Return the start of the word that ends with a program's name, including its quote if it is a string, as in a list."""
    begin = program.start()
    while begin > max(0, program.start() - _LONGEST_PATH) and text[begin - 1] not in _BEFORE_A_PATH:
        begin -= 1
    for quote in ('\\"', '"', "'"):
        if text.startswith(quote, program.end()) and text.endswith(quote, 0, begin):
            return begin - len(quote)
    return program.start()


def secret_words(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the same for the words of a command: which word, and from where to where in it."""
    reader = _Reader()
    for number, word in enumerate(words):
        for start, stop in reader.read(word):
            yield number, start, stop


class _Reader:
    """Words of a command, one after the other."""

    def __init__(self) -> None:
        self._rules: tuple[_Program, ...] = ()
        self._said: set[str] = set()
        self._waiting: _Part | None = None
        self._rest: _Part | None = None
        """Secret part of the rest of the last word, if it has one."""

    def read(self, word: str, *, glued: bool = False) -> list[tuple[int, int]]:
        """Return the spans of secrets in this word."""
        rest, self._rest = self._rest, None
        if glued and rest is not None:
            return self._value(word, 0, rest)
        if self._waiting is not None:
            part, self._waiting = self._waiting, None
            return self._value(word, 0, part)
        name = word.rpartition("/")[2]
        # A program's name begins anew: `a | curl …` has two programs.
        if not glued and name in _PROGRAMS:
            self._rules, self._said = _PROGRAMS[name], set()
            return []
        self._said.add(word)
        for rule in self._rules:
            if rule.only_after is None or rule.only_after in self._said:
                found = self._option(word, rule)
                if found is not None:
                    return found
        return []

    def _option(self, word: str, rule: _Program) -> list[tuple[int, int]] | None:
        if word in rule.separate:
            self._waiting = self._rest = rule.part
            return []
        if word in rule.attached:  # alone, it makes the program ask a person
            self._rest = rule.part
            return []
        option, equals, _ = word.partition("=")
        if equals and option in rule.separate:
            return self._value(word, len(option) + 1, rule.part)
        for option in rule.attached:
            if word.startswith(option):
                return self._value(word, len(option), rule.part)
        if rule.part != "all" and _BUNDLE.fullmatch(word) and f"-{word[-1]}" in rule.separate:
            self._waiting = self._rest = rule.part
            return []
        return None

    def _value(self, word: str, begin: int, part: _Part) -> list[tuple[int, int]]:
        self._waiting = None
        # A file or a variable is named, not the secret itself.
        if word.startswith((*_READ_FROM, "$", "@"), begin):
            return []
        if word.startswith(_LITERALLY, begin):
            begin += len(_LITERALLY)
        if part != "all":
            # Only the part after the separator: the user's name stays readable.
            begin = word.find(part[-1], begin) + 1
            if begin == 0:
                self._rest = part
                return []
        self._rest = "all"
        return [(begin, len(word))] if begin < len(word) else []


# --- Redact text that arrives in chunks: a secret may be split between two of them ------------------------------------

_CONTEXT_CHARS: Final = 2048
"""Number of earlier characters that are redacted together with the next chunk: `TOKEN =` and its value."""
_MOST_CHARS: Final = 2 * _CONTEXT_CHARS
_LONGEST_SECRET: Final = 64 * 1024
_LAST_BLANK: Final = re.compile(r"\s(?=\S*\Z)")


class RedactedStream:
    """Text that is being written. Complete words are passed on, and nothing after a word that may be a secret.

    The last word is never passed on: the complete text follows separately.
    """

    def __init__(self) -> None:
        self._said = ""
        self._passed = ""
        self._is_muted = False

    def feed(self, piece: str) -> str:
        """Return what can be passed on now."""
        if self._is_muted:
            return ""
        self._said += piece
        redacted = redact(self._said)
        # Text that was passed on cannot be taken back, so stop here.
        if not redacted.startswith(self._passed):  # later text has turned earlier text into a secret
            self._is_muted, self._said = True, ""
            return ""
        blank = _LAST_BLANK.search(redacted)
        whole = redacted[: blank.end()] if blank is not None else ""
        new = whole[len(self._passed) :]
        self._passed += new
        if len(self._said) > _MOST_CHARS:
            self._forget(redacted)
        return new

    def _forget(self, redacted: str) -> None:
        """Forget the beginning, at a place that is not inside a secret."""
        blank = _LAST_BLANK.search(self._said, 0, len(self._said) - _CONTEXT_CHARS)
        cut = blank.end() if blank is not None else 0
        head = redact(self._said[:cut])
        # Only where both halves, redacted alone, give the same text.
        if cut and head + redact(self._said[cut:]) == redacted and self._passed.startswith(head):
            self._said, self._passed = self._said[cut:], self._passed[len(head) :]
        elif len(self._said) > _LONGEST_SECRET:
            self._is_muted, self._said = True, ""
