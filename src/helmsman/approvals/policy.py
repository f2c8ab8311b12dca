"""Evaluate approval rules before a question reaches a person.

`decide` takes a question and the rules of its session and returns `allow`, `deny` or `ask`. Deny takes precedence over
ask, and ask over allow. A question that no rule covers is asked.

A plain allow rule covers only actions that cannot leave the sandbox: a command proved to stay inside, or a patch of
ordinary files inside the writable roots. The sandbox is the protection there, so the rule may match the first words of
a command. A rule with `outside` also covers actions that leave the sandbox. There the rule is the only protection, so
it matches exactly its words unless it sets `prefix`. There is no list of harmless programs or options, because such a
list cannot be correct.

Allow rules are matched strictly: each simple command of a compound command, by its parsed words, in each directory it
may run in. Deny and ask rules are matched loosely: behind `sudo` or `xargs`, under another path, with options in
between, and in commands that cannot be parsed. A command that evades a deny rule is still not allowed: a person is
asked.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.approvals.option_effects import COMPUTED, Certainty, canonical_name, canonical_program, compare
from helmsman.approvals.shell_words import (
    NEVER_UNDERSTOOD,
    SimpleCommand,
    innermost_script,
    may_run_text,
    names_program,
    parse_command,
    program_name,
    runs_words,
)
from helmsman.base.files import is_inside
from helmsman.base.sanitize import shell_script
from helmsman.base.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from helmsman.model.options import Writes
    from helmsman.model.questions import Question, WhereItRuns
    from helmsman.model.rules import Effect, Rule

# --- Match commands against deny and ask rules, erring on the side of a match -----------------------------------------

# The words of a parsed command are compared by their effects (`option_effects`). If a command cannot be parsed, or
# passes words to another program (`sudo`, `xargs`, `python -c`), its text is split wherever a command could begin,
# and each piece is tried. Parts that a shell would compute match anything.

# A hostile text can be long and rules can be many, so the time is linear in the text and the search is limited. That
# is safe, because a command that is not understood is not allowed either.

_CHARACTERS_SEARCHED: Final = 64 * 1024
_WORDS_COMPARED: Final = 64
"""Number of words searched for options and arguments, where each word may be a program."""
_COMPARISONS: Final = 200
"""Comparisons of one program for one rule; beyond that, the command counts as not understood."""

_VARIABLE: Final = re.compile(r"\$\{[^}\s]{0,100}\}|\$\w+")
_EXPANDED: Final = re.compile(r"\$\{[^}]{0,200}\}?|\$\w+|\$[@*#?!$-]")
_DEFINITION: Final = re.compile(r"\balias\b|\bfunction\b|\(\s*\)|\bhash\b|\benable\b|\$'")
r"""Definitions after which any word may be a name for anything: `alias`, `name()`, $'\x72m'."""
_SUBSTITUTION: Final = re.compile(r"\$\(|`")
_REDIRECTION: Final = re.compile(r"\d?(?:&>>|&>|>>|>\||>&|<&|>|<)[ \t]*[^\s;&|()<>`]+")
_BEFORE_COMMAND: Final = re.compile(r"[;&|\n\r()`<>]+")
_GLUE: Final = re.compile(r"=|::|(?<!\S)-\w(?=\w)")
"""Separators before a command within a word: `--do=exec=CMD`, `ext::CMD`, `-OCMD`."""
_QUOTES: Final = re.compile(r"[\"'\\]")
_PATTERN: Final = re.compile(r"[*?\[]")
_IS_NO_PATTERN: Final = frozenset(["[", "[["])
_ASSIGNMENT: Final = re.compile(r"(\w+)\+?=")


@dataclass(frozen=True, slots=True)
class PossibleCommand:
    """Words that may run as a command.

    `runs_words`: every word may be the program, not only the first. `unlikely`: the words may be text that a program
    such as `python -c` runs.
    """

    words: Sequence[str]
    runs_words: bool = False
    unlikely: bool = False
    variables: tuple[str, ...] = ()


def possible_commands(text: str, commands: Sequence[SimpleCommand] | None) -> list[PossibleCommand]:
    """Return all commands that `text` may run; `commands` is the result of `parse_command`."""
    known = [PossibleCommand(command.words, variables=command.env) for command in commands or ()]
    # Both readings are tried, since both the command and its text may run.
    if commands is not None and not any(runs_words(each.words) or may_run_text(each.words) for each in commands):
        return known
    guesses = list(_guesses(text, understood=commands is not None))
    if any(may_run_text(each.words) for each in (*known, *guesses)):
        guesses += [
            PossibleCommand(words.split(), runs_words=True, unlikely=True, variables=each.variables)
            for each in guesses
            for words in dict.fromkeys([" ".join(each.words), _GLUE.sub(" ", " ".join(each.words))])
        ]
    # After such a definition any word can run anything.
    if commands is None and _DEFINITION.search(text):
        guesses.append(PossibleCommand([COMPUTED]))
    return [*known, *guesses]


def may_run(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> Certainty:
    """Return whether a rule for commands that begin with `prefix` covers one of the commands."""
    rule = canonical_program(prefix)
    best: Certainty = "no"
    compared = 0
    for command in possible:
        for at in range(int(command.unlikely), len(command.words) if command.runs_words else 1):
            name = canonical_name(command.words[at])[0]
            if name != rule[0] and (name != COMPUTED or at):  # most words after a program are not programs
                continue
            compared += 1
            # A hostile command must not take seconds. Undecided commands are asked about.
            if compared > _COMPARISONS:
                return "perhaps"
            words = list(command.words[at : at + _WORDS_COMPARED] if command.runs_words else command.words)
            if at + len(words) < len(command.words):
                words.append(COMPUTED)
            answer = compare(rule, canonical_program(words), command.variables)
            if answer == "yes" and not command.unlikely:
                return "yes"
            best = "perhaps" if answer != "no" else best
    return best


def runs_literally(prefix: Sequence[str], possible: Sequence[PossibleCommand]) -> bool:
    """Return whether one of the commands begins with exactly these words."""
    expected = list(prefix)
    return any(
        list(command.words[at : at + len(expected)]) == expected
        for command in possible
        for at in range(len(command.words) if command.runs_words else 1)
    )


def _guesses(text: str, *, understood: bool) -> Iterator[PossibleCommand]:
    # Cut before any pattern is applied, so that the work stays linear.
    script = innermost_script(text)[:_CHARACTERS_SEARCHED].replace(COMPUTED, " ").replace("\\\n", "")
    variants = [
        _EXPANDED.sub(f" {COMPUTED} ", script),
        _VARIABLE.sub(f" {COMPUTED} ", script),
        _VARIABLE.sub("", script),
    ]
    for variant in dict.fromkeys(variants):
        # Quotes may join words or separate them, so both are tried.
        for without_quotes in (_QUOTES.sub("", variant), _QUOTES.sub(" ; ", variant)):
            yield from _pieces(without_quotes, understood=understood)


def _pieces(script: str, *, understood: bool) -> Iterator[PossibleCommand]:
    variables = tuple({match[1] for word in script.split() if (match := _ASSIGNMENT.match(word))})
    script = _SUBSTITUTION.sub(f" {COMPUTED} ;", script)
    for piece in _BEFORE_COMMAND.split(_REDIRECTION.sub(" ", script)):
        words = [each for word in piece.split() for each in _expanded(word, understood=understood)]
        start = 0
        while start < len(words) and (_ASSIGNMENT.match(words[start]) or words[start] == "!"):
            # Variables and `!` may come before the program.
            start += 1
        if start < len(words):
            words = words[start:]
            if program_name(words[0]) in ("xargs", "parallel"):
                words.append(COMPUTED)  # standard input
            runner = words[0] in NEVER_UNDERSTOOD or runs_words(words)
            yield PossibleCommand(words, runs_words=runner, variables=variables)


def _expanded(word: str, *, understood: bool) -> list[str]:
    """Split a word as a shell may expand it: unquoted patterns and brace lists become `COMPUTED`."""
    is_list = "{" in word and "," in word and "}" in word
    # Understood words are already without patterns.
    if not understood and (is_list or (_PATTERN.search(word) and word not in _IS_NO_PATTERN)):
        return [COMPUTED]
    return word.replace("$", " ").replace("{", " ").replace("}", " ").split()


# ----------------------------------------------------------------------------------------------------------------------

_PROTECTED_NAMES: Final = frozenset(
    [
        *(".git", ".codex", ".agents", "helmsman.toml"),
        *(".claude", ".mcp.json", ".gemini", ".opencode", "opencode.json", "opencode.jsonc", ".qwen", ".copilot"),
        *(".kilo", ".kilocode", "kilo.json", "kilo.jsonc", ".kimi-code", ".nanocoder", "agents.config.json"),
    ]
)
"""Configuration of git, of agents and of Helmsman; `allow_workspace_patches` never covers a change to it."""
_HOOKS: Final = (".github", "hooks")
"""Copilot runs the hooks in this directory."""
_MAX_DIRECTORIES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules of a session.

    `allow_workspace_patches` allows patches to files that the session may write. `problem` is set if a rules file could
    not be read; allow rules are then left out.
    """

    rules: tuple[Rule, ...] = ()
    allow_workspace_patches: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Working directory and write access of a session."""

    directory: Path | None = None
    writes: Writes | None = None
    writable_roots: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """Decision on a question, with its rule (the first one if several allow it together) and the reason."""

    effect: Effect
    rule: Rule | None
    reason: str


def decide(question: Question, rules: RuleSet, workspace: Workspace) -> Ruling:
    """Decide a question by rules alone. Reads the file system to resolve links; never writes and never raises."""
    subject = _Subject(question, workspace)
    narrowing = [rule for rule in rules.rules if rule.effect != "allow"]
    answers = [(rule, subject.is_meant_by(rule)) for rule in narrowing]
    # Deny before ask, and both before allow, whatever their order in the files.
    for effect in ("deny", "ask"):
        for rule, answer in answers:
            if rule.effect == effect and answer == "yes":
                return Ruling(rule.effect, rule, rule.reason or f"A rule says so: {rule.describe()}.")
    # A rule that may cover the question is not enough to deny it, but no allow rule may answer it.
    for rule, answer in answers:
        if answer == "perhaps":
            return Ruling("ask", rule, f"It is not certain whether this rule covers it: {rule.describe()}.")
    decision = _decide_by_allowing(subject, rules)
    if decision.effect == "ask" and rules.problem is not None:
        return replace(decision, reason=f"{decision.reason} Rules that allow are not used now: {rules.problem}")
    return decision


def _decide_by_allowing(subject: _Subject, rules: RuleSet) -> Ruling:
    allowing = [rule for rule in rules.rules if rule.effect == "allow" and rule.type in (None, subject.type)]
    match subject.type:
        case "command_approval":
            return _decide_command(subject, allowing)
        case "patch_approval":
            return _decide_patch(subject, allowing, switch=rules.allow_workspace_patches)
        case "mcp_elicitation":
            return _decide_tool(subject, allowing)
        case "permission_approval" | "user_input":
            return Ruling("ask", None, "Only a person can answer this.")


# --- subject of a question ------------------------------------------------------------------------------------------


class _Subject:
    """Details of a question, read once and without trusting their shape."""

    def __init__(self, question: Question, workspace: Workspace) -> None:
        details = question.details
        self.type = question.type
        self.text = _text(details.get("command")) if question.type == "command_approval" else None
        # As it is shown, and as its innermost script: the user may write either.
        self.texts = () if self.text is None else (self.text, shell_script(self.text))
        self.commands = parse_command(self.text) if self.text is not None else None
        self.possible = possible_commands(self.text, self.commands) if self.text is not None else []
        self.is_more_than_words = is_more_than_words(question)
        self.directory = place_of(question, workspace)
        self.grants_root = bool(details.get("grantRoot"))
        self.paths = changed_paths(question)
        self.stays_inside = sandbox_of(question, workspace) == "inside"
        self.server = _text(details.get("server"))
        self.tool = _text(details.get("tool"))
        self.is_tool_call = (
            details.get("approvalKind") == "mcp_tool_call"
            and details.get("mode") != "url"
            and len(question.prompts) == 1  # more prompts are a form, which a person has to fill in
        )

    def is_meant_by(self, rule: Rule) -> Certainty:
        """Return whether a deny or ask rule covers this question."""
        if rule.type not in (None, self.type):
            return "no"
        answer: Certainty = "yes"
        if rule.command is not None or rule.text is not None:
            if self.text is None or rule.text not in (None, *self.texts, innermost_script(self.text)):
                return "no"
            if rule.command is not None:
                answer = self._may_run(rule, rule.command)
        if rule.mcp is not None:
            server, tool = rule.mcp
            if self.type != "mcp_elicitation" or self.server not in (None, server):
                return "no"
            if tool is not None and self.tool not in (None, tool):
                return "no"
        return answer if rule.directory is None or self._may_be_inside(rule, rule.directory) else "no"

    def _may_run(self, rule: Rule, command: tuple[str, ...]) -> Certainty:
        if rule.exact:
            return "yes" if runs_literally(command, self.possible) else "no"
        return may_run(command, self.possible)

    def _may_be_inside(self, rule: Rule, directory: Path) -> bool:
        # A patch has its files, any other question the directories in which it may run.
        places: Iterable[str] | None = self.paths
        if self.type != "patch_approval":
            places = directories_after(self.directory, self.commands or ())
        elif places is not None and not rule.below:
            places = [os.path.dirname(path) for path in places]  # noqa: PTH120 - they are texts
        return places is None or any(_inside(place, directory, rule.below, ignore_case=True) for place in places)


def is_more_than_words(question: Question) -> bool:
    """Return whether a command question asks for more than running its words here.

    Examples: additional permissions, network access, another machine, or input typed into a running program.
    """
    details = question.details
    elsewhere = question.environment not in (None, "local")
    return elsewhere or any(details.get(key) for key in ("additionalPermissions", "networkContext", "kind", "more"))


def place_of(question: Question, workspace: Workspace) -> str | None:
    """Return the directory in which a question arose: its own, else the session's; None if that is not a usable path."""
    return _absolute(question.details.get("directory", workspace.directory))


