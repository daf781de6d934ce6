r"""Formats of templates: the expected spans, ordinary text, and parsers of other programs as oracles."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from babel.messages import Catalog
from babel.messages.checkers import python_format

from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.placeholders.patterns import compile_protection

_PROTECTION = compile_protection(ProtectionOptions(), ())
_MSGFMT = shutil.which("msgfmt")


def spans(text: str) -> list[str]:
    return [text[each.span.start : each.span.end] for each in _PROTECTION.find(text)]


def kinds_and_spans(text: str) -> list[str]:
    return [
        f"{each.kind.name if each.kind else ''} {part}"
        for each, part in zip(_PROTECTION.find(text), spans(text), strict=True)
    ]


def messages(text: str) -> list[str]:
    (container,) = _PROTECTION.find(text)
    assert (container.span.start, container.span.end) == (0, len(text))
    return [text[each.start : each.end] for each in container.messages]


# fmt: off
_FORMATS: list[tuple[str, list[str]]] = [
    ("Preparing to copy %'d files (%S)", ["PRINTF %'d", "PRINTF %S"]),
    ("The total is %'.10d and %01.2f euros.", ["PRINTF %'.10d", "PRINTF %01.2f"]),
    ("Padded: %'*10s, %'05d", ["PRINTF %'*10s", "PRINTF %'05d"]),
    ("100%% of %s", ["PRINTF 100%%", "PRINTF %s"]),
    ("%s has %5.2f%% of the votes.", ["PRINTF %s", "PRINTF %5.2f%%"]),
    ("%05.1f%% done", ["PRINTF %05.1f%%"]),
    ("Only %d %% left", ["PRINTF %d %%"]),
    ("100 %% sure", ["PRINTF 100 %%"]),
    ("%d%% of %d%%", ["PRINTF %d%%", "PRINTF %d%%"]),
    ("Size: %I64d bytes", ["PRINTF %I64d"]),
    ("Size: %I32u of %Iu", ["PRINTF %I32u", "PRINTF %Iu"]),
    ("% d files left", ["PRINTF % d"]),
    ("Offset % 5d or % .2f", ["PRINTF % 5d", "PRINTF % .2f"]),
    ("%+.3e, %#x, %-20.10s", ["PRINTF %+.3e", "PRINTF %#x", "PRINTF %-20.10s"]),
    ("%*d, %.*f, %*.*f and %-*s", ["PRINTF %*d", "PRINTF %.*f", "PRINTF %*.*f", "PRINTF %-*s"]),
    ("%hhd %hd %ld %lld %jd %zd %td %Lf",
     ["PRINTF %hhd", "PRINTF %hd", "PRINTF %ld", "PRINTF %lld", "PRINTF %jd", "PRINTF %zd", "PRINTF %td",
      "PRINTF %Lf"]),
    ("%1$'d of %2$.1f%%", ["PRINTF %1$'d", "PRINTF %2$.1f%%"]),
    ("%2$s likes %1$s", ["PRINTF %2$s", "PRINTF %1$s"]),
    ("%(count)d file, %(pct).1f%%", ["PRINTF %(count)d", "PRINTF %(pct).1f%%"]),
    ("%(user.name)s has left", ["PRINTF %(user.name)s"]),
    ("%<price>.2f for %{item}", ["PRINTF %<price>.2f", "TEMPLATE %{item}"]),
    ("%@ sent %1$@ to %2$lld people", ["PRINTF %@", "PRINTF %1$@", "PRINTF %2$lld"]),
    ("%#@files@ in %1$#@folders@", ["PRINTF %#@files@", "PRINTF %1$#@folders@"]),
    ("%arg files", ["VARIABLE %arg"]),
    ("%n file(s) by %1 in %L2", ["PRINTF %n", "PRINTF %1", "PRINTF %L2"]),
    ("%1%2 is a pair", ["PRINTF %1%2"]),
    ("%Ln of %n", ["PRINTF %Ln", "PRINTF %n"]),
    ("%1!s! and %2!d!", ["PRINTF %1!s!", "PRINTF %2!d!"]),
    ("%0:s is %1:d years old", ["PRINTF %0:s", "PRINTF %1:d"]),
    ("%1% and %|1$d|", ["PRINTF %1%", "PRINTF %|1$d|"]),
    ("%v, %+v, %#v, %T and %q", ["PRINTF %v", "PRINTF %+v", "PRINTF %#v", "PRINTF %T", "PRINTF %q"]),
    ("%[1]d of %[2]s", ["PRINTF %[1]d", "PRINTF %[2]s"]),
    ("Dated %Y-%m-%d %H:%M", ["PRINTF %Y", "PRINTF %m", "PRINTF %d", "PRINTF %H", "PRINTF %M"]),
    ("Dated %Y%m%d", ["PRINTF %Y%m%d"]),
    ('%s/%s, %d-%d, "%s", \'%s\'', ["PRINTF %s", "PRINTF %s", "PRINTF %d", "PRINTF %d", "PRINTF %s", "PRINTF %s"]),
    ("%s您好 %d个文件", ["PRINTF %s", "PRINTF %d"]),
    ("%c%%", ["PRINTF %c%%"]),
    ("%,d of %1$,.2f and %2$(d", ["PRINTF %,d", "PRINTF %1$,.2f", "PRINTF %2$(d"]),
    ("%1$tH:%1$tM on %tY-%<tm, %<s", ["PRINTF %1$tH", "PRINTF %1$tM", "PRINTF %tY", "PRINTF %<tm", "PRINTF %<s"]),
    ("Hello <%= @user.name %>, you have mail.", ["TEMPLATE <%= @user.name %>"]),
    ('<%- partial("x", a: 1) -%> and <%# note %>', ['TEMPLATE <%- partial("x", a: 1) -%>', "TEMPLATE <%# note %>"]),
    ('<%== raw %> <%@ page import="x" %>', ["TEMPLATE <%== raw %>", 'TEMPLATE <%@ page import="x" %>']),
    ("<?php echo $x; ?> and <?= $y ?>", ["TEMPLATE <?php echo $x; ?>", "TEMPLATE <?= $y ?>"]),
    ("<#if x gt 3>Many <@macro x=1/>", ["TEMPLATE <#if x gt 3>", "TEMPLATE <@macro x=1/>"]),
    ("<#-- a comment --> and <#-- a-b <b> -->", ["TEMPLATE <#-- a comment -->", "TEMPLATE <#-- a-b <b> -->"]),
    ('<%def name="f()">x</%def> <%include file="a.html"/>',
     ['TEMPLATE <%def name="f()">', "TEMPLATE </%def>", 'TEMPLATE <%include file="a.html"/>']),
    ("% if x > 1:\nmany\n% else:\none\n% endif", ["TEMPLATE % if x > 1:", "TEMPLATE % else:", "TEMPLATE % endif"]),
    ("@if (n > f(x)) { many } @else { one }", ["BRACES @if (n > f(x)) {", "BRACES @else {"]),
    ("It costs $$5 or $$1,000.50 for $name.", ["VARIABLE $$5", "VARIABLE $$1,000.50", "VARIABLE $name"]),
    ("It costs 5 $$ for $name.", ["VARIABLE $$", "VARIABLE $name"]),
    ("Hello ${name}, %{count} of #{total}, @{link}",
     ["TEMPLATE ${name}", "TEMPLATE %{count}", "TEMPLATE #{total}", "TEMPLATE @{link}"]),
    ("Total: ${fn({a: 1})}", ["TEMPLATE ${fn({a: 1})}"]),
    ('${items.map((x) => { return x; }).join(", ")}', ['TEMPLATE ${items.map((x) => { return x; }).join(", ")}']),
    ("Price: $${price}", ["TEMPLATE $${price}"]),
    ("Welcome to $!{place}", ["TEMPLATE $!{place}"]),
    ("#{h.map { |x| x }} entries", ["TEMPLATE #{h.map { |x| x }}"]),
    ("${IP:-unknown} and $(VERSION)", ["TEMPLATE ${IP:-unknown}", "TEMPLATE $(VERSION)"]),
    ('$t(common.key, {"count": {{n}} })', ['TEMPLATE $t(common.key, {"count": {{n}} })']),
    ("{:else if count > 5}many{/if}", ["BRACES {:else if count > 5}", "BRACES {/if}"]),
    ("{@html content} is shown.", ["BRACES {@html content}"]),
    ("{@const total = a + b}", ["BRACES {@const total = a + b}"]),
    ("Hello {name}, you are {0} of {}.", ["BRACES {name}", "BRACES {0}", "BRACES {}"]),
    ("{{name}} and {{ user.name | upper }}", ["BRACES {{name}}", "BRACES {{ user.name | upper }}"]),
    ("{{ x | date:'short' }} {{'KEY' | translate}}", ["BRACES {{ x | date:'short' }}", "BRACES {{'KEY' | translate}}"]),
    ("{{ 'a.b' | translate:{x: 1} }}", ["BRACES {{ 'a.b' | translate:{x: 1} }}"]),
    ("{{ '{{' }} is two braces", ["BRACES {{ '{{' }}"]),
    ("{{{raw}}} {{> partial}} {{#if x}}yes {{!-- note --}}",
     ["BRACES {{{raw}}}", "BRACES {{> partial}}", "BRACES {{#if x}}", "BRACES {{!-- note --}}"]),
    ("{% set x = {'a': 1} %}", ["BRACES {% set x = {'a': 1} %}"]),
    ("{# a comment #}Hello", ["BRACES {# a comment #}"]),
    ("{# note: {{ x }} #}Hello", ["BRACES {# note: {{ x }} #}"]),
    ("{!! $html !!} by {{-- note --}}", ["BRACES {!! $html !!}", "BRACES {{-- note --}}"]),
    ('{include file="header.tpl"} and {* a comment *}',
     ['BRACES {include file="header.tpl"}', "BRACES {* a comment *}"]),
    ("{$user->name} and {$a.b[0]}", ["BRACES {$user->name}", "BRACES {$a.b[0]}"]),
    ("{l s='Hello world' mod='x'}", ["BRACES {l s='Hello world' mod='x'}"]),
    ("{0:N2}, {0,-10}, {0,-10:F2}, {0:#,##0.00}",
     ["BRACES {0:N2}", "BRACES {0,-10}", "BRACES {0,-10:F2}", "BRACES {0:#,##0.00}"]),
    ("{1:yyyy-MM-dd HH:mm} at {name,10}", ["BRACES {1:yyyy-MM-dd HH:mm}", "BRACES {name,10}"]),
    ('{user["name"]} and {a[0]} and {len(x)}', ['BRACES {user["name"]}', "BRACES {a[0]}", "BRACES {len(x)}"]),
    ("{a + b} is {total / n:.2f}", ["BRACES {a + b}", "BRACES {total / n:.2f}"]),
    ("{x!r} {x:>{width}} {value:{width}.{precision}}",
     ["BRACES {x!r}", "BRACES {x:>{width}}", "BRACES {value:{width}.{precision}}"]),
    ("{user.name()} or {a?.b}", ["BRACES {user.name()}", "BRACES {a?.b}"]),
    ("{ NUMBER($n, minimumFractionDigits: 2) } points", ["BRACES { NUMBER($n, minimumFractionDigits: 2) }"]),
    ('{ -brand-name(case: "genitive") } and { -brand }',
     ['BRACES { -brand-name(case: "genitive") }', "BRACES { -brand }"]),
    ('{ $user-name } opened { menu.title }{ "" }', ["BRACES { $user-name }", "BRACES { menu.title }", 'BRACES { "" }']),
    ("Write {'@'} or {'|'} or {'{'}", ["BRACES {'@'}", "BRACES {'|'}", "BRACES {'{'}"]),
    ("{names:list:{}|, | and }", ["BRACES {names:list:{}|, | and }"]),
    ("{count, number, integer} and {when, date, ::yMMMd}",
     ["BRACES {count, number, integer}", "BRACES {when, date, ::yMMMd}"]),
    ("Use '{'0'}' to insert the {0} value.", ["BRACES '{'0'}'", "BRACES {0}"]),
    ("File ''{0}'' was not found.", ["BRACES ''{0}''"]),
    ("The literal '{name}' is kept.", ["BRACES '{name}'"]),
    ("{name}'s {count}% off {a}/{b}", ["BRACES {name}", "BRACES {count}", "BRACES {a}", "BRACES {b}"]),
    ("Click {$START_LINK}here{$CLOSE_LINK}", ["BRACES {$START_LINK}", "BRACES {$CLOSE_LINK}"]),
    ("Hello [% user.name %], you have [% count %] messages.", ["BRACKETS [% user.name %]", "BRACKETS [% count %]"]),
    ("This is [b]very important[/b] for us.", ["BRACKETS [b]", "BRACKETS [/b]"]),
    ("[url=https://example.com/a]Link[/url] and [size=20]text[/size]",
     ["BRACKETS [url=https://example.com/a]", "BRACKETS [/url]", "BRACKETS [size=20]", "BRACKETS [/size]"]),
    ('[quote="John, post:1"]Hi[/quote]', ['BRACKETS [quote="John, post:1"]', "BRACKETS [/quote]"]),
    ("[list][*]one[*]two[/list]", ["BRACKETS [list]", "BRACKETS [*]", "BRACKETS [*]", "BRACKETS [/list]"]),
    ("[code]a = b[/code] is code", ["BRACKETS [code]a = b[/code]"]),
    ("[color=#f00]red[/color] and [spoiler]dead[/spoiler]",
     ["BRACKETS [color=#f00]", "BRACKETS [/color]", "BRACKETS [spoiler]", "BRACKETS [/spoiler]"]),
    ('Please see [gallery ids="1,2"] now.', ['BRACKETS [gallery ids="1,2"]']),
    ("[button]click here[/button]", ["BRACKETS [button]", "BRACKETS [/button]"]),
    ('[caption id="x" align="left"]A text[/caption]',
     ['BRACKETS [caption id="x" align="left"]', "BRACKETS [/caption]"]),
    ('[contact-form-7 id="12" title="Contact form 1"]', ['BRACKETS [contact-form-7 id="12" title="Contact form 1"]']),
    ("[audio src=a.mp3] and [woocommerce_cart]", ["BRACKETS [audio src=a.mp3]", "BRACKETS [woocommerce_cart]"]),
    ("[[Mathematics]] is open.", ["BRACKETS [[Mathematics]]"]),
    ("[[User:$1]] has [[0]] edits", ["BRACKETS [[User:$1]]", "BRACKETS [[0]]"]),
    ("[[File:a.png|thumb|caption]]", ["BRACKETS [[File:a.png|thumb|caption]]"]),
    ("[[Category:Cities]] and {{Template|a=b}}", ["BRACKETS [[Category:Cities]]", "BRACES {{Template|a=b}}"]),
    ("{{SITENAME}} and {{int:ok}}", ["BRACES {{SITENAME}}", "BRACES {{int:ok}}"]),
    ("'''Bold''' and ''italic'' text", ["BRACKETS '''", "BRACKETS '''", "BRACKETS ''", "BRACKETS ''"]),
    ("'''$2''' by $1", ["BRACKETS '''", "VARIABLE $2", "BRACKETS '''", "VARIABLE $1"]),
    ("[USER_NAME] has joined", ["BRACKETS [USER_NAME]"]),
    ("Hello $name, your home is $HOME.", ["VARIABLE $name", "VARIABLE $HOME"]),
    ("Saved to $HOME/bin/tool.", ["VARIABLE $HOME/bin/tool"]),
    ("Set $env:PATH and $_GET", ["VARIABLE $env:PATH", "VARIABLE $_GET"]),
    ("$user->name, $a::b, $x[0] and $user.name",
     ["VARIABLE $user->name", "VARIABLE $a::b", "VARIABLE $x[0]", "VARIABLE $user.name"]),
    ("$first$last", ["VARIABLE $first$last"]),
    ("Hello $USER$, you have $COUNT$ messages.", ["VARIABLE $USER$", "VARIABLE $COUNT$"]),
    ("%APPDATA%\\App\\cache is full", ["VARIABLE %APPDATA%\\App\\cache"]),
    ("%count% apples for %first_name%", ["VARIABLE %count%", "VARIABLE %first_name%"]),
    ("Welcome %name and %user-name!", ["VARIABLE %name", "VARIABLE %user-name"]),
    ("Welcome @username to @site-name", ["VARIABLE @username", "VARIABLE @site-name"]),
    ("The user has deleted !link today.", ["VARIABLE !link"]),
    ("!count items by !user-name (!url)", ["VARIABLE !count", "VARIABLE !user-name", "VARIABLE !url"]),
    ("$1 has deleted $2 pages", ["VARIABLE $1", "VARIABLE $2"]),
    ("@:message.hello and @.lower:key", ["VARIABLE @:message.hello", "VARIABLE @.lower:key"]),
    ("@:{'message.key'} @:(key)", ["VARIABLE @:{'message.key'}", "VARIABLE @:(key)"]),
    ("@user@mastodon.social uses @angular/core", ["VARIABLE @user@mastodon.social", "VARIABLE @angular/core"]),
    ("@lang('x') @endif", ["VARIABLE @lang('x')", "VARIABLE @endif"]),
    ("Hello \\(user.name), you have \\(count)", ["VARIABLE \\(user.name)", "VARIABLE \\(count)"]),
    ('\\(items.count > 1 ? "a" : "b") \\(String(format: "%d", n))',
     ['VARIABLE \\(items.count > 1 ? "a" : "b")', 'VARIABLE \\(String(format: "%d", n))']),
    ("Written in \\LaTeX and \\TeX.", ["VARIABLE \\LaTeX", "VARIABLE \\TeX"]),
    ("See \\ref{fig:a} and \\cite[p. 5]{knuth}.", ["VARIABLE \\ref{fig:a}", "VARIABLE \\cite[p. 5]{knuth}"]),
    ("\\begin{itemize} \\item one", ["VARIABLE \\begin{itemize}", "VARIABLE \\item"]),
    ("It is \\(x^2\\) or \\(n\\).", ["VARIABLE \\(x^2\\)", "VARIABLE \\(n\\)"]),
    ("$x^2 + y$ and $E = mc^2$ and $\\alpha$", ["VARIABLE $x^2 + y$", "VARIABLE $E = mc^2$", "VARIABLE $\\alpha$"]),
    ("$$\\sum_{i=1}^n i$$ and $n$", ["VARIABLE $$\\sum_{i=1}^n i$$", "VARIABLE $n$"]),
    ("&brandShortName; and #user.name#", ["VARIABLE &brandShortName;", "VARIABLE #user.name#"]),
    ("$name您好", ["VARIABLE $name"]),
    ("Hello <1>{{name}}</1>, you have <3>{{count}}</3> messages.",
     ["TAG <1>", "BRACES {{name}}", "TAG </1>", "TAG <3>", "BRACES {{count}}", "TAG </3>"]),
    ("Line<0/>break and <12>x</12>", ["TAG <0/>", "TAG <12>", "TAG </12>"]),
    ("<color=#fff>White</color> and <size=20>big</size>",
     ["TAG <color=#fff>", "TAG </color>", "TAG <size=20>", "TAG </size>"]),
    ('<sprite name="x"> <link="id">x</link>', ['TAG <sprite name="x">', 'TAG <link="id">', "TAG </link>"]),
    ('<a href={url}>x</a> and <a href="<%= z %>">y</a>',
     ["TAG <a href={url}>", "TAG </a>", 'TAG <a href="<%= z %>">', "TAG </a>"]),
    ("<b class=x>bold</b>", ["TAG <b class=x>", "TAG </b>"]),
    ('<p v-if="n > 1">x</p><p v-else>y</p>', ['TAG <p v-if="n > 1">', "TAG </p>", "TAG <p v-else>", "TAG </p>"]),
    ('<a [routerLink]="path" (click)="open(n)" [(x)]="y">x</a>',
     ['TAG <a [routerLink]="path" (click)="open(n)" [(x)]="y">', "TAG </a>"]),
    ("<B on:click={() => f({a: 1})} {...rest} bind:x>y</B>",
     ["TAG <B on:click={() => f({a: 1})} {...rest} bind:x>", "TAG </B>"]),
    ('<input type="text" disabled/>', ['TAG <input type="text" disabled/>']),
    ("no apples | one apple | {count} apples", ["PLURAL |", "PLURAL |", "BRACES {count}"]),
    ("{0} There are none|[1,19] There are some|[20,*] There are many",
     ["PLURAL {0}", "PLURAL |[1,19]", "PLURAL |[20,*]"]),
    ("{0} No apples|{1} One apple|]1,Inf[ %count% apples",
     ["PLURAL {0}", "PLURAL |{1}", "PLURAL |]1,Inf[", "VARIABLE %count%"]),
    ("[1,1] one file|[2,*] many files", ["PLURAL [1,1]", "PLURAL |[2,*]"]),
    ("]-Inf,0] none|]0,Inf[ some", ["PLURAL ]-Inf,0]", "PLURAL |]0,Inf["]),
    ("%{smart_count} file |||| %{smart_count} files",
     ["TEMPLATE %{smart_count}", "PLURAL ||||", "TEMPLATE %{smart_count}"]),
    ("%n item||||%n items", ["PRINTF %n", "PLURAL ||||", "PRINTF %n"]),
    ("car | cars", ["PLURAL |"]),
    ("new message|new messages", ["PLURAL |"]),
    ("{n} car | {n} cars", ["BRACES {n}", "PLURAL |", "BRACES {n}"]),
    ("There is one apple|There are many apples", ["PLURAL |"]),
    ("one: There is one apple|more: There are %count% apples", ["PLURAL |", "VARIABLE %count%"]),
    (":count apple|:count apples", ["PLURAL |"]),
    ("%d file|%d files", ["PRINTF %d", "PLURAL |", "PRINTF %d"]),
    ("Datei | Dateien", ["PLURAL |"]),
]

_CONTAINERS: list[tuple[str, list[str]]] = [
    ("{ $count -> [one] one message *[other] { $count } messages }", ["one message", "{ $count } messages"]),
    ("{ $n ->\n  [0] no mail\n *[other] { $n } mails\n}", ["no mail", "{ $n } mails"]),
    ('{ NUMBER($n, type: "ordinal") -> [one] first *[other] later }', ["first", "later"]),
    ("{ $a -> [x] y }", []),
    ("{ $a -> [x] y *[z] { $b -> *[w] v } }", ["y", "{ $b -> *[w] v }"]),
    ("{0,choice,0#no files|1#one file|1<{0} files}", ["no files", "one file", "{0} files"]),
    ("{n, choice, -1#less|0#none|1.5≤some}", ["less", "none", "some"]),
    ("{0,choice,0#'a|b'|1#c}", []),
    ("{0,choice,0#it''s one|1#more}", ["it''s one", "more"]),
    ("{0,choice,none|one}", []),
    ("{count:plural:One item|{count} items}", ["One item", "{count} items"]),
    ("{gender:choose(male|female):he|she}", ["he", "she"]),
    ("{n:cond:yes|no}", ["yes", "no"]),
    ("[[Berlin|the capital]]", ["the capital"]),
    ("[[Help:Contents|help page]]", ["help page"]),
    ("[[User:$1|$1]]", []),
    ("[[Datei:a.png|Text]]", []),
    ("{{PLURAL:$1|file|files}}", ["file", "files"]),
    ("{{GENDER:$1|he|she|they}}", ["he", "she", "they"]),
    ("\\textbf{very important}", ["very important"]),
    ("\\emph{very \\textbf{bold} text}", ["very \\textbf{bold} text"]),
    ("\\textcolor{red}{Warning}", ["Warning"]),
    ("\\href{https://example.com}{the page}", ["the page"]),
    ("\\section*{Introduction}", ["Introduction"]),
    ("\\label{sec:intro}", []),
    ("^[%lld file](inflect: true)", ["%lld file"]),
    ("{n, plural, one {# file} other {# files}}", ["# file", "# files"]),
    ("<% if admin? %>Delete the user<% end %>", ["Delete the user"]),
    ("#foreach( $a in $b )item#end", ["item"]),
    ("{#if count > 0}Some{:else}None{/if}", ["Some", "None"]),
    ("{#each items as {id, name}}Item{/each}", ["Item"]),
    ("{#await promise}wait{:then value}ok{/await}", ["wait", "ok"]),
    ("{{ range .Items }}{{ .Name }}{{ end }}", ["{{ .Name }}"]),
    ("{% blocktrans count n=x %}one{% plural %}many{% endblocktrans %}", ["one", "many"]),
    ("{%- if user and x > 3 -%}Hello{%- endif -%}", ["Hello"]),
    ("{if $n > 1}Many {$x|escape}{else}one{/if}", ["Many {$x|escape}", "one"]),
    ("{foreach $items as $item}{$item.name|upper}{/foreach}", ["{$item.name|upper}"]),
    ("[%- IF user -%]Hello[% END %]", ["Hello"]),
    ("[#if x]yes[/#if]", ["yes"]),
    ("<% if (n > 1) { %>many<% } else { %>one<% } %>", ["many", "one"]),
    ("{{#if x}}{{#if y}}both{{/if}}{{else}}none{{/if}}", ["{{#if y}}both{{/if}}", "none"]),
    ("{% if x %}{% url a %}{% else %}none{% endif %}", ["{% url a %}", "none"]),
    ("{% for x in y %}new{% if z %} and old{% endif %}{% endfor %}", ["new{% if z %} and old{% endif %}"]),
    ("{% raw %}{{ x }} is text{% endraw %}", []),
    ("<#if x gt 3>Many<#else>Few</#if>", ["Many", "Few"]),
    ("@if($n > 1) many @else one @endif", [" many ", " one "]),
    ("{{^items}}none{{/items}}", ["none"]),
    ("#if($x)yes#{else}no#{end}", ["yes", "no"]),
]

_ORDINARY_TEXTS = [
    "Q&A",
    "It costs $5 today.",
    "US$ 5",
    "See [1] and [sic] and [...].",
    "About us | Contact",
    "a | b",
    "50% of all",
    "100 % of it",
    "100% sure, 50 % discount, 5%, 100 %d1",
    "!important news",
    "@ home",
    "We're #1",
    "and/or, 1/2, 24/7, km/h, he/she, /s",
    "a < b and c > d, a <b and c> d",
    "Dr. Who: 'yes' (no) [perhaps] $5 #1",
    "{ some prose, with braces",
    "at 12:30 :name and ::x",
    "Home | Products | Contact | Imprint",
    "Log in | Log out",
    "AT&T and R&D, Tom & Jerry",
    "He said \"hello\" -- and left!",
    "Yes! No! Maybe?!",
    "Is it 5 > 3 or 3 < 5?",
    "I paid $10, $20 and $30.50.",
    "Between $1 and $5 million",
    "5% to 10% of users",
    "a 50/50 chance",
    "[Optional] Press Enter.",
    "[12:30] Peter: Hello",
    "[ERROR] Could not open the file.",
    "Rock 'n' roll",
    "the '90s, o'clock, it's",
    "C# and F# are languages",
    "A+ or B-",
    "^ is a caret",
    "* not a list",
    "Price: 5€ or 4,99 EUR",
    "~5 minutes",
    "(see below) {maybe not}",
    "x = y + 2",
    "Ke$ha and A$AP Rocky, Micro$oft",
    "100%!",
    "wow!!! great!!",
    "No. 5, p. 7, §5",
    "5' 11\" tall",
    "It was 20 °C.",
    "a <b and c> d, a <b or c=1 d",
    "Ke$$ha is rich",
    "10 %, d. h. zu wenig, and 20%, s. above",
    "5 % (s. oben) of it",
    "% if this is a word",
    "50 %< 60 %",
    "Write to me @ (if) {x y} home",
    "Fish & chips & peas",
    "# Heading",
    "## Title",
    "- [ ] task",
    "- [x] done",
    "> quote",
    "Hello :)",
    ";-) :D",
    "He/she | they",
    "1 | 2 | 3",
    "Name | Age | City",
    "|a|b|",
    "a || b",
    "Version |version| is out.",
    "Turkish %50 indirim",
    "in the 5 % e.g. of cases",
    "100 % a lot",
    "the 3% i mentioned",
    "E-mail me",
    "Wait... what?",
    "C++ & Java",
    "50 % d'accord",
    "mother-in-law's",
    "1.5x faster",
    "3 x 4 = 12",
    "[a, b] interval (0, 1]",
    "(a|b)",
    "Terms & Conditions",
    "[...] and so on [sic!]",
    "{two words}",
    "I ❤ NY",
    "$ is the dollar sign; % is percent; @ is at",
    "Call me @ 5pm.",
    "It's 5 o'clock (somewhere).",
]
# fmt: on


@pytest.mark.parametrize(("text", "expected"), _FORMATS)
def test_format_is_protected(text: str, expected: list[str]) -> None:
    assert kinds_and_spans(text) == expected


@pytest.mark.parametrize(("text", "expected"), _CONTAINERS)
def test_messages_of_container_are_translated(text: str, expected: list[str]) -> None:
    assert messages(text) == expected


@pytest.mark.parametrize(("text", "expected"), _CONTAINERS)
def test_container_is_found_within_a_sentence(text: str, expected: list[str]) -> None:
    del expected
    assert spans(f"Before {text} and after it.") == [text]


@pytest.mark.parametrize("text", _ORDINARY_TEXTS)
def test_ordinary_text_is_not_a_format(text: str) -> None:
    assert kinds_and_spans(text) == []


@pytest.mark.parametrize("path", [r"C:\new", r"C:\Users\text\item"])
def test_backslash_of_path_is_not_a_command(path: str) -> None:
    assert kinds_and_spans(f"In {path} now") == [f"PATH {path}"]


@pytest.mark.parametrize(
    "text", [r"Line one\nLine two", r"One\tTwo", r"Total\nNumber", r"Don\'t", r"a\\nb", r"\nTotal"]
)
def test_escape_is_not_a_command(text: str) -> None:
    assert kinds_and_spans(text) == []


@pytest.mark.parametrize(
    "text",
    ["About us | Contact", "a | b", "Home | Products | Contact", "{app} | Settings", "x || y", "|a|b|", "a|b\n| c"],
)
def test_bar_of_ordinary_text_does_not_separate_forms(text: str) -> None:
    assert not any(each.kind is ProtectedKind.PLURAL for each in _PROTECTION.find(text))


@pytest.mark.parametrize("singular", ["apple", "user", "new message", "selected file", "Seite", "Stunde"])
@pytest.mark.parametrize("count", ["{count}", "%d", "%{n}", "{{count}}", ":count", "%count%"])
@pytest.mark.parametrize("bar", ["|", " | ", "||||", " |||| "])
def test_bars_between_generated_forms_are_found(singular: str, count: str, bar: str) -> None:
    plural = singular + ("n" if singular.endswith("e") and singular[0].isupper() else "s")
    text = f"{count} {singular}{bar}{count} {plural}"

    bars = [
        text[each.span.start : each.span.end] for each in _PROTECTION.find(text) if each.kind is ProtectedKind.PLURAL
    ]

    assert bars == [bar.strip()]


_TEMPLATES_OF_NAMES = [
    "{NAME}",
    "{{NAME}}",
    "{{{NAME}}}",
    "${NAME}",
    "%{NAME}",
    "#{NAME}",
    "$(NAME)",
    "<%= NAME %>",
    "<%- @NAME -%>",
    "[% NAME %]",
    "{% NAME %}",
    "{# NAME #}",
    "{@html NAME}",
    "{#if NAME}",
    "{/NAME}",
    "{$NAME}",
    "$NAME$",
    "$NAME",
    "\\(NAME)",
    "{{ NAME | date }}",
    "{ $NAME }",
    "{NAME|escape}",
    "{NAME:N2}",
    "{{#NAME}}",
    "<NAME/>",
    "#NAME#",
    "%(NAME)s",
    "%<NAME>d",
    "${f({a: NAME})}",
    "{!! $NAME !!}",
    "<?= $NAME ?>",
    "{* NAME *}",
    "{{-- NAME --}}",
    "[field id=NAME]",
    "\\ref{NAME}",
    "@:NAME",
    "{NAME + 1}",
    "{f(NAME)}",
    "[[NAME]]",
    "%#@NAME@",
    "@NAME",
    "{NAME, number}",
    "{ -NAME }",
    "{user.NAME}",
    "{user['NAME']}",
    "$!{NAME}",
    "'{NAME}'",
    "{if $NAME > 1}",
]


@pytest.mark.parametrize("name", ["user", "firstName", "total_count", "x1", "USER_ID", "Betrag"])
@pytest.mark.parametrize("template", _TEMPLATES_OF_NAMES)
def test_generated_name_is_protected(template: str, name: str) -> None:
    span = template.replace("NAME", name)

    assert spans(f"The value {span} has been opened.") == [span]
    assert spans(f"({span}): {span}, “{span}”") == [span] * 3


@pytest.mark.parametrize("name", ["link", "user-name", "site_name", "total", "node-type"])
@pytest.mark.parametrize("mark", ["!", "@", "%"])
def test_generated_name_of_drupal_is_protected(mark: str, name: str) -> None:
    assert spans(f"{mark}{name} was deleted by ({mark}{name}), {mark}{name}.") == [mark + name] * 3


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"{flags}{width}{precision}{letter}", value)
        for flags in ("", "-", "+", "0", "#", "+0")
        for width in ("", "5", "12")
        for precision in ("", ".2", ".10")
        for letter, value in (("d", 7), ("f", 0.5), ("s", "x"), ("x", 255), ("e", 1.5), ("r", "x"))
    ],
)
def test_printf_of_python_is_one_span(text: str, values: object) -> None:
    directive = f"%{text}"
    assert directive % values

    assert spans(f"Value {directive} of {directive}%% in all") == [directive, f"{directive}%%"]


@pytest.mark.parametrize(
    "spec", ["", ":5", ":>10", ":<4", ":^8", ":,", ":08.3f", ":+d", ":.2%", ":x", "!r", "!s:>10", ":e"]
)
@pytest.mark.parametrize("name", ["", "0", "count", "user.real"])
def test_format_of_python_is_one_span(name: str, spec: str) -> None:
    field = f"{{{name}{spec}}}"
    assert field.format(7, count=8, user=9) if "!s:>" not in spec else True

    assert spans(f"Value {field} of ({field}), {field}.") == [field] * 3


_PRINTF_STRINGS = [
    "%d of %s", "100%% of %s", "%'d files", "%5.2f%% of %d", "% d left", "%1$s and %2$s", "%*d", "%-10s|", "%%d %d",
    "%lld%%", "%(name)s has %(count)d files", "%(pct).1f%%", "%05d/%05d", "%s: %s", "(%s)", "%+i", "%#x", "%c%c",
]  # fmt: skip


@pytest.mark.parametrize("text", _PRINTF_STRINGS)
def test_babel_accepts_the_spans_alone(text: str) -> None:
    message = Catalog().add(text, " ".join(spans(text)), flags=["python-format"])

    python_format(None, message)


_GETTEXT_FORMATS = {
    "c-format": [
        "%d of %s",
        "100%% of %s",
        "%'d files",
        "%5.2f%%",
        "% d left",
        "%1$s and %2$s",
        "%*d",
        "%lld",
        "%zu",
        "%.*f",
        "%jd",
    ],
    "python-format": ["%(name)s has %(count)d files", "%(pct).1f%%", "%s of %s", "%%"],
    "python-brace-format": ["{name} has {count:d} files", "{0} of {1!r}", "{0[key]} and {user.name}", "{x:>10}"],
    "php-format": ["%'.10d of %s", "%1$s and %2$s", "%05.1f%%", "%b", "%u"],
    "qt-format": ["%1 of %2", "%L1 files", "%1%2"],
    "qt-plural-format": ["%n files", "%Ln files"],
    "kde-format": ["%1 of %2"],
    "ruby-format": ["%<price>.2f", "%{name} has %<n>d", "%d%%", "%-10s"],
    "java-format": ["{0} of {1}", "{0,number,integer} files", "{0,choice,0#none|1#one|1<many}", "It''s {0}"],
    "csharp-format": ["{0:N2} of {1,-10}", "{0,10:F2}"],
    "javascript-format": ["%s has %d files", "%j", "%o%%"],
    "object-pascal-format": ["%d of %s", "%0:s is %1:d", "%-10s", "%8.2f"],
    "boost-format": ["%1% of %2%", "%|1$d|"],
    "perl-brace-format": ["{name} has {count} files"],
    "sh-format": ["$HOME and ${USER}"],
    "objc-format": ["%@ of %d", "%1$@ and %2$@"],
    "lua-format": ["%s of %d", "%5.1f%%"],
    "gcc-internal-format": ["%qs of %d"],
    "tcl-format": ["%s of %d", "%5.1f%%"],
}


@pytest.mark.skipif(_MSGFMT is None, reason="msgfmt is not installed")
@pytest.mark.parametrize("format_name", _GETTEXT_FORMATS)
def test_msgfmt_accepts_the_spans_alone(format_name: str, tmp_path: Path) -> None:
    entries = ['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n']
    for text in _GETTEXT_FORMATS[format_name]:
        translation = " ".join(spans(text))
        entries.append(f'#, {format_name}\nmsgid "{text}"\nmsgstr "{translation}"\n')
    path = tmp_path / "messages.po"
    path.write_text("\n".join(entries))

    checked = subprocess.run(
        [str(_MSGFMT), "--check-format", "--output-file=/dev/null", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr


def test_spans_of_random_templates_are_ordered_and_contain_their_messages() -> None:
    random_texts = random.Random(7)  # noqa: S311 - not for cryptography
    pieces = [text for text, _ in (*_FORMATS, *_CONTAINERS)] + _ORDINARY_TEXTS + list("{}[]<>%$|#@!'\\")
    for _ in range(300):
        text = " ".join(random_texts.choices(pieces, k=8))
        position = 0
        for each in _PROTECTION.find(text):
            assert position <= each.span.start < each.span.end
            position = each.span.start
            for message in each.messages:
                assert position <= message.start <= message.end <= each.span.end
                position = message.end
            position = each.span.end
        assert position <= len(text)
