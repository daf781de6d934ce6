r"""Formats of templates: printf, braces of many frameworks, tags of template engines, shortcodes, variables, LaTeX.

The syntax follows the documentation of gettext (all its format strings), ICU, i18next, FormatJS, Lingui, vue-i18n,
svelte-i18n, Angular, Fluent, Polyglot, Rails, Django, Jinja, Symfony, Twig, Laravel, Smarty, ERB, PHP, Template
Toolkit, Velocity, FreeMarker, Drupal, MediaWiki, WordPress, BBCode, Android, Apple, .NET, Java, Qt, Flutter, Unity,
Chrome extensions, Delphi, Windows and LaTeX.

Each expression begins with one of `FIRST_CHARACTERS`, before any lookbehind: `re` skips alternatives that begin with
another character. It excludes its own opening delimiter from the text inside, so
that each character is read for one start only.

Before Python 3.11.5, a possessive group that fails halfway keeps what it has matched so far. A repeated group looks
ahead instead.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders import icu
from dragoman_service.text.placeholders.containers import TextReader
from dragoman_service.text.placeholders.icu import Container

FIRST_CHARACTERS = r"<{%$@\[\\!#&^'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One expression of the grammar."""

    kind: ProtectedKind
    pattern: str
    # Returns the span of a match; None if the match is not a span. Without it, the match is the span.
    read: Callable[[TextReader, int, int], Container | None] | None = None


def _delimited(start: str, end: str) -> str:
    # Text between two delimiters of two characters, within a line, without the first delimiter inside.
    first, last = re.escape(start[0]), re.escape(end[0])
    inside = rf"[^{first}{last}\n]|(?!{re.escape(start)}){first}|(?!{re.escape(end)}){last}"
    return rf"{re.escape(start)}(?:{inside}){{1,500}}+{re.escape(end)}"


_SPACE = r"[ \xa0\u202f]"
_NAME = r"[A-Za-z_]\w{0,63}+"
_NO_WORD_AFTER = r"(?![A-Za-z0-9])"

# Flags, width, precision, size and type. `'` is a flag, or precedes a padding character (PHP).
_FORMAT = (
    r"(?:'(?=[^\w\s'][-\d])[^\w\s]|[-+#0',]){0,5}+(?:\*(?:\d{1,2}\$)?|\d{0,4})(?:\.(?:\*(?:\d{1,2}\$)?|\d{0,3}))?"
    r"(?:[tT][HIklMSLNpzZsQBbhAaCYyjmdeRTrDFc]"  # Java: dates
    r"|(?:hh?|ll?|I64|I32|[ILqzjt])?[diouxXeEfFgGcCsSaApnrbqvm@])"
)
_PRINTF = (
    r"%(?<!\d%)(?:"
    r"(?:\d{1,2}\$)?#@\w{1,64}+@"  # Apple: a variable of a plural
    rf"|(?:\d{{1,2}}\$\(?|\[\d{{1,2}}\]|\([\w.]{{1,64}}+\)|<\w{{1,64}}+>){_FORMAT}"  # number or name
    rf"|<{_FORMAT}(?![A-Za-z0-9>])"  # Java: the same argument again
    rf"|{_FORMAT}{_NO_WORD_AFTER}"
    r"|\d{1,2}![^!\s]{1,10}+!"  # Windows
    rf"|\d{{1,2}}:-?\d{{0,4}}(?:\.\d{{1,3}})?[a-z]{_NO_WORD_AFTER}"  # Delphi
    r"|\d{1,2}%(?![\w%])|\|\d{1,2}\$[^|\s]{0,10}+\|"  # Boost
    r"|L?[1-9](?:%L?[1-9]){1,8}+(?!\d)|L?[1-9](?![\w$]|[.,]\d)|Lnd?(?!\w)"  # Qt
    rf"|(?<!\w%)(?<!\d{_SPACE}%)[-+_^#]?[A-Za-z](?:%[A-Za-z]){{0,8}}+(?!\w)"  # dates (strftime), types of Go
    rf"|(?<![)\]}}]%)(?<!\d{_SPACE}%)"  # a space as the flag
    r" (?:(?=\.?\d)\d{0,4}(?:\.\d{1,3})?(?:ll?)?[diuxXeEfgGs]|(?:ll?)?[dfgG])(?!\w|[.-]\w)"
    rf")(?:{_SPACE}?%%)?"
    r"|%%"
)

