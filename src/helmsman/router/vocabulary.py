"""Vocabulary of the router.

The router's safety depends on it: the router does not search for command words, but for words that are not part of a
command. "Stop the task" is a command; "stop the task runner" has an extra word, so it is work.
"""

from __future__ import annotations

from typing import Final, Literal

RouterVerb = Literal["run", "check", "wait", "cancel", "results", "respond", "apply", "environments", "setup"]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of a text, which slashes and lines separate."""
    return tuple(filter(None, (" ".join(phrase.split()) for phrase in text.replace("\n", "/").split("/"))))


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
take a look at / soo / sooo / you can / you may / to / i want that you / i wish that you / i'll / i would / i'd / enough
fine / great / cool / nice / perfect / alright / good / nah / ugh / argh / ah / hm / hmmm / right / listen / look
scratch that / forget that / one more thing / by the way / btw / lemme / i just want to / i just wanted to
wanted to ask / just checking / just wondering / just curious / curious / hi / hello / hey / there / dear / yo
good morning / good afternoon / good evening / oh / no / nope / yes / yeah / yep / well / so / um / uh / hmm / oops / but
and / nevermind / never mind / never mind that / hold on / codex / helmsman / you / go ahead and / go and / feel free to
let's / lets / if possible / for me / may i / can i / could i / might i
"""


