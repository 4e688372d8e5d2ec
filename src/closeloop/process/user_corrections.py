"""What a user says against the work: that it was said before, or is not as the agent claims."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from msgspec.structs import replace

from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_facts import (
    CODE_FENCE,
    build_automaton,
    contains_any,
    mentions_any,
    normalise_words,
    word_stems,
)
from closeloop.records.record import Record
from closeloop.text.client_markup import strip_client_markup
from closeloop.text.wording import compile_lazily

# Patterns of how users say that something was said
# before, or is not as claimed, in lower case.
#
# Each language has two patterns: `again` (the user had said it before) and `refuted` (what was
# claimed is not so). They are tried on one sentence at a time.


_NOT = (
    r"(?:(?:do(?:es)?|did|is|are|was|were|has|have|had|wo|ca|could)(?:n'?t| not)|['’]?s not|cannot"
    r"|not|no longer|never)"
)
_NOT_FILLER = (
    r"(?: (?:really|actually|fully|even|properly|quite|yet|always|be|been|being|get|getting|seem"
    r"|seems"
    r"|seeming|appear|to|correctly|have|placed|set|handled|aligned|positioned|rendered))*"
)
_EXPECTED_STATE = (
    r"(?:work(?:s|ing|ed)?|fix(?:ed|ing)?|show(?:s|n|ing)?|appear(?:s|ing)?|render\w*|compil\w+"
    r"|pass(?:es|ing|ed)?|happen(?:s|ing|ed)?|load(?:s|ing|ed)?|start(?:s|ing|ed)?|help(?:s|ed"
    r"|ing)?"
    r"|solved?|resolved?|there|correct|right|done|visible|what i (?:asked|wanted|meant|said|told)"
    r"|applied"
    r"|trigger(?:s|ing|ed)?|scroll(?:s|ing)?|displayed|saved?|complete|taking effect|take effect"
    r"|come through|coming through|open(?:s|ing)?|build(?:s|ing)?|deployed|detected|recognized)"
)
FAULT = compile_lazily(
    rf"\b{_NOT}{_NOT_FILLER} {_EXPECTED_STATE}\b"
    r"|\b(?:fails?|failed|failing|broken|crash(?:es|ed|ing)?|errors? out|(?:is|are|looks?"
    r"|seems?) (?:\w+ )?(?:wrong|incorrect))\b(?!-)"
)
"""Something is not as it should be; whether that contradicts a claim depends on what is meant."""

_STATE_BEFORE = (
    r"(?:fail\w*|broken?|wrong|incorrect|there|the same|not|no|gett?ing|get|gets|see|seeing|seen"
    r"|show\w*"
    r"|happen\w*|crash\w*|error\w*|an? (?:issue|problem|error|bug)|has|have|having|says?|uses?"
    r"|using"
    r"|reads?|looks?|missing|asks?|asking|the (?:old|wrong|same)|red|does|doesn'?t|is|isn'?t"
    r"|don'?t|can'?t"
    r"|didn'?t|in the|throw\w*|hang\w*|stuck|visible|trying|doing)"
)
ENGLISH_AGAIN = compile_lazily(
    r"\bi (?:have |had |did |already |just |clearly |explicitly |specifically |literally "
    r"|have already )*"
    r"(?:told|tell|asked) you\b"
    r"|\b(?:i(?:'ve| have| had)? |already )(?:already |just |clearly |explicitly "
    r"|specifically )?asked for\b"
    r"|\b(?:exactly |is )?what i (?:had |have |already |just )?(?:asked|told|said)\b"
    r"|\bi(?:'ve| have| had)? (?:already|just|clearly|explicitly|specifically|literally) "
    r"(?:said|told|asked|mentioned|explained|specified|stated)\b"
    r"|\b(?:as|like) i (?:already |just |have |had )?(?:said|told|mentioned|asked|explained"
    r"|wrote)\b"
    r"|^(?:no,? |but |hey,? )*i said\b|\bwhen i (?:told|asked) you\b"
    r"|\bi wouldn'?t (?:tell|have told|ask|have asked) you\b"
    r"|\bi thought (?:we|you) (?:had |have |already |just )*"
    r"(?:agreed|decided|found|fixed|said|settled)\b"
    r"|\bhow many times\b|\byou keep (?:\w+ing|on)\b|\bfor the (?:second|third|fourth|nth|last"
    r"|\d\w\w) time\b"
    r"|\bi (?:have to |must |will )?(?:repeat|say (?:it|this|that) again)\b"
    r"|^again[:,!] (?!please\b|can\b)"
    r"|\byou(?:'re| are)? (?:did|do|doing|made|making|forgot|missed|broke"
    r"|ignor\w+) (?:\w+ ){0,4}again\b"
    r"|\bwhy (?:are|do|did) you (?:still|again|keep)\b"
    r"|\byou(?:'re| are) (?:still |again )?(?:misunderstanding|ignoring)\b"
    r"|\bthat'?s (?:still )?not what i (?:asked|said|told|wanted|meant)\b"
)
NOT_AGAIN = compile_lazily(
    r"\bi (?:told|asked|said) (?:you )?(?:earlier |before )?(?:was|were) (?:wrong|mistaken)\b"
    r"|\b(?:sorry|my (?:mistake|bad|fault)|never ?mind|i was (?:wrong|mistaken)|i meant to)\b"
    r"|\bwhat i (?:asked|said)\b.{0,30}\b(?:wrong|unclear|confusing|bad)\b"
    r"|\b(?:thanks?|perfect|great) (?:\w+ ){0,3}(?:what i (?:asked|wanted))"
    r"|\b(?:is|was|'s|are|were) (?:exactly |just |precisely )?what i (?:asked|said|told"
    r"|wanted)\b(?!.{0,60}\b(?:but|keep|you)\b)"
)
ENGLISH_STILL = compile_lazily(
    rf"\bstill {_STATE_BEFORE}\b|\b(?:is|are|'s|was) still\b|\beven then\b"
    r"|^(?:\W|but |no,? |nope,? |hmm,? |i get |getting |i'm getting |it'?s "
    r"|still )*(?:the )?(?:exact )?same "
    r"(?:error|issue|problem|thing|result|behaviou?r|output|failure|bug)\b"
    r"|\b(?:fail\w*|crash\w*|broke\w*|happen(?:s|ed|ing)|asks?|asking|error"
    r"|prompts?) (?:\w+ ){0,7}?again\b"
    r"|\bnothing (?:has |have |was |is |really )?(?:chang|happen|work|fix|mov|updat)\w*\b"
    r"|\bno (?:change|difference|effect)\b(?! (?:in|to|needed|required|if))"
)
HARMLESS_STILL = compile_lazily(
    r"\bi(?:'d|'m|'ll| would| do| am)? still (?:feel|think|want|like|need|prefer|wonder|believe"
    r"|love"
    r"|remember|have|not sure|unsure|confused|struggling|curious|don't (?:understand|get|know"
    r"|like))\b"
    r"|\bstill (?:need|have|want|has) to\b|\bstill (?:running|open|pending|relevant|valid"
    r"|working on"
    r"|in progress|true|ok|okay|fine|good|works?|useful|possible|needed|required|an open)\b"
)
ENGLISH_REFUTED = compile_lazily(
    r"\b(?:you|u) (?:did(?:n'?t| not)|have(?:n'?t| not)|never|forgot(?: to)?|missed|broke"
    r"|only (?:did|changed|fixed|updated|added))\b(?! (?:need|have to|tell|say|ask|mention|answer"
    r"|want))"
    r"|\bi(?:'m| am)? (?:do(?:n'?t| not) see|not (?:see|seeing|getting)|can(?:'?t|not) see"
    r"|can(?:'?t|not) find) "
    r"(?:(?:any|the|that|your|this|those|my) (?:new )?(?:chang|fix|differ|updat|edit|effect|result"
    r"|button|file|commit)\w*|it|them)\b"
    r"|\b(?:that|this|it)(?:'?s| is| was) (?:still |just |also |simply |completely |totally |not "
    r"|n'?t |the )*"
    r"(?:wrong|incorrect|false|broken|not true|untrue|failing|not right|not correct)\b"
    r"|^(?:\W|but |no[,.]? |hmm,? |nope[,.]? |well,? |sorry,? |\[.{0,20}\] )*"
    r"(?:it|this|that|they|these|those|its|it'?s|that'?s)\b.{0,60}?"
    rf"(?:\b{_NOT}{_NOT_FILLER} {_EXPECTED_STATE}\b|\b(?:fails|failed|failing|broken?|crash(?:es"
    rf"|ed|ing))\b)"
    rf"|^(?:\W|but |no[,.]? |hmm,? |nope[,.]? |well,? "
    rf"|even then (?:it )?(?:is )?)*{_NOT} (?:work(?:ing)?|fixed|right|correct|done|solved)\b"
    r"|\bi (?:can |do |only )?see .{3,60}\bbut (?:not|no)\b"
    r"|\b(?:did(?:n'?t| not)|does(?:n'?t| not)) (?:help|fix (?:it|the|that|this)|solve (?:it|the"
    r"|that|this)|change anything|do anything)\b"
)
UNCERTAIN = compile_lazily(
    r"\b(?:(?<!as )if|in case|unless|whether|make sure|ensure|check (?:if|that)|verify|so that"
    r"|to avoid"
    r"|otherwise|would(?!n't)|could|might|may|maybe|perhaps|probably|let me know|suppose|assum\w+"
    r"|wonder\w*|should(?:n't)?"
    r"|when(?:ever)? (?:i|you|we|it|there|a|the) \w+ (?:is|are|fail)|don't worry|no longer|used to"
    r"|previously"
    r"|instead of|rather than|what happens|scenario|severity|can (?:you|we|i)|as expected"
    r"|that's fine|is fine|no problem)\b"
)
"""Words of possibility, wishes or descriptions, which contradict nothing."""
UNRELATED = compile_lazily(
    r"\b(?:unrelated|not related|separate(?:ly)?|(?:different|another|new|other|second|next) "
    r"(?:\w+ )?(?:issue|problem|bug|error|thing|matter|topic|question|one)"
    r"|on another note|side note)\b"
)
"""The user turns to another matter."""
ASIDE = compile_lazily(r"\b(?:also|btw|by the way|meanwhile)\b")
AGREEMENT = compile_lazily(
    r"\W*(?:yes|yeah|yep|agreed?|i agree|exactly|right|correct|true|good (?:catch|point|find)"
    r"|you(?:'re| are) right|makes sense)\b(?!.{0,400}\b(?:but|still|however|yet)\b)",
    re.DOTALL,
)
"""Begun so, a message says that the agent is right."""
CHECK_NAME = compile_lazily(
    r"\b(?:tests?|suite|build|lint(?:ing|er)?|ci|pipeline|type ?check\w*|workflow|compilation"
    r"|typecheck)\b"
)

AGAIN_WORDS = (
    "told", "tell", "ask", "said", "mention", "explain", "specif", "stated", "wrote", "times",
    "keep", " time", "repeat", "again", "still", "misunderst", "ignor", "thought",
)  # fmt: skip
FAULT_WORDS = (
    "not", "n't", "nt ", "fail", "broke", "crash", "error", "wrong", "incorrect", "still",
    "again", "even then", "same ", "nothing", "no ", "never", "forgot", "missed", "only", "false",
    "untrue",
)  # fmt: skip
"""Words without which no English sentence says so."""
OTHER_WORDS = (
    "gesagt", "geschrieben", "gebeten", "ich sagte", "wie oft", " mal", "schon wieder", "nochmal",
    "nicht", "falsch", "kaputt", "fehler", "fehl", "vergessen", "weiterhin", "j'ai", "je t", "je v",
    "comme je", "combien", "marche", "fonctionne", "pas", "toujours", "c'est", "erreur", "rien",
    "dije", "ya ", "como ", "eso ", "por ", "no ", "sigue", "mismo", "falla", "nada", "falei",
    "disse", "pedi", "quantas", "ainda", "mesmo", "continua", "errado", "quebrado", "falha",
    "ti ho", "te l'", "ho gi", "come ho", "quante", "non ", "ancora", "stesso",
)  # fmt: skip
"""One of them stands in every sentence of the other patterns that is written in ASCII."""

OTHER_AGAIN = compile_lazily(
    # German
    r"\b(?:ich )?(?:habe?|hatte) (?:ich )?(?:dir |euch |ihnen |es |das |doch |schon |bereits "
    r"|eben |gerade )+(?:\w+ ){0,4}?(?:gesagt|geschrieben|erklärt|gebeten)\b"
    r"|\bwie (?:ich )?(?:schon |bereits |eben )?gesagt\b|\bich sagte (?:doch|schon|bereits|dir)\b"
    r"|\bwie oft (?:noch|muss|soll)\b"
    r"|\bzum (?:zweiten|dritten|wiederholten|x-ten|letzten) mal\b|\bdu (?:\w+ )?schon wieder\b"
    r"|\bnoch ?(?:ein)?mal:"
    # French
    r"|\bje (?:te|vous|t'|l')? ?(?:l')?(?:ai|avais) (?:déjà |bien )?(?:dit|demandé|expliqué"
    r"|précisé)\b|\bje (?:t'|vous )(?:ai|avais) (?:déjà |bien )?(?:dit|demandé)"
    r"|\bj'(?:ai|avais) (?:déjà |bien |pourtant )(?:dit|demandé|expliqué|précisé)\b"
    r"|\bcomme je (?:te |vous )?(?:l'ai|l'avais) (?:déjà )?(?:dit|demandé)\b"
    r"|\bcombien de fois\b|\bce n'est pas ce que j'ai demandé\b"
    # Spanish
    r"|\b(?:ya )?te (?:lo )?(?:dije|pedí|había dicho|he dicho|he pedido|expliqué)\b"
    r"|\bya (?:lo )?(?:dije|había dicho|pedí|expliqué)\b"
    r"|\bcomo (?:ya )?(?:te |lo )?(?:dije|pedí|mencioné)\b|\bcuántas veces\b"
    r"|\beso no es lo que (?:te )?pedí\b|\bpor (?:segunda|tercera|enésima) vez\b"
    # Portuguese
    r"|\bjá (?:te |lhe |tinha |havia )*(?:disse|falei|pedi|expliquei|dito|falado|pedido)\b"
    r"|\beu (?:te |lhe )?(?:disse|falei|pedi) (?:para|pra|que)\b"
    r"|\bcomo (?:eu )?(?:já )?(?:disse|falei|pedi)\b|\bquantas vezes\b|\bnão (?:foi|é) (?:isso"
    r"|o) que (?:eu )?pedi\b|\bpela (?:segunda|terceira) vez\b"
    # Italian
    r"|\b(?:ti|te l') ?(?:ho|avevo) (?:già )?(?:detto|chiesto)\b|\bho già (?:detto|chiesto)\b"
    r"|\bcome (?:ho|ti ho) (?:già )?detto\b|\bquante volte\b"
    # Russian
    r"|\bя (?:же |уже |ведь |тебе |вам |тебя |вас )+(?:\w+ )?(?:сказал|говорил|просил|писал"
    r"|объяснял)а?\b|\bя (?:сказал|просил)а? (?:тебя|вас|тебе|вам|не)\b"
    r"|\bкак я (?:уже |и )?(?:сказал|говорил|просил|писал)а?\b|\bсколько раз\b|\b(?:ты"
    r"|вы) (?:опять|снова)\b|\bповторяю\b"
    # Chinese
    r"|我(?:刚才|刚刚|已经|之前|前面|都|不是|早就|明明)+(?:跟你|和你|告诉你|让你|要求|说|讲)"
    r"|我(?:说|讲|告诉你)(?:过|了)(?!吗)|不是(?:跟你|和你|让你|叫你)?说(?:过|了)|我(?:让"
    r"|叫)你.{0,20}(?:不是|你却|你怎么|为什么)"
    r"|再说一(?:遍|次)|说了(?:多少|几|好几|很多)(?:次|遍)|你(?:怎么|为什么)?又(?!好)|不是我(?:要"
    r"|说|想要)的"
    # Japanese
    r"|(?:と|って|よう)(?:に)?(?:言|お願いし|頼|指示し)(?:った|いました|た|ました|んだ"
    r"|みました)(?:はず|のに|でしょ|よね|が|けど)|(?:さっき|先ほど|前に|以前)(?:も"
    r"|から)?.{0,12}(?:言った|言いました|お願いし|伝え|指示し)|何度も(?:言|お願い|伝え|同じ)"
    r"|何回も|また同じ"
)
OTHER_REFUTED = compile_lazily(
    # German
    r"\b(?:funktionier(?:t|en)|geht|gehen|klappt|läuft|stimmt|hilft|half"
    r"|tut) (?:\w+ ){0,3}?nicht(?! nur)\b|\bnicht (?:behoben|gefixt|erledigt|gelöst|korrekt"
    r"|richtig|umgesetzt)\b"
    r"|\b(?:das|es) ist (?:leider |immer noch |noch |weiterhin |so )*(?:falsch|kaputt)\b"
    r"|\b(?:immer noch|noch immer|weiterhin|nach wie vor) (?:\w+ ){0,3}?(?:fehler\w*|kaputt|falsch"
    r"|nicht|da|derselbe|der gleiche|rot)\b"
    r"|\b(?:derselbe|der gleiche|der selbe) (?:fehler|bug|effekt)\b|\b(?:schlägt"
    r"|schlagen) (?:\w+ ){0,3}?fehl\b|\bdu hast (?:\w+ ){1,6}?(?:nicht|vergessen)\b"
    r"|\bnichts (?:hat sich )?(?:ge)?änder\w+\b"
    r"|\bnicht(?: das)?,? was ich (?:wollte|meinte|gesagt|verlangt)\w*"
    # French
    r"|\bne (?:marche|marchent|fonctionne|fonctionnent|compile|passe|passent|s'affiche"
    r"|change) (?:toujours |plus |encore )?(?:pas|rien)\b|\b(?:ça|cela|il|elle) (?:marche"
    r"|fonctionne|passe) (?:toujours )?pas\b"
    r"|\btoujours (?:pas|la même erreur|le même (?:problème|bug|résultat)|cassé|en erreur)\b"
    r"|\bn'est (?:toujours |encore )?pas (?:corrigé|résolu|réglé|bon|correct|fini|ça|fixé)\w*\b"
    r"|\bc'est (?:faux|cassé|toujours)\b"
    r"|\bla même erreur\b|\brien n'a changé\b|\btu n'as (?:toujours |rien |pas )+\w+\b"
    r"|\bpas ce que (?:j'ai|je) (?:demandé|voulais|dit)\b"
    r"|\bça (?:plante|échoue)\b|\bles tests échouent\b"
    # Spanish
    r"|\b(?:todavía|aún|sigue|siguen) (?:sin |no )(?:\w+)\b|\bno (?:me )?(?:funciona|funcionó"
    r"|sirve|sirvió|anda|compila|pasa|pasan|se ve|aparece|cambió)\b|\bsigue(?:n)? (?:fallando"
    r"|igual|roto|mal|dando|saliendo|apareciendo|con)\b"
    r"|\b(?:eso |esto )?(?:está|es) (?:mal|incorrecto|roto)\b|\b(?:el )?mismo (?:error|problema)\b"
    r"|\bno (?:está|quedó|fue) (?:arreglado|corregido|resuelto|solucionado|listo|bien)\b"
    r"|\bnada (?:ha )?cambi\w+\b|\bno (?:has|hiciste|cambiaste|arreglaste|corregiste)\b"
    r"|\blas pruebas fallan\b|\bno es lo que (?:te )?(?:pedí|quería|dije)\b"
    # Portuguese
    r"|\bnão (?:está |tá |foi |ficou )?(?:funciona(?:ndo|m)?|funcionou|resolveu|resolvido|adiantou"
    r"|deu certo|corrigid[oa]|compila|passa(?:m|ndo)?|aparece(?:ndo|u)?|mudou|certo|correto"
    r"|pronto)\b"
    r"|\bainda (?:não|dá|está|tá|com) \w+\b|\bcontinua(?:m)? (?:\w+ )?(?:falhando|com erro"
    r"|com o mesmo|quebrad[oa]|dando|errad[oa]|igual|sem|não|aparecendo)\b|\b(?:o )?mesmo (?:erro"
    r"|problema)\b|\b(?:isso )?(?:está|tá) (?:errado|quebrado)\b|\bnada mudou\b|\bvocê não \w+\b"
    r"|\bos testes (?:estão )?falha\w+\b"
    r"|\bnão (?:foi|é|era) (?:isso )?(?:o )?que (?:eu )?(?:pedi|queria|disse)\b"
    # Italian
    r"|\bnon (?:funziona|va|compila|si vede|passa|passano|è (?:corretto|risolto|giusto"
    r"|sistemato))\b|\bancora (?:non|lo stesso|errore|rotto)\b|\blo stesso (?:errore|problema)\b"
    r"|\bè sbagliato\b|\bnon è cambiato (?:niente|nulla)\b"
    # Russian
    r"|\bне (?:работа(?:ет|ют|ло)|сработал[оаи]?|исправлен[оаы]?|исправил[оаи]?|помогло|помогает"
    r"|компилируется|запускается|собирается|проход(?:ит|ят)|отображается|решен[оаы]?|изменилось)\b"
    r"|\b(?:всё|все) (?:ещё|еще|равно|так же) (?:не |падает|ошибк|та же|тот же|есть|плохо)"
    r"|\b(?:по-прежнему|до сих пор) (?:не |падает|ошибк|есть|та|тот)|\b(?:та|тот"
    r"|те) же (?:сам\w+ )?(?:ошибк|проблем|баг)|\bэто (?:неправильно|неверно|не так|не то)\b"
    r"|\bничего не (?:изменилось|поменялось|работает|происходит)\b|\bтесты (?:падают"
    r"|не проходят)\b"
    # Chinese
    r"|(?:还是|仍然|仍旧|依然|依旧|还)(?:不行|不对|不能|不可以|不工作|没有?(?:用|变|效|解决|修复"
    r"|改|生效|反应|显示)|报错|有(?:问题|错|bug|这个问题)|失败|一样|错的|出错|无法|会报|老样子)"
    r"|(?<!是)(?<!对)(?<!行)(?:不对(?!吧|吗|劲)|不行(?!吗)|不起作用|没起作用|不好使"
    r"|没(?:有)?(?:修好|修复|解决|生效|效果|变化|反应|用)(?!吗)|不能用|跑不通|运行不了|报错了"
    r"|没改(?:好|对|掉))|(?:同样|一样|相同)的(?:错误|问题|报错)|改错了|测试(?:没(?:有)?通过|失败)"
    # Japanese
    r"|(?:動(?:きません|かない|いていません|いてない|作しません|作しない)|(?:直"
    r"|治)って(?:い)?(?:ません|ない)|(?:表示|反映|適用|修正|解決|実行)(?:され)?(?:ません|ない"
    r"|ていません|てない|できません|できていません)|うまく(?:いきません|いかない|動)"
    r"|変わ(?:りません|らない|っていません|ってない)|できて(?:い)?(?:ません|ない))(?!か)"
    r"|まだ(?:.{0,8})(?:エラー|だめ|ダメ|駄目|失敗|同じ|直|動|壊|残)|同じ(?:エラー|問題"
    r"|結果)(?:です|が|に|だ|の)|間違って(?:い)?(?:ます|る)|(?:それ|これ)(?:は|じゃ"
    r"|では)?(?:違います|違う|ありません)|(?:失敗|エラー)(?:し|に)(?:ます|なります|ました|た)"
)


MAX_OBJECTION_CHARS = 1200
"""Of a longer message only the first and last lines are the user's; the rest is pasted."""
_MAX_EDGE_LINES = 2
_MAX_SENTENCE_CHARS = 400
"""Longer sentences are no complaints."""
_MAX_FAULT_CHARS = 160
"""A longer sentence that names a fault describes code."""
_MAX_SUBJECT_CHARS = 4000
"""Characters of each text that are searched for the subject of the objection."""
_REQUEST_MARK = "## My request for Codex:\n"
"""The editor's own text ends here."""
_SENTENCE = compile_lazily(r"[^.!?。！？\n]+(?:\.(?=\w)[^.!?。！？\n]*)*[.!?。！？]*")
# A terminal's or a tool's output, a quoted line, a heading, a place in a log. A word is matched as
# a whole and then examined, as this runs on every line of a message.
_PASTED_LINE = compile_lazily(
    r"^\s*+(?:[❯$%➜>|#+⎿•]|\S[^\s@]*+@\S+[:~]|(?:FAIL|FAILED|ERROR|error|Error|fatal|panic|Traceback"
    r"|warning|time=|---|===)\b"
    r"|(?=[\w./-]++:\d)[\w./-]+\.\w+:|at \S+ \(|\[[\w:.-]+\] |\w++(?<=\wError)|\d{2,4}[-:/]\d\d)"
)
_REVIEW_MARK = compile_lazily(
    r"\b(?:low|medium|high|critical)(?: severity\b| ?[:–—-])|\bnitpick\b|\b(?:my|code"
    r"|codex) review\b"
    r"|\bverdict\b|\bP[0-3]\b",
    re.IGNORECASE,
)
_QUOTATION = compile_lazily(r"\"[^\"\n]{0,300}\"|“[^”\n]{0,300}”|`[^`\n]{0,200}`")
_DULL_STEMS = word_stems(
    normalise_words(
        "work works working fix fixed error issue problem bug fault same still fail fails failing"
        " wrong broken broke incorrect false right correct not nothing anything change changed"
        " changes happen happens happened now even then doesn didn isn aren wasn don can cannot"
        " couldn hasn haven won see seeing saw get gets getting got show shows look looks again"
        " thing things result help solve solved image screenshot picture attached hmm nope sorry"
        " well but that this actually really yet only forgot missed never done did try tried"
        " what how why like said currently seem seems exact exactly completely totally just way"
        " update updated yes yeah yep okay please hey man bro dude damn fuck fucking shit hell wtf"
        " thanks think know check checked tested app application page site code program screen"
        " crash crashes crashing exist exists here today everything message output behaviour"
        " ask asked said told meant wanted"
    )
)
"""They say that something is amiss, and not what."""
_PRONOUN_FAULT = compile_lazily(r"\b(?:it|this|that)(?:'s|’s| is| does| did)\b", re.IGNORECASE)
_AFTERTHOUGHT = compile_lazily(r"[,;] (?:maybe|perhaps|probably|might it|could it)\b")
"""A guess at the cause follows what is wrong."""
_ACCUSING_QUESTION = compile_lazily(
    r"^(?:but |so |hey,? |and )*(?:why|how come|what do you mean)\b"
)


