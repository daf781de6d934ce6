"""Random values that a translation must preserve: numbers, amounts, identifiers, addresses, names, placeholders."""

import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

# A string that a translation must contain, or the forms of which it must contain one.
Kept = str | tuple[str, ...]

_Value = tuple[str, tuple[Kept, ...]]  # text and its preserved parts

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "pl": (
        "Łukasz", "Małgorzata", "Paweł", "Agnieszka Wójcik", "Zdzisław", "Bożena", "Wałęsa", "Grażyna", "Jarosław",
        "Świętosława", "Żaneta",
    ),
    "cs": (
        "Čapek", "Dvořák", "Jiří", "Božena Němcová", "Zdeněk", "Růžena", "Tomáš", "Ondřej", "Šárka", "Žižka", "Leoš",
    ),
    "ga": (
        "Ciarán", "Siobhán", "Pádraig", "Róisín", "Seán", "Áine", "Tomás", "Bríd", "Éamon", "Máire", "Oisín",
    ),
    "vi": (
        "Nguyễn", "Trần Thị Hồng", "Phạm", "Đặng", "Hoàng Việt", "Lê Đức", "Vũ", "Bùi Tấn", "Đỗ", "Phượng", "Thảo",
    ),
    "tr": (
        "Çağlar", "Gökçe", "Şebnem", "Işıl", "Oğuz", "Ayşegül", "Tuğba", "Yiğit", "Çiğdem", "Kılıç", "Erdoğmuş",
    ),
    "es": (
        "Muñoz", "José Ramón", "Inés", "Íñigo", "Martínez", "Begoña", "Sofía", "Andrés", "Peña", "Verónica", "Ángel",
    ),
    "pt": (
        "João", "Conceição", "Simões", "Gonçalo", "Inês", "Magalhães", "Antônio", "Luís", "Guimarães", "Assunção",
        "Patrícia",
    ),
    "fr": (
        "François", "Hélène", "Zoé", "Benoît", "Noël", "Gérard", "Anaïs", "Thérèse", "Loïc", "Françoise", "Jérôme",
    ),
    "sv": (
        "Åsa", "Håkan", "Gästrin", "Malmström", "Åkesson", "Sjögren", "Sjöberg", "Bååth", "Månsson", "Tåg", "Wåhlin",
    ),
    "no": (
        "Øyvind", "Bjørn", "Åge", "Kjærsti", "Sørensen", "Håvard", "Trønder", "Pål", "Ødegård", "Bjørnson", "Ærø",
    ),
    "is": (
        "Guðrún", "Þórdís", "Ásgeir", "Hjörtur", "Sigríður", "Þorvaldur", "Ólafur", "Ragnheiður", "Jón", "Björk",
        "Hallgrímur",
    ),
    "hu": (
        "László", "Erzsébet", "Győző", "Bartók", "Kovács", "Sándor", "Szűcs", "Ágnes", "Kőszegi", "Dezső", "Móricz",
    ),
    "ro": (
        "Ștefan", "Brâncuși", "Mihăiță", "Ionuț", "Călin", "Țiriac", "Enăchescu", "Rădulescu", "Brăila", "Nănescu",
        "Pârvu",
    ),
    "hr": (
        "Čačak", "Đurđica", "Željko", "Krešimir", "Šime", "Kovačić", "Dražen", "Živković", "Jurišić", "Vuković",
        "Perić",
    ),
    "lt": (
        "Žydrūnas", "Jūratė", "Šarūnas", "Rūta", "Ąžuolas", "Eglė", "Vytautė", "Čiurlionis", "Živilė", "Gintarė",
        "Mindaugė",
    ),
    "lv": (
        "Jānis", "Kārlis", "Inguna Ķīse", "Pēteris", "Līga", "Aija Bērziņa", "Ģirts", "Ēriks", "Ļena", "Mārtiņš",
        "Šķēle",
    ),
    "et": (
        "Tõnu", "Õnne", "Jõgi", "Kõiv", "Tõnis", "Võsu", "Rõõm", "Mõttus", "Põld", "Tšaika", "Sõber",
    ),
    "mi": (
        "Tāne", "Hēmi", "Ngāpuhi", "Mārama", "Wīremu", "Ōtāhuhu", "Kīngi", "Pōtatau", "Rangihīroa", "Tūhoe", "Māui",
    ),
}  # fmt: skip

# Family names in letters that every model has.
PLAIN_NAMES: Final = (
    "Beethoven", "Tolkien", "Rowling", "Schubert", "Hamilton", "Johnson", "Robinson", "Mendelssohn", "Wilson",
    "Thompson", "Armstrong", "Newton", "Einstein", "Darwin", "Lindgren", "Andersen", "Hemingway", "Steinbeck",
)  # fmt: skip