def sandbox_of(question: Question, workspace: Workspace) -> WhereItRuns:
    """Return where an approved action runs. Anything not proved to stay in the sandbox counts as outside."""
    said = question.details.get("sandbox")
    if question.type == "patch_approval":
        paths = changed_paths(question)
        # "outside" means that the agent runs without a sandbox.
        is_held = workspace.writes == "workspace" and said != "outside"
        # A granted root allows more than the listed files, and a missing list could name anything.
        if paths is None or question.details.get("grantRoot") or not is_held:
            return "outside"
        roots = [root for root in (workspace.directory, *workspace.writable_roots) if root is not None]
        return "inside" if _are_ordinary_files(paths, roots) else "outside"
    proved = said if question.type == "command_approval" else None
    return proved if proved in ("inside", "inside-then-outside") else "outside"


def named_paths(question: Question) -> list[Any]:
    """Return all paths that a patch names, from the list or from the legacy form, which names move targets separately."""
    paths, files = question.details.get("paths"), question.details.get("files")
    named = list(paths) if isinstance(paths, list | tuple) else []
    # The legacy form of Codex names the target of a move inside the change.
    for path, change in files.items() if isinstance(files, dict) else ():
        update = change.get("update") if isinstance(change, dict) else None
        moved = update.get("move_path") if isinstance(update, dict) else None
        named += [path, moved] if moved else [path]
    return named


