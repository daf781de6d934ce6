"""README, ARCHITECTURE and the guides: short enough, nothing undefined, no broken link."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman_service.config import setting_fields
from dragoman_service.observability.metrics import Metrics

CHECKOUT = Path(__file__).parents[2]
READ_FIRST = [CHECKOUT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/README.md")]
GUIDES = sorted((CHECKOUT / "docs" / "guides").glob("*.md"))
PAGES = [*READ_FIRST, *sorted((CHECKOUT / "docs").rglob("*.md"))]
SETTINGS = set(setting_fields())
NO_SETTINGS = {"grpc.aio", "grpc.health", "grpc.http2", "limits.cpu", "section.name", "tls.crt"}
"""Names that have the form of a setting."""

METRICS = {row.exposed_name for row in Metrics.TABLE.values()}
MAX_BYTES = 15 * 1024
"""Longer, and it is not read to its end."""


def blocks(page: Path, language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def snippets() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(CHECKOUT)}:{index}", block)
        for page in PAGES
        for index, block in enumerate(blocks(page, "python"), start=1)
        if page.name != "migrating.md"  # its test runs its examples
    ]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_what_is_read_first_is_read_to_its_end(name: str) -> None:
    assert (CHECKOUT / name).stat().st_size <= MAX_BYTES


@pytest.mark.parametrize("page", READ_FIRST, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_of_the_repository_s_own_pages_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page

        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_snippet_defines_the_names_that_it_uses(tmp_path: Path) -> None:
    for index, (_, block) in enumerate(snippets()):
        (tmp_path / f"snippet_{index:02}.py").write_text(block, encoding="utf-8")

    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(snippets()) >= 8
    assert checked.returncode == 0, checked.stdout + "\n".join(name for name, _ in snippets())


@pytest.mark.parametrize("page", [READ_FIRST[0], *GUIDES], ids=lambda page: page.name)
def test_shell_examples_activate_the_environment_before_they_use_it(page: Path) -> None:
    for block in blocks(page, "sh"):
        uses = [
            line
            for line in block.splitlines()
            if re.match(r"(\(umask 077; )?(dragoman|python -m dragoman_(service|export)) ", line)
        ]

        assert not uses or "bin/activate" in block.split(uses[0])[0]


def test_monitoring_says_which_question_each_metric_answers() -> None:
    page = (CHECKOUT / "docs" / "operations" / "monitoring.md").read_text(encoding="utf-8")

    assert set(re.findall(r"dragoman_(?!service|export|models|native|abi)\w+", page)) == METRICS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_setting_and_metric_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    sections = "|".join({name.split(".")[0] for name in SETTINGS})

    named = set(re.findall(rf"`((?:{sections})\.[a-z_0-9]+)", text))
    named |= {f"{section}.{field}".lower() for section, field in re.findall(r"DRAGOMAN_([A-Z]+)__([A-Z_]+)", text)}
    metrics = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in re.findall(r"`(?:rate\()?(dragoman_(?!service|export|models|native|abi)[a-z_]+)", text)
    }

    assert named - SETTINGS <= NO_SETTINGS
    assert metrics <= METRICS
