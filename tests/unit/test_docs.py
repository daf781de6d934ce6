"""Documentation: generated reference, links, names of settings and metrics, and examples."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import lxml.html
import pytest

from dragoman.client import errors
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.config import setting_fields
from dragoman_service.observability.metrics import Metrics

CHECKOUT = Path(__file__).parents[2]
ROOT_PAGES = [CHECKOUT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/README.md")]
PAGES = {
    str(page.relative_to(CHECKOUT)): page.read_text(encoding="utf-8")
    for page in (*ROOT_PAGES, *sorted((CHECKOUT / "docs").rglob("*.md")))
}
SETTINGS = set(setting_fields())
OTHER_NAMES = {
    "grpc.aio",
    "grpc.health",
    "grpc.http2",
    "http.client",
    "limits.cpu",
    "section.name",
    "tls.crt",
}  # look like settings
METRICS = {row.exposed_name for row in Metrics.TABLE.values()}
METRIC = r"dragoman_(?!service|export|models|native|abi)[a-z_]+"
MIGRATION_PAGES = [f"docs/guides/{name}.md" for name in ("azure", "deepl", "google", "libretranslate", "migrating")]


def code_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with links to a repository. A library of MkDocs prints a report when its process ends."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "REPOSITORY_URL": "https://code.example/dragoman"}
    built = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return directory


@pytest.mark.slow
def test_site_loads_no_asset_of_another_site(site: Path) -> None:
    pages = {page: lxml.html.parse(page).getroot() for page in site.rglob("*.html")}
    links = {link for page in pages.values() for element, _, link, _ in page.iterlinks() if element.tag != "a"}
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert site / "project" / "changelog.html" in pages
    assert "Model card" in pages[site / "models" / "en-de.html"].text_content()
    assert [link for link in links if "//" in link] == []
    assert re.findall(r"url\([\"']?(?:https?:)?//|@import", styles) == []
    # The theme loads a script from another site for elements of this class; docs/hooks.py renders diagrams instead.
    assert [page for page, root in pages.items() if root.find_class("mermaid")] == []


@pytest.mark.slow
def test_links_to_files_outside_the_site_lead_to_the_repository(site: Path) -> None:
    architecture = (site / "project" / "architecture.html").read_text(encoding="utf-8")
    assert 'href="https://code.example/dragoman/blob/main/pyproject.toml"' in architecture
    assert 'href="https://code.example/dragoman/edit/main/ARCHITECTURE.md"' in architecture
    assert 'href="contributing.html"' in architecture


@pytest.mark.parametrize("page", ROOT_PAGES, ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> Iterator[str]:
    for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_settings_and_metrics_on_a_page_exist(page: str) -> None:
    text = PAGES[page]
    sections = "|".join({name.partition(".")[0] for name in SETTINGS})

    settings = set(re.findall(rf"`((?:{sections})\.[a-z_0-9]+)", text))
    settings |= {f"{section}.{name}".lower() for section, name in re.findall(r"DRAGOMAN_([A-Z]+)__([A-Z_]+)", text)}
    metrics = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(rf"`(?:rate\()?({METRIC})", text)}

    assert settings <= SETTINGS | OTHER_NAMES
    assert metrics <= METRICS


def test_monitoring_page_describes_every_metric() -> None:
    assert set(re.findall(METRIC, PAGES["docs/operations/monitoring.md"])) == METRICS


def test_examples_define_the_names_that_they_use(tmp_path: Path) -> None:
    examples = [
        block for page in PAGES for block in code_blocks(page) if not (page in MIGRATION_PAGES and "KEY" in block)
    ]
    for index, example in enumerate(examples):
        (tmp_path / f"example_{index}.py").write_text(example, encoding="utf-8")

    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)

    assert len(examples) >= 8
    assert checked.returncode == 0, checked.stdout


def test_options_and_errors_of_the_migration_guides_exist() -> None:
    text = "".join(PAGES[page] for page in MIGRATION_PAGES)
    options = set(re.findall(r"`options\.(\w+)`", text))
    names = re.findall(r"`(\w+Error)`", text)

    assert options
    assert options <= set(pb.DecodingOptions.DESCRIPTOR.fields_by_name)
    assert names
    assert all(issubclass(getattr(errors, name), errors.DragomanError) for name in names)


def test_extras_on_a_page_exist() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [group for text in PAGES.values() for group in re.findall(r"['`](?:dragoman|\.)\[([a-z,-]+)\]", text)]

    assert groups
    assert {extra for group in groups for extra in group.split(",")} <= set(project["optional-dependencies"])
