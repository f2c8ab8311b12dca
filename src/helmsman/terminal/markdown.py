"""Format a model's Markdown for the terminal: headings, lists, tables, quotes and coloured code.

Nothing is lost or hidden: HTML is shown as text, links with their targets, and invisible entities are written out.
Imported only for interactive output; the parser is Rich's `markdown-it-py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.style import Style
from rich.text import Text

from helmsman.base.sanitize import visible
from helmsman.terminal.layout import fold, indented

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, JustifyMethod

# HTML is shown, not interpreted; deep nesting would make rendering take long.
_OPTIONS: Final = {"html": False, "maxNesting": 100}
# Without inline parsing, because only the ends of blocks are looked for while text arrives.
_BLOCKS: Final = MarkdownIt("commonmark", _OPTIONS).enable("table").disable(["reference", "inline"])
# Reference links would take their target from elsewhere in the text, where it is not visible.
_PARSER: Final = MarkdownIt("commonmark", _OPTIONS).enable(["table", "strikethrough"]).disable("reference")
_SPANS: Final = {"strong": "bold", "em": "italic", "s": "strike"}
_CODE: Final = "cyan"
_CODE_THEME: Final = "ansi_dark"
"""Colours of the terminal's palette, readable on any background."""
# A name of a language, as people write it; a lexer is not looked up by arbitrary text.
_LEXER: Final = re.compile(r"[\w+#.-]{1,30}")
_MOST_COLOURED: Final = 50_000
"""Longest code to highlight, in characters. More takes a second and does not help."""
# Lines that can begin or end a block: parsing a growing text after every word would take quadratic time.
_BORDER: Final = re.compile(r"\s*(?:$|```|~~~|#|[-*_=>|]|\d+[.)])")


def markdown_lines(console: Console, text: str, *, indent: int = 0, lead: Text | None = None) -> list[Text]:
    """Format the text in lines of the console's width. `lead` fills the indent of the first line and sets its width."""
    indent = indent if lead is None else lead.cell_len
    width = max(1, console.width - indent)
    lines = [
        part  # too deeply nested blocks are folded
        for line in _Lines(console).blocks(_tree(text).children, width) or [Text()]
        for part in ([line] if line.cell_len <= width else fold(console, line, indent=0, width=width))
    ]
    first = Text(" " * indent) if lead is None else lead
    return indented(lines, first, Text(" " * indent))


def finished(text: str, seen: int = 0) -> int:
    """Return the length of the leading blocks of a growing text that can no longer change.

    `seen` characters were checked before and contain no such block.
    """
    written = text.rfind("\n") + 1
    # The line that is still being written cannot end a block.
    if not any(_BORDER.match(line) for line in text[seen:written].split("\n")[:-1]):
        return 0
    # Only text before the last block is final.
    last = _tree(text[:written], _BLOCKS).children[-1:]  # following text may belong to the last block
    if not last or last[0].map is None:
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: last[0].map[0]])