PRODUCTS: Final = (
    "Kubernetes", "Docker", "Helm", "Envoy", "Microsoft", "GitHub", "GitLab", "PostgreSQL", "MySQL", "Redis",
    "MongoDB", "Firefox", "Thunderbird", "LibreOffice", "WordPress", "Drupal", "TypeScript", "JavaScript", "PyTorch",
    "TensorFlow", "NumPy", "OpenStreetMap", "Wikipedia", "YouTube", "LinkedIn", "Grafana", "Prometheus", "Debian",
    "Ubuntu", "Fedora", "Nextcloud", "Mastodon", "Blender", "Inkscape", "FreeBSD", "OpenSSL", "Nginx", "Terraform",
    "Ansible", "Jenkins", "Siemens", "Volkswagen", "Lufthansa", "Nintendo", "Samsung", "Toyota", "Philips", "Nokia",
)  # fmt: skip

# Placeholders by framework; NAME is a variable and ¤ a digit.
PLACEHOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "printf": ("%s", "%d", "%i", "%5.¤f", "%-10s", "%'d", "%lu", "%¤$s", "%¤$d", "%02d", "%+d", "%zu", "% d"),
    "Python": ("%(NAME)s", "%(NAME)d", "{NAME!r}", "{NAME:.¤f}", "{¤}"),
    "gettext for Qt": ("%¤", "%L¤"),
    "Objective-C": ("%@", "%¤$@"),
    "Apple string catalogue": ("%#@NAME@", "%lld"),
    "Swift": (r"\(NAME)", r"\(user.NAME)"),
    "Windows": ("%I64d", "%¤!s!"),
    "Java": ("{¤}", "{¤,number,integer}", "{¤,date,short}"),
    "ICU": ("{NAME}", "{NAME, number}", "{NAME, date, long}"),
    ".NET": ("{¤:N2}", "{¤,-10}", "{¤:C}"),
    "C# interpolation": ("{NAME:F2}",),
    "JavaScript": ("${NAME}", "${user.NAME}"),
    "i18next": ("{{NAME}}", "{{NAME, uppercase}}", "$t(NAME)"),
    "Angular": ("{{ NAME | date }}", "{{ user.NAME }}"),
    "vue-i18n": ("@:NAME", "@.lower:NAME", "{'@'}"),
    "Svelte": ("{@html NAME}", "{$NAME}"),
    "React": ("<¤/>",),
    "Fluent": ("{ $NAME }", "{ -NAME }"),
    "Handlebars": ("{{{NAME}}}", "{{#if NAME}}"),
    "Mustache": ("{{&NAME}}", "{{> NAME}}"),
    "Liquid": ("{{ NAME | escape }}", "{% include NAME %}"),
    "Jinja": ("{{ NAME|safe }}", "{% if NAME %}", "{# NAME #}"),
    "Django": ("{% url NAME %}", "{% trans NAME %}"),
    "Twig": ("{{ NAME|trans }}", "{{ NAME.NAME }}"),
    "Symfony": ("%NAME%", "{{ NAME }}"),
    "ERB": ("<%= @NAME %>", "<%= user.NAME %>", "<% end %>"),
    "Rails": ("%{NAME}", "%<NAME>d"),
    "Ruby": ("#{NAME}", "#{@NAME}"),
    "EJS": ("<%- NAME %>",),
    "PHP": ("<?= $NAME ?>", "{$NAME}"),
    "Smarty": ("{$NAME|escape}", "{$user.NAME}"),
    "Blade": ("{!! $NAME !!}", "{{ $NAME }}"),
    "Template Toolkit": ("[% NAME %]", "[% user.NAME %]"),
    "Velocity": ("${user.NAME}", "$!{NAME}"),
    "FreeMarker": ("${NAME?html}",),
    "Thymeleaf": ("[[${NAME}]]", "#{NAME.title}"),
    "Go": ("{{.NAME}}", "{{ .User.NAME }}", "%v", "%q"),
    "Rust": ("{NAME:?}", "{:>¤}"),
    "Flutter": ("$NAME", "${NAME.length}"),
    "Drupal": ("@NAME", "!NAME", "%NAME"),
    "Chrome": ("$NAMECAPITALS$",),
    "shell": ("$NAMECAPITALS", "${NAMECAPITALS}", "$(NAME)"),
    "Windows shell": ("%NAMECAPITALS%",),
    "MediaWiki": ("[[User:$¤]]", "{{NAMECAPITALS}}", "[[¤]]"),
    "WordPress": ('[gallery ids="¤,¤"]', "[NAME-form]"),
    "Ansible": ("{{ ansible_NAME }}",),
    "Kubernetes": ("$(NAMECAPITALS)",),
    "Mailchimp": ("*|NAMECAPITALS|*",),
    "Salesforce": ("{!User.NAME}",),
    "HubSpot": ("{{ contact.NAME }}",),
    "reStructuredText": ("|NAME|", ":ref:`NAME`"),
    "Unity": ("{NAME:N0}",),
    "XLIFF": ('<ph id="¤"/>', '<x id="¤"/>'),
}

