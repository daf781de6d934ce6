"""Hooks of MkDocs: pages from outside docs/, links to the repository, diagrams."""

import itertools
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import mermaidx  # type: ignore[import-untyped]
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parents[1]
CARDS = sorted((CHECKOUT / "deploy" / "models" / "dragoman_models").glob("*/*/README.md"))
FILES = {
    f"{name}.md": f"project/{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}
"""Files outside docs/: path in the repository to path in the site."""
for _card in CARDS:
    FILES[str(_card.relative_to(CHECKOUT))] = f"models/{_card.parts[-3]}.md"
    for _image in _card.parent.glob("*.png"):
        FILES[str(_image.relative_to(CHECKOUT))] = f"models/{_card.parts[-3]}/{_image.name}"
ORIGINS = {path: origin for origin, path in FILES.items()}
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
DIAGRAM_IDS = itertools.count(1)


def on_config(config: MkDocsConfig) -> None:
    """Add the model cards to the navigation and the renderer of diagrams."""
    models = next(section["Models"] for section in config.nav or () if "Models" in section)
    models.extend(FILES[str(card.relative_to(CHECKOUT))] for card in CARDS)
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "diagram", "format": diagram}]
    }


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the files outside docs/."""
    for origin, path in FILES.items():
        files.append(File.generated(config, path, abs_src_path=str(CHECKOUT / origin)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Rewrite links between docs/ and the rest of the repository, which are written for a code host."""
    path = page.file.src_uri
    origin = ORIGINS.get(path, f"docs/{path}")
    page.edit_url = f"{config.repo_url}/edit/main/{origin}" if config.repo_url else None

    def rewrite(link: re.Match[str]) -> str:
        text, url, anchor = link.groups(default="")
        target = normpath(join(dirname(origin), url))
        if target in FILES or target.startswith("docs/") or not (CHECKOUT / target).exists():
            return f"[{text}]({relpath(FILES.get(target, target.removeprefix('docs/')), dirname(path) or '.')}{anchor})"
        return f"[{text}]({config.repo_url}/blob/main/{target}{anchor})" if config.repo_url else text

    return LINK.sub(rewrite, markdown)


def diagram(source: str, _language: str, css_class: str, *_: object, **_options: object) -> str:
    """Return a Mermaid diagram as SVG, so that the site needs no script from another site."""
    svg = mermaidx.render(source).svg().replace("my-svg", f"diagram-{next(DIAGRAM_IDS)}")
    return f'<div class="{css_class}">{svg}</div>'