_other_word_automaton = cache(lambda: build_automaton(OTHER_WORDS))


class UserObjection(Record):
    """A user's objection to what the agent did or claimed."""

    quote: str
    again: bool
    """Whether the user repeats an earlier message."""
    refuted: bool
    """Whether it contradicts a claim."""
    still: bool = False
    """Whether it says that the agent's last work changed nothing."""
    subject: frozenset[str] = frozenset()
    """Distinctive words that it names; the claim or the work must contain one of them."""
    aside: bool = False
    """Whether it is about another matter, or the user agrees."""


def parse_objection(text: str) -> UserObjection | None:
    """Return what the message says is wrong with the work; None for other messages."""
    return _parse_objection_text(text[:20_000])


def is_about(objection: UserObjection, texts: Iterable[str]) -> bool:
    """Whether it names only the fault, or something that one of the texts mentions."""
    if objection.aside or not objection.subject:
        return not objection.aside
    words = normalise_words("\n".join(text[:_MAX_SUBJECT_CHARS] for text in texts))
    return not objection.subject.isdisjoint(word_stems(words))


@lru_cache(maxsize=1024)
def _parse_objection_text(text: str) -> UserObjection | None:
    best: UserObjection | None = None
    own_text = find_own_words(text)
    sentences = [match[0].strip() for match in _SENTENCE.finditer(own_text)]
    for index, sentence in enumerate(sentences):
        if len(sentence) > _MAX_SENTENCE_CHARS:
            continue
        objection = _parse_sentence(sentence)
        if objection and index > 1 and _PRONOUN_FAULT.search(objection.quote):
            # Late in a message, "it does not work" refers to the text before it.
            previous_stems = word_stems(normalise_words(sentences[index - 1])) - _DULL_STEMS
            objection = replace(objection, subject=objection.subject | previous_stems)
        if objection is not None and (best is None or _rank(objection) > _rank(best)):
            best = objection
    if best is None or _REVIEW_MARK.search(text):
        return None
    if _is_other_matter(own_text.lower().replace("’", "'")):
        return replace(best, aside=True)
    return best


