"""The words a command to the router may consist of. A request with any other word in it is work.

That is the whole safety of the router: it does not look for command words in a request, it looks for anything that is not
one. "Stop the task" is a command; "stop the task runner" has a word left over, and so it is a job.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- courtesy --------------------------------------------------------------------------------------------------------

FILLERS: Final = _words(
    """please pls plz kindly just now then immediately asap quickly actually really yet already anyway anymore again
    thanks thank thx cheers ok okay sorry currently simply finally atm damn bloody"""
)
"""Words that change nothing wherever they stand."""

_OPENERS: Final = """
can you / could you / would you / will you / can u / could u / would you mind / do you mind / can you maybe
would you be so kind as to / be so kind as to / would you be able to / could you possibly
i want to / i want you to / i would like to / i would like you to / i'd like to / i'd like you to / i need to
i need you to / i wish to / we want to / we need to / i would love to / i'd love to / id like to
i'd appreciate it if you could / i would appreciate it if you could / any chance you could / any chance you can
is there any chance you could / it would be great if you could / if you could / when you have a moment / when you can
i was wondering / may i ask / can i ask / do you know / i'd like to know / i would like to know / i want to know
do you happen to know / to bother you / to bother you but / quick question / one question / have a look at / take a look at
hi / hello / hey / there / dear / yo / good morning / good afternoon / good evening / oh / no / nope / yes / yeah / yep
well / so / um / uh / hmm / oops / but / and / nevermind / never mind / never mind that / hold on / codex / helmsman / you
go ahead and / go and / feel free to / let's / lets / if possible / for me / may i / can i / could i / might i
"""


def _by_first_word(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrase in text.replace("\n", "/").split("/"):
        if words := tuple(phrase.split()):
            found.setdefault(words[0], []).append(words)
    return {first: tuple(sorted(phrases, key=len, reverse=True)) for first, phrases in found.items()}


ASKED: Final = _words("if whether how how's what what's where is")
"""After "tell me" these begin a question; "when" does not: that is a wait."""

OPENERS: Final = _by_first_word(_OPENERS)
"""What people say before they come to the point, by its first word, the longest first."""

# --- naming a task ---------------------------------------------------------------------------------------------------

ORDINALS: Final = {"first": "1", "second": "2", "third": "3", "1st": "1", "2nd": "2", "3rd": "3"}
TASK_NOUNS: Final = _words("task tasks job jobs run runs turn session work one ones")
PRONOUNS: Final = _words("it that this them these those everything all both")
SEVERAL: Final = _words("them these those everything all both tasks jobs runs")
LAST: Final = _words("last latest newest recent")
RUNNING: Final = _words("running active current ongoing")
PLACES: Final = {"cloud": "cloud", "remote": "cloud", "local": "local"}
_DETERMINERS: Final = _words(
    "the a an my our your any most previous codex codex's id alias named called number no option"
)
NAMING: Final = TASK_NOUNS | PRONOUNS | LAST | RUNNING | _words(" ".join(PLACES)) | _DETERMINERS
"""Everything that may stand in a phrase that names a task."""

# --- cancel ----------------------------------------------------------------------------------------------------------

CANCEL_ALONE: Final = _words("cancel stop abort kill halt terminate")
CANCEL_VERBS: Final = CANCEL_ALONE | _words("end quit interrupt")
"""`end`, `quit` and `interrupt` need something to be done to."""

CANCELLED: Final = _words("cancelled canceled stopped aborted killed halted terminated")
GERUNDS: Final = {
    "cancelling": "cancel", "canceling": "cancel", "stopping": "stop", "aborting": "abort", "killing": "kill",
    "checking": "check", "waiting": "wait", "showing": "show", "telling": "tell", "giving": "give",
}  # fmt: skip
"""After "would you mind" the verb has this form."""

CANCEL_REST: Final = NAMING | CANCEL_ALONE | _words("of on for me working doing what you you're are and with at once i")
REASON_LEADS: Final = _words("because since as it's its it i i'm we we're not no that's that this wrong my too there's")
REASON_REST: Final = REASON_LEADS | _words(
    """is was am are be been has have had do don't dont didn't doesn't does did can't cannot won't a an the our
    other your of on for in to by with than at all and so very just any much more changed mind
    longer needed need want wanted wants meant started start made mistake accident accidentally error
    taking takes took long slow slowly forever ages hours minutes time times
    stuck hung hanging hangs frozen looping running works working nothing useless pointless obsolete unnecessary redundant
    irrelevant over done bad idea task job run one repo repository branch directory folder project prompt instructions
    place approach thing costs cost expensive budget money tokens enough late you misunderstood else first idle"""
)
"""A reason that follows a cancel, from its first word to its last: "it is dead code" is no reason but a job."""

NEGATIONS: Final = _words("don't dont never not")

# --- check -----------------------------------------------------------------------------------------------------------

STATUS_NOUNS: Final = _words("status progress eta news state updates update")
STATES: Final = (
    _words(
        """going doing done finished finish complete completed ready running working stuck hung hanging failed fail succeed
    succeeded passed over far along happening progressing taking take alive through stopped started up luck longer"""
    )
    | CANCELLED
)
NOUN_PHRASE: Final = NAMING | STATUS_NOUNS | _words("of on for about from with me is what what's and report")
CHECK_LEADS: Final = _words("check poll ping recheck")
ASKING_LEADS: Final = _words(
    "show get give tell list see report view display print fetch have let read grab pull bring"
)
QUESTION_LEADS: Final = _words(
    "how how's is are has have did was were what's what where where's when why which any will whether if am"
)
QUESTION_REST: Final = (
    NOUN_PHRASE
    | STATES
    | _words(
        """it's is are has have did does do be been was were will so long much left more time we you i there things still
        coming getting how how's whether if when at to in by got at where out cancel stop abort kill me since know
        anything"""
    )
)
STATE_LEADS: Final = _words("done finished ready still running")

# --- wait ------------------------------------------------------------------------------------------------------------

WAIT_LEADS: Final = _words("wait await")
TELL_LEADS: Final = _words("tell let notify ping inform alert message")
WHENS: Final = _words("when once soon until till")
WAIT_REST: Final = QUESTION_REST | _words(
    """until till til its finishes finishing completes completing completion ends ended stops end know once soon as you're
    longer bit while moment sec minute result results output show"""
)

ENDINGS: Final = _words("finishes completes ends ended stops")
PLURALS: Final = _words("tasks jobs runs")

# --- results ---------------------------------------------------------------------------------------------------------

RESULT_NOUNS: Final = _words("result results output outputs outcome diff summary changes answer findings patch")
LOGS: Final = _words("log logs transcript report")
"""Only of a task: on their own they are just as well those of a program."""

DEEDS: Final = _words(
    "do did done change changed find found produce produced say said return write wrote came achieve come happened"
)
RESULTS_REST: Final = (
    NOUN_PHRASE | RESULT_NOUNS | LOGS | DEEDS | _words("did has was were out you i have see to which full final")
)

# --- setup -----------------------------------------------------------------------------------------------------------

SETUP_OPENERS: Final = _by_first_word("""
help me / help me to / how do i / how can i / how to / guide me through / walk me through / help with / show me how to
tell me how to / help / guide me through the / walk me through the
""")
SETUP_LEADS: Final = _words("setup connect configure link integrate")
SETUP_THINGS: Final = _words("github cloud")
SETUP_REST: Final = SETUP_THINGS | _words(
    """the a my our this codex integration account repo repository project here to with for access environment
    environments setup connection and up"""
)

# --- work ------------------------------------------------------------------------------------------------------------

WORK_VERBS: Final = _words(
    """accept adapt add adjust align allow analyse analyze apply archive assert audit automate avoid backport benchmark
    bisect build bump bundle change clean clone close code combine commit compare compile complete compress compute configure
    continue convert copy correct create cut debug declare decouple deduplicate define delete deploy deprecate describe
    design detect develop disable document download draft drop echo edit eliminate enable encrypt enforce ensure escape
    estimate evaluate examine exclude expand explain explore export expose extend extract figure filter find finish fix
    format generate grep handle harden hide highlight ignore implement import improve include increase inline insert
    inspect install instrument integrate introduce investigate isolate keep label lint load localise localize log
    make measure merge migrate minify mock modernise modernize modify monitor move normalise normalize open optimise optimize
    organise organize package paginate parallelise parse patch persist plan polish port prepare prevent profile propose
    protect prove provide publish pull push reduce redo refactor refine regenerate reimplement release remove rename
    reorder reorganise reorganize repair replace reply reproduce require rerun research resolve restart restore restrict
    restructure resume retry return reuse revert review rewrite run sanitise sanitize save scaffold scan search secure
    separate simplify solve sort speed split squash start store streamline strip structure style submit suggest support
    swap sync test tidy track translate trim try turn type uninstall unify update upgrade upload use validate verify
    version wire wrap write"""
)
"""A request that begins with one of these is a job, whatever follows."""

# --- typing errors ---------------------------------------------------------------------------------------------------

MISSPELT: Final = {
    "teh": "the", "hte": "the", "te": "the", "wht": "what", "taht": "that", "tath": "that", "ti": "it",
    "fo": "of", "fro": "for", "hwo": "how",
    "wats": "what's", "whats": "what's", "wat's": "what's", "wheres": "where's", "hows": "how's", "goin": "going",
    "cansel": "cancel", "cancle": "cancel", "stauts": "status", "mytask": "task", "u": "you", "ur": "your",
    "untill": "until", "youre": "you're", "dnt": "don't",
}  # fmt: skip
_NOT_SLIPS: Final = _words(
    "stats heck util read checks checked gong dong tack asks ask shows shop post tops tasked sates"
)
KNOWN: Final = (
    NAMING | CANCEL_REST | CANCEL_VERBS | QUESTION_REST | WAIT_REST | RESULTS_REST | SETUP_REST | WORK_VERBS | QUESTION_LEADS
    | CHECK_LEADS | ASKING_LEADS | TELL_LEADS | SETUP_LEADS | REASON_REST | NEGATIONS | FILLERS | _NOT_SLIPS
)  # fmt: skip
MENDABLE: Final = (
    "status", "progress", "check", "task", "tasks", "results", "result", "output", "finished", "done", "update", "updates",
    "github", "setup", "until", "summary", "running", "going", "wait", "what's", "show", "cancel", "stop", "abort",
    "terminate",
)  # fmt: skip
