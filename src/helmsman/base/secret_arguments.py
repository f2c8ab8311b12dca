"""Secrets that only a program's own options give away: `curl -u me:…`, `mysql -p…`, `sshpass -p …`, `openssl -pass pass:…`.

`-p` is a password for one program and a port for the next, so the words of a command are read with the program in mind:
in a text (a shell's command, or a list of arguments in JSON, TOML or Python) and in a list of words. Every character is
looked at once, so a text of any length takes time linear in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Part = Literal["all", "after :", "after %", "after ,", "after ="]
"""What of an option's value is the secret: all of it, or what follows the user's name."""


@dataclass(frozen=True, slots=True)
class _Program:
    """The options of a program whose value is a secret; `attached` may stand in one word with it: `-pSECRET`.

    With `only_after`, only once that word has been said: `docker login -p …`, for `docker run -p …` is a port.
    """

    separate: frozenset[str] = frozenset()
    attached: tuple[str, ...] = ()
    part: Part = "all"
    only_after: str | None = None


def _program(*separate: str, attached: Sequence[str] = (), part: Part = "all", after: str | None = None) -> _Program:
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
"""How OpenSSL is told where a password is, and how the password itself."""
_LONGEST_PATH: Final = 200
_BETWEEN_WORDS: Final = " \t\n,[]()|&;"
_BEFORE_A_PATH: Final = _BETWEEN_WORDS + "\"'\\="
_BUNDLE: Final = re.compile(r"-[A-Za-z]{2,10}")
"""Several options in one word, of which the last may take a value: `curl -sSu me:…`."""

_NAMES: Final = "|".join(re.escape(name) for name in sorted(_PROGRAMS, key=len, reverse=True))
_PROGRAM: Final = re.compile(rf"(?:(?<![\w.-])|(?<=\\[bfnrt]))(?:{_NAMES})(?=[\s\"'\\])")
_TOKEN: Final = re.compile(
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
    """Where secrets stand in the commands of a text, in order, without quotes around them.

    Each program is read up to the next one, whatever quotes are open: a command may stand in a word of another, and a quote
    that somebody forgot to close hides nothing.
    """
    done = 0
    found = _PROGRAM.search(text)
    while found:
        following = _PROGRAM.search(text, found.end())
        for start, stop in _of_one_program(text, found, following.start() if following else len(text)):
            if stop > done:
                yield max(start, done), stop
                done = stop
        found = following


def _of_one_program(text: str, program: re.Match[str], end: int) -> Iterator[tuple[int, int]]:
    reader = _Reader()
    first = position = _beginning(text, program)
    while position < end and (token := _TOKEN.match(text, position)):
        position = token.end()
        kind = token.lastgroup
        if kind == "end":
            return
        if kind is None or kind in ("gap", "other"):
            continue
        begin = token.start(kind)
        glued = token.start() > first and text[token.start() - 1] not in _BETWEEN_WORDS
        spans = reader.read(token[kind], glued=glued)
        if kind != "redacted":
            for start, stop in spans:
                yield begin + start, begin + stop


def _beginning(text: str, program: re.Match[str]) -> int:
    """Where the word begins that a program's name ends: with its quote, if it is a string of its own, as in a list."""
    begin = program.start()
    while begin > max(0, program.start() - _LONGEST_PATH) and text[begin - 1] not in _BEFORE_A_PATH:
        begin -= 1
    for quote in ('\\"', '"', "'"):
        if text.startswith(quote, program.end()) and text.endswith(quote, 0, begin):
            return begin - len(quote)
    return program.start()


def secret_words(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """The same for the words of a command: which word, and from where to where in it."""
    reader = _Reader()
    for number, word in enumerate(words):
        for start, stop in reader.read(word):
            yield number, start, stop


class _Reader:
    """The words of a command, one after the other."""

    def __init__(self) -> None:
        self._rules: tuple[_Program, ...] = ()
        self._said: set[str] = set()
        self._waiting: Part | None = None
        self._rest: Part | None = None
        """What is secret of the rest of the last word, if it has one."""

    def read(self, word: str, *, glued: bool = False) -> list[tuple[int, int]]:
        """Where in this word a secret stands."""
        rest, self._rest = self._rest, None
        if glued and rest is not None:
            return self._value(word, 0, rest)
        if self._waiting is not None:
            part, self._waiting = self._waiting, None
            return self._value(word, 0, part)
        name = word.rpartition("/")[2]
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

    def _value(self, word: str, begin: int, part: Part) -> list[tuple[int, int]]:
        self._waiting = None
        if word.startswith((*_READ_FROM, "$", "@"), begin):
            return []
        if word.startswith(_LITERALLY, begin):
            begin += len(_LITERALLY)
        if part != "all":
            begin = word.find(part[-1], begin) + 1
            if begin == 0:
                self._rest = part
                return []
        self._rest = "all"
        return [(begin, len(word))] if begin < len(word) else []
