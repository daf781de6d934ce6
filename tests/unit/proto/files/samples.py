"""Files of each format, with what trips simple readers."""

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
}
