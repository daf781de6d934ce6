"""The reference is what the code says, and the site builds without a broken link."""

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.generate import REFERENCE, pages

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return pages()


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "errors.md", "commands.md", "contract.md"])
def test_the_reference_is_as_generated(generated: dict[Path, str], name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == generated[REFERENCE / name], "run python -m docs.generate"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("settings.md", "| `grpc.port` | `50051` | TCP port; 0 selects a free port. |"),
        (
            "metrics.md",
            "| `dragoman_requests_total` | counter | method, status | Finished RPCs by method and gRPC status. |",
        ),
    ],
)
def test_settings_and_metrics_are_tables(name: str, row: str, generated: dict[Path, str]) -> None:
    assert row in generated[REFERENCE / name].splitlines()


def test_the_reference_has_no_other_pages(generated: dict[Path, str]) -> None:
    assert set(REFERENCE.iterdir()) == set(generated)


@pytest.mark.filterwarnings("default")
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    config = load_config(str(CHECKOUT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site"))

    build(config)

    assert (tmp_path / "site" / "index.html").exists()