def changed_paths(question: Question) -> tuple[str, ...] | None:
    """Return the files that a patch changes, with links resolved; None if the question does not name all of them."""
    known = [_absolute(path) for path in named_paths(question)]
    if question.type != "patch_approval" or not known or None in known:
        return None
    return tuple(_resolved(path) for path in known if path is not None)


# --- commands --------------------------------------------------------------------------------------------------------


def _decide_command(subject: _Subject, rules: Sequence[Rule]) -> Ruling:
    if subject.text is None:
        return Ruling("ask", None, "The question does not say which command it is about.")
    if subject.is_more_than_words:
        return Ruling("ask", None, "It asks for more than to run these words here, which no rule covers.")
    # Before any `cd` of the command itself.
    start = directories_after(subject.directory, ())
    whole = [rule for rule in rules if rule.text in subject.texts and _holds_in(rule, start)]
    ruling = _by_first(whole, inside=subject.stays_inside)
    # A rule for the whole text covers it even if no part is understood.
    if ruling is not None and (ruling.effect == "allow" or subject.commands is None):
        return ruling
    if subject.commands is None:
        return Ruling("ask", None, "The command is not fully understood, so no rule can allow it.")
    used: list[Rule] = []
    for number, command in enumerate(subject.commands):
        if cd_target(command) is not None:
            continue  # changes no file; its target counts for the commands after it
        places = directories_after(subject.directory, subject.commands[:number])
        holding = [rule for rule in rules if _holds_in(rule, places)]
        covering = next((rule for rule in holding if _covers(rule, command, inside=subject.stays_inside)), None)
        if covering is None:
            # Tell the user that a rule exists, and why it does not apply.
            inside = (rule for rule in holding if not rule.outside and _covers(rule, command, inside=True))
            if (only_inside := next(iter((*whole, *inside)), None)) is not None:
                return _only_inside(only_inside)
            return Ruling("ask", None, f"No rule allows this part of the command: {shlex.join(command.words)}")
        used.append(covering)
    if not used:
        return Ruling("ask", None, "No rule allows it.")
    described = "; ".join(dict.fromkeys(rule.describe() for rule in used))
    return Ruling("allow", used[0], f"Rules allow every part of it: {described}.")