# Tags and control lines of Mako.
_LINE_END = r"[ \t]{0,8}+(?![^\n])"
_MAKO = (
    r"</%[A-Za-z][\w:.]{0,63}+>"
    r"|<%(?=[A-Za-z])[\w:.]{1,64}+(?:\s{1,8}+[\w:]{1,64}+=(?:\"[^\"\n]{0,300}+\"|'[^'\n]{0,300}+')){0,16}+\s{0,8}+/?>"
    rf"|%(?<![^\n]%) ?(?:(?:if|elif|for|while|with|except)\b[^\n]{{0,300}}?:{_LINE_END}"
    rf"|(?:else|try|finally):{_LINE_END}|end(?:if|for|while|with|try){_LINE_END})"
)

# Members, indices and calls, as in the expressions of most languages.
_MEMBER = (
    r"(?=\??\.\w|->\w|::\w|[\[(])"
    r"(?:(?:\??\.|->|::)\w{1,64}+|\[(?:'[^'{}\n]{1,64}+'|\"[^\"{}\n]{1,64}+\"|[\w.$@-]{1,64}+)\]|\([^(){}\n]{0,100}+\))"
)
# Control flow of Angular.
_CONTROL_FLOW = (
    r"@(?<![\w@]@)(?:(?:if|else if|for|switch|case|defer|placeholder|loading) ?"
    r"\((?:[^(){}\n]{1,200}+|\((?=[^(){}\n]{0,100}+\))[^()]{0,100}+\)){1,8}+\)"
    r"|else|empty|default|defer|placeholder|loading|error) ?\{"
)
_OPERATOR = r"(?:[-+*/%<>]|[=!<>]==?|\?\?|\|\||&&|\?)"
_BRACES = (
    r"\{(?:"
    r"\s{0,4}+(?:'(?:[^'\s]{1,40}|\s{1,4})'|\"(?:[^\"\s]{1,40}|\s{0,4})\")\s{0,4}+"  # a literal: vue-i18n, Fluent, JSX
    r"|\s{0,4}+[\w.$@\[\]-]{0,100}+\s{0,4}+(?:[,:!|][^{}\n]{1,200}+)?"  # `{name}`, `{0:N2}`, `{$x|escape}`
    r"|[\w.]{0,64}+(?:![rsa])?:[^{}\s]{0,16}(?:\{[\w.]{0,64}\}[^{}\s]{0,16}){1,3}"  # Python: `{x:{width}}`
    rf"|\s{{0,4}}+[-!]?[\w$@]{{1,64}}+(?:(?=-\w)-\w{{1,64}}+){{0,5}}+(?:{_MEMBER}){{1,8}}+\s{{0,4}}+(?:[,:!|?][^{{}}\n]{{1,200}}+)?"
    rf"|\s{{0,4}}+!?[\w$@]{{1,64}}+(?:{_MEMBER}){{0,8}}+ {_OPERATOR} [^{{}}\n]{{1,200}}+"
    r"|[#/:@][A-Za-z_][\w.:-]{0,63}+(?:\s[^{}\n]{0,300}+)?"  # Svelte: `{#if x}`, `{:else}`, `{/if}`
    r"|\*[^*{}\n]{1,300}+\*|!![^{}\n]{1,300}?!!"  # comments of Smarty, unescaped text of Blade
    r"|[A-Za-z_][\w:.-]{0,63}+\s(?=[^{}\n]{0,200}?(?:\$\w|\w=[\"'$\w]))[^{}\n]{1,300}+"  # Smarty: `{if $n > 1}`
    r")\}"
)

# `'{name}'` and `'{'` of ICU and Java, `''{0}''` of Java. Quotes of other formats stay as well.
_QUOTED_BRACES = r"'(?:\{'[^'{}\n]{0,100}+'\}'|(?<![\w']')(?:\{[^'{}\n]{0,100}+\}'|'\{[^'{}\n]{0,100}+\}'')(?![\w']))"

_PERCENT_NAME = rf"%(?<![\w%]%)(?<!\d{_SPACE}%)[A-Za-z_]\w{{1,63}}+(?:(?=[.-]\w)[.-]\w{{1,63}}+){{0,4}}+"
_BACKSLASH_PATH = r"(?:(?=\\\w)\\[\w.-]{1,100}(?<!\.)){0,16}+"
_SLASH_PATH = r"(?:(?=/\w)/[\w.@+%-]{1,100}(?<!\.)){1,16}+"