def _is_other_matter(lower_text: str) -> bool:
    return bool(UNRELATED.search(lower_text) or AGREEMENT.match(lower_text))


def _rank(objection: UserObjection) -> tuple[bool, bool, bool, bool]:
    return objection.again, not objection.aside, not objection.subject, objection.still


def find_words_before_output(text: str) -> str:
    """Return what the user typed before any terminal output."""
    own_lines = []
    for line in strip_client_markup(text.rpartition(_REQUEST_MARK)[2]).splitlines():
        if _PASTED_LINE.match(line):
            break
        own_lines.append(line.partition("⎿")[0])
        if "⎿" in line:
            break
    return find_own_words("\n".join(own_lines))


@lru_cache(maxsize=256)
def find_own_words(text: str) -> str:
    """Return what the user typed, without the client's texts, code, quotations and output."""
    text = strip_client_markup(text.rpartition(_REQUEST_MARK)[2])
    if "```" in text:
        text = CODE_FENCE.sub("\n", text)
    lines = [line for line in text.splitlines() if line.strip() and not _PASTED_LINE.match(line)]
    if sum(map(len, lines)) > MAX_OBJECTION_CHARS:
        lines = lines[:_MAX_EDGE_LINES] + lines[_MAX_EDGE_LINES:][-_MAX_EDGE_LINES:]
    return "\n".join(lines)