def _covers(rule: Rule, command: SimpleCommand, *, inside: bool) -> bool:
    if rule.command is None or not (inside or rule.outside):
        return False
    # Word for word: redirections and variables make it another command.
    if rule.outside and not rule.prefix:
        return command == SimpleCommand(rule.command)
    if rule.outside and not inside and names_program(command.words) and not names_program(rule.command):
        return False  # the rule's first words do not name the program that would run
    # Without a redirection into a file, and with known variables only.
    return (
        command.words[: len(rule.command)] == rule.command and not command.writes and set(command.env) <= set(rule.env)
    )


def _by_first(covering: Sequence[Rule], *, inside: bool) -> Ruling | None:
    """Allow by the first covering rule that may answer; otherwise return why none may, or None if no rule covers it."""
    for rule in covering:
        if inside or rule.outside:
            return Ruling("allow", rule, f"A rule allows it: {rule.describe()}.")
    return _only_inside(covering[0]) if covering else None


def _only_inside(rule: Rule) -> Ruling:
    return Ruling(
        "ask",
        None,
        f"A yes may let it leave the sandbox, and this rule has no `outside = true`: {rule.describe()}.",
    )


def cd_target(command: SimpleCommand) -> str | None:
    """Return the target of a plain `cd DIRECTORY`, or None for any other command."""
    words = command.words
    plain = command == SimpleCommand(words) and len(words) == 2 and words[0] == "cd"
    return words[1] if plain and words[1][:1] not in ("-", "") else None