_LINKED_MESSAGE = (
    r"@(?<![\w.@]@)(?:\.[a-z]{1,20}+)?:(?:\w[\w-]{0,63}+(?:(?=\.\w)\.[\w-]{1,64}+){0,8}+"
    r"|\{ ?'?[^{}\n]{1,100}+\}|\([\w.' -]{1,100}+\))"
)
_MENTION = (
    r"@(?<![\w.@/+%-]@)(?:\w{1,64}+@[\w-]{1,63}+(?:(?=\.\w)\.[\w-]{1,63}+){1,5}+"  # of Mastodon
    rf"|{_NAME}(?:(?=-\w)-\w{{1,64}}+){{0,5}}+(?:/[\w-]{{1,64}}+|(?:(?=\.[A-Za-z_])\.\w{{1,64}}+){{1,4}}+)?"
    r"(?:\([^()\n]{0,100}+\))?)"
)
_DOLLAR_NAME = (
    rf"\$(?<![\w$]\$)(?:env:\w{{1,64}}+|[A-Z_][A-Z0-9_]{{0,63}}+(?![a-z]){_SLASH_PATH}"
    rf"|!?{_NAME}(?:(?=\$[A-Za-z_])\${_NAME}){{0,3}}+"
    r"(?:(?=->\w|::\w|\.[A-Za-z_])(?:->|::|\.)\w{1,64}+(?:\((?=[^()\n]{0,100}\))[^()\n]{0,100}+\))?){0,4}+"
    r"(?:\[[^\[\]\s$]{1,64}+\])?)"
)
# `$$` is a dollar sign in templates with `$name`.
_DOLLARS = r"\$\$(?<![\w$]\$\$)(?![\w$])"
_DOLLARS_OF_AMOUNT = (
    r"\$\$(?<![\w$]\$\$)\d{1,9}+(?:(?=[.,]\d)[.,]\d{1,9}+){0,3}+(?=[.,;:!?)]{0,2}(?:\s[^\W\d_]{2}|\s{0,8}+\Z))"
)
_MATH = (
    r"\$\$(?=[^$\s])[^$\n]{1,300}+\$\$"
    r"|\$(?<![\w$]\$)(?=[^\s$])(?=[^$\n]{0,200}?(?:[\\^_=+<>*]|[A-Za-z]-|-[A-Za-z]))"
    r"(?:\\[A-Za-z]{1,20}+|\\[{}|,;:!%# ]|(?![A-Za-z]{3})[A-Za-z]{1,2}+|[\d+*/=<>^_{}()\[\],.;:|!'& -]){1,200}+"
    r"(?<=\S)\$(?!\w)"
)

# fmt: off
_LATEX_SYMBOLS = (
    "LaTeXe", "LaTeX", "XeTeX", "LuaTeX", "BibTeX", "TeX", "item", "ldots", "cdots", "dots", "newline", "newpage",
    "pagebreak", "clearpage", "noindent", "centering", "maketitle", "tableofcontents", "qquad", "quad", "hline",
    "today", "copyright", "pounds", "euro", "bfseries", "itshape", "textbackslash", "texttrademark", "textregistered",
    "smallskip", "medskip", "bigskip", "hfill", "vfill", "appendix", "alpha", "beta", "gamma", "delta", "epsilon",
    "theta", "kappa", "lambda", "mu", "pi", "sigma", "phi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda",
    "Sigma", "Phi", "Psi", "Omega", "leq", "geq", "neq", "approx", "infty", "times", "cdot", "pm", "sum", "int",
    "prod", "rightarrow", "Rightarrow", "leftarrow",
)
# fmt: on
_LATEX_SYMBOL = rf"\\(?<![\w:\\]\\)(?:{'|'.join(_LATEX_SYMBOLS)}){_NO_WORD_AFTER}"
# A capital letter after `\n` begins a word: `\nTotal` is a line break of Android and C.
_LATEX_COMMAND = r"\\(?<![\w:\\]\\)(?![nrt][A-Z])[A-Za-z]{2,24}+\*?(?:\[[^\[\]\n]{0,100}+\]){0,2}(?=\{)"
_LATEX_MATH = (
    r"\\\((?=\s?\w\s?\\\)|[^()\n]{0,200}?[\\^_=+<>*](?!\)))(?:[^()\n\\]|\\(?!\))|\([^()\n]{0,50}+\)){1,200}+\\\)"
)
_SWIFT = r"\\\((?=[\w\"!.-])(?:[^()\n\\]|\\(?=\")|\((?=[^()\n]{0,100}\))[^()\n]{0,100}+\)){1,200}+\)"

