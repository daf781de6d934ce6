import pytest

from dragoman_service.text.placeholders.markup import MarkupError, markup_units
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.text_units import TextUnit


def blocks_of(message: str, *, is_xml: bool = False, placeholders: tuple[str, ...] = ()) -> list[TextUnit]:
    return markup_units(message, is_xml=is_xml, placeholders=Placeholders(message, placeholders))


def texts(message: str, *, is_xml: bool = False) -> list[str]:
    return [block.text for block in blocks_of(message, is_xml=is_xml)]


@pytest.mark.parametrize(
    ("message", "blocks"),
    [
        ("<p>One <b>two</b></p><p>Three<br>four", ["One two", "Three", "four"]),
        ("<ul><li>One<li>Two</ul>three", ["One", "Two", "three"]),
        ("a <!-- b --> c<script>d</script><style>e</style>", ["a c"]),
        ("<pre>a  b\n c</pre>d  e\n f", ["a  b\n c", "d e f"]),
        ("fish &amp; &lt;chips&gt; caf&eacute; &#169;&#xA9; AT&T &nope;", ["fish & <chips> café ©© AT&T &nope;"]),
        ('<img alt="A &quot;dog&quot;" src="x">', ['A "dog"']),
        ("<input placeholder='Your name'> <abbr title=\"Hypertext\">HTML</abbr>", ["Your name", "HTML", "Hypertext"]),
        ("<title>My &lt;b&gt; <b>page</title><textarea>x  <b></textarea>", ["My <b> <b>page", "x  <b>"]),
        ("<div translate=no>a</div><p class='x notranslate'>b</p>c", ["c"]),
        ("a < b, 1<2, <3, </>", ["a < b, 1<2, <3,"]),
        ("a<b", ["a"]),
        ('x <a title="never closed> y', ["x"]),
    ],
)
def test_html_is_tokenized_like_in_browsers(message: str, blocks: list[str]) -> None:
    assert [text.strip() for text in texts(message)] == blocks


def test_code_and_untranslated_elements_replace_a_word() -> None:
    message = "Use <code>a &lt; b</code> or <b translate=no>C</b>."

    (block,), (with_placeholders,) = blocks_of(message), blocks_of(message, placeholders=("⟦1⟧", "⟦2⟧"))

    assert block.text == "Use 2013 or 1947."
    assert with_placeholders.text == "Use ⟦1⟧ or ⟦2⟧."


def test_elements_of_xml_next_to_words_are_within_the_sentence() -> None:
    message = "<a><t>One <x1>two</x1> three</t><t><x1>Four</x1> <x1>five</x1></t><t><![CDATA[six]]></t></a>"

    assert texts(message, is_xml=True) == ["One two three", "Four", "five", "2013"]


@pytest.mark.parametrize(
    ("message", "blocks"),
    [
        ("I bought <keep translate='no'>Windows</keep> yesterday.", ["I bought 2013 yesterday."]),
        ("Please call <name translate='no'>Tom</name>.", ["Please call 2013."]),
        ("Where is <x translate='no'>the</x> <y translate='no'>station</y>?", ["Where is 2013 1947?"]),
        ("a <div translate='no'>b</div> c <object translate='no'>d</object>", ["a 2013 c 1947"]),
        ("<p>See <b>the <k translate='no'>x</k></b> now</p>", ["See the 2013 now"]),
        ("<t>One</t><k translate='no'>two</k><t>three</t>", ["One", "three"]),
    ],
)
def test_untranslated_elements_of_xml_within_text_replace_a_word(message: str, blocks: list[str]) -> None:
    assert texts(message, is_xml=True) == blocks


@pytest.mark.parametrize(
    ("message", "blocks"),
    [
        ("I bought <keep translate=no>Windows</keep> yesterday.", ["I bought 2013 yesterday."]),
        ("<x translate=no>the</x> <y translate=no>station</y> a", ["2013 1947 a"]),
        ("Click <button class=notranslate>OK</button> now", ["Click 2013 now"]),
        ("a <p translate=no>b</p> c<pre translate=no>d</pre>e", ["a ", "c", "e"]),
        ("One <keep>two</keep> three", ["One ", "two", "three"]),
    ],
)
def test_untranslated_elements_of_html_replace_a_word_unless_they_are_blocks(message: str, blocks: list[str]) -> None:
    assert texts(message) == blocks


