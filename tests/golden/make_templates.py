"""Writes tests/data/templates/cases.jsonl: small Jinja templates, the variables they get, and what
jinja2 makes of them when transformers sets it up: the text, or the exception by name and message.

A case is (what it is about, template[, variables]). Where our message for a fault says the same in
other words than Python, the case says only which exception it is (SAME_KIND)."""
import datetime
import json
import pathlib

import jinja2
import transformers
from transformers.utils import chat_template_utils

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "templates"
NOW = datetime.datetime(2025, 1, 5, 9, 7, 3)

TALK = {"messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Grüße, 猫! \U0001f600 "},
    {"role": "assistant", "content": "Hi.\n", "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "look", "arguments": {"where": "São", "n": 2, "deep": [1.5, None, True]}}}]},
    {"role": "tool", "content": "{\"ok\": true}", "tool_call_id": "c1"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
], "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
DATA = {"n": 5, "neg": -7, "f": 2.5, "t": True, "none": None, "s": "Hello, World", "u": "žluť 猫\U0001f600",
        "l": [3, 1, 2], "d": {"b": 1, "a": 2, "items": 3}, "e": [], "es": "", "ed": {},
        "people": [{"name": "Zoë", "age": 30, "x": {"y": 1}}, {"name": "adam", "age": 25, "x": {"y": 2}},
                   {"name": "Bob", "age": 30, "x": {"y": 1}}],
        "html": "<a href='x'>&\"</a>", "q": "it's \"so\"\n\t\\ \x07\u200b\xa0"}

CASES = []


def case(about, template, variables=None, kind_only=False):
    CASES.append((about, template, DATA if variables is None else variables, kind_only))


def each(about, *expressions, **more):
    for expression in expressions:
        case(about, "{{ " + expression + " }}", **more)


# --- white space -------------------------------------------------------------------------------
case("trim_blocks takes one newline behind a block", "a\n{% if t %}\nb\n\n{% endif %}\n\nc\n")
case("lstrip_blocks takes the indentation in front of a block", "a\n   {% if t %}\n  b\n \t {% endif %}\nc")
case("at the start of the text, too", "   {% if t %}x{% endif %}")
case("behind text on the line nothing is taken", "a   {% if t %}x{% endif %}   b")
case("a variable keeps its indentation and newline", "a\n   {{ n }}\n  b\n")
case("minus takes all white space", "a \n\n  {%- if t -%} \n b \n {%- endif -%}\n\n c")
case("minus on variables", "a \n {{- n -}} \n b \n {{ n -}} \n c")
case("plus keeps what would go", "a\n   {%+ if t +%}\nb\n  {%+ endif %}\nc")
case("comments are trimmed like blocks", "a\n  {# note\n over lines #}\nb{#- x -#}   c\n {#+ y +#}\n d")
case("behind a comment the line starts", "{# x #}\n  {% if t %}y{% endif %}")
case("unicode white space is stripped by minus", "a\u2003\u00a0{%- if t %}b{% endif -%}\u3000c")
case("raw", "{% raw %}\n{{ n }} {% if %}{% endraw %}\n|{%- raw -%}  {# x #}  {%- endraw -%}  |")
case("raw keeps its own newline", "x\n  {% raw %}\n  y\n  {% endraw %}\nz")
case("the last newline goes, one only", "a\n\n\n")
case("CR and CRLF are newlines", "a\r\n{% if t %}\r\nb\r{% endif %}\r\nc")
case("braces that open nothing", "{ {a} } %} }} #} {n}")
case("a dict at the end of a variable", "{{ {'a': {'b': 1}}}} {{ {'a': {'b': 1}}['a']['b'] }}")
case("tags over several lines", "{%\n if\n t\n%}x{%\nendif\n%}")
case("nothing", "")
case("one newline alone", "\n")
case("text alone", "just text")
case("a minus as an operator", "{{ 1 -1 }}{{ -n }}{{-n}}")

# --- literals ----------------------------------------------------------------------------------
each("literals", "1_000", "0x1F", "0b101", "0o17", "1.5", "1e3", "2.5E-3", "1_0.2_5", "true", "True", "none",
     "None", "false", "'a' 'b' \"c\"", "[]", "()", "(1,)", "{}", "[1, 'a', 2.0, none, true]", "(1, 2)",
     "{'a': 1, 2: 'b', none: [1]}", "[1,]", "{'a': 1,}")
each("escapes", r"'a\n\t\\\'\"\x41\u00e9\U0001F600\101\q'", r"'\ud83d'|length == 1", "'a\\\nb'", r"'\0'|length")
each("floats are written as Python does", "0.1", "1e16", "1e15", "123456789012345678.0", "1e-4", "1e-5", "0.1 + 0.2",
     "1e22", "1.0", "-0.0", "100.0", "1/3", "5e-324", "1.7976931348623157e308", "1e100")
each("repr", "[s, u, q]", "[html]", "{'k': q}", "[1.0, -0.0, 1e20]", "('x',)", "[none, true]", "[[], {}, ()]", "d", "people")
each("names", "nope", "nope is defined", "_x is defined", "ünï is undefined")

# --- operators ---------------------------------------------------------------------------------
each("arithmetic", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "7 / 2", "6 / 2", "2 ** 10", "2 ** -1", "2 ** 3 ** 2",
     "-2 ** 2", "7.5 // 2", "-7.5 % 2", "1 + 2 * 3 - 4", "(1 + 2) * 3", "true + 1", "1.5 * 2", "'ab' * 3", "3 * [1]", "[1] + [2]",
     "(1,) + (2,)", "'a' + 'b'", "+n", "- n", "--n", "n * 0", "'x' * -1")
each("tilde", "1 ~ 2", "'a' ~ none ~ true ~ 1.0 ~ [1]", "nope ~ 'x'", "1 + 2 ~ 3", "'a' ~ 'b' * 2")
each("comparison", "1 < 2 < 3", "1 < 3 < 2", "1 == 1.0 == true", "'a' < 'b'", "'Z' < 'a'", "[1, 2] < [1, 3]", "(1,) == (1,)", "[1] == (1,)",
     "1 != 2", "none == none", "nope == nope2", "nope == none", "1 in l", "4 not in l", "'ell' in s", "'' in s", "'b' in d", "not 1 in l",
     "l == [3, 1, 2]", "d == {'a': 2, 'items': 3, 'b': 1}", "2 >= 2", "s > 'A'", "nope in l", "'x' in nope", "1 in d.values()")
each("logic gives operands", "0 or 'x'", "'' and 'y'", "1 and 2", "none or false", "not none", "not not 1", "nope or 'd'",
     "e or es or ed or 0 or 'end'", "1 or nope.x", "0 and nope.x", "not t and f", "t or none and nope.x")
each("inline if", "'a' if t", "'a' if e", "'a' if e else 'b'", "1 if e else 2 if t else 3", "('a' if e else 'b') ~ 'c'", "'a' if e else 'b' ~ 'c'",
     "'x' if t and not e else 'y'", "('a' if none) is undefined")
each("precedence of filters and tests", "-1|abs", "1 + 2|abs", "s|lower ~ 'X'", "not e is defined", "n is number and t", "'a' if n is odd else 'b'",
     "n + 1 is even", "n is not none and n > 3", "'%s-%s' % (1, 'x')", "2 is in [1, 2]", "n is divisibleby 5", "n is divisibleby(2)", "[1, 2]|length is eq 2")
each("members", "s[0]", "s[-1]", "u[5]", "u[-1]", "l[0]", "l[-1]", "d.a", "d['a']", "d.b", "d['items']", "people[0].x.y", "people.1.name",
     "d.get('a')", "d.get('zz')", "d.get('zz', 7)", "d.nope", "d['nope']", "l[10]", "s[99]", "l['x']", "d.items is callable", "d.keys()", "d.values()",
     "d.items()", "d.items()|list", "d.copy()", "none.x", "n.x", "s.nope", "l.append", "d.update is defined", "d.__class__ is defined",
     "''.__class__ is undefined", "(1,2).0", "l.index(1)", "l.count(3)", "'a.b'.split('.').1")
each("slices", "l[1:]", "l[:-1]", "l[::-1]", "l[::2]", "l[-2:]", "l[5:]", "s[1:4]", "u[4:]", "u[::-1]", "s[:100]", "s[-3:-1]", "l[2:0:-1]", "l[:]", "(1,2,3)[1:]",
     "l[none:2]", "range(10)[2:5]", "s[::3]", "l[-100:2]", "l[1:1]", "s[5:2]", "e[0:1]")

# --- statements --------------------------------------------------------------------------------
case("if, elif, else", "{% if e %}1{% elif n == 5 %}2{% elif t %}3{% else %}4{% endif %}{% if none %}5{% else %}6{% endif %}{% if e %}{% elif es %}{% endif %}.")
case("if with a colon", "{% if t: %}x{% endif %}")
case("for and loop", "{% for x in l %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} "
     "{{ loop.first }} {{ loop.last }} {{ loop.previtem }} {{ loop.nextitem }} {{ loop.depth }}{{ loop.depth0 }}|{% endfor %}")
case("loop.cycle and changed", "{% for x in [1, 1, 2, 2] %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x) }} {% endfor %}")
case("else of for", "{% for x in e %}x{% else %}none{% endfor %}{% for x in l %}{{ x }}{% else %}none{% endfor %}")
case("for with a condition", "{% for x in range(10) if x is odd %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% endif %}{% endfor %}")
case("a condition and loop.length", "{% for x in range(10) if x > 6 %}{{ loop.length }}{{ loop.revindex }} {% endfor %}")
case("a condition that leaves nothing", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}")
case("a condition sees what the body did", "{% set ns = namespace(stop=false) %}{% for x in range(6) if not ns.stop %}{{ x }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}")
case("unpacking", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}")
case("a dict gives its keys, a string its characters", "{% for k in d %}{{ k }}{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}")
case("a tuple without brackets", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}")
case("nested loops keep their own loop", "{% for a in l %}{% set outer = loop %}{% for b in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}")
case("for over nothing that is there", "{% for x in nope %}x{% else %}none{% endfor %}")
case("break and continue", "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}.{% for a in l %}{% for b in l %}{% break %}{% endfor %}{{ a }}{% endfor %}")
case("a set in a loop stays there", "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}")
case("a set in an if does not", "{% if t %}{% set x = 2 %}{% endif %}{{ x }}{% if e %}{% set y = 1 %}{% endif %}{{ y is defined }}")
case("each round begins anew", "{% for i in l %}{{ x is defined }}{% set x = i %}{% endfor %}")
case("a variable that is set over a given one", "{{ n }}{% set n = n + 1 %}{{ n }}")
case("set of several", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t2 = 1, 2 %}{{ t2 }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}")
case("set with a block", "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]")
case("a set in a set block stays there", "{% set x %}{% set z = 1 %}{{ z }}{% endset %}{{ x }}{{ z is defined }}")
case("namespace", "{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% set ns.c = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.nope is defined }}")
case("namespace of a dict", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] is defined }}")
case("with", "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 3 %}{{ a }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{{ q }}{% endwith %}")
case("with sees what is outside", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}")
case("macro", "{% macro m(a, b=2, c='x') %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=1, a=0) }}{{ m() }}")
case("a macro's default sees the arguments before it", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}")
case("varargs and kwargs", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(1) }}")
case("a macro that calls itself", "{% macro m(k) %}{{ k }}{% if k > 0 %}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(4) }}")
case("a macro sees what the template set later", "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'x' %}{{ m() }}")
case("a macro does not see the caller's loop", "{% macro m() %}{{ x is defined }}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}")
case("call block", "{% macro m(a) %}<{{ a }}>{{ caller() }}</{{ a }}>{% endmacro %}{% call m('b') %}x{{ n }}{% endcall %}")
case("call block with arguments", "{% macro m() %}{{ caller(1, 2) }}{{ caller(3, 4) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }};{% endcall %}")
case("a macro's text is a string", "{% macro m() %} x {% endmacro %}{{ m()|trim|length }}{{ m() is string }}{{ m.name }}")
case("filter block", "{% filter upper %}a{{ s }}b{% endfilter %}{% filter replace('a', 'b')|upper %}aaa{% endfilter %}")
case("generation", "A{% generation %}\n{{ n }}B{% set inner = 1 %}{% endgeneration %}\nC{{ inner is defined }}")
case("print", "{% print 1, 'a' %}{% print n %}")
case("comments anywhere", "{# {{ n }} #}a{# {% if #}b")
case("print of a tuple", "{{ 1, 2 }}")
case("keyword names as attributes", "{{ {'if': 1, 'for': 2}.if }}{{ {'not': 3}.not }}")