_ATTRIBUTE = r"[\w:-]{1,64}+=(?:\"[^\"\[\]\n]{0,300}+\"|'[^'\[\]\n]{0,300}+'|[^\s\[\]\"'<>]{1,300}+)"
_TAG_IN_BRACKETS = (
    r"\[/[#@]?[A-Za-z][\w-]{0,63}+\]"  # end tags
    r"|\[(?:b|i|u|s|url|img|sup|sub|br|hr|\*)\](?!\()"
    r"|\[[A-Za-z]{1,32}+(?:_[A-Za-z0-9]{1,32}+){1,8}+\](?!\()"
    r"|\[[a-z]{2,32}+(?:-[a-z0-9]{1,32}+){1,8}+\](?!\()"  # Contact Form 7: `[your-name]`
    r"|\[[A-Za-z][\w-]{0,63}+=[^\s\[\]][^\[\]\n]{0,300}+\]"
    rf"|\[[A-Za-z][\w-]{{0,63}}+\s{{1,8}}+{_ATTRIBUTE}(?:\s{{1,8}}+(?:{_ATTRIBUTE}|[\w-]{{1,64}}+)){{0,32}}+\s{{0,8}}+/?\]"
    r"|\[[#@][A-Za-z][^\[\]\n]{0,200}+\]"  # FreeMarker
    r"|\[\((?=\$\{)[^()\[\]\n]{1,200}+\)\]"  # Thymeleaf
)