# Pairs around translated words.
PAIRED: Final = (
    ("[b]", "[/b]"), ("[i]", "[/i]"), ("[url=https://example.org/a]", "[/url]"), ("[color=red]", "[/color]"),
    ("<0>", "</0>"), ("<1>", "</1>"), ("<b>", "</b>"), ("<color=#ff0000>", "</color>"), ("[button]", "[/button]"),
    ("{{#b}}", "{{/b}}"), ("{link}", "{/link}"), ("<strong>", "</strong>"), ("[size=12]", "[/size]"),
)  # fmt: skip

SYMBOLS: Final = (
    *"|<>=^~•·→←⇒↔≤≥≠≈±×÷§©®™°€£¥₹¶†★☆✓✗☑■◆▶∞∑√∂µ⌘⏎♥♪☎",
    "||", "->", "=>", ">>", "==", ">=", "<=", "!=", "::", "+/-", "***", "•••", "→→",
)  # fmt: skip

EMOJI: Final = (
    "😊", "❤️", "👍🏽", "👏👏👏", "🎉", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇬🇧🇫🇷", "1️⃣", "#️⃣", "🤷🏻‍♀️", "🧑‍💻", "💶", "🔥🔥", "✅",
    "⚠️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😂🤣", "☕", "✈️", "🐕‍🦺", "🎂🎈", "🥨",
)  # fmt: skip

# Words in letters that the model does not have.
FOREIGN_WORDS: Final = (
    "Москва", "привет", "Αθήνα", "λόγος", "東京", "日本語", "北京", "中文", "서울", "한국어", "שלום", "שבת", "سلام",
    "شكرا", "नमस्ते", "हिन्दी", "ไทย", "ภาษา", "Հայաստան", "საქართველო", "ʻokina", "ˈbɛrɡamɔt", "ʃɔːt", "naïveté",
    "señorita", "smørrebrød", "façade", "crème", "fiancé", "jalapeño", "tōfu", "żurek", "kürtőskalács", "ħobż",
)  # fmt: skip

# Wrappers of a word, with characters that the model may lack.
BRACKETS: Final = (("[", "]"), ("{", "}"), ("⟨", "⟩"), ("【", "】"), ("<", ">"), ("[[", "]]"), ("|", "|"), ("~", "~"))