# --- functions ---------------------------------------------------------------------------------
each("range", "range(3)", "range(3)|list", "range(2, 8, 3)|list", "range(5, 0, -2)|list", "range(0)|list", "range(3)|length", "range(3)[1]", "range(1, 9, 2)")
each("dict", "dict(a=1, b=2)", "dict({'x': 1}, y=2)", "dict([('a', 1)])", "dict()")
each("strftime_now", "strftime_now('%Y-%m-%d %H:%M:%S')", "strftime_now('%d %b %Y')", "strftime_now('%A %B %-d %j %y %p %I')", "strftime_now('100%% %')", "strftime_now('')")
case("cycler and joiner", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}")
case("raise_exception", "{{ raise_exception('Roles must alternate: ' ~ n) }}")
case("raise_exception in an if", "{% for x in l %}{% if x == 1 %}{{ raise_exception('no ünïcode') }}{% endif %}{% endfor %}")

# --- filters -----------------------------------------------------------------------------------
each("text filters", "'  x '|trim", "'xxaxx'|trim('x')", "s|upper", "s|lower", "'hELLO wORLD'|capitalize", "\"they're bill's (big) friends-and co\"|title", "u|upper",
     "'straße'|upper", "s|replace('l', 'L')", "s|replace('l', 'L', 1)", "'aaa'|replace('', '-')", "n|string ~ 1", "'ab'|center(7)", "'abc'|center(6)",
     "'a b  c-d'|wordcount", "'%s/%d'|format('x', 3)", "'%(a)s'|format(a=1)", "html|e", "html|escape|length", "html|safe", "html|forceescape", "5|string|length",
     "'a\nb\n\nc'|indent", "'a\nb\n\nc'|indent(2, true)", "'a\n\nb'|indent(2, blank=true)", "'a\nb'|indent('> ')", "'foo bar baz qux'|truncate(9)",
     "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '...', 0)", "'a b&c/ä'|urlencode", "none|string", "[1]|string")