def directories_after(start: str | None, commands: Iterable[SimpleCommand]) -> list[str] | None:
    """Return every possible directory after these commands, as each `cd` may have failed; None if it can be anywhere."""
    if start is None:
        return None
    places = [start]
    for command in commands:
        if command.words[0] != "cd":
            continue
        target = cd_target(command)
        # The directories multiply with each `cd`, so there is a limit.
        if target is None or len(places) > _MAX_DIRECTORIES:
            return None
        reached = [os.path.join(place, target) for place in places]  # noqa: PTH118 - Path drops the dots in it
        # A shell resolves `link/..` to the parent of the link, a program to the parent of its target.
        places = list(dict.fromkeys([*places, *reached, *map(os.path.normpath, reached)]))
    return places


# --- patches and tools -----------------------------------------------------------------------------------------------


def _decide_patch(subject: _Subject, rules: Sequence[Rule], *, switch: bool) -> Ruling:
    if subject.paths is None or subject.grants_root:
        return Ruling("ask", None, "The question does not say which files would change, so no rule can allow it.")
    covering = [rule for rule in rules if _covers_files(rule, subject.paths)]
    ruling = _by_first(covering, inside=subject.stays_inside)
    if ruling is None and switch and subject.stays_inside:
        return Ruling("allow", None, "allow_workspace_patches is on, and all files are where Codex may write.")
    return ruling or Ruling("ask", None, "No rule allows changes to all of these files.")


