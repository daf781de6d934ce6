"""Names that models give their languages, such as `eng_Latn`, `de_DE` or `>>deu<<`, as BCP-47 tags."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.manifest import Languages, TargetTokens

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLanguages:
    """For which languages a model of many is imported."""

    source_tag: str | None = None
    """Language of sources as the model spells it, for a bundle of one pair; so is the next. None: for many."""
    target_tag: str | None = None
    sources: tuple[str, ...] = ()
    """Languages translated from, as BCP-47 tags or as the model spells them; empty: all. So are the next."""
    targets: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        source_tag: str | None,
        target_tag: str | None,
        source_languages: Sequence[str] | None,
        target_languages: Sequence[str] | None,
    ) -> "WantedLanguages":
        """Take what an importer was given; ImportFormatError if it is of one pair and of many."""
        if (source_tag or target_tag) and (source_languages or target_languages):
            raise ImportFormatError("tags are those of one pair, languages those of many: give either")
        return cls(
            source_tag=source_tag,
            target_tag=target_tag,
            sources=tuple(source_languages or ()),
            targets=tuple(target_languages or ()),
        )

    def chosen(self, side: str, names: Mapping[str, str], directory: Path) -> dict[str, str]:
        """Return those of the languages of a model, by BCP-47 tag, that are wanted on a side."""
        wanted = self.sources if side == "source" else self.targets
        by_name = {name: tag for tag, name in names.items()}
        for each in wanted:
            if each not in names and each not in by_name:
                raise ImportFormatError(f"{directory} has no {side} language {each!r}: it has {shortened(names)}")
        tags = [by_name.get(each, each) for each in wanted] or list(names)
        return {tag: names[tag] for tag in tags}


def languages_of_tags(
    wanted: WantedLanguages, source_tags: Mapping[str, int], target_tags: Mapping[str, int], directory: Path
) -> Languages:
    """Return the languages of a model in which sources begin with their own tag, and targets with theirs.

    Args:
        wanted: which of them.
        source_tags: token ids by the names of the languages, without what surrounds them.
        target_tags: the same of targets.
        directory: what errors name.

    Raises:
        ImportFormatError: if there are none, or one is wanted that is not there.
    """
    names = {"source": bcp47_tags(source_tags), "target": bcp47_tags(target_tags)}
    if not all(names.values()):
        raise ImportFormatError(f"{directory} has no tags of languages")
    sources, targets = (wanted.chosen(side, names[side], directory) for side in names)
    return Languages(
        sources={tag: (source_tags[name],) for tag, name in sources.items()},
        targets={tag: TargetTokens(target_prefix=(target_tags[name],)) for tag, name in targets.items()},
    )


def languages_of_source_tags(
    wanted: WantedLanguages, tags: Mapping[str, int], directory: Path, *, own_source: str = ""
) -> Languages:
    """Return the languages of a model whose sources begin with the tag of the target, if it has any.

    Args:
        wanted: which of them; the sources must be told where the model does not.
        tags: token ids by the names of the target languages.
        directory: what errors name.
        own_source: the language of sources that the model names; empty: none.

    Raises:
        ImportFormatError: if the languages of a side are unknown, or one is wanted that is not there.
    """
    sources = bcp47_tags(wanted.sources or [own_source])
    targets = wanted.chosen("target", bcp47_tags(tags), directory) if tags else bcp47_tags(wanted.targets)
    for side, found in (("source", sources), ("target", targets)):
        if not found or len(found) < len(getattr(wanted, f"{side}s")):
            raise ImportFormatError(f"{directory} does not tell its {side} languages: give --{side}-languages")
    prefixes = {tag: (tags[name],) if tags else () for tag, name in targets.items()}
    return Languages(
        sources=dict.fromkeys(sources, ()),
        targets={tag: TargetTokens(source_prefix=prefix) for tag, prefix in prefixes.items()},
    )


def shortened(names: Collection[str]) -> str:
    """Return some names for an error."""
    return (", ".join(sorted(names)[:8]) or "none") + (", ..." if len(names) > 8 else "")
