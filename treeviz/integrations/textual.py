"""textual: a run in a terminal, drawn in place, with keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

if TYPE_CHECKING:
    from collections.abc import Sequence


class Screen(Protocol):
    """What is shown: `treeviz.cli.follow.RunScreen`."""

    query: str

    def update(self) -> bool: ...
    def drawn(self, width: int) -> tuple[list[str], Sequence[tuple[int, str]], list[str]]: ...
    def turn(self, row: int, is_open: bool | None = None) -> int: ...
    def next_problem(self, row: int) -> int: ...
    def problems(self) -> list[str]: ...
    def status(self) -> str: ...


def show(screen: Screen, *, least_s: float, share: float) -> None:
    """Draw the screen until the user presses `q`: at most every `least_s`, and for at most `share` of the time."""
    Follower(screen, least_s, share).run()


class Rows(ScrollView, can_focus=True):
    """Lines, each of a row; one row is selected."""

    BINDINGS: ClassVar = [
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
        Binding("pageup", "move_page(-1)", "page up", show=False),
        Binding("pagedown", "move_page(1)", "page down", show=False),
        Binding("home", "move(-1000000000)", "first", show=False),
        Binding("end", "move(1000000000)", "last", show=False),
        Binding("right", "turn(True)", "open"),
        Binding("left", "turn(False)", "close"),
        Binding("enter,space", "turn(None)", "open or close", show=False),
        Binding("n", "problem", "next problem"),
    ]

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._of, self.selected = screen, 0
        self._lines: Sequence[tuple[int, str]] = ()

    def set_lines(self, lines: Sequence[tuple[int, str]]) -> None:
        self._lines = lines
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        y += self.scroll_offset.y
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        row, line = self._lines[y]
        text = Text.from_ansi(line, no_wrap=True, end="")
        if self.has_focus and row == self.selected and (y == 0 or self._lines[y - 1][0] != row):
            turned = Style(reverse=True)
            return Strip([Segment(text.plain, turned)]).adjust_cell_length(self.size.width, turned)
        return Strip(text.render(self.app.console)).adjust_cell_length(self.size.width)

    def select(self, row: int) -> None:
        self.selected = row
        at = next((i for i, (number, _) in enumerate(self._lines) if number == row), None)
        if at is not None:
            self.scroll_to_region(Region(0, at, 1, 1), animate=False)
            self.refresh()

    def action_move(self, n: int) -> None:
        rows = list(dict.fromkeys(row for row, _ in self._lines))
        if rows:
            at = rows.index(self.selected) if self.selected in rows else 0
            self.select(rows[min(max(at + n, 0), len(rows) - 1)])

    def action_move_page(self, n: int) -> None:
        self.action_move(n * max(1, self.size.height - 1))

    def action_turn(self, is_open: bool | None) -> None:
        self._show(self._of.turn(self.selected, is_open))

    def action_problem(self) -> None:
        self._show(self._of.next_problem(self.selected))

    def _show(self, row: int) -> None:
        app = self.app
        assert isinstance(app, Follower)
        app.draw()
        self.select(row)


class Follower(App[None]):
    """The run: its headline, its rows, a line about its progress, and the keys."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, Static, Rows, Input, Footer { background: ansi_default; color: ansi_default; }
    Static { height: auto; }
    #findings { display: none; margin-top: 1; max-height: 50%; }
    Input { display: none; border: none; height: 1; padding: 0; }
    Rows {
        height: 1fr; overflow-x: hidden; scrollbar-size: 1 1; scrollbar-color: ansi_bright_black;
        scrollbar-background: ansi_default; scrollbar-color-hover: ansi_bright_black;
        scrollbar-color-active: ansi_bright_black; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
    }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("slash", "search", "search", key_display="/"),
        Binding("f", "findings", "findings"),
        Binding("escape", "clear", "clear", show=False),
    ]

    def __init__(self, screen: Screen, least_s: float, share: float) -> None:
        super().__init__(ansi_color=True)
        self._of, self._least_s, self._share = screen, least_s, share
        self._head, self._rows, self._findings, self._status = Static(), Rows(screen), Static(id="findings"), Static()
        self._search = Input(placeholder="Search: attn, bf16, nan", select_on_focus=False)

    def compose(self) -> ComposeResult:
        yield from (self._head, self._rows, self._findings, self._status, self._search, Footer())

    def on_mount(self) -> None:
        self._rows.focus()
        self._follow()

    def on_resize(self) -> None:
        self.draw()

    def _follow(self) -> None:
        if not self._rows.is_attached:  # the app ends
            return
        began = time.monotonic()
        if self._of.update():
            self.draw()
        self._show_status()
        spent = time.monotonic() - began
        self.set_timer(max(self._least_s, spent * (1 / self._share - 1)), self._follow)

    def draw(self) -> None:
        head, lines, foot = self._of.drawn(max(20, self.size.width - 1))  # beside the scroll bar
        self._head.update(_text(head))
        self._rows.set_lines([*lines, *((-1, line) for line in foot)])
        self._findings.update(_text(self._of.problems()))
        self._show_status()

    def _show_status(self) -> None:
        self._status.update(Text(self._of.status(), style="dim", no_wrap=True, overflow="ellipsis"))

    def action_search(self) -> None:
        self._search.display = True
        self._search.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._of.query = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        self._rows.focus()

    def action_clear(self) -> None:
        self._search.value, self._search.display = "", False
        self._findings.display = False
        self._rows.focus()

    def action_findings(self) -> None:
        self._findings.display = not self._findings.display


def _text(lines: Sequence[str]) -> Any:
    return Text("\n").join(Text.from_ansi(line) for line in lines)
