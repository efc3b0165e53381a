"""The explorer in a real browser, its kernel being this process: what one side does the other sees, once."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from browser.driving import active, choose, in_a_theme, labels, open_menu, row, search, settled, status, violations
from browser.fake_kernel import PAGE, FakeKernel

import treeviz as tv
from treeviz.views.html.bundle import widget_module_text

pytest.importorskip("anywidget")


def model(n_layers: int = 3) -> dict:
    layers = [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)} for _ in range(n_layers)]
    return {"layers": layers, "n": 3, "embed": jnp.ones((10, 4))}


@pytest.fixture
def explore(open_page):
    """`explore(tree, …)` shows an explorer in a page; more trees are more explorers, which are not shown yet."""
    made = []

    def show(*trees, width: int = 1200, alone: bool = False, **options) -> FakeKernel:
        widgets = [tv.explore(tree, **options) for tree in trees]
        made.extend((*widgets, trees))
        page = open_page(PAGE, width=width, alone=alone)
        kernel = FakeKernel(page, *widgets)
        kernel.show()
        return kernel

    yield show
    for widget in made:
        if hasattr(widget, "close"):
            widget.close()


def selected(page) -> list[str]:
    return settled(page).locator(".row[aria-selected=true] .key").all_inner_texts()


def test_what_is_clicked_is_the_value_in_python(explore):
    tree = model()
    kernel = explore(tree)
    (widget,) = kernel.widgets
    heard = []
    widget.observe(lambda change: heard.append(change.new), "value")
    row(kernel.page, "embed").click()
    kernel.until(lambda: widget.value)
    assert widget.value == "['embed']"
    assert widget.selected[0] is tree["embed"]
    kernel.rest()
    assert heard == ["['embed']"]


def test_several_rows_are_selected_with_control_and_shift_and_the_last_one_is_the_value(explore):
    tree = model()
    kernel = explore(tree)
    (widget,) = kernel.widgets
    row(kernel.page, "embed").click()
    row(kernel.page, "n").click(modifiers=["Control"])
    kernel.rest()
    assert widget.selected_expressions == ["tree['embed']", "tree['n']"]
    assert widget.value == "['n']"
    row(kernel.page, "embed").click(modifiers=["Shift"])
    kernel.rest()
    assert widget.value == "['embed']"
    assert len(widget.selection) == len(kernel.page.locator(".row[aria-selected=true]").all()) > 2


def test_a_node_that_opens_is_drawn_once(explore):
    page = explore(model()).page
    page.evaluate("() => { fake.n = 0; fake.views[0].on('paint', () => fake.n++); fake.views[0].toggle(2); }")
    assert settled(page).evaluate("fake.n") == 1


def test_an_explorer_is_saved_as_a_page_that_needs_no_python(explore, tmp_path):
    kernel = explore(model(), alone=True)
    keep = "text => void (globalThis[Symbol.for('treeviz.source')] = text)"  # as widget_loader.js does
    kernel.page.evaluate(keep, widget_module_text())
    with kernel.page.expect_download() as download:
        choose(kernel.page, "Export", "Page (HTML)")
    download.value.save_as(tmp_path / "saved.html")
    kernel.page.goto((tmp_path / "saved.html").as_uri())
    assert labels(kernel.page) == ["tree", "embed", "layers", "[0…2] ×3", "b", "w", "n"]


def test_fields_that_are_none_are_one_line_until_someone_wants_them(explore):
    kernel = explore({"a": np.ones(3), "b": None, "c": None, "d": None, "layers": [np.ones(2)] * 4})
    assert labels(kernel.page) == ["tree", "a", "layers", "[0]", "[1]", "[2]", "[3]"], "nothing else is folded"
    (widget,) = kernel.widgets
    widget.value = "['c']"
    kernel.rest()
    assert labels(kernel.page)[:5] == ["tree", "a", "b", "c", "d"] and active(kernel.page) == "c"
    open_menu(kernel.page, "View")
    kernel.page.get_by_role("checkbox", name="None fields").uncheck()
    assert "c" not in labels(kernel.page) and active(kernel.page) == "tree"


def test_python_moves_the_view(explore):
    kernel = explore(model())
    (widget,) = kernel.widgets
    widget.value = "['layers'][2]['w']"
    kernel.rest()
    assert active(kernel.page) == "w" and selected(kernel.page) == ["w"]
    assert "['layers'][2]" in widget.expanded
    widget.query = "shape:4"
    kernel.rest()
    assert kernel.page.get_by_role("searchbox").input_value() == "shape:4"
    assert "of 3 matches" in status(kernel.page)
    widget.query = ""
    widget.expanded = ["tree", "['layers']"]
    kernel.rest()
    assert labels(kernel.page) == ["tree", "embed", "layers", "[0]", "[1]", "[2]", "n"]
    widget.expanded = [""]
    widget.selection = [1]
    kernel.rest()
    assert labels(kernel.page) == ["tree", "embed", "layers", "n"] and selected(kernel.page) == ["embed"]
    widget.value = ""
    kernel.rest()
    assert selected(kernel.page) == []


def test_what_python_selects_while_the_kernel_is_busy_is_not_undone_by_what_the_page_said_meanwhile(explore):
    kernel = explore(model())
    (widget,) = kernel.widgets
    messages = []
    deliver = widget._send

    def note(message, buffers=None):
        messages.append(message["state"])
        deliver(message, buffers)

    widget._send = note
    widget.value = "['embed']"
    widget.selection = [3, 4]
    widget.selection = []
    assert [set(state) for state in messages] == [{"value", "selection"}] * 3
    widget.selection = [3, 4]
    kernel.rest()
    told = [message.get("state", {}) for message in kernel.sent[0]]
    assert told and all(set(state) <= {"expanded"} for state in told)
    assert widget.selection == [3, 4] and len(selected(kernel.page)) == 2


def test_what_is_set_before_the_view_is_there_holds_in_it(open_page):
    tree = model()
    widget = tv.explore(tree)
    widget.expanded = ["", "['layers']"]
    widget.query = "layers"
    widget.value = "['layers'][1]"
    kernel = FakeKernel(open_page(PAGE), widget)
    kernel.show()
    assert selected(kernel.page) == ["[1]"]
    assert labels(kernel.page) == ["tree", "layers", "[0]", "[1]", "[2]"]
    assert widget.value == "['layers'][1]" and widget.query == "layers"


def test_a_view_says_what_is_open_as_python_knew_it_at_first(explore):
    kernel = explore(model())
    assert kernel.sent[0] == []
    (widget,) = kernel.widgets
    assert widget.expanded == ["tree", "['layers']", "['layers'][0]", "['layers'][1]", "['layers'][2]"]
    assert labels(kernel.page).count("w") == 3


def test_folding_is_heard_in_python(explore):
    kernel = explore(model())
    (widget,) = kernel.widgets
    choose(kernel.page, "View", "Collapse all")
    kernel.until(lambda: widget.expanded == [])
    row(kernel.page, "tree").dblclick()
    kernel.until(lambda: widget.expanded == ["tree"])


def test_fold_says_that_nothing_is_folded_until_it_is_pressed(explore):
    page = explore(model()).page
    fold = page.get_by_role("button", name="into one row")
    assert fold.get_attribute("aria-pressed") == "false" and "[0]" in labels(page)
    fold.click()
    assert fold.get_attribute("aria-pressed") == "true" and "[0…2] ×3" in labels(page)


def test_what_is_searched_for_is_heard_in_python(explore):
    kernel = explore(model())
    search(kernel.page, "dtype:f32")
    kernel.until(lambda: kernel.widgets[0].query == "dtype:f32")


def test_a_quick_hand_sends_one_message_and_nobody_answers_it(explore):
    kernel = explore(model())
    (widget,) = kernel.widgets
    kernel.page.evaluate(
        """() => {
            const tree = fake.views[0].grid.tree;
            const key = { key: 'ArrowDown', bubbles: true, composed: true };
            for (let i = 0; i < 20; i++) tree.dispatchEvent(new KeyboardEvent('keydown', key));
        }"""
    )
    kernel.rest()
    messages = [message for message in kernel.sent[0] if message["method"] == "update"]
    assert len(messages) == 1 and set(messages[0]["state"]) == {"selection", "value"}
    assert widget.value == "['n']"


def test_two_views_of_a_widget_agree(explore):
    kernel = explore(model())
    kernel.show(0, "b")
    one, other = (kernel.page.locator(f"#{place}") for place in "ab")
    one.get_by_role("treeitem", name="embed").click()
    other.locator(".row[aria-selected=true] .key", has_text="embed").wait_for()
    other.get_by_role("searchbox").fill("layers")
    kernel.rest()
    assert one.get_by_role("searchbox").input_value() == "layers"
    assert kernel.widgets[0].query == "layers"
    other.get_by_role("searchbox").fill("")
    choose(other, "View", "Collapse all")
    kernel.rest()
    assert one.get_by_role("treeitem").count() == 1


def test_linked_explorers_select_fold_and_sort_while_the_kernel_is_busy(explore):
    kernel = explore(model(), model())
    kernel.show(1, "b")
    one, other = (kernel.page.locator(f"#{place}") for place in "ab")
    kernel.page.evaluate("() => ['value', 'query', 'selection', 'expanded'].forEach((name) => fake.link(name))")
    one.get_by_role("treeitem", name="layers").click()
    kernel.page.keyboard.press("ArrowLeft")
    other.locator("[aria-expanded=false] .key", has_text="layers").wait_for()
    one.get_by_role("treeitem", name="embed").click(modifiers=["Control"])
    other.locator("[aria-selected=true]").nth(1).wait_for()
    one.locator(".head").get_by_role("button", name="bytes").click()
    one.get_by_role("button", name="bytes, sorted descending").wait_for()
    assert settled(kernel.page).locator("#a .row .key").all_inner_texts() == ["tree", "layers", "embed", "n"]
    assert other.locator(".row .key").all_inner_texts() == ["tree", "embed", "layers", "n"]
    kernel.rest()
    assert [(widget.value, len(widget.selection)) for widget in kernel.widgets] == [("['embed']", 2)] * 2


def test_a_view_that_is_taken_away_leaves_nothing(explore):
    kernel = explore(model())
    before = kernel.page.evaluate("() => [...fake.models[0].listeners.values()].flat().length")
    assert before > 0
    kernel.page.evaluate("() => document.getElementById('a').unmount()")
    assert kernel.page.evaluate("() => [...fake.models[0].listeners.values()].flat().length") == 0
    assert kernel.page.locator("#a").inner_html() == ""
    kernel.widgets[0].value = "['embed']"
    kernel.rest()


def test_a_path_that_is_not_there_changes_nothing_and_is_said(explore):
    kernel = explore(model())
    (widget,) = kernel.widgets
    row(kernel.page, "embed").click()
    kernel.rest()
    widget.value = "['nowhere']"
    kernel.rest()
    assert selected(kernel.page) == ["embed"]
    assert status(kernel.page) == "there is no ['nowhere'] in tree"
    assert widget.logged == ["value: there is no ['nowhere'] in tree"]
    assert "there is no ['nowhere']" in kernel.page.locator(".log").text_content()
    assert widget.value == "['nowhere']", "who set it may look whether it is there in another explorer"


@pytest.mark.parametrize(
    "evil", ["</script><script>alert(1)</script>", "\u202e\x00\ud800", "['a" * 1000, "<img src=x onerror=1>"]
)
def test_hostile_paths_and_queries_are_texts(explore, evil):
    kernel = explore({evil: {"a": 1}, "b": 2})
    (widget,) = kernel.widgets
    first = widget.table[1].keystr
    widget.value = first
    kernel.rest()
    assert len(selected(kernel.page)) == 1 and widget.selection == [1]
    widget.query = first
    kernel.rest()
    widget.value = first + "x"
    kernel.rest()
    assert kernel.page.locator(".log li").count() == 1


def test_a_new_tree_keeps_what_is_open_selected_searched_and_in_place_and_flashes_what_changed(explore):
    tree = model(60)
    kernel = explore(tree)
    (widget,) = kernel.widgets
    page = kernel.page
    widget.expanded = ["tree", "['layers']", "['layers'][30]"]
    widget.value = "['layers'][30]['w']"
    page.get_by_role("button", name="sort by bytes").or_(
        page.get_by_role("button", name="bytes", exact=True)
    ).first.click()
    page.get_by_role("button", name="bytes").first.click()
    page.get_by_role("button", name="bytes").first.click()
    page.locator(".tree").focus()
    kernel.rest()
    top = page.locator(".scroller").evaluate("element => element.scrollTop")
    assert top > 0
    new = {"a": 1, **tree, "layers": [dict(layer) for layer in tree["layers"]]}
    new["layers"][30]["w"] = jnp.ones((3, 4))
    new["layers"][31]["b"] = jnp.zeros(5)
    del new["embed"]
    widget.tree = new
    kernel.until(lambda: "changed" in status(page))
    assert status(page) == "2 changed, 1 added, 1 gone"
    assert widget.value == "['layers'][30]['w']" and widget.selected[0] is new["layers"][30]["w"]
    assert selected(page) == ["w"] and active(page) == "w"
    assert page.locator(".scroller").evaluate("element => element.scrollTop") == top
    assert page.evaluate("() => document.activeElement.shadowRoot.activeElement.className") == "tree"
    assert widget.expanded == ["tree", "['layers']", "['layers'][30]"]
    kernel.page.locator(".row.changed").first.wait_for(state="detached")


def test_what_flashes_is_the_closed_node_that_what_changed_is_in(explore):
    tree = model()
    kernel = explore(tree, depth=2, alone=True)
    (widget,) = kernel.widgets
    new = {**tree, "layers": [*tree["layers"][:2], {"w": jnp.ones((3, 4)), "b": tree["layers"][2]["b"]}]}
    kernel.page.evaluate(
        """() => {
            window.flashed = new Set();
            const see = () => {
              const inside = document.querySelector('.treeviz').shadowRoot;
              for (const key of inside.querySelectorAll('.row.changed .key')) flashed.add(key.textContent);
              requestAnimationFrame(see);
            };
            see();
        }"""
    )
    widget.tree = new
    kernel.until(lambda: status(kernel.page) == "1 changed")
    kernel.page.wait_for_function("() => flashed.size")
    assert kernel.page.evaluate("() => [...flashed]") == ["[2]"]
    kernel.page.locator(".row.changed").wait_for(state="detached")
    assert settled(kernel.page).locator(".row.marked .key").all_inner_texts() == ["[2]"], "until the next tree"
    widths = kernel.page.locator(".row[aria-level='3'] .what").evaluate_all(
        "(all) => all.map((each) => each.offsetWidth)"
    )
    assert len(widths) > 2 and len(set(widths)) == 1, "the mark takes no room from a type"
    kernel.page.get_by_role("button", name="1 changed").click()
    assert (status(kernel.page), active(kernel.page)) == ("1 of 1 match", "w")
    widget.tree = tree
    kernel.until(lambda: status(kernel.page) == "1 changed")
    assert widget.query == "is:changed" and active(kernel.page) == "w"


def test_a_row_that_is_gone_gives_its_selection_up(explore):
    tree = model()
    kernel = explore(tree)
    (widget,) = kernel.widgets
    row(kernel.page, "embed").click()
    kernel.rest()
    widget.tree = {"layers": tree["layers"]}
    kernel.rest()
    assert widget.selection == [] and widget.value == "" and selected(kernel.page) == []
    assert active(kernel.page) == "tree"


def test_many_replacements_in_a_row_end_with_the_last(explore):
    kernel = explore({"a": np.zeros(1)})
    (widget,) = kernel.widgets
    trees = [{"a": np.zeros(1), f"b{i}": i} for i in range(10)]
    for tree in trees:
        widget.tree = tree
    kernel.until(lambda: labels(kernel.page) == ["tree", "a", "b9"])


def test_requests_are_operations_and_integers_one_at_a_time_and_the_latest_wins(explore):
    kernel = explore(model())
    kernel.page.evaluate(
        """() => {
            window.answers = [];
            for (const row of [1, 2, 3])
              fake.views[0].request('detail', [row]).then((answer) => answers.push([row, answer?.content ?? null]));
        }"""
    )
    kernel.page.wait_for_function("() => answers.length === 1")
    assert kernel.page.evaluate("() => answers") == [[2, None]]
    kernel.rest()
    kernel.page.wait_for_function("() => answers.length === 3")
    answers = dict(kernel.page.evaluate("() => answers"))
    assert answers[1] is None and "error" not in answers[3] and answers[3]["op"] == "answer"
    asked = [message["content"] for message in kernel.sent[0] if message["method"] == "custom"]
    assert [(each["op"], each["numbers"][-1]) for each in asked if each["op"] == "detail"] == [
        ("detail", 1),
        ("detail", 3),
    ]


def test_an_answer_that_comes_twice_late_or_for_nobody_is_nothing(explore):
    kernel = explore(model())
    kernel.page.evaluate("() => { window.answered = 0; fake.views[0].request('detail', [1]).then(() => answered++); }")
    (message,) = kernel.page.evaluate("() => fake.models[0].outbox")
    kernel.deliver()
    for number in (message["content"]["id"], 123, None, "x"):
        answer = [0, {"op": "answer", "id": number, "sections": []}, []]
        kernel.page.evaluate("([model, content, parts]) => fake.send(model, content, parts)", answer)
    for content in (None, 5, {}, {"op": "unheard of"}, {"op": None}):
        kernel.page.evaluate("content => fake.send(0, content, [])", content)
    assert kernel.page.evaluate("() => answered") == 1


def test_a_request_about_a_tree_that_was_replaced_is_stale(explore):
    kernel = explore(model())
    kernel.page.evaluate(
        "() => { window.answer = 0; fake.views[0].request('detail', [1]).then((it) => { answer = it }); }"
    )
    kernel.widgets[0].tree = [1]
    kernel.rest()
    kernel.page.wait_for_function("() => answer === null")


def test_without_an_answer_the_view_says_so_and_stays_usable(explore):
    kernel = explore(model())
    page = kernel.page
    page.evaluate("() => { window.answer = null; fake.views[0].request('detail', [1]).then((it) => { answer = it }); }")
    page.locator("output", has_text="the kernel is busy or stopped").wait_for()
    assert page.locator(".log li").count() == 1
    search(page, "embed")
    assert "1 match" in status(page)
    kernel.rest()
    page.wait_for_function("() => answer")
    assert "the kernel is busy" not in status(page)


def test_a_kernel_that_is_gone_takes_nothing_but_itself(explore):
    kernel = explore(model())
    page = kernel.page
    page.evaluate("() => { fake.models[0].is_dead = true; fake.views[0].request('detail', [1]); }")
    row(page, "embed").click()
    page.locator("output", has_text="cannot send this to Python: Kernel is dead").wait_for()
    assert selected(page) == ["embed"]
    search(page, "key:w")
    assert labels(page).count("w") == 3


def test_the_module_that_travels_begins_at_once_and_is_unpacked_once_for_all_explorers(open_page):
    widgets = [tv.explore({f"leaf{i}": i}) for i in range(4)]
    page = open_page(PAGE, alone=True)
    kernel = FakeKernel(page, *widgets)
    page.evaluate(
        """async (esm) => {
            const import_module = async () => {
              const url = URL.createObjectURL(new Blob([esm], { type: 'text/javascript' }));
              return (await import(url)).default;
            };
            window.urls = 0;
            const modules = [await import_module()];
            const { createObjectURL } = URL;
            URL.createObjectURL = (blob) => (urls++, createObjectURL(blob));
            for (let i = 0; i < 3; i++) modules.push(await import_module());
            const ends = modules.map((module, i) => module.initialize({ model: fake.models[i] }));
            // This one is closed before it is there.
            ends.pop()();
            const renders = modules.map((module, i) => {
              const el = document.createElement('div');
              document.body.append(el);
              return module.render({ model: fake.models[i], el });
            });
            window.unmounts = await Promise.all(renders);
        }""",
        widgets[0]._esm,
    )
    page.wait_for_function("() => document.querySelectorAll('.treeviz').length === 4")
    for i in range(4):
        page.get_by_role("treeitem", name=f"leaf{i}").wait_for()
    assert page.evaluate("() => urls") == 3, "one for each module that travels, and none for what it unpacks"
    page.get_by_role("treeitem", name="leaf2").click()
    kernel.until(lambda: widgets[2].value == "['leaf2']")
    page.evaluate("() => unmounts.forEach((unmount) => unmount())")
    assert page.locator(".treeviz").count() == 0


def test_twenty_explorers_on_a_page_are_twenty(open_page):
    trees = [{f"leaf{i}": np.zeros(i + 1)} for i in range(20)]
    widgets = [tv.explore(tree) for tree in trees]
    places = "".join(f'<div id="p{i}"></div>' for i in range(20))
    kernel = FakeKernel(open_page(f'<!DOCTYPE html><html lang="en"><title>20</title>{places}</html>'), *widgets)
    for i in range(20):
        kernel.show(i, f"p{i}")
    kernel.page.locator("#p7").get_by_role("treeitem", name="leaf7").click()
    kernel.rest()
    assert [widget.value for widget in widgets] == [""] * 7 + ["['leaf7']"] + [""] * 12


def test_what_an_explorer_shows_of_15000_leaves_fits_on_the_screen(explore):
    tree = [{"w": i, "b": (i, i)} for i in range(5_000)]
    kernel = explore(tree, whole=True)
    kernel.widgets[0].expanded = ["tree", *(f"[{i}]" for i in range(1500))]
    kernel.widgets[0].value = "[4999]['b'][1]"
    kernel.rest()
    assert selected(kernel.page) == ["[1]"]
    assert len(kernel.widgets[0].expanded) == 1503
    n_elements = """() => [document, document.querySelector('.treeviz').shadowRoot]
        .reduce((n, root) => n + root.querySelectorAll('*').length, 0)"""
    assert kernel.page.evaluate(n_elements) <= 600
    choose(kernel.page, "View", "Expand all")
    kernel.rest()
    assert len(kernel.widgets[0].expanded) == 2000


@pytest.mark.parametrize("width", [1200, 420])
def test_nobody_is_left_out(explore, shots, width):
    kernel = explore(model(), width=width)
    (widget,) = kernel.widgets
    widget.value = "['layers'][1]['w']"
    kernel.rest()
    widget.value = "['nowhere']"
    kernel.rest()
    kernel.page.locator(".log summary").click()
    for number in range(2):
        theme = in_a_theme(kernel.page, number)
        shots(kernel.page, f"explorer-{width}-{theme}.png")
        assert violations(kernel.page) == []