# Rules in order of precedence at one position.
RULES = (
    Rule(kind=ProtectedKind.TEMPLATE, pattern=_delimited("<%", "%>") + "|" + _delimited("<?", "?>")),
    Rule(
        kind=ProtectedKind.TEMPLATE,  # FreeMarker
        pattern=r"</?[#@]\w[^<>\n]{0,200}+>|<#--(?:(?!-->|<#--)[^\n]){0,300}+-->",
    ),
    Rule(kind=ProtectedKind.TEMPLATE, pattern=_MAKO),
    Rule(kind=ProtectedKind.TEMPLATE, pattern=r"\$t\([^()\n]{1,200}+\)|\$\([^()\s]{1,100}+\)"),
    Rule(kind=ProtectedKind.TEMPLATE, pattern=r"[$%#@](?:(?<=\$)\$?!?)?\{[^{}\n]{1,200}+\}"),
    Rule(
        kind=ProtectedKind.TEMPLATE,
        pattern=r"[$%#@](?:(?<=\$)\$?!?)?\{(?=[^{}\n]{0,200}+\{)",
        read=TextReader.nested_braces,
    ),
    Rule(
        kind=ProtectedKind.TEMPLATE,  # Velocity
        pattern=r"#(?:if|elseif|foreach|set|parse|include)\s?\([^()\n]{1,200}+\)|#(?:else|end)(?![\w-])",
    ),
    Rule(kind=ProtectedKind.ICU, pattern=icu.HEAD, read=TextReader.icu_argument),
    Rule(
        kind=ProtectedKind.ICU,  # Java
        pattern=r"\{\s{0,8}+\w{1,64}+\s{0,8}+,\s{0,8}+choice\s{0,8}+,",
        read=TextReader.choice,
    ),
    Rule(
        kind=ProtectedKind.ICU,
        pattern=r"\{[\w.]{0,64}+:(?:plural|p|choose|conditional|cond|c|select)(?:\([^(){}\n]{0,100}+\))?:(?=[^|\n]{0,300}+\|)",
        read=TextReader.smart_format,
    ),
    Rule(
        kind=ProtectedKind.BRACES,  # other formatters of SmartFormat: `{names:list:{}|, | and }`
        pattern=r"\{[\w.]{0,64}+:\w{1,20}+(?:\([^(){}\n]{0,100}+\))?:(?=[^{}\n]{0,200}+\{)",
        read=TextReader.nested_braces,
    ),
    Rule(
        kind=ProtectedKind.ICU,  # Fluent
        pattern=r"\{\s{0,8}+-?[$\w][\w.]{0,63}+(?:-[\w.]{1,64}+){0,8}+(?:\([^(){}\n]{0,100}+\))?\s{0,8}+->(?=\s|\*?\[)",
        read=TextReader.selector,
    ),
    Rule(kind=ProtectedKind.BRACES, pattern=r"\{\{\s?'[{}]{1,3}'\s?\}\}"),  # braces as text in Angular and Vue
    Rule(kind=ProtectedKind.BRACES, pattern=r"\{(?=\{)", read=TextReader.double_braces),
    Rule(kind=ProtectedKind.BRACES, pattern=_delimited("{%", "%}") + "|" + _delimited("{#", "#}")),
    Rule(kind=ProtectedKind.BRACES, pattern=_BRACES),
    Rule(
        kind=ProtectedKind.BRACES, pattern=r"\{(?=[#:@][a-z][^{}\n]{0,200}+\{)", read=TextReader.nested_braces
    ),  # Svelte
    Rule(kind=ProtectedKind.BRACES, pattern=_QUOTED_BRACES),
    Rule(kind=ProtectedKind.BRACES, pattern=_CONTROL_FLOW),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_PERCENT_NAME}%(?![\w%]){_BACKSLASH_PATH})"),
    Rule(kind=ProtectedKind.PRINTF, pattern=rf"(?a:{_PRINTF})"),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_PERCENT_NAME})"),
    Rule(kind=ProtectedKind.BRACKETS, pattern=_delimited("[%", "%]")),
    Rule(kind=ProtectedKind.BRACKETS, pattern=r"\[\[[^\[\]\n]{1,300}+\]\]", read=TextReader.wiki_link),
    Rule(kind=ProtectedKind.BRACKETS, pattern=r"\[code(?:=\w{1,30}+)?\][^\[\]\n]{1,500}+\[/code\]"),
    Rule(kind=ProtectedKind.BRACKETS, pattern=_TAG_IN_BRACKETS),
    Rule(kind=ProtectedKind.BRACKETS, pattern=r"\[[A-Za-z][\w-]{0,63}+\](?!\()", read=TextReader.paired_tag),
    Rule(
        kind=ProtectedKind.BRACKETS,  # Apple
        pattern=r"\^\[[^\[\]\n]{1,300}+\]\([A-Za-z]{1,32}: [^()\n]{1,100}+\)",
        read=TextReader.inflection,
    ),
    Rule(
        kind=ProtectedKind.BRACKETS,  # bold and italic text of MediaWiki
        pattern=r"'(?<![\w']')'{1,4}+(?=[\w(\[{<$])|'(?:(?<=[^\W\d]'|[)\]}>.,:;!?]')|(?<=\$\d'))'{1,4}+(?![\w'])",
    ),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"{_DOLLARS_OF_AMOUNT}|(?a:{_MATH})|{_DOLLARS}"),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:\$(?<![\w$]\$){_NAME}\$(?![\w$]))"),  # Chrome
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_DOLLAR_NAME})"),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_LINKED_MESSAGE}|{_MENTION})"),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_SWIFT}|{_LATEX_MATH}|{_LATEX_SYMBOL})"),
    Rule(kind=ProtectedKind.VARIABLE, pattern=rf"(?a:{_LATEX_COMMAND})", read=TextReader.latex),
    Rule(
        kind=ProtectedKind.VARIABLE,  # Drupal; the others are words of CSS and Sass
        pattern=(
            r"!(?<![\w!?.]!)(?!(?:important|default|optional|global)\b)[a-z](?a:\w{0,63}+(?:(?=-\w)-\w{1,64}+){0,5}+)"
            r"(?![A-Za-z0-9_!])"
        ),
    ),
    Rule(kind=ProtectedKind.VARIABLE, pattern=r"&[a-z]{2,32}+(?=[A-Z.])[\w.]{1,100};"),  # entities of Mozilla
    Rule(kind=ProtectedKind.VARIABLE, pattern=r"#(?<![\w#]#)[A-Za-z_][\w.]{0,63}+#(?![\w#])"),  # ColdFusion
)

# `$1` of MediaWiki and Perl. Numbers take precedence, if the request protects every number.
NUMBERED_VARIABLE = Rule(
    kind=ProtectedKind.VARIABLE,
    pattern=r"(?a:\$(?<![\w$]\$)[1-9](?![\w$]|[.,]\d))",
    read=TextReader.numbered_variable,
)