def _covers_files(rule: Rule, paths: Sequence[str]) -> bool:
    if rule.paths is not None:
        # A rule from an answer names its files, with links resolved when it was made.
        return set(paths) <= set(rule.paths)
    if rule.type != "patch_approval" or rule.directory is None or not _are_ordinary_files(paths, [rule.directory]):
        return False
    return rule.below or all(_inside(str(Path(path).parent), rule.directory, below=False) for path in paths)


def _are_ordinary_files(paths: Iterable[str], roots: Sequence[Path]) -> bool:
    """Return whether each file is inside one of the directories and not protected there."""
    return all(any(_is_ordinary_file(Path(path), Path(_resolved(str(root)))) for root in roots) for path in paths)


def _is_ordinary_file(path: Path, root: Path) -> bool:
    if not path.is_relative_to(root) or path == root:
        return False
    # File systems may ignore case: `.GIT` is git's directory on macOS.
    parts = [part.casefold() for part in path.relative_to(root).parts]
    return _HOOKS not in pairwise(parts) and not any(part in _PROTECTED_NAMES for part in parts)


def _decide_tool(subject: _Subject, rules: Sequence[Rule]) -> Ruling:
    if not subject.is_tool_call or subject.server is None:
        return Ruling("ask", None, "An MCP server asks for input, which only a person can give.")
    tools = ((subject.server, None), (subject.server, subject.tool))
    here = directories_after(subject.directory, ())
    covering = [rule for rule in rules if rule.mcp in tools and _holds_in(rule, here)]
    # MCP servers run outside the agent's sandbox.
    return _by_first(covering, inside=False) or Ruling("ask", None, "No rule allows this tool.")


# --- places ----------------------------------------------------------------------------------------------------------


def _holds_in(rule: Rule, places: Sequence[str] | None) -> bool:
    directory = rule.directory
    if directory is None:
        return True
    # The rule was made for the directory that this path meant then.
    if rule.resolved and _resolved(str(directory)) != str(directory):
        return False
    # In every directory where the command may run.
    return places is not None and all(_inside(place, directory, rule.below) for place in places)


def _inside(place: str, directory: Path, below: bool, *, ignore_case: bool = False) -> bool:
    inner, outer = _resolved(place), _resolved(str(directory))
    if ignore_case:
        inner, outer = inner.casefold(), outer.casefold()
    return Path(inner).is_relative_to(outer) if below else inner == outer


def _resolved(path: str) -> str:
    """Follow all links of a path, as far as it exists."""
    return os.path.realpath(path)


