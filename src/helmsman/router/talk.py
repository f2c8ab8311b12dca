"""Short requests about running work: exact approvals, refusals, and phrases in five languages.

A new session has no context for "it". So a short request without an object ("undo it", "retry", "mach weiter") is never
new work: it is a command, or the caller is asked. The tables contain the words of such requests in English, German,
French, Spanish and Chinese, without accents. Any other word is an object, which makes the request work.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from helmsman.router.vocabulary import WORK_VERBS, word_set
from helmsman.router.words import SESSION_ID_FORM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.router.vocabulary import RouterVerb

_LONGEST: Final = 120
_MOST_WORDS: Final = 8

# --- approvals -------------------------------------------------------------------------------------------------------

_NAME: Final = (
    r"(?:(?:(?:the )?(?:task|session)|number|option) )?"
    rf"(?:T-(?:local|cloud)-[a-z0-9_-]+|#?[1-9]\d?|{SESSION_ID_FORM}|[a-z0-9]+(?:-[a-z0-9]+)+)"
)
_WHICH: Final = (
    r"(?:(?:the|that|this|its|my|pending|proposed|open|last|latest|newest|current|running|local|cloud|first"
    r"|second|third) )+"
)
_ASKED: Final = r"(?:command|question|approval|patch|changes?|edits?|(?:permission )?request|permission)"
_ONE: Final = rf"(?:it|this|that|them|these|those|all|both|{_NAME}|{_WHICH}(?:task|one|job))"
_APPROVAL: Final = re.compile(
    rf"""(?:(?:yes|yeah|yep|ok|okay|fine|sure|please|pls|hey|hi|codex)[ ]?,?[ ])*(?:I[ ]|(?:go[ ]ahead[ ]and|to)[ ])?
    (?:approve|aprove|allow|accept|permit|authori[sz]e)
    (?:[ ](?:(?:{_ONE}|{_WHICH}{_ASKED}(?:[ ](?:of|for)[ ]{_ONE})?)(?:[ ]and[ ]{_NAME})*))?
    (?:[ ]and[ ](?:continue|proceed|go[ ]ahead|carry[ ]on))?(?:[ ](?:now|once|this[ ]time))?
    (?:,?[ ](?:please|pls|thanks|thank[ ]you))*[.!]*""".replace("\n    ", ""),
    re.IGNORECASE | re.ASCII,
)
# ASCII only: `strip()` alone would also remove other spaces of Unicode, which an exact approval must not have.
_SPACE: Final = " \t\r\n"


def is_exact_approval(request: str, called: Sequence[str] = ()) -> bool:
    """Return whether a request is exactly an approval, with nothing around it.

    The original text is matched, so that no emoji, markup, invisible character or letter of another script can hide in
    it. `called` lists the names of the agent.
    """
    if len(request) > _LONGEST:
        return False
    said = request.strip(_SPACE)
    for name in called:
        if said.lower().startswith((f"{name.lower()},", f"{name.lower()}:")):
            said = said[len(name) + 1 :].strip(_SPACE)
    return _APPROVAL.fullmatch(said) is not None


# Symbols, marks, and characters that are invisible, private, unassigned or half of a pair.
_ODD: Final = frozenset(["So", "Sk", "Mn", "Me", "Cf", "Co", "Cn", "Cs"])


def is_odd(request: str) -> bool:
    """Return whether a request contains markup, symbols or invisible characters."""
    text = unicodedata.normalize("NFKC", request[: 10 * _LONGEST])
    return "<" in text or any(unicodedata.category(char) in _ODD for char in text if not char.isascii())


# --- refusals --------------------------------------------------------------------------------------------------------

_NO: Final = re.compile(
    r"\s*(?:no|nope|nah|nein|nee|non|不行|不要|不可以|不可|不)"
    r"(?:\s*[,:;，：；—–.!。！-]\s*|\s+(?=(?:because|since|weil|denn|da|parce|car|puisque|porque|ya que)\b)|(?=因为))(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_BECAUSE: Final = re.compile(r"(?:because|weil|denn|parce que|parce qu'|porque|因为)\s*", re.IGNORECASE)


def reason_of_refusal(request: str) -> str | None:
    """Return the reason after a no: "no because it touches production", "nein, weil …"; None without one."""
    found = _NO.match(request) if len(request) <= 4 * _LONGEST else None
    return None if found is None else _BECAUSE.sub("", found[1].strip(), count=1)


_YES_OR_NO: Final = word_set(
    "yes yep yeah y sure ok okay fine no nope nah n lgtm ja nein oui non si please thanks danke merci gracias"
)


def is_yes_or_no(request: str) -> bool:
    """Return whether a request is only a yes or no. It approves nothing, but may be meant for a question."""
    said = _words(request[:_LONGEST])
    return (
        bool(said) and _YES_OR_NO.issuperset(said) and said[0] not in ("please", "thanks", "danke", "merci", "gracias")
    )


# --- commands in other languages -------------------------------------------------------------------------------------

_ABROAD: Final[dict[RouterVerb, str]] = {
    "cancel": """abbrechen / brich ab / brich es ab / brich das ab / brich die aufgabe ab / aufgabe abbrechen / stopp
        stoppe es / stoppen / stopp das / annule / annuler / annule la / annule le / annule ca / annule la tache / annulez
        arrete / arrete ca / arrete toi / arrete la tache / arretez / cancela / cancelalo / cancela la tarea / cancelar
        detente / deten la tarea / detenlo / paralo / para la tarea / aborta / abortar
        取消 / 取消它 / 取消任务 / 取消这个任务 / 停止 / 停止任务 / 停下 / 停 / 中止 / 中止任务""",
    "check": """wie lauft es / wie lauft s / wie weit bist du / wie weit ist es / ist es fertig / bist du fertig / fertig
        wie ist der stand / status der aufgabe / ca avance / ou en est la tache / ou en es tu / c est fini / c est termine
        c est pret / statut / como va / como va la tarea / ya esta / ya termino / has terminado / esta listo / estado
        estado de la tarea / 状态 / 进度 / 进度如何 / 进展如何 / 怎么样了 / 完成了吗 / 好了吗 / 做完了吗 / 任务状态""",
    "wait": """warte / warte darauf / warte bis es fertig ist / attends / attendez / attends la fin / espera
        espera a que termine / 等待 / 等它完成 / 等任务完成""",
    "results": """ergebnis / ergebnisse / zeig das ergebnis / zeig mir das ergebnis / zeige das ergebnis / resultats
        montre le resultat / montre moi le resultat / resultado / resultados / muestra el resultado / muestrame el resultado
        结果 / 显示结果 / 给我看结果 / 看结果""",
    "respond": """ablehnen / lehne es ab / lehn es ab / lehne ab / refuse le / refuser / rechaza / rechazalo / rechazar
        deniegalo / 拒绝 / 拒绝它 / 不批准 / 不同意 / 不允许""",
}
"""Exact phrases. `respond` here always denies; approvals are accepted in English only."""


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for line in text.splitlines() for phrase in line.split("/")]


_OPERATIONS: Final[dict[str, RouterVerb]] = {
    phrase: operation for operation, text in _ABROAD.items() for phrase in _phrases(text) if phrase
}
_COURTESY: Final = word_set("bitte danke merci gracias svp stp porfa please pls thanks 请 谢谢")
_COURTESIES: Final = re.compile(r"\b(?:por favor|s il (?:te|vous) plait)\b|^请|谢谢$")


def command_abroad(request: str) -> RouterVerb | None:
    """Return the command that a request in German, French, Spanish or Chinese consists of, if any."""
    if len(request) > _LONGEST:
        return None
    said = " ".join(word for word in _COURTESIES.sub(" ", " ".join(_words(request))).split() if word not in _COURTESY)
    operation = _OPERATIONS.get(said)
    # An order in doubt is only a look, as in English.
    if operation in ("cancel", "respond") and ("?" in request or "？" in request or is_odd(request)):
        return "check"
    return operation


# --- requests that are no commands ------------------------------------------------------------------------------------

TALK_VERBS: Final = word_set(
    """apply undo retry pause resume commit merge push redo rerun restart revert rollback roll continue proceed discard drop
    finish skip repeat unpause postpone revoke confirm land ship suspend start try do go carry

    weitermachen mach weiter fortsetzen setze fort fahre wiederhole wiederholen versuche versuchs nochmal starte neu
    neustarten mache ruckgangig zuruck zurucknehmen nimm wende anwenden ubernimm ubernehmen committe pushe pausiere pausieren
    warte brich abbrechen stopp stoppe stoppen beende beenden halte genehmige genehmigen genehmigt erlaube erlauben zustimmen
    lehne lehn ablehnen verbiete los hor lass vergiss

    continue continuer poursuis reprends reprendre relance relancer recommence recommencer reessaie reessayer refais refaire
    annule annuler annulez arrete arreter arretez stoppe applique appliquer defais defaire commite pousse fusionne attends
    attendre attendez approuve approuver approuvez accepte accepter autorise refuse refuser rejette vas va suspends fais
    laisse tomber oublie

    continua continuar sigue seguir reanuda reanudar reintenta reintentar reintentalo repite repetir repitelo
    reinicia reiniciar deshaz deshacer deshazlo aplica aplicar aplicalo confirma confirmar fusiona fusionalo sube subelo
    pausa pausalo espera esperar cancela cancelar cancelalo cancele deten detente detenlo para paralo aborta abortar
    aprueba aprobar apruebalo acepta aceptar aceptalo permite permitir permitelo rechaza rechazar rechazalo deniega
    adelante hazlo hagas apruebes intentalo intentarlo hacerlo vuelve olvidalo dejalo""",
)
"""Verbs about running work. Without an object, they refer to a task."""
_PRONOUNS: Final = word_set(
    """it them everything all both es das ihn alles ca cela le la les tout lui lo los las eso esto te toi me mir
    moi"""
)
_ENGLISH: Final = word_set(
    """it them everything all both that this these those one ones mine task tasks job jobs session run turn thing work last
    latest current previous next same the my your our changes change diff patch result results answer question request
    command again now then too instead first already just ok okay yes no not don t s up off on back out over with at once
    for me you i so and but more later here today immediately ahead away go going in status lgtm"""
)
_REFERS: Final = (
    _PRONOUNS
    | _ENGLISH
    | word_set(
        """diese dieser dieses die der den dem aufgabe aufgaben auftrag sitzung lauf letzte letzten aktuelle meine anderung
    anderungen ergebnis frage befehl noch einmal mal jetzt bitte danke doch ja nein nicht ab an auf aus weiter wieder sofort
    und so mit damit dann fertig warum wie lange dauert ist bist du schon denn was macht lauft steht s geht stand status
    weit wann ich bin einverstanden gut in ordnung daruber von vorne vorn machs mir zeig zeige

    ce cet cette ces tache taches travail derniere dernier actuelle ma mon session changement changements modifications
    resultat resultats commande demande encore fois maintenant oui non pas ne n d accord s il vous plait stp svp merci
    vite suite tout j y c est fini termine pret deja pourquoi comment combien temps ou en es tu de et a avance montre qu que
    fait statut etat bon toujours l

    esta este estos tarea tareas trabajo ultima ultimo actual mi sesion cambio cambios resultado resultados orden
    peticion otra vez ahora si de acuerdo por favor porfa gracias ya el como va vas termino terminado listo estado cuanto
    falta tiempo que esta estan haciendo en y a desde cero muestra muestrame con ello todo
        comando comandos"""
    )
)
"""Words that are no object: pronouns, particles, and words for tasks and their results."""
_TALK: Final = _REFERS | TALK_VERBS

_CHINESE_WORDS: Final = word_set(
    """取消 停止 停下 停 中止 暂停 恢复 继续 重试 重新开始 重新 再试 再来 再 一次 撤销 撤回 回滚 应用 提交 推送 合并
    批准 同意 允许 可以 接受 拒绝 不行 不要 不 别 好的 好 是的 是 行 任务 工作 会话 它们 它 这个 那个 这 那 上一个 最后
    的 把 掉 了 吗 吧 呢 啊 请 谢谢 一下 现在 马上 先 都 全部 所有 结果 进度 进展 状态 怎么样 怎样 如何 怎么 完成 做完
    好了 还要 还在 多久 多长 时间 运行 执行 进行 什么 时候 为什么 这么 慢 等待 等 看看 看 给我 我 你 让 就 这样 做 干
    更改 修改 改动 命令 问题 重做 啦 下去 下来 停下来 算了 不用 不用了 重启 显示 得"""
)
_CHINESE: Final = re.compile(
    rf"(?>{'|'.join(sorted(_CHINESE_WORDS, key=len, reverse=True))}|[\s,.!?:;。、…~]|it|them)+"
)
"""Longest match first, with an atomic group: backtracking takes exponential time on some texts."""


_CODE: Final = re.compile(r"\w[(=/{\[]|\w_\w|\w\.\w")


def is_talk(request: str) -> bool:
    """Return whether a request is short and has no object, so that it must be about running work."""
    if len(request) > _LONGEST:
        return False
    # Chinese is written without spaces, so it cannot be split into words first.
    if any("\u4e00" <= char <= "\u9fff" for char in request):
        return _CHINESE.fullmatch(unicodedata.normalize("NFKC", request).casefold()) is not None
    said = [word for word in _words(request) if word not in _COURTESY]
    if not said or len(said) > _MOST_WORDS or _CODE.search(request):
        return False
    if said[0] in TALK_VERBS and all(word in _TALK for word in said):
        return len(said) > 1 or said[0] not in _ALONE
    if said[0] in TALK_VERBS and said[1:2] and said[1] in _PRONOUNS and said[1] not in _ARTICLES:
        return True
    if said[0] in WORK_VERBS or all(word in _POINTS for word in said[1:]):
        return len(said) > 1 and all(word in _REFERS for word in said[1:]) and not _POINTS.isdisjoint(said[1:])
    return len(said) > 1 and all(word in _TALK for word in said) and not _ENGLISH.issuperset(said)


_ALONE: Final = word_set("start try do go ship land drop roll finish")
"""Verbs that may be work when used alone."""
_ARTICLES: Final = word_set("le la les los las das all both everything")
"""Before a noun, these are articles."""
_POINTS: Final = _PRONOUNS | word_set("that this these those")


def _words(request: str) -> list[str]:
    """Return the words in lower case and without accents; Chinese is one word."""
    folded = unicodedata.normalize("NFKD", request.casefold().replace("ß", "ss"))
    plain = "".join(char for char in folded if not unicodedata.combining(char))
    return re.findall(r"[^\W\d_]+|\d+", plain)


def is_mere_word(word: str) -> bool:
    """Return whether a word alone says nothing: "danke", "+1". In some scripts it may be a sentence."""
    letters = [char for char in word if char.isalpha()]
    if not letters:
        return any(map(str.isalnum, word))
    dense = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER")  # scripts that write without spaces
    return word.isalpha() and (len(word) <= 3 or not any(unicodedata.name(one, "").startswith(dense) for one in word))