each("number filters", "'42'|int", "'x'|int", "'x'|int(7)", "3.9|int", "'3.9'|int", "'0x1A'|int(0, 16)", "true|int", "none|int", "'1_0'|int", "'2.5'|float", "'x'|float", "1|float",
     "'x'|float(1.5)", "neg|abs", "-2.5|abs", "2.567|round(2)", "2.5|round", "3.5|round", "2.1|round(0, 'ceil')", "2.9|round(method='floor')", "42|round", "1234.5|round(-2)")
each("default", "nope|default('x')", "nope|d('x')", "es|default('x')", "es|default('x', true)", "none|default('x')", "none|default('x', boolean=true)", "nope|default", "d.zz|default(d.a)")
each("list filters", "l|length", "s|length", "u|length", "d|length", "nope|length", "l|count", "l|first", "l|last", "e|first", "e|last", "s|first", "s|last", "l|list", "s|list", "d|list",
     "l|sort", "l|sort(reverse=true)", "['b', 'A', 'c']|sort", "['b', 'A', 'c']|sort(case_sensitive=true)", "people|sort(attribute='age')|map(attribute='name')|list",
     "people|sort(attribute='age,name')|map(attribute='name')|list", "people|sort(attribute='x.y', reverse=true)|map(attribute='name')|list", "l|reverse|list", "s|reverse", "l|sum", "people|sum('age')", "[1.5, 2]|sum", "l|sum(start=10)",
     "l|min", "l|max", "['b', 'A']|min", "people|max(attribute='age')", "e|min", "l|join", "l|join(', ')", "people|join('+', attribute='name')", "nope|join(',')", "s|join('-')", "[1, none, 'a']|join('|')",
     "[1, 2, 1, 3, 2]|unique|list", "['a', 'A', 'b']|unique|list", "['a', 'A']|unique(true)|list", "d|items|list", "d|dictsort", "d|dictsort(by='value')", "d|dictsort(reverse=true)", "{'B': 1, 'a': 2}|dictsort",
     "range(7)|batch(3)|list", "range(7)|batch(3, 'x')|list", "range(7)|slice(3)|list", "range(7)|slice(3, 'x')|list", "people|groupby('age')|list", "people|map(attribute='name')|list", "people|map(attribute='zz', default='-')|list",
     "['a', 'b']|map('upper')|list", "['a', 'b']|map('replace', 'a', 'x')|list", "[1, 2, 3]|map('string')|join(',')", "range(6)|select('odd')|list", "range(6)|reject('odd')|list", "[0, 1, '', 'x']|select|list", "[0, 1, none]|reject|list",
     "people|selectattr('age', 'eq', 30)|map(attribute='name')|list", "people|selectattr('age', '>', 26)|list|length", "people|rejectattr('age', 'equalto', 30)|map(attribute='name')|join", "people|selectattr('x.y')|list|length",
     "people|selectattr('nope', 'defined')|list", "people|selectattr('name', 'in', ['Bob'])|list", "[3, 1]|map('abs')|sum", "people|selectattr('age', 'lt', 30)|first", "(people|selectattr('age', 'lt', 1)|list) == []")