def _by_first_word(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases(text):
        found.setdefault(phrase.split()[0], []).append(tuple(phrase.split()))
    return {first: tuple(sorted(several, key=len, reverse=True)) for first, several in found.items()}


OPENERS: Final = _by_first_word(_OPENERS)
"""Introductory phrases by first word, the longest first."""
PLEASANTRIES: Final = word_set(
    """great nice perfect cool awesome excellent alright fine good understood noted roger lovely wonderful super sweet
    brilliant appreciated got bye goodbye lgtm yes no yep yeah nope sure welcome right gotcha love wow phew it that that's
    so very much i you you're we all the best well done looks sounds work job see a will do night one lot"""
)
"""Pleasantries that request nothing."""
CLOSERS: Final = word_set(
    "yes no lgtm great nice perfect cool awesome alright fine good noted got bye sure understood roger phew"
)
"""One of them makes words out of `PLEASANTRIES` a pleasantry."""
SECOND_THOUGHTS: Final = word_set("no nope nah never nevermind hold scratch forget oops")
"""Openers after which no approval is accepted: "no, …" contradicts the rest."""
WONDERING: Final = word_set("i would i'd i'll wondering ask know question checking curious")
"""Last words of openers that consider an order instead of giving it: "can I …", "I would …"."""
NEGATIONS: Final = word_set("don't dont never not")
HELP: Final = phrases("help / usage / what can you do / what can i say")
"""Exact matches only: "help me with the parser" is work."""

# --- naming a task ---------------------------------------------------------------------------------------------------

ORDINALS: Final = {"first": "1", "second": "2", "third": "3", "1st": "1", "2nd": "2", "3rd": "3"}
TASK_NOUNS: Final = word_set("task tasks job jobs run runs turn session work one ones thing execution")
PRONOUNS: Final = word_set("it that this them these those everything all both")
SEVERAL: Final = word_set("them these those everything all both tasks jobs runs")
PLURALS: Final = word_set("tasks jobs runs")
LAST: Final = word_set("last latest newest recent recently")
RUNNING: Final = word_set("running active current ongoing")
PLACES: Final = {"cloud": "cloud", "remote": "cloud", "local": "local"}
NAMING: Final = (
    TASK_NOUNS | PRONOUNS | LAST | RUNNING | PLACES.keys()
    | word_set("the a an my our your any most previous codex codex's id alias named called number option")
)  # fmt: skip
"""All words of a phrase that names a task."""

# --- orders ----------------------------------------------------------------------------------------------------------

CANCEL_ALONE: Final = word_set("cancel stop abort kill halt terminate")
CANCEL_VERBS: Final = CANCEL_ALONE | word_set("end quit interrupt")
"""`end`, `quit` and `interrupt` require an object."""
GERUNDS: Final = {
    "cancelling": "cancel", "canceling": "cancel", "stopping": "stop", "aborting": "abort", "killing": "kill",
    "checking": "check", "waiting": "wait", "showing": "show", "telling": "tell", "giving": "give",
}  # fmt: skip
"""Verb forms after "would you mind"."""
CANCEL_REST: Final = (
    NAMING | CANCEL_ALONE | word_set("whatever is of on for me working doing what you you're are and with at once i")
)
AIMS: Final = word_set("at on of for with")
"""After a stop verb, these say where or when a program must stop: "stop at the first one"."""
APPROVE_VERBS: Final = word_set("approve allow accept permit authorize authorise")
DENY_VERBS: Final = word_set("deny reject refuse decline disallow forbid")
ANSWER_VERBS: Final = word_set("answer reply respond response")
JUDGING_VERBS: Final = word_set("approve deny")
"""Answer verbs that are hardly ever work; "allow edits" and "reject duplicates" are work."""
ANSWER_REST: Final = NAMING | word_set(
    """command question request approval patch change changes edit edits permission of for to and continue proceed go ahead
    carry on its once only time with is pending proposed open waiting"""
)
DEFINITE: Final = word_set("it that this them these those the my its once and")
WIDE: Final = word_set("always forever permanently session sessions future similar everytime every")
"""Words that extend an approval beyond one question, which plain words must not do."""
WIDE_REST: Final = (
    ANSWER_REST | APPROVE_VERBS | WIDE | word_set("from on in such like commands requests questions asks")
)
MAY_ANSWER: Final = APPROVE_VERBS | DENY_VERBS | ANSWER_VERBS | word_set("approved denied granted rejected")
MAY_BEGIN_ANSWER: Final = MAY_ANSWER | {"always", "proceed", "let"}
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
SETUP_LEADS: Final = word_set("setup connect configure link integrate github help how guide walk show tell")
SETUP_THINGS: Final = word_set("setup connect configure link integrate integration")
SETUP_REST: Final = SETUP_THINGS | word_set(
    """github cloud the a my our this codex account repo repository project here to with for access environment environments
    connection and up me do i can through how"""
)

# --- questions -------------------------------------------------------------------------------------------------------

ASKED: Final = word_set("if whether how how's what what's where is")
"""Words that begin a question after "tell me". "When" is not one of them: it means a wait."""
ASKING_LEADS: Final = word_set(
    """show get give tell list see report view display print fetch have let read grab pull bring say retrieve enumerate
    provide query inform gimme summarize obtain update check poll
    ping recheck status progress eta news state states situation updates"""
)
QUESTION_LEADS: Final = word_set(
    """how how's hows wats is are has have did was were what what's whats where where's when why which any will whether if am
    does do who whatever anything something still"""
)
STATES: Final = word_set("done finished ready running complete completed state status eta progress news update updates")
"""Words that ask how a task is, in any place."""
WAIT_LEADS: Final = word_set("wait await")
HOLD_LEADS: Final = word_set("hold block keep")
TELL_LEADS: Final = word_set("tell let notify ping inform alert message wake say")
WHENS: Final = word_set("when once soon until till waiting")
RESULT_NOUNS: Final = word_set(
    """result results output outputs outcome diff differences summary changes answer findings patch verdict log logs
    transcript"""
)
DEEDS: Final = word_set(
    "do did done change changed find found produce produced say said return write wrote came achieve happened"
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
"""A request that begins with one of these, and has an object, is work."""

EVERYDAY: Final = (
    NAMING | CANCEL_REST | CANCEL_VERBS | ANSWER_REST | WIDE | JUDGING_VERBS | DENY_VERBS | ANSWER_VERBS | MAY_ANSWER
    | FOLLOW_REST | QUESTION_LEADS | STATES | WAIT_LEADS | HOLD_LEADS | TELL_LEADS | WHENS | RESULT_NOUNS | DEEDS | NEGATIONS
    | FILLERS | PLEASANTRIES | CHOOSE_REST
    | word_set(
        """aborted about above accident accidentally after afternoon against ages ago ain't alive alone along also although
        another anybody anyone appreciate approach aren't around as ask asked asks asleep awake away back bad be because
        bed been before being below bet better between big bit bored branch brief broke broken budget but by call can can't
        canceled cancelled cannot come comes coming completes completing completion cost costs could couldn't couple day
        days dead declined didn't die died doesn't down dunno duplicate during dying each earlier elapse else ended ends
        enough even evening ever everyone executing expensive fail failed failing far fast few final finish finishes
        finishing fire forget forgot frozen full further gave get gets getting given gives goes gone gonna gotta guess had
        halted hand hanging hangs happen happening happens hasn't haven't having he hello here hey hi hope hour hours hung
        i'd i'll i'm i've idea idk idle ill im instructions into irrelevant isn't it's ive keeps kept killed kind know
        known knows late later lemme lets like likes little long longer look looked looking looping luck lunch made many
        may maybe mean means meant might mind mine minute minutes mistake misunderstood moment money more morning myself
        nah necessary need needed needs new next nobody none nor nothing obsolete old or order out outstanding over own
        passed perhaps place pointless pretty progressing prompt put quick quite redundant regarding remember report
        repository required same saw says sec seconds seem seems seen sees she short since situation slow slowly small some
        somebody someone stand started states stopped stops stuck stuff succeed succeeded such superseded ta take takes
        taking tells terminated than their there there's they they're things think thinks though thought through til
        timeout times tired today together tokens told tomorrow tonight too took turned u under unless unnecessary ur us
        useless wanna want wanted wants wasn't way we're week went while whole whom whose won't wonder wondering works
        would wouldn't wrong ya yesterday yo you've yours"""
    )
)  # fmt: skip
"""Words unrelated to programs: a request of only these, without a leading work verb, is not work."""

_MENDABLE: Final = word_set(
    """status progress check task tasks results result output finished update updates github setup until summary running
    going wait what's show cancel stop abort terminate the that what how for done"""
)


def _slips() -> dict[str, str]:
    """Return likely typos of these words: two letters swapped, one left out of a long word, or one doubled there."""
    found: dict[str, str] = {}
    for word in sorted(_MENDABLE):
        places = range(len(word))
        found |= {word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]: word for at in places}
        if len(word) >= (6 if word in CANCEL_VERBS else 5):
            found |= {word[:at] + word[at + 1 :]: word for at in places}
        if len(word) >= 5:
            found |= {word[:at] + word[at] + word[at:]: word for at in places}
    return found


KNOWN: Final = EVERYDAY | WORK_VERBS | SETUP_REST | ENVIRONMENTS_REST | ASKING_LEADS
# The four excluded slips are words themselves.
SLIPS: Final = {slip: word for slip, word in _slips().items() if slip not in KNOWN | {"heck", "stats", "gong", "tack"}}
