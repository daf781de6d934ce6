"""Parsers of PyPI: reads and writes what parse.mjs does."""

import json
import string
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import bbcode
import chevron.tokenizer
import django.conf
import liquid
import mwparserfromhell
from django.template import Engine, base
from fluent.syntax import FluentParser, ast, visitor
from fluent.syntax.serializer import serialize_expression
from jinja2 import Environment
from mako import parsetree
from mako.lexer import Lexer as MakoLexer
from pylatexenc import latexwalker


def django_tokens(text: str) -> Iterator[str]:
    """Tokens of Django, after its compiler has accepted the template."""
    source = "{% load i18n %}" + text
    Engine(libraries={"i18n": "django.templatetags.i18n"}).from_string(source)
    tokens = base.Lexer(source).tokenize()
    kinds = ((token.token_type, token.contents) for token in tokens)
    return (f"{kind.name} {contents}" for kind, contents in kinds if kind is not base.TokenType.TEXT)


def jinja_tokens(text: str) -> Iterator[str]:
    """Expressions and statements of Jinja, after its compiler has accepted the template."""
    environment = Environment(extensions=["jinja2.ext.i18n", "jinja2.ext.do", "jinja2.ext.loopcontrols"])  # noqa: S701
    environment.compile(text)
    parts: list[str] = []
    for _, kind, value in environment.lex(text):
        if kind == "data":
            continue
        parts.append(value)
        if kind.endswith("_end"):
            yield "".join(parts).strip()
            parts.clear()
    assert not parts


def liquid_tokens(text: str) -> Iterator[str]:
    """Tags and outputs of Liquid, after its parser has accepted the template."""
    environment = liquid.Environment()
    environment.from_string(text)
    tokens = ((token.kind, token.value) for token in environment.tokenizer()(text))
    return (f"{kind} {value}" for kind, value in tokens if kind not in {"content", "expression"})


def mako_nodes(text: str) -> Iterator[str]:
    """Expressions, control lines and tags of Mako."""
    return _mako_nodes(MakoLexer(text).parse())


def _mako_nodes(node: Any) -> Iterator[str]:
    for child in node.get_children():
        if not isinstance(child, parsetree.Text):
            yield " ".join(str(getattr(child, name, "")) for name in ("keyword", "attributes", "text", "escapes"))
            yield from _mako_nodes(child)


def mustache_tokens(text: str) -> Iterator[str]:
    """Tags of Mustache."""
    return (f"{kind} {key}" for kind, key in chevron.tokenizer.tokenize(text) if kind != "literal")


def bbcode_tokens(text: str) -> Iterator[str]:
    """Tags of BBCode; each end tag closes the last open tag."""
    parser = bbcode.Parser()
    for name in ("size", "spoiler", "img"):
        parser.add_simple_formatter(name, "%(value)s")
    opened: list[str] = []
    for kind, name, options, value in parser.tokenize(text):
        if kind == parser.TOKEN_TAG_START and name != "*":
            opened.append(name)
        if kind == parser.TOKEN_TAG_END and (not opened or opened.pop() != name):
            raise ValueError(f"{value} closes no tag")
        if kind in {parser.TOKEN_TAG_START, parser.TOKEN_TAG_END}:
            yield f"{name} {options} {value}"
    if opened:
        raise ValueError(f"{opened} is not closed")


