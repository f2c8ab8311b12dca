"""Render a model's Markdown as inert HTML.

The parser treats HTML as text and writes only the parser's tags; nh3 (ammonia) then removes all tags and attributes that
are not listed below. Nothing is fetched: an image becomes a link to it. A link that does not lead to the web shows its
target and cannot be clicked.

Imported on first use.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from helmsman.base.sanitize import visible
from helmsman.web.colours import CLASSES, in_language

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_core import StateCore
    from markdown_it.utils import OptionsDict

_MOST_CHARS: Final = 400_000
"""Longer text is shown as plain text."""
_KEPT: Final = 1000
_SCHEMES: Final = ("https://", "http://", "mailto:")
_ADDRESS: Final = re.compile(r"\bhttps?://[^\s<>\"'`|\\]+")
_AFTER_ADDRESS: Final = ".,:;!?*_~"
"""Characters that end a sentence, not an address."""
_MARKS: Final = {f"text-align:{side}": side for side in ("left", "center", "right")}
_HEADINGS: Final = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
_BLOCKS: Final = {"p", *_HEADINGS.values(), "ul", "ol", "li", "blockquote", "pre", "hr", "br"}
_TABLES: Final = {"table", "thead", "tbody", "tr", "th", "td"}
_CLEANER: Final = nh3.Cleaner(
    tags=_BLOCKS | _TABLES | {"a", "code", "em", "s", "span", "strong"},
    attributes={"a": {"href", "title"}, "ol": {"start"}},
    allowed_classes={
        "span": {*CLASSES, "leads"},
        "th": {*_MARKS.values()},
        "td": {*_MARKS.values()},
    },
    set_tag_attribute_values={"a": {"target": "_blank"}},
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer",
)


# Cached, because a transcript is read again at every change.
@lru_cache(_KEPT)
def as_html(text: str) -> str | None:
    """Return the text as HTML; None if plain text is better."""
    if len(text) > _MOST_CHARS:
        return None
    return visible(_CLEANER.clean(_PARSER.render(text)))  # last, since the text of an entity may be anything


def with_html(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Add `html` to an entry of a transcript whose item is Markdown."""
    item = entry["item"]
    if item["type"] not in _SAID or not item.get("text"):
        return dict(entry)
    html = as_html(item["text"])
    return {**entry, "item": item if html is None else {**item, "html": html}}


_SAID: Final = ("agent_message", "plan", "review", "reasoning")


# --- how it is written -----------------------------------------------------------------------------------------------


def _code(code: str, language: str, _attributes: str) -> str:
    shown = (
        f'<span class="{kind}">{escape(text)}</span>' if kind else escape(text)
        for kind, text in in_language(code, language)
    )
    return "".join(shown)


def _leads(place: str) -> str:
    return f'<span class="leads"> ({escape(place)})</span>'


def _image(_renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: Any) -> str:
    token = tokens[index]
    place, words = str(token.attrs.get("src", "")), escape(token.content or "image")
    if not place.startswith(_SCHEMES):
        return words + _leads(place)
    return f'<a href="{escape(place)}" title="{escape(place)}">{words}</a>'


def _link_open(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    place = str(tokens[index].attrs.get("href", ""))
    env.setdefault("open", []).append(place)
    return f'<a href="{escape(place)}" title="{escape(place)}">' if place.startswith(_SCHEMES) else ""


def _link_close(
    _renderer: RendererHTML, _tokens: Sequence[Token], _index: int, _options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    place = env["open"].pop()
    return "</a>" if place.startswith(_SCHEMES) else _leads(place)


def _cell(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
    """Render the alignment of a cell as a class, since the page allows no inline styles."""
    token = tokens[index]
    side = _MARKS.get(str(token.attrs.pop("style", "")))
    if side is not None:
        token.attrs["class"] = side
    return renderer.renderToken(tokens, index, options, env)


def _heading(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any) -> str:
    """Render a heading two levels down, below the headings of the page."""
    tokens[index].tag = _HEADINGS[tokens[index].tag]
    return renderer.renderToken(tokens, index, options, env)


def _link_addresses(state: StateCore) -> None:
    """Turn plain addresses in the text into links: agents rarely write them as Markdown links."""
    for block in state.tokens:
        depth = 0
        shown: list[Token] = []
        for token in block.children or ():
            depth += {"link_open": 1, "link_close": -1}.get(token.type, 0)
            # Not inside a link: links cannot be nested.
            shown += [token] if depth or token.type != "text" else _with_links(token, state.md)
        if block.children:
            block.children = shown


def _with_links(token: Token, parser: MarkdownIt) -> Iterator[Token]:
    end = 0
    for found in _ADDRESS.finditer(token.content):
        address = found[0].rstrip(_AFTER_ADDRESS)
        if address.endswith(")") and address.count(")") > address.count("("):
            address = address[:-1].rstrip(_AFTER_ADDRESS)  # the parentheses are around the address
        place = parser.normalizeLink(address)
        # The parser's own check, as for links in Markdown.
        if not parser.validateLink(place):
            continue
        yield Token("text", "", 0, content=token.content[end : found.start()])
        yield Token("link_open", "a", 1, attrs={"href": place})
        yield Token("text", "", 0, content=address)
        yield Token("link_close", "a", -1)
        end = found.start() + len(address)
    yield Token("text", "", 0, content=token.content[end:])


def _parser() -> MarkdownIt:
    # Agents break lines on purpose, so line breaks count.
    options: dict[str, Any] = {"html": False, "maxNesting": 100, "highlight": _code, "langPrefix": "", "breaks": True}
    # A link that is defined elsewhere in the text could lead anywhere, and its definition is not shown.
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("reference")
    for name, rule in {
        "image": _image,
        "link_open": _link_open,
        "link_close": _link_close,
        "th_open": _cell,
        "td_open": _cell,
        "heading_open": _heading,
        "heading_close": _heading,
    }.items():
        parser.add_render_rule(name, rule)
    parser.core.ruler.push("addresses", _link_addresses)
    return parser


_PARSER: Final = _parser()