case("a generator is walked once and is always true", "{% set g = l|map('string') %}{% if g %}yes{% endif %}{{ g|join }}{{ g|join }}{% if e|select %}true{% endif %}{{ g is sequence }}{{ g is iterable }}")
each("attr", "d|attr('a') is defined", "d|attr('keys') is callable", "s|attr('upper') is callable")
each("tojson", "d|tojson", "people|tojson", "s|tojson", "u|tojson", "q|tojson", "html|tojson", "[1, 1.0, none, true, 'x']|tojson", "none|tojson", "e|tojson", "ed|tojson", "d|tojson(indent=2)", "people|tojson(indent=4)", "e|tojson(indent=2)",
     "u|tojson(ensure_ascii=true)", "d|tojson(sort_keys=true)", "d|tojson(separators=(',', ':'))", "{1: 'a', none: 2, true: 3, 1.5: 4}|tojson", "(1, 2)|tojson", "{'a': [{}, [], {'b': []}]}|tojson(indent=2)", "1e20|tojson", "d|tojson(indent='--')",
     "{'z': 1, 'a': {'y': 2, 'b': 3}}|tojson(indent=1, sort_keys=true)")

# --- tests -------------------------------------------------------------------------------------
for name in ("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "escaped", "lower", "upper"):
    case("is " + name, "{% for v in [n, f, t, none, s, l, d, es, e, (1,), nope, 'abc', 'ABC', range, false, 0] %}{{ v is " + name + " }} {% endfor %}")
each("tests with arguments", "3 is odd", "3 is even", "n is eq 5", "n is equalto(5)", "n is ne 5", "n is gt 4", "n is ge 5", "n is lt 4", "n is le 5", "n is sameas n", "none is sameas none", "1 is sameas true", "n is in l", "'trim' is filter", "'zz' is filter", "'odd' is test", "s is not string", "n is not defined")

# --- methods -----------------------------------------------------------------------------------
each("methods of strings", "'  x '.strip()", "'xxaxx'.strip('x')", "'  x '.lstrip() ~ '|'", "'  x '.rstrip() ~ '|'", "'a,b,,c'.split(',')", "' a  b c '.split()", "'a b c d'.split(' ', 2)", "'a b c d'.split(none, 1)", "' a  b c '.split(none, 1)", "1.0 // 0", "'a b c d'.rsplit(' ', 1)", "'  a b  c '.rsplit(none, 1)", "'a\nb\r\nc\n'.splitlines()", "'a\nb'.splitlines(true)",
     "'a-b-c'.partition('-')", "'a-b-c'.rpartition('-')", "'abc'.partition('x')", "s.startswith('Hell')", "s.startswith(('x', 'H'))", "s.endswith('ld')", "s.startswith('ell', 1)", "s.removeprefix('Hello')", "s.removesuffix('World')", "s.replace('l', 'L')", "s.replace('l', '', 2)", "', '.join(['a', 'b'])", "''.join([])",
     "s.find('o')", "s.rfind('o')", "s.find('zz')", "u.find('猫')", "s.index('W')", "s.count('l')", "'aaaa'.count('aa')", "s.find('o', 5)", "s.upper()", "s.lower()", "s.swapcase()", "'hello world'.title()", "\"they're\".title()", "'hELLO'.capitalize()", "'ab'.center(7, '*')", "'ab'.ljust(4) ~ '|'", "'ab'.rjust(4)", "'-5'.zfill(4)",
     "'12'.isdigit()", "'1a'.isdigit()", "''.isdigit()", "'abc'.isalpha()", "'a1'.isalnum()", "' \t'.isspace()", "'abc'.islower()", "'ABC1'.isupper()", "'é'.isascii()", "'½'.isnumeric()", "'aßc'.casefold() is string")
each("str.format", "'{} {}'.format(1, 'x')", "'{1}{0}'.format('a', 'b')", "'{x} {y[k]} {z.k}'.format(x=1, y={'k': 2}, z={'k': 3})", "'{{}} {!r}'.format('a')", "'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')", "'{:05.1f} {:d} {:,}'.format(3.14159, 42, 1234567)", "'{:*^9}'.format('mid')", "'{:x} {:b} {:e} {:.1%}'.format(255, 5, 12345.678, 0.256)", "'{:+d}'.format(3)")
each("percent", "'%5d|%-5d|%05d' % (1, 2, 3)", "'%.2f %e %g' % (3.14159, 12345.0, 0.0001)", "'%x %X %o' % (255, 255, 8)", "'%s %r' % ('a', 'b')", "'100%%' % ()", "'%s' % 'x'", "'%(k)s' % {'k': 1}", "'%.3s' % 'abcdef'", "'%s' % none", "'%+d' % 5")

# --- faults ------------------------------------------------------------------------------------
each("undefined", "nope.x", "nope['x']", "nope()", "nope + 1", "1 + nope", "-nope", "d.zz.y", "d['zz']['y']", "l[9].x", "messages[0]['role']", "s.zz()", "none.x.y", "people[0].zz.w", "nope < 1", "(1, 2)[5].x", "d.update({})", "l.append(1)", "''.__class__.x")
each("an undefined from elsewhere", "(e|first).x", "('a' if e).x", "nope|int")
each("types", "1 + 'a'", "'a' + 1", "[1] + 'a'", "1 < 'a'", "none < 1", "none + 1", "d + d", "n()", "s()", "none|length", "n|length", "n|list", "1 in n", "1 in s", "l[{}]", "{}[[]]", "'a' * 'b'", "l|map('upper')|list + 1", "-s", "d|tojson + 1", "range|tojson", "nope|tojson")
each("numbers", "1 / 0", "1 // 0", "1.0 % 0")
case("a loop over what can not be walked", "{% for x in n %}{% endfor %}")
case("a loop over none", "{% for x in none %}{% endfor %}")
case("unpacking too few", "{% for a, b in [[1]] %}{% endfor %}")
case("unpacking too many", "{% set a, b = [1, 2, 3] %}")
case("an attribute of what is no namespace", "{% set d.x = 1 %}")
case("a macro with too many arguments", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}")
case("a macro with an unknown keyword", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}")
case("range too big", "{{ range(1000000)|length }}")
case("an underscore in a namespace", "{% set ns = namespace() %}{% set ns._x = 1 %}")
for text in ("{{ n", "{{ }}", "{% if t %}", "{% endif %}", "{% for x in %}{% endfor %}", "{{ n | nosuch }}", "{{ n is nosuch }}", "{% bogus %}", "{# x", "{% raw %}x", "{{ 'x }}", "{{ [1, 2 }}", "{{ 1 ) }}", "{% set 1 = 2 %}", "{{ a b }}", "{% if t %}{% else %}",
             "{{ f(a=1, 2) }}", "{{ x! }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ 1 + }}", "{{ n is odd is even }}", "{% call n %}{% endcall %}", "{% set none = 1 %}", "{{ a.}}", "{{ a[ }}", "{%", "{{ n. }}", "{% for x in l %}{% endif %}"):
    case("a broken template", text, kind_only=True)
case("an unknown filter that is not reached", "{% if e %}{{ n|nosuch }}{% endif %}ok")
case("an unknown filter that is", "{% if t %}{{ n|nosuch }}{% endif %}", kind_only=True)

# --- conversations -----------------------------------------------------------------------------
case("a plain form", "{% for m in messages if m.content is string %}{{ '<|' ~ m.role ~ '|>' ~ m['content']|trim ~ eos_token ~ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}", TALK)
case("tool calls", """{%- for m in messages %}
    {%- if m.tool_calls is defined and m.tool_calls %}
        {%- for c in m.tool_calls %}
            {%- set f = c.function if c.function is defined else c %}
{{ '{"name": "' ~ f.name ~ '", "arguments": ' }}
            {{- f.arguments if f.arguments is string else f.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
    {%- elif m.content is not string and m.content is iterable %}
        {%- for p in m.content %}{{ p.text if p.type == 'text' else '<' ~ p.type ~ '>' }}{% endfor %}
    {%- endif %}
{%- endfor %}
""", TALK)
case("the last user's turn, found from behind", """{%- set ns = namespace(last=-1) %}
{%- for m in messages[::-1] %}
{%- set i = messages|length - 1 - loop.index0 %}
{%- if ns.last < 0 and m.role == 'user' and m.content is string and not m.content.startswith('x') %}{% set ns.last = i %}{% endif %}
{%- endfor %}
{{- ns.last }}{{ messages[ns.last].content.strip() }}""", TALK)
case("a system message or a default one", "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set system = 'none' %}{% set rest = messages %}{% endif %}{{ system }}|{{ rest|map(attribute='role')|join(',') }}", TALK)
case("roles that must alternate", "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate, but message ' ~ loop.index0 ~ ' is of ' ~ m.role) }}{% endif %}{% endfor %}", TALK)
case("tools as JSON", "{% for t in tools %}{{ t|tojson(indent=4) }}{{ '\\n' if not loop.last }}{% endfor %}", {"tools": [{"type": "function", "function": {"name": "f", "description": "Ö <b> 'x'", "parameters": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}}, "required": []}}}, {"type": "function"}]})
case("a type of a schema by a macro that calls itself", """{%- macro kind(p) %}
    {%- if p.type == 'array' %}{{ 'list[' ~ kind(p['items']) ~ ']' }}
    {%- elif p.type is string %}{{ {'string': 'str', 'integer': 'int'}[p.type] | default(p.type) }}
    {%- else %}{% for t in p.type %}{{ t }}{% if not loop.last %}{{ ' | ' }}{% endif %}{% endfor %}{% endif %}
{%- endmacro %}
{%- for name, p in props|items %}{{ name }}: {{ kind(p) }}
{% endfor %}""", {"props": {"a": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "b": {"type": ["x", "y"]}, "c": {"type": "number"}}})


def render(template, variables):
    compiled = chat_template_utils._compile_jinja_template(template)
    compiled.environment.globals["strftime_now"] = compiled.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return compiled.render(**variables)


def main():
    OUT.mkdir(exist_ok=True)
    with open(OUT / "cases.jsonl", "w", encoding="utf-8") as out:
        for about, template, variables, kind_only in CASES:
            line = {"about": about, "template": template}
            if variables is not DATA:
                line["variables"] = variables
            try:
                line["expected"] = render(template, variables)
            except Exception as error:  # whatever Python raises is the expectation
                name = type(error).__name__
                line["error"] = name if kind_only else f"{name}: {error}"
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    (OUT / "variables.json").write_text(json.dumps(DATA, ensure_ascii=False) + "\n", encoding="utf-8")
    print(len(CASES), "cases, jinja2", jinja2.__version__, "transformers", transformers.__version__)


main()