class _Placeables(visitor.Visitor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Placeable(self, node: Any) -> None:  # noqa: N802 - a name of fluent.syntax
        if isinstance(node.expression, ast.SelectExpression):
            selector = serialize_expression(node.expression.selector)
            for variant in node.expression.variants:
                inner = _Placeables()
                inner.visit(variant.value)
                key = getattr(variant.key, "name", None) or variant.key.value
                self.found.append(f"{selector} {'*' * variant.default}{key} {sorted(inner.found)}")
        else:
            self.found.append(serialize_expression(node.expression))


def fluent_placeables(text: str) -> list[str]:
    """Placeables of a message of Fluent, with the keys and placeables of their variants."""
    resource = FluentParser(with_spans=False).parse("key = " + text.replace("\n", "\n    ") + "\n")
    (entry,) = resource.body
    if isinstance(entry, ast.Junk):
        raise ValueError(entry.content)  # noqa: TRY004
    placeables = _Placeables()
    placeables.visit(entry)
    return placeables.found


def mediawiki_nodes(text: str) -> Iterator[str]:
    """Templates, links and tags of MediaWiki, without the texts of plural forms and links."""
    code = mwparserfromhell.parse(text)
    for node in code.ifilter(recursive=True):
        if isinstance(node, mwparserfromhell.nodes.Template):
            has_forms = str(node.name).partition(":")[0].upper() in {"PLURAL", "GENDER"}
            yield f"{node.name} {len(node.params)}" if has_forms else str(node)
        elif isinstance(node, mwparserfromhell.nodes.Wikilink):
            yield f"{node.title} {node.text is not None}"
        elif isinstance(node, mwparserfromhell.nodes.Tag):
            yield f"{node.wiki_markup} {node.tag} {node.attributes}"
        elif isinstance(node, mwparserfromhell.nodes.ExternalLink):
            yield f"{node.url} {node.brackets}"
        elif not isinstance(node, mwparserfromhell.nodes.Text):
            yield str(node)


def latex_nodes(text: str) -> Iterator[str]:
    """Commands, environments and formulas of LaTeX, each with the commands around it."""
    nodes, _, _ = latexwalker.LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    return _latex_nodes(nodes, "")


def _latex_nodes(nodes: Iterable[Any], path: str) -> Iterator[str]:
    for node in nodes:
        if node is None or isinstance(node, latexwalker.LatexCharsNode):
            continue
        is_word = isinstance(node, latexwalker.LatexMacroNode | latexwalker.LatexEnvironmentNode)
        name = getattr(node, "macroname", None) or getattr(node, "environmentname", None)
        is_group = isinstance(node, latexwalker.LatexGroupNode)
        yield path + (str(name) if is_word else "{}" if is_group else node.latex_verbatim())
        arguments = node.nodeargd.argnlist if is_word and node.nodeargd else []
        inner = () if isinstance(node, latexwalker.LatexMathNode) else getattr(node, "nodelist", ())
        yield from _latex_nodes([*(arguments or []), *inner], f"{path}{name} ")


def python_fields(text: str) -> Iterator[str]:
    """Fields of `str.format`."""
    fields = string.Formatter().parse(text)
    return (f"{name!r} {spec!r} {conversion!r}" for _, name, spec, conversion in fields if name is not None)


def template_names(text: str) -> Iterator[str]:
    """Names of `string.Template`."""
    template = string.Template(text)
    if not template.is_valid():
        raise ValueError("a `$` has no name")
    return (match[0] for match in template.pattern.finditer(text))


_PARSERS: Final[dict[str, Callable[[str], Iterable[str]]]] = {
    "bbcode": bbcode_tokens,
    "chevron": mustache_tokens,
    "Django": django_tokens,
    "fluent.syntax": fluent_placeables,
    "Jinja2": jinja_tokens,
    "Mako": mako_nodes,
    "mwparserfromhell": mediawiki_nodes,
    "pylatexenc": latex_nodes,
    "python-liquid": liquid_tokens,
    "string.Formatter": python_fields,
    "string.Template": template_names,
}


def read(parser: str, text: str) -> dict[str, str]:
    """Return the syntax of a text, or the error of the parser."""
    try:
        return {"tree": json.dumps(sorted(_PARSERS[parser](text)))}
    except Exception as error:  # noqa: BLE001 - each parser has its own errors
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    django.conf.settings.configure(USE_I18N=True)
    is_list = sys.argv[1:] == ["--list"]
    json.dump(list(_PARSERS) if is_list else [read(*each) for each in json.load(sys.stdin)], sys.stdout)
