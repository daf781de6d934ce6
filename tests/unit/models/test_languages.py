from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.bundle.manifest import Languages, Manifest, TargetTokens
from dragoman_service.errors import ModelNotFoundError
from dragoman_service.models.model import LanguageGroup, ModelState
from dragoman_service.models.registry import ModelRegistry, ModelVersionEntry, language_groups
from dragoman_service.models.repository import ModelRepository
from tests.unit.models.model_fakes import loaded_repository, make_repository, resolved, write_bundle
from tests.unit.text.text_fakes import TOKENIZER

_TAGS = ("en", "de", "fr", "zh-Hant")
_LETTERS = ("aa", "bb", "cc", "dd", "ee")


def _languages(sources: tuple[str, ...] = _TAGS, targets: tuple[str, ...] = _TAGS) -> dict[str, object]:
    return {"sources": dict.fromkeys(sources, (4,)), "targets": {tag: {"target_prefix": (5,)} for tag in targets}}


def _write_many(root: Path, model: str, **sides: tuple[str, ...]) -> None:
    write_bundle(root, model, schema_version=5, tokenization={"languages": _languages(**sides)})


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """Repository with the model `many` for all pairs and `english` for one of them."""
    _write_many(tmp_path, "many/1")
    write_bundle(tmp_path, "english/1", pair="fr en")
    repository = make_repository(tmp_path)
    repository.load_all()
    return repository


def test_multilingual_model_resolves_each_pair_with_its_prefixes(repository: ModelRepository) -> None:
    model = repository.resolve("", "zh-hant-TW", "DE")

    assert (model.full_name, model.source_language, model.target_language) == ("many/1", "zh-Hant", "de")
    assert model.tokenizer.source_prefix == tuple(TOKENIZER.encode("zh-Hant"))
    assert model.tokenizer.target_prefix == tuple(TOKENIZER.encode("de"))
    assert repository.resolve("", "zh-hant-TW", "DE") is model


def test_main_pair_of_manifest_resolves_to_the_whole_model(repository: ModelRepository) -> None:
    model = repository.resolve("many", "en", "de")

    assert model.whole is None
    assert repository.resolve("many", "de", "en").whole is model


def test_first_name_is_the_default_of_a_shared_pair(repository: ModelRepository) -> None:
    assert resolved(repository, source="fr", target="en") == "english/1"
    assert resolved(repository, "many", source="fr", target="en") == "many/1"
    assert resolved(repository, source="fr", target="de") == "many/1"


def test_pairs_are_grouped_by_default_model(repository: ModelRepository) -> None:
    groups = {status.name: set(status.language_groups) for status in repository.list_models()}

    assert groups["english"] == {LanguageGroup(sources=("fr",), targets=("en",), is_default=True)}
    assert groups["many"] == {
        LanguageGroup(sources=("en", "de", "zh-Hant"), targets=_TAGS, is_default=True),
        LanguageGroup(sources=("fr",), targets=("de", "zh-Hant"), is_default=True),
        LanguageGroup(sources=("fr",), targets=("en",), is_default=False),
    }


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("en", "it", "target_language: en to it is not served here; available: en to aaa, en to aab, en to aac"),
        ("it", "en", "source_language: it to en is not served here; available: aaa to ..., aab to ..., aac to ..."),
    ],
)
def test_error_of_unknown_pair_lists_a_limited_number_of_pairs(
    tmp_path: Path, source: str, target: str, message: str
) -> None:
    many = tuple(f"{first}a{last}" for first, last in product("abcde", "abcdefghijklmnopqr"))
    _write_many(tmp_path, "many/1", sources=("en", "de", *many), targets=("de", *many))
    repository = make_repository(tmp_path)
    repository.load_all()

    with pytest.raises(ModelNotFoundError) as caught:
        repository.resolve("", source, target)

    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).endswith(" in all)")


@given(
    sources=st.sets(st.sampled_from(_LETTERS), min_size=1),
    targets=st.sets(st.sampled_from(_LETTERS), min_size=1),
    chosen=st.none() | st.sets(st.tuples(*[st.sampled_from(_LETTERS)] * 2)),
    defaults=st.sets(st.tuples(*[st.sampled_from(_LETTERS)] * 2)),
)
def test_groups_contain_each_pair_once_with_its_default(
    sources: set[str], targets: set[str], chosen: set[tuple[str, str]] | None, defaults: set[tuple[str, str]]
) -> None:
    pairs = None if chosen is None else frozenset(chosen & set(product(sources, targets)))
    languages = Languages(
        sources=dict.fromkeys(sorted(sources), ()), targets=dict.fromkeys(sorted(targets), TargetTokens()), pairs=pairs
    )

    groups = language_groups(languages, lambda source: lambda target: (source, target) in defaults)

    actual = [(pair, group.is_default) for group in groups for pair in group.pairs()]
    assert sorted(actual) == sorted((pair, pair in defaults) for pair in languages.pairs_served())
    assert sum(group.num_pairs for group in groups) == len(actual)
    assert len(groups) <= 3 * len(sources)


def test_all_pairs_of_a_complete_model_form_one_group() -> None:
    tags = ["".join(letters) for letters in islice(product("abcdefghij", repeat=3), 200)]
    languages = Languages(sources=dict.fromkeys(tags, ()), targets=dict.fromkeys(tags, TargetTokens()))

    (group,) = language_groups(languages, lambda source: lambda target: True)

    assert group.num_pairs == 200 * 199


_SPELLED = ("aa", "bb", "cc-XX", "cc-xx", "dd-YY", "dd-yy")


@st.composite
def _drawn_languages(draw: st.DrawFn) -> Languages:
    sides = [draw(st.lists(st.sampled_from(_SPELLED), min_size=1, unique_by=str.lower)) for _ in range(2)]
    chosen = draw(st.none() | st.sets(st.tuples(*map(st.sampled_from, sides))))
    return Languages(
        sources=dict.fromkeys(sides[0], ()),
        targets=dict.fromkeys(sides[1], TargetTokens()),
        pairs=None if chosen is None else frozenset(chosen),
    )


@given(st.lists(_drawn_languages(), min_size=1, max_size=4))
def test_version_is_the_default_of_pairs_of_no_earlier_name(drawn: list[Languages]) -> None:
    models = dict(zip("wxyz", drawn, strict=False))

    statuses = _registry(models).statuses()

    for status in statuses:
        before = [languages for name, languages in models.items() if name < status.name]
        actual = [(pair, group.is_default) for group in status.language_groups for pair in group.pairs()]
        expected = [
            ((source, target), not any(languages.find(source.lower(), target.lower()) for languages in before))
            for source, target in models[status.name].pairs_served()
        ]
        assert sorted(actual) == sorted(expected)


def _registry(models: dict[str, Languages]) -> ModelRegistry:
    """Return a registry of ready models that have only languages."""
    entries = [
        ModelVersionEntry(
            name=name,
            version="1",
            directory=Path(name),
            state=ModelState.READY,
            manifest=cast("Manifest", SimpleNamespace(languages=lambda languages=languages: languages)),
        )
        for name, languages in models.items()
    ]
    return ModelRegistry().with_entries(*entries)


def test_model_with_one_pair_resolves_to_itself(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")

    assert repository.resolve("", "en-GB", "de").whole is None
