"""The reference is what the code says, and the site builds without a broken link."""

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.generate import REFERENCE, pages

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(("path", "text"), pages().items(), ids=[path.name for path in pages()])
def test_the_reference_is_as_generated(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run python -m docs.generate"


def test_nothing_else_lies_in_the_reference() -> None:
    assert set(REFERENCE.iterdir()) == set(pages())


@pytest.mark.filterwarnings("default")
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    config = load_config(str(CHECKOUT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))

    build(config)

    assert (tmp_path / "site" / "index.html").exists()
