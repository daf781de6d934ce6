"""Names that models give their languages, such as `eng_Latn`, `de_DE` or `>>deu<<`, as BCP-47 tags."""

import re
from collections.abc import Iterable
from typing import Final

_ISO_639: Final = (
    "aaraa abkab afraf akaak amham araar argan asmas avaav aveae aymay azeaz bakba bambm belbe benbn bisbi bodbo "
    "bosbs brebr bulbg catca cescs chach chece chucu chvcv corkw cosco crecr cymcy danda deude divdv dzodz ellel "
    "engen epoeo estet euseu eweee faofo fasfa fijfj finfi frafr fryfy fulff glagd glega glggl glvgv grngn gujgu "
    "hatht hauha hbssh hebhe herhz hinhi hmoho hrvhr hunhu hyehy iboig idoio iiiii ikuiu ileie inaia indid ipkik "
    "islis itait javjv jpnja kalkl kankn kasks katka kaukr kazkk khmkm kikki kinrw kirky komkv konkg korko kuakj "
    "kurku laolo latla lavlv limli linln litlt ltzlb lublu luglg mahmh malml marmr mkdmk mlgmg mltmt monmn mrimi "
    "msams myamy nauna navnv nblnr ndend ndong nepne nldnl nnonn nobnb norno nyany ocioc ojioj orior ormom ossos "
    "panpa plipi polpl porpt pusps quequ rohrm ronro runrn rusru sagsg sansa sinsi slksk slvsl smese smosm snasn "
    "sndsd somso sotst spaes sqisq srdsc srpsr sswss sunsu swasw swesv tahty tamta tattt telte tgktg tgltl thath "
    "tirti tonto tsntn tsots tuktk turtr twitw uigug ukruk urdur uzbuz venve vievi volvo wlnwa wolwo xhoxh yidyi "
    "yoryo zhaza zhozh zulzu"
)
"""Codes of ISO 639-3, each with that of ISO 639-1 behind it."""

_SHORT: Final = {pair[:3]: pair[3:] for pair in _ISO_639.split()}
"""BCP-47 prefers codes of ISO 639-1."""

_MACRO: Final = {
    "arb": "ar",
    "als": "sq",
    "ayr": "ay",
    "azj": "az",
    "cmn": "zh",
    "ekk": "et",
    "gaz": "om",
    "khk": "mn",
    "kmr": "ku",
    "knc": "kr",
    "lvs": "lv",
    "npi": "ne",
    "ory": "or",
    "pbt": "ps",
    "pes": "fa",
    "plt": "mg",
    "swh": "sw",
    "uzn": "uz",
    "ydd": "yi",
    "zsm": "ms",
    "quy": "qu",
    "iw": "he",
    "ns": "nso",
}
"""Standard varieties by the tag of the language that they are usually called, and tags that are out of use."""

_USUAL_SCRIPTS: Final = {"ar": "Arab", "ks": "Arab", "sr": "Cyrl", "zh": "Hans"}
"""Of languages that models have in several scripts; Latin of all others."""

_NAME: Final = re.compile(r"([A-Za-z]{2,3})(?:[_-]([A-Za-z]{4}))?(?:[_-]([A-Za-z]{2}))?")

_NO_REGION: Final = "XX"  # in the names of mBART


def bcp47_tags(names: Iterable[str]) -> dict[str, str]:
    """Return the languages of a model: BCP-47 tag to the model's own name, in the same order.

    A language that a model has once is its language subtag alone, whatever script or region its name has; of several
    varieties the usual one is, so that `zh-CN` finds it, and the others keep script and region. Names that are none of
    a language are left out, and so is a second name of the same.
    """
    varieties: dict[str, dict[tuple[str, str], str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            code = match[1].lower()
            language = _MACRO.get(code) or _SHORT.get(code, code)
            region = (match[3] or "").upper().replace(_NO_REGION, "")
            varieties.setdefault(language, {}).setdefault(((match[2] or "").title(), region), name)
    found: dict[str, str] = {}
    for language, names_of in varieties.items():
        usual = _USUAL_SCRIPTS.get(language, "Latn")
        bare = next((variety for variety in (("", ""), (usual, "")) if variety in names_of), next(iter(names_of)))
        for variety, name in names_of.items():
            found["-".join([language, *(part for part in variety if part and variety != bare)])] = name
    return found