def _parse_sentence(sentence: str) -> UserObjection | None:
    lower_text = _QUOTATION.sub("it", sentence).lower().replace("’", "'").strip(" \t\"'*_-–—")
    is_foreign = not lower_text.isascii() or contains_any(_other_word_automaton(), lower_text)
    is_repeated = (is_foreign and OTHER_AGAIN.search(lower_text) is not None) or (
        mentions_any(lower_text, AGAIN_WORDS)
        and ENGLISH_AGAIN.search(lower_text) is not None
        and not NOT_AGAIN.search(lower_text)
    )
    is_refuted, is_still, subject = False, False, frozenset[str]()
    statement = _AFTERTHOUGHT.split(lower_text)[0]
    if not statement.endswith(("?", "？")) or _ACCUSING_QUESTION.match(lower_text):
        if is_foreign and OTHER_REFUTED.search(lower_text):
            is_refuted = True
        elif mentions_any(lower_text, FAULT_WORDS):
            is_refuted, is_still, subject = _parse_fault(statement)
    if not is_repeated and not is_refuted:
        return None
    return UserObjection(
        quote=truncate_line(sentence),
        again=is_repeated,
        refuted=is_refuted,
        still=is_still,
        subject=subject,
        aside=ASIDE.search(lower_text) is not None,
    )


def _parse_fault(lower_text: str) -> tuple[bool, bool, frozenset[str]]:
    """Whether something is not so, is as before, and what it is where that is only named."""
    if UNCERTAIN.search(lower_text):
        return False, False, frozenset()
    stems = word_stems(normalise_words(lower_text)) - _DULL_STEMS
    names_check = CHECK_NAME.search(lower_text) is not None
    if ENGLISH_STILL.search(lower_text) and not HARMLESS_STILL.search(lower_text):
        return True, True, frozenset() if names_check else stems
    if ENGLISH_REFUTED.search(lower_text):
        return True, False, frozenset() if names_check else stems
    fault = FAULT.search(lower_text)
    if fault is None or lower_text.endswith("?") or len(lower_text) > _MAX_FAULT_CHARS:
        return False, False, frozenset()
    if names_check:
        return True, False, frozenset()
    subject = word_stems(normalise_words(lower_text[: fault.start()]))
    return bool(subject), False, subject