def led_elsewhere(question: Question, directory: Path | None) -> dict[str, str]:
    """Map the files of a patch to where links lead them; files that are where they say are left out.

    A link in the path of the session's directory itself is ignored.
    """
    led: dict[str, str] = {}
    for name in map(str, named_paths(question) or ()) if question.type == "patch_approval" else ():
        whole = os.path.join(directory or "/", name)  # noqa: PTH118 - Path drops the dots in it
        said = Path(os.path.normpath(whole))
        if directory is not None and said.is_relative_to(directory):
            said = Path(_resolved(str(directory))) / said.relative_to(directory)
        if name.isprintable() and (real := _resolved(whole)) != str(said):
            # A name with control characters could not be shown.
            led[name] = real
    return led


def _absolute(path: object) -> str | None:
    text = str(path) if isinstance(path, str | Path) else ""
    if not text.isprintable():  # file system calls are not reliable for such a path
        return None
    return text if os.path.isabs(text) else None  # noqa: PTH117 - it is text from outside


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- questions that must be refused ----------------------------------------------------------------------------------

# Questions that are refused because a yes would write outside the allowed roots.
#
# Allowed roots hold no matter who answers. A patch, a root or a permission names its paths, so a path outside the
# roots, or one that cannot be read, is refused before the question is shown. A command that leaves the sandbox names no
# paths: a person or one of the user's own rules may allow it, an agent may not.


_UNREADABLE: Final = "/ (what it asks for cannot be read)"
_NO_WRITING: Final = frozenset({"read", "none", "deny"})
_NO_PLACES: Final = frozenset({"read", "globScanMaxDepth"})


def beyond_roots(question: Question, roots: Sequence[Path], directory: str | None) -> str | None:
    """Return why a yes would write outside the roots; None if the question names no such path.

    `directory` is the session's directory and the base of relative paths.
    """
    base = Path(directory or "")
    # A relative path counts from the session's directory, and links are resolved.
    outside = [place for place in _places(question) if not is_inside(base / place, roots)] if roots else []
    if not outside:
        return None
    return (
        f"This would write outside the allowed roots: {', '.join(outside)}. Work inside: {', '.join(map(str, roots))}."
    )


def leaves_the_sandbox(question: Question) -> bool:
    """Return whether a yes may run a command outside the sandbox; assumed unless the question proves otherwise."""
    return question.type == "command_approval" and question.details.get("sandbox") != "inside"


def _places(question: Question) -> Iterator[str]:
    """Yield every path that a yes would make writable, as far as the question names it."""
    details = question.details
    match question.type:
        case "patch_approval":
            # A patch with unreadable file names counts as one that writes anywhere.
            yield from map(str, named_paths(question)) if named_paths(question) else (_UNREADABLE,)
            if details.get("grantRoot") is not None:
                yield str(details["grantRoot"])
        case "permission_approval":
            yield from _permitted(details.get("permissions"))
        case "command_approval":
            if details.get("additionalPermissions") is not None:
                yield from _permitted(details["additionalPermissions"])
        case _:
            pass


def _permitted(permissions: Any) -> Iterator[str]:
    wanted = _given(permissions)
    # A key that is not known could grant anything.
    is_read = wanted is not None and wanted.keys() <= {"network", "fileSystem"}
    files = _given((wanted or {}).get("fileSystem", {})) if is_read else None
    if files is None:
        yield _UNREADABLE
        return
    for key, value in files.items():
        if key in _NO_PLACES:
            continue
        # A form that is not known may name more places.
        if key not in ("write", "entries") or not isinstance(value, list):
            yield _UNREADABLE
        elif key == "write":
            yield from map(str, value)
        else:
            yield from (place for entry in value for place in _entry(entry))


def _entry(entry: Any) -> Iterator[str]:
    access, path = (entry.get("access"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    if access in _NO_WRITING:
        return
    # An object is either a plain path or something that cannot be compared, such as a pattern.
    if isinstance(path, dict):
        path = path.get("path") if path.get("type") == "path" else None
    yield path if isinstance(path, str) else _UNREADABLE


def _given(value: Any) -> dict[str, Any] | None:
    return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else None
