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
        ("pt_BR pt pt_br fr_CA fr_FR fr", "pt-BR pt fr-CA fr-FR fr"),
        ("deu de cmn_Hans zho_Hans <mask> x.y hbo_Hebr", "de zh hbo"),
    ],
)
def test_model_names_become_bcp47_tags(names: str, tags: str) -> None:
    found = bcp47_tags(names.split())

    assert set(found) == set(tags.split())
    assert all(re.fullmatch(r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?", tag) for tag in found)


def test_each_tag_has_the_name_of_the_model() -> None:
    assert bcp47_tags(["zho_Hant", "zho_Hans", "deu_Latn"]) == {
        "zh-Hant": "zho_Hant",
        "zh": "zho_Hans",
        "de": "deu_Latn",
    }
