import re

import pytest

from dragoman_export.importers.language_tags import bcp47_tags


@pytest.mark.parametrize(
    ("names", "tags"),
    [
        ("eng_Latn deu_Latn zho_Hans zho_Hant yue_Hant", "en de zh zh-Hant yue"),
        ("kas_Arab kas_Deva ace_Arab ace_Latn arb_Arab arb_Latn arz_Arab", "ks ks-Deva ace-Arab ace ar ar-Latn arz"),
        ("en_XX de_DE zh_CN pt_XX", "en de zh pt"),
        ("ns zh iw", "nso zh he"),
        ("pt_BR pt pt_br fr_CA fr_FR fr", "pt-BR pt pt-BR fr-CA fr-FR fr"),
        ("deu de cmn_Hans zho_Hans <mask> x.y hbo_Hebr", "de de zh zh - - hbo"),
    ],
)
def test_model_names_become_bcp47_tags(names: str, tags: str) -> None:
    found = bcp47_tags(names.split())

    pairs = set(zip(tags.split(), names.split(), strict=True))
    assert found.keys() == {tag for tag, _ in pairs} - {"-"}
    assert set(found.items()) <= pairs
    assert all(re.fullmatch(r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?", tag) for tag in found)
