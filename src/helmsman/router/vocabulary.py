"""Vocabulary of router commands. A request with any other word is work.

The router's safety depends on this: it does not search for command words, but for words that are not part of a command.
"Stop the task" is a command; "stop the task runner" has an extra word, so it is work.
"""

from __future__ import annotations

from typing import Final


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# --- courtesy --------------------------------------------------------------------------------------------------------

FILLERS: Final = word_set(
    """please pls plz kindly just now then immediately asap quickly actually really yet already anyway anymore again
    thanks thank thx cheers ok okay k sorry currently simply finally atm damn bloody"""
)
"""Words without influence on the meaning."""

_OPENERS: Final = """
can you / could you / would you / will you / can u / could u / would you mind / do you mind / can you maybe
would you be so kind as to / be so kind as to / would you be able to / could you possibly
i want to / i want you to / i would like to / i would like you to / i'd like to / i'd like you to / i need to
i need you to / i wish to / we want to / we need to / i would love to / i'd love to / id like to
i'd appreciate it if you could / i would appreciate it if you could / any chance you could / any chance you can
is there any chance you could / it would be great if you could / if you could / when you have a moment / when you can
i was wondering / may i ask / can i ask / do you know / i'd like to know / i would like to know / i want to know
do you happen to know / to bother you / to bother you but / quick question / one question / have a look at
take a look at
soo / sooo / you can / you may / to / i want that you / i wish that you / i'll / i would / i'd / enough / fine / great
cool / nice / perfect / alright / good / nah / ugh / argh / ah / hm / hmmm / right / listen / look / scratch that
forget that / one more thing / by the way / btw
lemme / i just want to / i just wanted to / wanted to ask / just checking / just wondering / just curious / curious
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


ASKED: Final = word_set("if whether how how's what what's where is")
"""Words that begin a question after "tell me". "When" is not one of them: it means a wait."""

OPENERS: Final = _by_first_word(_OPENERS)
"""Introductory phrases by first word, the longest first."""

PLEASANT: Final = word_set(
    """great nice perfect cool awesome excellent alright fine good understood noted roger lovely wonderful super sweet
    brilliant ta appreciated appreciate got bye goodbye lgtm yes no yep yeah nope sure welcome right gotcha lot much
    love wow phew"""
)
PLEASANT_REST: Final = PLEASANT | word_set(
    "it that that's so very much i you you're we all the best well done looks sounds work job see a will do night one"
)
"""Pleasantries that request nothing."""

SECOND_THOUGHTS: Final = word_set("no nope nah never nevermind hold scratch forget oops")
"""Openers after which no approval is accepted: "no, …" contradicts the rest."""

WONDERING: Final = word_set("i would i'd i'll wondering ask know question checking curious")
"""Last words of openers that consider an order instead of giving it: "can I …", "I would …"."""

# --- naming a task ---------------------------------------------------------------------------------------------------

ORDINALS: Final = {"first": "1", "second": "2", "third": "3", "1st": "1", "2nd": "2", "3rd": "3"}
TASK_NOUNS: Final = word_set("task tasks job jobs run runs turn session work one ones thing execution")
PRONOUNS: Final = word_set("it that this them these those everything all both")
SEVERAL: Final = word_set("them these those everything all both tasks jobs runs")
LAST: Final = word_set("last latest newest recent recently")
RUNNING: Final = word_set("running active current ongoing")
PLACES: Final = {"cloud": "cloud", "remote": "cloud", "local": "local"}
_DETERMINERS: Final = word_set(
    "the a an my our your any most previous codex codex's id alias named called number option"
)
NAMING: Final = TASK_NOUNS | PRONOUNS | LAST | RUNNING | word_set(" ".join(PLACES)) | _DETERMINERS
"""All words of a phrase that names a task."""

# --- cancel ----------------------------------------------------------------------------------------------------------

CANCEL_ALONE: Final = word_set("cancel stop abort kill halt terminate")
CANCEL_VERBS: Final = CANCEL_ALONE | word_set("end quit interrupt")
"""`end`, `quit` and `interrupt` require an object."""

CANCELLED: Final = word_set("cancelled canceled stopped aborted killed halted terminated")
GERUNDS: Final = {
    "cancelling": "cancel", "canceling": "cancel", "stopping": "stop", "aborting": "abort", "killing": "kill",
    "checking": "check", "waiting": "wait", "showing": "show", "telling": "tell", "giving": "give",
}  # fmt: skip
"""Verb forms after "would you mind"."""

CANCEL_REST: Final = (
    NAMING | CANCEL_ALONE | word_set("whatever is of on for me working doing what you you're are and with at once i")
)
REASON_LEADS: Final = word_set(
    "because since as it's its it i i'm we we're not no that's that this wrong my too there's"
)
REASON_REST: Final = REASON_LEADS | word_set(
    """is was am are be been has have had do don't dont didn't doesn't does did can't cannot won't a an the our
    other your of on for in to by with than at all and so very just any much more changed mind
    longer needed need want wanted wants meant started start made mistake accident accidentally error
    taking takes took long slow slowly forever ages hours minutes time times
    stuck hung hanging hangs frozen looping running works working nothing useless pointless obsolete unnecessary redundant
    irrelevant over done bad idea task job run one repo repository branch directory folder project prompt instructions
    place approach thing costs cost expensive budget money tokens enough late you misunderstood else first idle
    better necessary required hand myself"""
)
"""All words of a reason after a cancel: "it is dead code" is not a reason but work."""

NEGATIONS: Final = word_set("don't dont never not")
TAKES_BACK: Final = NEGATIONS | word_set("no i i'm it it's that that's we")
"""Words that begin a second thought after a no ("cancel it, no, I …"); "no longer needed" is a reason."""
AIMS: Final = word_set("at on of for with")
"""After a stop verb, these say where or when a program must stop: "stop at the first one"."""

# --- check -----------------------------------------------------------------------------------------------------------

STATUS_NOUNS: Final = word_set("status progress eta news state states situation updates update")
STATES: Final = (
    word_set(
        """going doing done finished finish complete completed ready running working stuck hung hanging failed fail succeed
    succeeded passed over far along happening progressing taking take alive through stopped started up luck longer"""
    )
    | CANCELLED
)
NOUN_PHRASE: Final = (
    NAMING
    | STATUS_NOUNS
    | word_set(
        """of on for about from with me is what what's and report regarding brief short outstanding executing pending
        their every each"""
    )
)
CHECK_LEADS: Final = word_set("check poll ping recheck")
ASKING_LEADS: Final = word_set(
    """show get give tell list see report view display print fetch have let read grab pull bring say retrieve enumerate
    provide query inform gimme"""
)
QUESTION_LEADS: Final = word_set(
    "how how's is are has have did was were what's what where where's when why which any will whether if am"
)
QUESTION_REST: Final = (
    NOUN_PHRASE
    | STATES
    | word_set(
        """it's is are has have did does do be been was were will so long much left more time we you i there things still
        coming getting how how's whether if when at to in by got at where out cancel stop abort kill me since know
        anything"""
    )
)
STATE_LEADS: Final = word_set("done finished ready still running")

# --- wait ------------------------------------------------------------------------------------------------------------

WAIT_LEADS: Final = word_set("wait await")
TELL_LEADS: Final = word_set("tell let notify ping inform alert message wake say")
WHENS: Final = word_set("when once soon until till")
WAIT_REST: Final = QUESTION_REST | word_set(
    """until till til its finishes finishing completes completing completion ends ended stops end know once soon as you're
    longer bit while moment sec minute result results output show like timeout elapse or that another few couple tell"""
)

ENDINGS: Final = word_set("finishes completes ends ended stops")
PLURALS: Final = word_set("tasks jobs runs")
"""After a number, these mean a count, not an index."""

# --- results ---------------------------------------------------------------------------------------------------------

RESULT_NOUNS: Final = word_set(
    "result results output outputs outcome diff differences summary changes answer findings patch verdict"
)
LOGS: Final = word_set("log logs transcript report")
"""Require a named task: otherwise these may belong to a program."""

DEEDS: Final = word_set(
    "do did done change changed find found produce produced say said return write wrote came achieve come happened"
)
RESULTS_REST: Final = (
    NOUN_PHRASE
    | RESULT_NOUNS
    | LOGS
    | DEEDS
    | word_set("did has was were out you i have see to which full final completed finished by been")
)

# --- answers to questions --------------------------------------------------------------------------------------------

APPROVE_VERBS: Final = word_set("approve allow accept permit authorize authorise")
DENY_VERBS: Final = word_set("deny reject refuse decline disallow forbid")
ANSWER_VERBS: Final = word_set("answer reply respond response")
JUDGING_VERBS: Final = word_set("approve deny")
"""Answer verbs that are hardly ever work; "allow edits" and "reject duplicates" are work."""
DEFINITE: Final = word_set("it that this them these those the my its once and")
QUESTION_NOUNS: Final = word_set("command question request approval patch change changes edit edits permission")
ANSWER_REST: Final = (
    NAMING
    | QUESTION_NOUNS
    | word_set(
        "of for to and continue proceed go ahead carry on its once only time with is pending proposed open waiting"
    )
)
WIDE: Final = word_set("always forever permanently session sessions future similar everytime every")
"""Words that extend an approval beyond one question, which plain words must not do."""
WIDE_REST: Final = (
    ANSWER_REST | APPROVE_VERBS | WIDE | word_set("from on in such like commands requests questions asks")
)
MAY_ANSWER: Final = APPROVE_VERBS | DENY_VERBS | ANSWER_VERBS | word_set("approved denied granted rejected")
MAY_BEGIN_ANSWER: Final = MAY_ANSWER | {"always", "proceed", "let"}
GO_AHEAD: Final = frozenset(
    [
        *(
            ("go", "ahead"),
            ("do", "it"),
            ("run", "it"),
            ("go", "on"),
            ("let", "it"),
            ("let", "it", "run"),
            ("continue",),
        ),
        *(("go", "for", "it"), ("do", "that"), ("let", "it", "do", "it"), ("that's", "fine")),
    ]
)
"""Phrases that may be an answer to an open question. They are never accepted as an approval."""

# --- following up, choosing, lists of cloud environments --------------------------------------------------------------

FOLLOW_VERBS: Final = word_set("continue resume follow go carry proceed keep")
FOLLOW_REST: Final = NAMING | word_set("with on in up from of to going for where left off")
NUMBERED: Final = word_set("number option the one")
CHOOSE_VERBS: Final = word_set("switch use take pick choose select")
CHOOSE_REST: Final = NAMING | word_set("to instead rather with for other")
APPLY_REST: Final = NAMING | word_set(
    "changes change diff patch result results of from by to here repo repository tree directory"
)
ENVIRONMENTS: Final = word_set("environments environment envs env")
ENVIRONMENTS_REST: Final = ENVIRONMENTS | word_set(
    """list show get give me the my our all available cloud codex which what are is there do i we have can use exist known
    in of for"""
)

# --- setup -----------------------------------------------------------------------------------------------------------

SETUP_OPENERS: Final = _by_first_word("""
help me / help me to / how do i / how can i / how to / guide me through / walk me through / help with / show me how to
tell me how to / help / guide me through the / walk me through the
""")
SETUP_LEADS: Final = word_set("setup connect configure link integrate")
SETUP_THINGS: Final = word_set("github cloud")
SETUP_REST: Final = SETUP_THINGS | word_set(
    """the a my our this codex integration account repo repository project here to with for access environment
    environments setup connection and up"""
)

# --- work ------------------------------------------------------------------------------------------------------------

WORK_VERBS: Final = word_set(
    """accept adapt add adjust align allow analyse analyze apply archive assert audit automate avoid backport benchmark
    bisect build bump bundle change clean clone close code combine commit compare compile complete compress compute configure
    continue convert copy correct create cut debug declare decouple deduplicate define delete deploy deprecate describe
    design detect develop disable document download draft drop echo edit eliminate enable encrypt enforce ensure escape
    estimate evaluate examine exclude expand explain explore export expose extend extract figure filter find finish fix
    format generate grep handle harden hide highlight ignore implement import improve include increase inline insert
    inspect install instrument integrate introduce investigate isolate keep label lint load localise localize log
    make measure merge migrate minify mock modernise modernize modify monitor move normalise normalize open optimise optimize
    organise organize package paginate parallelise parse patch persist plan polish port prepare prevent profile propose
    protect prove provide publish pull push rebase reduce redo refactor refine regenerate reimplement release remove rename
    reorder reorganise reorganize repair replace reply reproduce require rerun research resolve restart restore restrict
    restructure resume retry return reuse revert review rewrite run sanitise sanitize save scaffold scan search secure
    separate simplify solve sort speed split squash start store streamline strip structure style submit suggest support
    swap sync test tidy track translate trim try turn type uninstall unify update upgrade upload use validate verify
    version wire wrap write"""
)
"""Request that begins with one of these is work."""

# --- everyday words --------------------------------------------------------------------------------------------------

_EVERYDAY: Final = word_set(
    """a an none the this that these those it its it's i i'm i've i'll i'd im ive ill me my mine you you're you've your
    yours we we're our us he she they they're them their there there's here who whom whose which what what's
    when where where's why how how's am is are was were be been being isn't aren't wasn't do does did don't
    doesn't didn't done doing has have had hasn't haven't having can can't could couldn't will won't would
    wouldn't shall may might and or but nor if whether because since as so than then though although while until
    till unless of at by for with about against between into through during before after above below to from up
    down in out on off over under again further once no not only own same too very just now still already yet
    even ever never always also any all both each few more most other some such else another one ones thing
    things stuff something anything nothing everything somebody anybody someone anyone nobody everyone today
    tonight tomorrow yesterday morning afternoon evening night day days week hour hours minute minutes second
    seconds moment while soon later earlier ago long longer last next first go going goes gone went get gets
    getting got give gives gave given come comes came coming say says said tell tells told ask asks asked know
    knows known think thinks thought guess see sees saw seen look looks looking looked seem seems want wants
    wanted need needs needed like likes hope wonder wondering happen happens happened happening turn turned keep
    keeps kept take takes taking took bring let lets put mean means meant say good bad fine great ok okay well
    right wrong sure maybe perhaps actually really quite rather pretty much many lot bit little quick quickly
    slow slowly fast please thanks thank sorry hello hi hey yes no yeah nope gimme lemme gonna wanna gotta ain't
    dunno idk pls plz u ur k ya yo yep nah bored tired asleep bed lunch situation order verdict execution
    duplicate superseded outstanding pending executing brief regarding new old big small whole enough left
    around back away together alone way kind sort bet call called forget forgot remember still dead alive awake
    frozen dying die died stuck approved denied granted rejected declined permission broke broken
    failing fire"""
)
EVERYDAY: Final = (
    _EVERYDAY | NAMING | CANCEL_REST | CANCEL_VERBS | CANCELLED | REASON_REST | QUESTION_REST | WAIT_REST | RESULTS_REST
    | ANSWER_REST | JUDGING_VERBS | DENY_VERBS | ANSWER_VERBS | QUESTION_LEADS | CHECK_LEADS | ASKING_LEADS | TELL_LEADS
    | PLEASANT_REST | FOLLOW_REST | CHOOSE_REST | NEGATIONS | FILLERS
) - WORK_VERBS  # fmt: skip
"""Words unrelated to programs: a request of only these, without a leading work verb, is not work."""

# --- typing errors ---------------------------------------------------------------------------------------------------

MISSPELT: Final = {
    "teh": "the", "hte": "the", "te": "the", "wht": "what", "taht": "that", "tath": "that", "ti": "it",
    "fo": "of", "fro": "for", "hwo": "how",
    "wats": "what's", "whats": "what's", "wat's": "what's", "wheres": "where's", "hows": "how's", "goin": "going",
    "cansel": "cancel", "cancle": "cancel", "stauts": "status", "mytask": "task", "u": "you", "ur": "your",
    "ill": "i'll", "gimme": "give", "aprove": "approve", "approv": "approve", "continu": "continue",
    "untill": "until", "youre": "you're", "dnt": "don't",
}  # fmt: skip
_NOT_SLIPS: Final = word_set(
    "stats heck util read checks checked gong dong tack asks ask shows shop post tops tasked sates"
)
KNOWN: Final = (
    NAMING | CANCEL_REST | CANCEL_VERBS | QUESTION_REST | WAIT_REST | RESULTS_REST | SETUP_REST | WORK_VERBS | QUESTION_LEADS
    | WIDE_REST | DENY_VERBS | ANSWER_VERBS | FOLLOW_REST | FOLLOW_VERBS | CHOOSE_REST | CHOOSE_VERBS | ENVIRONMENTS_REST
    | PLEASANT_REST
    | CHECK_LEADS | ASKING_LEADS | TELL_LEADS | SETUP_LEADS | REASON_REST | NEGATIONS | FILLERS | _NOT_SLIPS
)  # fmt: skip
MENDABLE: Final = (
    "status", "progress", "check", "task", "tasks", "results", "result", "output", "finished", "done", "update", "updates",
    "github", "setup", "until", "summary", "running", "going", "wait", "what's", "show", "cancel", "stop", "abort",
    "terminate",
)  # fmt: skip