def _tree(text: str, parser: MarkdownIt = _PARSER) -> SyntaxTreeNode:
    # Made visible before parsing, so that control characters cannot hide in markup.
    return SyntaxTreeNode(parser.parse(visible(text)))


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        # Only blocks that the two parsers can produce.
        self._ways: dict[str, Callable[[SyntaxTreeNode, int], list[Text]]] = {
            "heading": self._heading,
            "paragraph": self._paragraph,
            "bullet_list": self._list,
            "ordered_list": self._list,
            "blockquote": self._quote,
            "fence": self._code,
            "code_block": self._code,
            "table": self._table,
            "hr": self._rule,
        }

    def blocks(self, nodes: Sequence[SyntaxTreeNode], width: int, *, tight: bool = False) -> list[Text]:
        """Join blocks, with a blank line between them except in a tight list."""
        lines: list[Text] = []
        for node in nodes:
            lines += [Text()] if lines and not tight else []
            lines += self._ways[node.type](node, width)
        return lines

    def _wrapped(self, text: Text, width: int) -> list[Text]:
        return fold(self._console, text, indent=0, width=width)

    def _heading(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        text = Text(style="bold underline" if node.tag == "h1" else "bold")
        return self._wrapped(text.append_text(self._inline(node)), width)

    def _paragraph(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        return self._wrapped(self._inline(node), width)

    def _list(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        marks = [f"{item.info}. " if node.type == "ordered_list" else "- " for item in node.children]
        room = max(map(len, marks))
        # A tight list has hidden paragraphs, as CommonMark calls them.
        tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
        lines: list[Text] = []
        for mark, item in zip(marks, node.children, strict=True):
            inside = self.blocks(item.children, max(1, width - room), tight=tight) or [Text()]
            lines += [Text()] if lines and not tight else []
            lines += indented(inside, Text(mark.rjust(room), "cyan"), Text(" " * room))
        return lines

    def _quote(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        bar = Text("│ ", "dim")
        return indented(self.blocks(node.children, max(1, width - 2)) or [Text()], bar, bar)

    def _code(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        code = Text(visible(node.content.rstrip("\n")).expandtabs(4))
        language = _LEXER.match(node.info.strip()) if node.type == "fence" else None
        # Without colours, highlighting costs time and shows nothing.
        if language is not None and len(code) <= _MOST_COLOURED and not self._console.no_color:
            from rich.syntax import Syntax

            coloured = Syntax("", language[0], theme=_CODE_THEME, background_color="default").highlight(code.plain)
            coloured.right_crop(len(coloured) - len(code))  # the highlighter adds a line break
            # A lexer must not change the code: if it does, show the code.
            code = coloured if coloured.plain == code.plain else code
        return indented(self._wrapped(code, max(1, width - 2)), Text("  "), Text("  "))

    def _table(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        from rich import box
        from rich.table import Table

        head, *bodies = node.children
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for cell in head.children[0].children:
            table.add_column(self._inline(cell), justify=_justified(cell), overflow="fold")
        for row in (row for body in bodies for row in body.children):
            table.add_row(*map(self._inline, row.children))
        # The height would cut long tables.
        options = self._console.options.update(width=width, height=None)
        lines = [
            Text.assemble(*((segment.text, segment.style or "") for segment in line))
            for line in self._console.render_lines(table, options, pad=False)
        ]
        for line in lines:
            line.rstrip()
        return lines

    def _rule(self, _: SyntaxTreeNode, width: int) -> list[Text]:
        return [Text("─" * min(width, 40), "dim")]

    def _inline(self, node: SyntaxTreeNode) -> Text:
        shown = Text()
        for inline in node.children:
            for child in inline.children:
                self._append(shown, child, Style.null())
        return shown

    def _append(self, shown: Text, node: SyntaxTreeNode, style: Style) -> None:
        match node.type:
            case "softbreak" | "hardbreak":  # models use line breaks deliberately
                shown.append("\n")
            case "code_inline":
                # HTML entities can name control characters, so decoded text is checked again.
                code = visible(node.content)
                # Without colours, the backticks are all that marks code.
                shown.append(f"`{code}`" if self._console.no_color else code, style + Style.parse(_CODE))
            case "link":
                self._append_all(shown, node, style)
                self._lead_to(shown, node, str(node.attrs.get("href", "")))
            case "image":
                self._append_all(shown, node, style)
                self._lead_to(shown, node, str(node.attrs.get("src", "")))
            case _ if node.children:
                self._append_all(shown, node, style + Style.parse(_SPANS.get(node.type, "")))
            case _:
                shown.append(visible(node.content), style)

    def _append_all(self, shown: Text, node: SyntaxTreeNode, style: Style) -> None:
        for child in node.children:
            self._append(shown, child, style)

    def _lead_to(self, shown: Text, node: SyntaxTreeNode, place: str) -> None:
        """Append the target of a link, unless its text contains it."""
        place = visible(place)
        said = "".join(child.content for child in node.children)
        # A link whose text is its target needs it only once.
        if place and place not in (said, f"mailto:{said}"):
            shown.append(f" ({place})", "dim")


def _justified(cell: SyntaxTreeNode) -> JustifyMethod:
    aligned = str(cell.attrs.get("style", "")).removeprefix("text-align:")
    return "center" if aligned == "center" else "right" if aligned == "right" else "left"
