"""Files of each format, with difficult cases."""

import io

import docx
from docx.enum.text import WD_BREAK
from docx.oxml import OxmlElement
from docx.oxml.ns import qn


def _letter() -> bytes:
    document = docx.Document()
    document.add_heading("The heading", level=1)
    paragraph = document.add_paragraph("This is ")
    paragraph.add_run("a bold").bold = True
    paragraph.add_run(" word in ")
    paragraph.add_run("two runs.")
    paragraph.add_run().add_break(WD_BREAK.PAGE)
    field = document.add_paragraph("Page ")
    for kind in ("begin", "end"):
        run = field.add_run()
        mark = OxmlElement("w:fldChar")
        mark.set(qn("w:fldCharType"), kind)
        run._r.append(mark)
    link = OxmlElement("w:hyperlink")
    link.append(field.add_run("A link")._r)
    field._p.append(link)
    document.add_table(rows=1, cols=1).cell(0, 0).text = "In a cell"
    document.sections[0].header.paragraphs[0].text = "In the header"
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


SAMPLES: dict[str, bytes] = {
    "plain.txt": "\ufeffOne line.  \r\n\r\n   An indented one,\twith a tab.\n1234\nThe last has no end".encode(),
    "film.srt": b"""1
00:00:01,000 --> 00:00:02,500
<i>A man walks</i>
through the old town.

2
00:00:03,000 --> 00:00:04,000 X1:40 X2:600
- Where to?
- Home, to {\\an8}<font color="red">Anna</font>.\r
\r
3\r
00:00:05,000 --> 00:00:06,000\r
Before the empty line

and after it.

""",
    "film.vtt": b"""WEBVTT - Title

NOTE
A note stays as it is.

STYLE
::cue { color: lime }

intro
00:01.000 --> 00:02.000 align:start
<v Bob>Salt &amp; pepper
for <b>everyone</b>

00:00:03.000 --> 00:00:04.000
Wait<00:00:03.500> a moment.
""",
    "strings.json": b"""{
  "title" : "Hello \\"world\\"",
  "nested": {"list": ["One", 2, true, null, "caf\\u00e9"], "empty": ""},
  "key: with \\" colon": "A line\\nand another",  "url": "12"
}
""",
    "strings.properties": b"""# A comment: stays
! another = one
title=Hello
greeting : Good \\
    morning
with\\ space\\=key   A value\\twith a tab
message=It''s {0}''s turn
plain=It's fine
umlaut=\\u00dcber
empty=
lonely

last=No line end""",
    "guide.md": b"""---
title: Front matter stays
---

# The *first* heading #

A paragraph with **bold words**, `code`, a [link](http://example.org/a_(b) "Title")
and ![a picture](p.png), \\* a star, 3 * 4 &amp; more,\r
a [reference][ref], [ref], <https://example.org>, <b>HTML</b> and a note[^1].  \r
After a hard break.

> A quote with
> *two lines*
>
> - an item
>   that goes on

    indented code

```python
print("Fenced code")
```

| Name | What `a\\|b` does |
| ---- | ---: |
| One  | First cell with a \\| pipe |

<div class="box">
<p>A block of <em>HTML</em>.</p>
</div>

Setext heading
--------------

1. Number one
2. Number two

[ref]: http://example.org/ref
""",
    "page.html": b"""<!DOCTYPE html>
<html lang=en><head><meta charset="utf-8"><title>A page &amp; its title</title>
<style>p > a { color: red }</style><script>if (a < b) { alert("No text"); }</script></head>
<body><!-- a comment -->
<h1 title='Tooltip of the heading'>Heading</h1>
<p>A <b>bold</b> word, <code>code()</code> &copy; and an <img src=x alt="image">.
<ul><li>One<li>Two &lt;three&gt;</ul>
<p translate="no">Not this</p><pre>Keep  the
   white space</pre><div>1 &nbsp; 2</div>
Loose text<br>after a break
<div>Unclosed <i>italic
</body></html>
""",
    "messages.po": b"""# A comment
msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#. For the menu
#: file.c:3
#, c-format
msgid "Hello %s"
msgstr ""

msgctxt "menu"
msgid "Kept"
msgstr "Behalten"

#, fuzzy
msgid "Fuzzy"
msgstr "Unscharf"

msgid "One file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "Old"
#~ msgstr "Alt"
""",
    "units.xlf": b"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" datatype="plaintext" original="x">
    <body>
      <trans-unit id="1">
        <source>Press <g id="b">the red</g> button<x id="br"/> now &amp; here</source>
      </trans-unit>
      <trans-unit id="2" approved="yes"><source>Kept</source><target state="final">Behalten</target></trans-unit>
      <trans-unit id="3" translate="no"><source>Not this</source></trans-unit>
      <trans-unit id="4"><source>Wrapped
        text</source><target/><note>A note</note></trans-unit>
    </body>
  </file>
</xliff>
""",
    "units.xliff": b"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0">
  <file id="f"><unit id="u">
    <segment id="1"><source>A <pc id="1">paired</pc> code<ph id="2"/></source></segment>
    <segment id="2" state="final"><source>Kept</source><target>Behalten</target></segment>
    <segment id="3"><source xml:space="preserve">  Two  spaces</source></segment>
  </unit></file>
</xliff>
""",
    "letter.docx": _letter(),
}
