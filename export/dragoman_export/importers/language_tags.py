"""Converts language names of models, such as `eng_Latn`, `de_DE` or `>>deu<<`, to BCP-47 tags."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.manifest import Languages, TargetTokens

# ISO 639-3 codes, each followed by its ISO 639-1 code
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
_SHORT: Final = {pair[:3]: pair[3:] for pair in _ISO_639.split()}  # BCP-47 prefers ISO 639-1 codes
# standard varieties by the usual tag of their language, and deprecated tags
_MACRO_639: Final = (
    "arb:ar als:sq ayr:ay azj:az cmn:zh ekk:et gaz:om khk:mn kmr:ku knc:kr lvs:lv npi:ne ory:or pbt:ps pes:fa plt:mg "
    "swh:sw uzn:uz ydd:yi zsm:ms quy:qu iw:he ns:nso"
)
_MACRO: Final = dict(pair.split(":") for pair in _MACRO_639.split())
# default script of languages with several; Latin for all others
_USUAL_SCRIPTS: Final = {"ar": "Arab", "ks": "Arab", "sr": "Cyrl", "zh": "Hans"}
_NAME: Final = re.compile(r"([A-Za-z]{2,3})(?:[_-]([A-Za-z]{4}))?(?:[_-]([A-Za-z]{2}))?")

_NO_REGION: Final = "XX"  # in the names of mBART


def bcp47_tags(names: Iterable[str]) -> dict[str, str]:
    """Return BCP-47 tags of languages with the model's own names, in the same order.

    A language with one variety has its language subtag alone, whatever the script or region. Of several varieties the
    usual one has it, so that `zh-CN` matches; the others keep script and region. Invalid names and duplicates are
    skipped.
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
    """The requested languages of a multilingual model."""

    # the model's own source and target tags, for a bundle of one pair; None: a multilingual bundle
    source_tag: str | None = None
    target_tag: str | None = None
    sources: tuple[str, ...] = ()  # source and target languages as BCP-47 tags or the model's own names; empty: all
    targets: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        source_tag: str | None,
        target_tag: str | None,
        source_languages: Sequence[str] | None,
        target_languages: Sequence[str] | None,
    ) -> "WantedLanguages":
        """Create from importer arguments; ImportFormatError if tags of one pair and lists are combined."""
        if (source_tag or target_tag) and (source_languages or target_languages):
            raise ImportFormatError("give either the tags of one pair or lists of languages")
        return cls(
            source_tag=source_tag,
            target_tag=target_tag,
            sources=tuple(source_languages or ()),
            targets=tuple(target_languages or ()),
        )

    def chosen(self, side: str, names: Mapping[str, str], directory: Path) -> dict[str, str]:
        """Return the requested languages of a side, by BCP-47 tag."""
        wanted = self.sources if side == "source" else self.targets
        by_name = {name: tag for tag, name in names.items()}
        for each in wanted:
            if each not in names and each not in by_name:
                raise ImportFormatError(f"{directory} has no {side} language {each!r}; available: {shortened(names)}")
        tags = [by_name.get(each, each) for each in wanted] or list(names)
        return {tag: names[tag] for tag in tags}


def languages_of_tags(
    wanted: WantedLanguages, source_tags: Mapping[str, int], target_tags: Mapping[str, int], directory: Path
) -> Languages:
    """Return the languages of a model whose sources and targets both start with their own tag.

    Tags are token ids by language name. ImportFormatError if there are none, or a requested language is missing.
    """
    names = {"source": bcp47_tags(source_tags), "target": bcp47_tags(target_tags)}
    if not all(names.values()):
        raise ImportFormatError(f"{directory} has no language tags")
    sources, targets = (wanted.chosen(side, names[side], directory) for side in names)
    return Languages(
        sources={tag: (source_tags[name],) for tag, name in sources.items()},
        targets={tag: TargetTokens(target_prefix=(target_tags[name],)) for tag, name in targets.items()},
    )


def languages_of_source_tags(
    wanted: WantedLanguages, tags: Mapping[str, int], directory: Path, *, own_source: str = ""
) -> Languages:
    """Return the languages of a model whose sources start with the tag of the target, if any.

    `wanted` must include the sources unless the model names its own (`own_source`). ImportFormatError if the languages
    of a side are unknown, or a requested language is missing.
    """
    sources = bcp47_tags(wanted.sources or [own_source])
    targets = wanted.chosen("target", bcp47_tags(tags), directory) if tags else bcp47_tags(wanted.targets)
    for side, found in (("source", sources), ("target", targets)):
        if not found or len(found) < len(getattr(wanted, f"{side}s")):
            raise ImportFormatError(f"{directory} does not name its {side} languages: give --{side}-languages")
    prefixes = {tag: (tags[name],) if tags else () for tag, name in targets.items()}
    return Languages(
        sources=dict.fromkeys(sources, ()),
        targets={tag: TargetTokens(source_prefix=prefix) for tag, prefix in prefixes.items()},
    )


def shortened(names: Collection[str]) -> str:
    """Return the first names, for an error."""
    return (", ".join(sorted(names)[:8]) or "none") + (", ..." if len(names) > 8 else "")