def test_xml_may_be_a_document_or_a_fragment() -> None:
    assert texts('<?xml version="1.0" encoding="latin-1"?><!DOCTYPE a><a>é</a>', is_xml=True) == ["é"]
    assert texts("One <b>two</b>", is_xml=True) == ["One two"]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("<a>", "mismatched tag in line 1, column 5"),
        ("x <br> y", "mismatched tag"),
        ("a & b", "not well-formed"),
        ("&eacute;", "undefined entity"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "declarations in its document type"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "declarations in its document type"),
        ("<a>" * 300 + "</a>" * 300, "nested more than 256 deep"),
        ("</text><text>", "not well-formed"),
    ],
)
def test_invalid_xml_is_rejected(message: str, fault: str) -> None:
    with pytest.raises(MarkupError, match=fault):
        blocks_of(message, is_xml=True)


_EMPTY_AS_WORDS = [
    ('Press <x id="6"></x> to save <x id="23"></x>.', "Press 2013 to save 1947."),
    ('Press <x id="6"/> to save <x id="23"/>.', "Press 2013 to save 1947."),
    ('Welcome to <x id="6"></x>!', "Welcome to 2013!"),
    ("The file <ph></ph> was not found in <ph></ph>.", "The file 2013 was not found in 1947."),
    ("<x></x> has sent you <x></x>", "2013 has sent you 1947"),
    ('Open <bx id="1"></bx>it<ex id="1"></ex> now', "Open 2013 it 1947 now"),
    ('One <it id="1"/> two <ut></ut> three', "One 2013 two 1947 three"),
    ('One <bpt id="1"></bpt>two<ept id="1"></ept>', "One 2013 two 1947"),
    ("See <keep></keep> for help", "See 2013 for help"),
    ("See <keep/> for help", "See 2013 for help"),
    ("Hello <user-name></user-name>, welcome", "Hello 2013, welcome"),
    ("Hello <mention id='4'/>!", "Hello 2013!"),
    ("(<var1></var1>) is <Value2/>", "(2013) is 1947"),
    ("See <keep translate='no'></keep> for help", "See 2013 for help"),
    ("See <span translate='no'></span> for help", "See 2013 for help"),
    ("See <b>the <x></x></b> now", "See the 2013 now"),
]


@pytest.mark.parametrize("is_xml", [False, True])
@pytest.mark.parametrize(("message", "block"), _EMPTY_AS_WORDS)
def test_empty_placeholders_replace_a_word(message: str, block: str, *, is_xml: bool) -> None:
    assert texts(message, is_xml=is_xml) == [block]


@pytest.mark.parametrize("is_xml", [False, True])
@pytest.mark.parametrize(
    ("message", "block"),
    [
        ("One <b></b> two", "One  two"),
        ("One <i class='icon'></i> two", "One  two"),
        ("One <a></a>two", "One two"),
        ("One <img src='x'/> two", "One  two"),
        ("One <code></code> two", "One  two"),
    ],
)
def test_known_empty_elements_are_marks(message: str, block: str, *, is_xml: bool) -> None:
    (unit,) = texts(message, is_xml=is_xml)

    assert unit.split() == block.split()


@pytest.mark.parametrize("message", ["word<note/> two", "one <note/>word", "word<note></note>, two"])
def test_unknown_empty_elements_of_xml_that_touch_a_word_are_marks(message: str) -> None:
    (block,) = blocks_of(message, is_xml=True)

    assert not block.has_placeholders
    assert block.needs_alignment


def test_empty_element_outside_of_text_is_not_in_a_unit_with_words() -> None:
    assert texts("<t><keep/></t><t>One</t>", is_xml=True) == ["One"]
