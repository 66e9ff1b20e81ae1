"""HTML in a text is read as `innerText` shows it, and no source of HTML takes more than linear time."""

from __future__ import annotations

import pytest

from s1_mini.alignment.written import find_groups, find_written, keys
from s1_mini.text import spoken
from s1_mini.text.form import TextForm
from s1_mini.text.reading import read_html
from s1_mini.text.tags import blank_tags


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        # Block elements are lines that end a sentence; paragraphs and headings have blank lines around them.
        ("First line<br>Second line", "First line\nSecond line"),
        ("One<br/><br />two", "One\n\ntwo"),
        ("<p>One</p><p>Two</p>", "One\n\nTwo"),
        ("<p>One\n<p>Two", "One\n\nTwo"),
        ("<div>One</div> <div>Two</div>", "One\n\x1e\nTwo"),
        ("<div>One</div>\n\n<div>Two</div>", "One\n\nTwo"),
        ("<section><article>One</article></section>Two", "One\n\x1e\nTwo"),
        ("<h1>Title</h1>Text", "# Title\n\nText"),
        ("One<hr>two", "One\n\n***\n\ntwo"),
        ("<ul>\n  <li>Milk</li>\n  <li>Eggs</li>\n</ul>\nDone", "- Milk\n- Eggs\n\x1e\nDone"),
        ("<li><p>Milk</p></li><li></li>", "- Milk"),
        ("<tr><th>Name</th><th>Age</th></tr><tr><td>Tom</td><td>5</td></tr>", "\x1f\nName, Age\n\x1f\nTom, 5"),
        ("<dl><dt>Cat<dd>An animal.</dl>", "Cat\n\x1e\nAn animal."),
        ("<select><option>One<option>Two</select>", "One\n\x1e\nTwo"),
        # Other elements do not divide words.
        ("un<b>believ</b>able", "unbelievable"),
        ('a <a href="x">link</a>, <i>it</i>', "a link, it"),
        ("super<wbr>man", "superman"),
        # Links and buttons next to each other are words of their own.
        ("<a href='x'>Home</a><a href='y'>About</a>", "Home About"),
        ("<button>Buy</button><button>Sell</button>", "Buy Sell"),
        ("<svg><text>chart</text></svg>The <textarea>notes</textarea>end", "chart The notes end"),
        ("<my-tag>one</my-tag> <o:p>two</o:p> <foo>three</foo>", "one two three"),
        # Attributes may have any sign in quotation marks.
        ('<a title="a > b" href=\'c">d\'>link</a>', "link"),
        ("<button onclick=\"a > b && c('x')\">Go</button>", "Go"),
        ("<P\nCLASS=x>Up</P>", "Up"),
        ("<b don't>x</b>", "<b don't>x"),
        # What is invisible is left out.
        ("<script>if (a < b) { x = '<p>'; }</script>Hi", "Hi"),
        ("<STYLE type='text/css'>p > a { color: red }</style >Hi", "Hi"),
        ("One <!-- a <b> > -- comment\n\n -->two", "One two"),
        ("<head><title>T</title></head><body>Hi</body>", "Hi"),
        ("<template><p>no</p></template><noscript>no</noscript>Hi", "Hi"),
        ("<div hidden>no <div>no</div> no</div>Hi", "Hi"),
        ("<span style='color: red; display: none'>no</span>Hi", "Hi"),
        ("<!DOCTYPE html><?xml version='1.0'?><![CDATA[a <b> c]]>", "a <b> c"),
        ("one <!-- two", "one  two"),
        # Entities are decoded last.
        ("a &amp;&nbsp;b &mdash; don&rsquo;t &#8217; &#x2019;", "a &\xa0b — don’t ’ ’"),
        ("&lt;b&gt;bold&lt;/b&gt;", "<b>bold</b>"),
        ("AT&T, R&D, ?a=1&copy=2, &bogus;", "AT&T, R&D, ?a=1&copy=2, &bogus;"),
        ("&copy 2020, AT&ampT", "© 2020, AT&ampT"),
        (f"&#{'9' * 5000};", f"&#{'9' * 5000};"),
        # Raised digits are exponents.
        ("10<sup>6</sup> m<sup>2</sup> 5<sup>th</sup> H<sub>2</sub>O sin<sup>2</sup>", "10^6 m^2 5th H2O sin2"),
        ("word<sup>1</sup> end.<sup><a href='#n'>[2]</a></sup>", "word[^1] end.[^[2]]"),
        # Signs that are not HTML, and tags that a text is about.
        ("if x < 5 and y > 3, a<b", "if x < 5 and y > 3, a<b"),
        ("x <y and y> z, I <3 you", "x <y and y> z, I <3 you"),
        ("Press <Enter>, use the <script> tag or `<br>`.", "Press Enter, use the script tag or `br`."),
        ("vector<int> and List<String>", "vector int and List String"),
        (
            "<https://a.example/b> or <mailto:a@b.example> or <a@b.example>",
            "https://a.example/b or a@b.example or a@b.example",
        ),
    ],
)
def test_html_is_read_as_a_browser_shows_it(source: str, shown: str) -> None:
    assert read_html(source) == shown


def test_the_words_of_html_are_spoken_and_no_others() -> None:
    source = "<h1>Title</h1><p>One<br>two</p><script>x()</script><ul><li>a pen</li><li>ink</li></ul>"

    assert spoken(source) == "Title.\n\nOne\ntwo\n\na pen,\nink"
    assert spoken("<p>Das sind 3</p><p>Katzen</p>", "de") == "Das sind drei\n\nKatzen"


def test_a_block_element_ends_a_sentence_and_a_line_break_does_not() -> None:
    source = "<div>Breaking news</div><div>A storm<br>comes</div>"

    assert TextForm("en").script(source, 100).structured == "Breaking news\x1eA storm comes"


def test_the_words_between_tags_keep_their_positions() -> None:
    source = '<p>One <b>bo</b>ld.</p><p class="a > b">Two</p><script>x y</script>un<i>believ</i>able 5<br>6'
    words = find_written(shown := blank_tags(source))
    said = keys(spoken(source))

    groups = find_groups(shown, words, said)

    assert len(shown) == len(source)
    assert [source[start:stop] for start, stop in words] == ["One", "bo</b>ld", "Two", "un<i>believ</i>able", "5", "6"]
    assert [group.stop_spoken for group in groups][:4] == [1, 2, 3, 4]