_VARIABLES: Final = ("user", "name", "count", "file", "total", "title", "email", "path", "city", "amount", "item")
_CODE_WORDS: Final = ("user", "max", "file", "list", "total", "input", "page", "cache", "index", "token", "group")
_EXTENSIONS: Final = ("txt", "docx", "pdf", "tar.gz", "csv", "py", "json", "xlsx", "mp3", "jpeg", "yaml", "log")
_UNITS: Final = ("km", "kg", "°C", "GB", "ms", "km/h", "m²", "nM", "kWh", "MHz", "cm", "mg", "Mbit/s", "kPa", "dB", "l")
# Symbol or code, with the words that a translation may use instead.
_CURRENCIES: Final = (
    ("$", ("$", "USD", "Dollar", "dollar")),
    ("€", ("€", "EUR", "Euro", "euro")),
    ("£", ("£", "GBP", "Pfund", "pound")),
    ("¥", ("¥", "JPY", "Yen", "yen")),
    ("EUR", ("EUR", "€", "Euro", "euro")),
    ("USD", ("USD", "$", "US-Dollar", "Dollar", "dollar")),
    ("CHF", ("CHF", "Franken", "franc")),
    ("GBP", ("GBP", "£", "Pfund", "pound")),
)
_PERCENT: Final = ("%", "Prozent", "percent", "per cent")
_SPACES: Final = ("\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "\N{THIN SPACE}", " ")


def digits(random: Random, count: int) -> str:
    """Return a number of random digits, the first of which is not 0."""
    return random.choice("123456789") + "".join(random.choices(string.digits, k=count - 1))


def number_text(whole: str, decimals: str, *, language: str, is_grouped: bool) -> str:
    """Return a number with the separators of English or German."""
    group, point = (".", ",") if language == "de" else (",", ".")
    if is_grouped:
        whole = _grouped(whole, group)
    return whole + (point + decimals if decimals else "")


def number_forms(whole: str, decimals: str) -> tuple[str, ...]:
    """Return the ways in which English and German write a number, with and without groups."""
    wholes = {whole, *(_grouped(whole, group) for group in (",", ".", "'", "’", *_SPACES))}
    forms = {
        each + (point + decimals if decimals else "")
        for each in wholes
        for point in ((".", ",") if decimals else ("",))
        if not decimals or point not in each  # one separator has one meaning
    }
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def random_count(random: Random, language: str) -> _Value:
    """Return an integer of up to nine digits, grouped or not."""
    whole = random.choice((digits(random, random.randint(2, 4)), digits(random, random.randint(5, 9))))
    if random.random() < 0.25:
        whole = whole[0] + "0" * (len(whole) - 1)
    text = number_text(whole, "", language=language, is_grouped=len(whole) > 4 and random.random() < 0.5)
    return text, (number_forms(whole, ""),)


def random_value(random: Random, language: str) -> _Value:
    """Return a decimal number, a percentage or a quantity."""
    whole, decimals = str(random.randint(0, 9999)), digits(random, random.randint(1, 3))
    if len(decimals) == 3:
        whole = "0"  # `1.234` is ambiguous
    text = number_text(whole, decimals, language=language, is_grouped=len(whole) > 3)
    kept: tuple[Kept, ...] = (number_forms(whole, decimals),)
    match random.randrange(3):
        case 0:
            return text, kept
        case 1:
            return text + random.choice(("%", " %")), (*kept, _PERCENT)
        case _:
            unit = random.choice(_UNITS)
            return f"{text} {unit}", (*kept, unit)


def random_amount(random: Random, language: str) -> _Value:
    """Return an amount of money with a symbol or a code on either side."""
    whole, decimals = digits(random, random.randint(1, 6)), random.choice(("00", f"{random.randrange(100):02}", ""))
    text = number_text(whole, decimals, language=language, is_grouped=len(whole) > 3 and random.random() < 0.8)
    currency, names = random.choice(_CURRENCIES)
    is_code = currency.isalpha()
    first, space = random.random() < (0.2 if is_code or language == "de" else 0.8), " " if is_code else ""
    amount = f"{currency}{space}{text}" if first else f"{text} {currency}"
    return amount, (number_forms(whole, decimals), names)


def random_moment(random: Random, language: str) -> _Value:
    """Return a date, a time, or both, in digits."""
    year, month, day = random.randint(1950, 2035), random.randint(1, 12), random.randint(1, 28)
    hour, minute, second = random.randrange(10, 24), random.randrange(60), random.randrange(60)
    local = f"{day:02}.{month:02}.{year}" if language == "de" else f"{month}/{day}/{year}"
    time = f"{hour}:{minute:02}"
    text = random.choice(
        (
            f"{year}-{month:02}-{day:02}",
            local,
            time,
            f"{time}:{second:02}",
            f"{year}-{month:02}-{day:02}T{time}:{second:02}Z",
            f"00:{minute:02}:{second:02},{random.randrange(1000):03}",
            f"{year}/{(year + 1) % 100:02}",
        )
    )
    return text, ((text, time.replace(":", ".")) if text == time else text,)


def _iban(random: Random) -> str:
    account = digits(random, 18)
    check = 98 - int(account + "131400") % 97  # `DE` is 1314, ISO 7064 MOD 97-10
    text = f"DE{check:02}{account}"
    return random.choice((text, " ".join(text[start : start + 4] for start in range(0, len(text), 4))))


def _hexadecimal(random: Random, count: int) -> str:
    return "".join(random.choices("0123456789abcdef", k=count))


def _version(random: Random) -> str:
    parts = ".".join(str(random.randint(0, 30)) for _ in range(random.randint(3, 4)))
    return random.choice(("", "v")) + parts + random.choice(("", "", "-rc1", "-beta.2", "+build5"))


def _file_name(random: Random) -> str:
    stem = random.choice(
        ("{0}_{1}_v#", "{0}-{1}-####", "####-##-##_{0}", "{0}.{1}", "IMG_####", "##########-##-######")
    )
    words = random.sample(_CODE_WORDS, 2)
    return f"{_with_digits(random, stem.format(*words))}.{random.choice(_EXTENSIONS)}"


def _with_digits(random: Random, text: str) -> str:
    return "".join(random.choice("123456789") if character == "#" else character for character in text)


def _pattern(*patterns: str) -> Callable[[Random], str]:
    def make(random: Random) -> str:
        letters = random.choice(patterns).replace("A", "\0")
        text = "".join(random.choice("BCDFGHKLMNPRSTVWXZ") if each == "\0" else each for each in letters)
        return _with_digits(random, text)

    return make


IDENTIFIERS: Final[Mapping[str, Callable[[Random], str]]] = {
    "phone number": _pattern("+49 30 #######", "+44 20 #### ####", "(###) ###-####", "0##/######", "+1-###-###-####"),
    "IBAN": _iban,
    "version": _version,
    "UUID": lambda random: str(uuid.UUID(int=random.getrandbits(128), version=4)),
    "hexadecimal": lambda random: random.choice(("0x", "#")) + _hexadecimal(random, random.choice((6, 8))),
    "hash": lambda random: "a1" + _hexadecimal(random, random.choice((10, 38))),
    "file name": _file_name,
    "order number": _pattern("INV-####-#####", "A-####/A", "ORD##", "#####-AA-##", "AA#######", "PO ####-##"),
    "IPv4": lambda random: (
        ".".join(str(random.randint(1, 255)) for _ in range(4)) + random.choice(("", ":8080", "/24"))
    ),
    "IPv6": lambda random: "2001:db8:" + ":".join(_hexadecimal(random, 4) for _ in range(6)),
    "MAC": lambda random: ":".join(_hexadecimal(random, 2).upper() for _ in range(6)),
    "ISBN": _pattern("978-3-16-######-#", "978-0-###-#####-#"),
    "card number": _pattern("4### #### #### ####", "5###-####-####-####"),
    "article": _pattern("KB#######", "##H#", "RFC ####", "CVE-####-#####", "ISO ####", "802.##ax", "x86_64", "Ca2+"),
    "model": _pattern("gpt-#-turbo", "claude-sonnet-#-########", "AA-###A", "iPhone ##", "RTX ####", "AK##"),
    "code name": lambda random: "_".join(random.sample(_CODE_WORDS, random.randint(2, 3))),
    "constant": lambda random: "_".join(random.sample(_CODE_WORDS, 2)).upper(),
    "camel case": lambda random: random.choice(_CODE_WORDS) + random.choice(_CODE_WORDS).title() + digits(random, 1),
    "handle": lambda random: f"@{random.choice(_CODE_WORDS)}_{digits(random, 2)}",
    "issue": lambda random: f"#{digits(random, 4)}",
}


def random_identifier(random: Random) -> str:
    """Return an identifier of a random type."""
    return IDENTIFIERS[random.choice(tuple(IDENTIFIERS))](random)


def random_address(random: Random) -> str:
    """Return a URL, an email address or a path."""
    first, second = random.sample(_CODE_WORDS, 2)
    number = digits(random, 2)
    return random.choice(
        (
            f"https://example.com/{first}/{second}?id={number}",
            f"http://www.example.org/{first}-{second}.html#{first}",
            f"www.{first}-{second}.example",
            f"{first}.{second}@example.com",
            f"{first}+{number}@mail.example.org",
            f"/usr/share/{first}/{second}",
            f"~/{first}/{second}.txt",
            f"{first}/{second}.py",
            rf"C:\{first.title()}\{second}.txt",
            f"ftp://ftp.example.net/{first}/",
            f"mailto:{first}@example.com",
            f"https://example.com:8443/{first}/{number}/",
        )
    )


def random_name(random: Random) -> str:
    """Return a name with accented letters."""
    return random.choice(NAMES[random.choice(tuple(NAMES))])


def random_placeholder(random: Random, frameworks: Sequence[str] = tuple(PLACEHOLDERS)) -> str:
    """Return a placeholder of one of the frameworks."""
    template = random.choice(PLACEHOLDERS[random.choice(frameworks)])
    name = random.choice(_VARIABLES)
    text = template.replace("NAMECAPITALS", name.upper()).replace("NAME", name)
    return "".join(random.choice("123456789") if character == "¤" else character for character in text)


def count_placeholder(random: Random) -> str:
    """Return a placeholder of a count."""
    return random.choice(
        ("{n}", "{count}", "%d", "%1$d", "{0}", "{{count}}", "%(count)d", "${count}", "%{count}", "%n")
    )


def _grouped(whole: str, separator: str) -> str:
    return f"{int(whole):,}".replace(",", separator)
