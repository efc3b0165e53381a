"""The explorer's widget without a browser: what it takes from a page, what it sends, how it is displayed, its end."""

from __future__ import annotations

import gc
import json
import logging
import threading
import weakref
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treeviz as tv

pytest.importorskip("anywidget")

import comm
import ipywidgets
import traitlets

from treeviz.views import view as notebook
from treeviz.views.widget.backend import MOST_NUMBERS, OPERATIONS
from treeviz.views.widget.widget import LONGEST_TEXT, MOST_EXPANDED, MOST_SELECTED

VIEW = "application/vnd.jupyter.widget-view+json"


class Wire(comm.DummyComm):
    """A comm that keeps what is sent, as JSON would carry it."""

    made: ClassVar[list[Wire]] = []

    def __init__(self, *args, **kwargs):
        self.sent: list[tuple[str, dict, list]] = []
        self.made.append(self)
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        self.sent.append((msg_type, json.loads(json.dumps(data)), buffers or []))


@pytest.fixture
def wires(monkeypatch):
    monkeypatch.setattr(comm, "create_comm", Wire)
    monkeypatch.setattr(Wire, "made", [])
    return Wire.made


@pytest.fixture
def explore(wires, explore):
    return explore


def params() -> dict:
    return {"layers": [{"b": jnp.zeros(4), "w": jnp.ones((3, 4))} for _ in range(3)], "n": 3}


def come(widget, data, buffers=()) -> None:
    """A message comes from the page."""
    widget.comm.handle_msg({"content": {"comm_id": widget.comm.comm_id, "data": data}, "buffers": list(buffers)})


def change(widget, **state) -> None:
    come(widget, {"method": "update", "state": state, "buffer_paths": []})


def request(widget, operation, *numbers, number=1, version=0) -> None:
    content = {"op": operation, "id": number, "version": version, "numbers": list(numbers)}
    come(widget, {"method": "custom", "content": content})


def answers(widget) -> list[dict]:
    sent = [data["content"] for kind, data, _ in widget.comm.sent if kind == "comm_msg" and data["method"] == "custom"]
    return [content for content in sent if content["op"] == "answer"]


def state(widget) -> tuple:
    return widget.value, widget.selection, widget.query, widget.expanded, widget._version, widget._packed


# What comes from the page


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "update",
        [],
        {},
        {"method": None},
        {"method": ["update"]},
        {"method": "close"},
        {"method": "update"},
        {"method": "update", "state": None},
        {"method": "update", "state": [1]},
        {"method": "update", "state": {"value": "x"}, "buffer_paths": [["value"]]},
        {"method": "update", "state": {}, "buffer_paths": [["_packed"], ["a", "b"]]},
        {"method": "custom"},
        {"method": "__init__", "state": {}},
    ],
    ids=str,
)
def test_a_message_that_is_none_of_ours_is_dropped_and_logged(explore, caplog, data):
    widget = explore(params())
    before = state(widget)
    come(widget, data, [b"bytes"])
    assert state(widget) == before
    assert widget.logged == ["dropped from the page: a message that is none of ours"]
    assert [(record.name, record.levelname) for record in caplog.records] == [("treeviz", "WARNING")]


def test_a_message_without_content_is_dropped(explore):
    widget = explore(params())
    for message in {}, {"content": {}}, {"content": None}, {"content": {"data": {"method": "custom", "content": {}}}}:
        widget.comm.handle_msg(message)
    assert widget.logged == ["dropped from the page: a message that is none of ours"] * 4


GOOD = {"op": "detail", "id": 1, "version": 0, "numbers": [1]}


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        "detail",
        ["detail", 1],
        {},
        {**GOOD, "path": "['n']"},
        {**GOOD, "code": "1"},
        {name: value for name, value in GOOD.items() if name != "version"},
        {**GOOD, "op": "__class__"},
        {**GOOD, "op": "close"},
        {**GOOD, "op": ["detail"]},
        {**GOOD, "op": None},
        {**GOOD, "id": "1"},
        {**GOOD, "id": None},
        {**GOOD, "id": 2**53},
        {**GOOD, "version": 0.0},
        {**GOOD, "numbers": None},
        {**GOOD, "numbers": 1},
        {**GOOD, "numbers": {"0": 1}},
        {**GOOD, "numbers": "1"},
        {**GOOD, "numbers": ["1"]},
        {**GOOD, "numbers": [1.0]},
        {**GOOD, "numbers": [True]},
        {**GOOD, "numbers": [[1]]},
        {**GOOD, "numbers": [10**400]},
        {**GOOD, "numbers": [-(2**53)]},
        {**GOOD, "numbers": [1] * (MOST_NUMBERS + 1)},
        {**GOOD, "op": "cancel", "numbers": [None]},
    ],
    ids=lambda content: str(content)[:60],
)
def test_a_request_with_anything_but_a_known_operation_and_integers_is_dropped_and_logged(explore, content):
    widget = explore(params())
    come(widget, {"method": "custom", "content": content})
    assert answers(widget) == []
    assert len(widget.logged) == 1 and widget.logged[0].startswith("dropped from the page: ")


def test_of_very_many_wrong_messages_few_are_answered_and_logged(explore, caplog):
    widget = explore({"a": 1})
    widget.comm.sent.clear()
    for i in range(500):
        come(widget, {"method": "custom", "content": {"op": i}})
        come(widget, {"method": "close"})
        change(widget, selection=[99 + i], no_such_trait=i)
    n_logs = sum(data.get("content", {}).get("op") == "log" for _, data, _ in widget.comm.sent)
    assert n_logs == len(widget.logged) == len(caplog.records) == 16 + len([32, 64, 128, 256, 512, 1024])
    assert widget.logged[-1].endswith(" (1,024 until now)")


@pytest.mark.parametrize("first", [{"op": "detail"}, {"op": "detail", "id": 1, "version": 0, "numbers": [1]}])
def test_a_page_that_sends_back_all_that_it_gets_comes_to_rest(explore, first):
    widget = explore({"a": 1})
    waiting, n_messages = [{"method": "custom", "content": first}], 0
    while waiting:
        n_messages += 1
        assert n_messages < 10
        widget.comm.sent.clear()
        come(widget, waiting.pop())
        waiting += [data for _, data, _ in widget.comm.sent if data["method"] in ("custom", "update")]


def test_bytes_beside_a_request_are_not_looked_at(explore):
    widget = explore(params())
    come(widget, {"method": "custom", "content": GOOD}, [b"x"])
    assert answers(widget) == [] and len(widget.logged) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {
        "op": st.sampled_from([*sorted(OPERATIONS), "cancel"]) | JSON,
        "id": st.integers(-3, 99) | JSON,
        "version": st.just(0) | JSON,
        "numbers": st.lists(st.integers(-2, 12), max_size=9) | JSON,
    }
)
TRAITS = st.dictionaries(st.sampled_from(["value", "selection", "query", "expanded", "_packed", "layout"]), JSON)


@settings(max_examples=25)
@given(
    st.lists(
        REQUESTS.map(lambda content: {"method": "custom", "content": content})
        | TRAITS.map(lambda state: {"method": "update", "state": state})
        | JSON.map(lambda data: {"method": "custom", "content": data})
        | JSON,
        max_size=6,
    )
)
def test_whatever_a_page_sends_the_widget_stays_whole_and_nothing_is_raised(messages):
    tree = {"a": np.zeros((2, 3)), "b": [1, "text", print]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "create_comm", Wire)
        widget = tv.explore(tree)
    problems = []
    widget.log = logging.Logger("what ipywidgets says of exceptions")
    widget.log.addFilter(lambda record: problems.append(record))
    try:
        for data in messages:
            come(widget, data)
        assert problems == []
        assert all(type(row) is int and 0 <= row < len(widget.table) for row in widget.selection)
        assert all(type(part) is str for part in (widget.value, widget.query, *widget.expanded))
        assert widget.tree is tree and widget._version == 0 and widget._packed
        request(widget, "detail", 1, number=100)
        assert answers(widget)[-1]["id"] == 100 and "error" not in answers(widget)[-1]
    finally:
        widget.close()


@pytest.mark.parametrize("row", [-1, 9, 10**6, 2**52])
def test_of_a_row_that_is_not_there_the_answer_is_stale(explore, row):
    widget = explore({"a": 1})
    for operation in OPERATIONS - {"whole"}:
        request(widget, operation, row)
    assert answers(widget) == [{"op": "answer", "id": 1, "stale": True}] * (len(OPERATIONS) - 1)
    assert widget.logged == []


def test_of_a_tree_that_was_replaced_the_answer_is_stale(explore):
    widget = explore({"a": 1})
    widget.tree = {"a": 2}
    request(widget, "detail", 1, version=0)
    request(widget, "detail", 1, version=1)
    request(widget, "detail", 1, version=7)
    assert [answer.get("stale", False) for answer in answers(widget)] == [True, False, True]


def test_requests_that_come_twice_or_out_of_order_are_answered_each_for_itself(explore):
    tree = {"a": np.zeros(3), "b": np.ones(3)}
    widget = explore(tree)
    for number, row in (3, 1), (1, 2), (3, 1), (2, 1):
        request(widget, "statistics", row, number=number)
    first, other, again, late = answers(widget)
    assert [answer["id"] for answer in (first, other, again, late)] == [3, 1, 3, 2]
    assert first == again and first["sections"] == late["sections"] != other["sections"]


def test_a_request_that_was_cancelled_before_it_came_is_answered_with_little(explore):
    tree = {"a": np.zeros(3)}
    widget = explore(tree)
    request(widget, "cancel", 5)
    request(widget, "cancel")
    request(widget, "detail", 1, number=5)
    request(widget, "detail", 1, number=6)
    cancelled, whole = answers(widget)
    assert len(cancelled.get("sections", [])) < len(whole["sections"])
    assert widget.logged == []


def test_cancelling_without_end_is_remembered_within_bounds(explore):
    widget = explore({"a": 1})
    for number in range(1000):
        request(widget, "cancel", number)
    assert len(widget._cancelled) <= 200


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("value", 3),
        ("value", None),
        ("value", ["n"]),
        ("value", {"a": 1}),
        ("value", "x" * (LONGEST_TEXT + 1)),
        ("query", 1.5),
        ("query", "x" * (LONGEST_TEXT + 1)),
        ("selection", "1"),
        ("selection", 1),
        ("selection", [1.5]),
        ("selection", [None]),
        ("selection", ["1"]),
        ("selection", [[1]]),
        ("selection", {"0": 1}),
        ("selection", [1] * (MOST_SELECTED + 1)),
        ("expanded", "tree"),
        ("expanded", [1]),
        ("expanded", [["tree"]]),
        ("expanded", ["x" * LONGEST_TEXT] * 11),
        ("_packed", "AAAA"),
        ("_esm", "alert(1)"),
        ("_version", 5),
        ("_token", "other"),
        ("_live", {}),
        ("_changes", ""),
        ("layout", "IPY_MODEL_of_another"),
        ("comm", None),
        ("keys", ["value"]),
        ("_backend", None),
        ("tree", [1]),
        ("no such trait", 1),
        ("__class__", "int"),
    ],
    ids=lambda case: str(case)[:30],
)
def test_what_the_page_may_not_set_or_not_to_that_stays_as_it_is_and_is_logged(explore, name, wrong):
    tree = params()
    widget = explore(tree)
    change(widget, value="['n']", query="w", expanded=["tree"])
    before, backend = state(widget), widget._backend
    if name == "_live":
        widget._live = {"state": "running"}
    change(widget, **{name: wrong})
    assert state(widget) == before
    assert widget._backend is backend and widget.tree is tree and widget.comm is not None
    assert len(widget.logged) == 1 and widget.logged[0].startswith("dropped from the page: ")


def test_rows_that_are_not_there_are_taken_out_of_what_the_page_selects(explore):
    widget = explore({"a": 1, "b": 2})
    change(widget, selection=[2, -1, 99, 10**30, 1, 2])
    assert widget.selection == [2, 1] and widget.value == "['a']"
    change(widget, selection=[True])
    assert widget.selection == [1] and type(widget.selection[0]) is int


def test_a_path_that_is_not_there_raises_nothing_and_is_logged_in_a_printable_way(explore):
    widget = explore({"a": 1})
    change(widget, value="\x1b[31m\u202e['nowhere']\x00" + "x" * 50_000)
    assert widget.selection == []
    (line,) = widget.logged
    assert line.isprintable() and len(line) < 500


def test_more_than_two_thousand_open_nodes_are_the_first_two_thousand(explore):
    widget = explore([[0]] * 3000)
    paths = ["tree", *(f"[{i}]" for i in range(3000))]
    widget.expanded = paths
    assert widget.expanded == paths[:MOST_EXPANDED]
    change(widget, expanded=paths)
    assert widget.expanded == paths[:MOST_EXPANDED]


def test_what_the_page_said_is_not_said_back_to_it(explore):
    widget = explore(params())
    widget.comm.sent.clear()
    change(widget, selection=[1], value="['layers']", query="w", expanded=["tree"])
    assert [data["method"] for _, data, _ in widget.comm.sent if data["method"] != "echo_update"] == []
    assert (widget.selection, widget.value, widget.query) == ([1], "['layers']", "w")


def test_two_hundred_lines_of_the_log_are_kept_and_the_logger_has_them_all(explore, caplog):
    widget = explore(params())
    with caplog.at_level(logging.WARNING, "treeviz"):
        for i in range(250):
            widget.value = f"['{i}']"
    assert len(widget.logged) == 200 and "['249']" in widget.logged[-1]
    assert len(caplog.records) == 250


def test_what_fails_while_a_row_is_looked_at_is_the_answer_and_in_the_log(explore, monkeypatch):
    widget = explore(params())

    def fail(*_):
        raise RuntimeError("no \x00 such " + "x" * 5000)

    monkeypatch.setattr(widget._backend, "answer", fail)
    request(widget, "detail", 1)
    (answer,) = answers(widget)
    assert answer["error"].startswith("RuntimeError: no") and len(answer["error"]) < 600
    (line,) = widget.logged
    assert line.isprintable() and "detail of row [1]" in line


def test_arrays_that_were_deleted_or_donated_and_trees_that_were_changed_are_answered_in_words(explore):
    tree = {"deleted": jnp.ones(3), "donated": jnp.ones(3), "gone": jnp.ones(3), "list": [1, 2]}
    widget = explore(tree)
    tree["deleted"].delete()
    jax.jit(lambda x: x * 2, donate_argnums=0)(tree["donated"])
    del tree["gone"]
    tree["list"].clear()
    tree["list"] = tree  # now the tree holds itself
    gc.collect()
    for number, row in enumerate(range(len(widget.table))):
        for operation in sorted(OPERATIONS - {"whole"}):
            request(widget, operation, row, *([0, 0] if operation == "slice" else []), number=number)
    said = [answer for answer in answers(widget) if "error" in answer]
    assert said == [] and widget.logged == []
    by_row = {widget.table[row].keystr: [] for row in range(len(widget.table))}
    for answer in answers(widget):
        by_row[widget.table[answer["id"]].keystr].append(json.dumps(answer))
    assert "deleted" in "".join(by_row["['deleted']"])
    assert "freed" in "".join(by_row["['gone']"])
    for row in range(len(widget.table)):
        widget.selection = [row]
        assert len(widget.selected_paths) == 1
        try:
            widget.selected
        except ReferenceError as error:
            assert "was freed" in str(error)


# Threads


def test_threads_that_change_a_widget_at_once_lose_nothing(explore):
    tree = {f"k{i}": i for i in range(50)}
    widget = explore(tree)
    problems: list[BaseException] = []
    begin = threading.Barrier(5)

    def go_on(act):
        try:
            begin.wait()
            for i in range(300):
                act(i)
        except BaseException as error:
            problems.append(error)

    acts = [
        lambda i: setattr(widget, "value", f"['k{i % 50}']"),
        lambda i: setattr(widget, "query", f"query {i}"),
        lambda i: change(widget, selection=[i % 50 + 1], value=widget.table[i % 50 + 1].keystr),
        lambda i: widget.follow({"step": i}),
        lambda i: i % 50 or setattr(widget, "tree", tree),
    ]
    threads = [threading.Thread(target=go_on, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert widget.query == "query 299" and widget._live == {"step": 299} and widget._version == 6
    assert widget.value == widget.table[widget.selection[0]].keystr
    page: dict = {}
    for _, data, _ in widget.comm.sent:
        page.update(data["state"] if data.get("method") == "update" else {})
    assert (page["query"], page["_live"], page["_version"]) == ("query 299", {"step": 299}, 6)


def test_a_thread_that_sets_a_trait_while_another_holds_its_own_back_is_heard_at_once(explore):
    widget = explore(params())
    widget.comm.sent.clear()
    with widget.hold_sync():
        widget.query = "mine"
        thread = threading.Thread(target=setattr, args=(widget, "value", "['n']"))
        thread.start()
        thread.join()
        assert [set(data["state"]) for _, data, _ in widget.comm.sent] == [{"value", "selection"}]
    assert [set(data["state"]) for _, data, _ in widget.comm.sent] == [{"value", "selection"}, {"query"}]


# Traits and links


@pytest.mark.parametrize(
    ("name", "wrong"), [("value", 3), ("selection", ["x"]), ("selection", 1), ("query", None), ("expanded", [1])]
)
def test_what_python_sets_a_trait_to_is_validated(explore, name, wrong):
    widget = explore(params())
    before = state(widget)
    with pytest.raises(traitlets.TraitError):
        setattr(widget, name, wrong)
    assert state(widget) == before


def test_traits_are_observed_linked_and_feed_functions(explore):
    one, other = explore(params()), explore(params())
    heard = []
    one.observe(heard.append, ["value", "query", "selection", "expanded"])
    link = traitlets.link((one, "value"), (other, "value"))
    one.value = "['n']"
    assert other.selection == one.selection == [len(one.table) - 1]
    other.value = ""
    assert one.selection == []
    link.unlink()
    assert {change["name"] for change in heard} == {"value", "selection"}
    seen = []
    out = ipywidgets.interactive_output(lambda path: seen.append(path), {"path": one})
    one.value = "['layers']"
    assert seen == ["", "['layers']"]
    one.unobserve_all("value")
    control = ipywidgets.interactive(lambda path: seen.append(path), path=one)
    assert control.children[0] is one and control.kwargs_widgets == [one]
    control.update()
    assert seen[2:] and set(seen[2:]) == {"['layers']"}
    control.close()
    out.close()


def test_two_models_carry_a_tree_of_any_size_and_twenty_explorers_are_forty(wires, explore):
    explore([{"w": i, "b": (i, i)} for i in range(3000)])
    assert len(wires) == 2
    widgets = [explore({f"leaf{i}": i}) for i in range(19)]
    assert len(wires) == 40
    for i, widget in enumerate(widgets):
        change(widget, selection=[1])
        request(widget, "detail", 1)
        assert widget.value == f"['leaf{i}']" and len(answers(widget)) == 1


# How it is displayed


class Shell:
    """As much of IPython as is asked."""

    def __init__(self, *, kernel=True, html=True):
        self.kernel = object() if kernel else None
        self.display_formatter = SimpleNamespace(active_types=["text/plain", *(["text/html"] if html else [])])
        self.published: list[SimpleNamespace] = []
        self.display_pub = self
        self.events = self
        self.callbacks: dict[str, list] = {"post_execute": [], "post_run_cell": []}

    def publish(self, data, metadata=None, transient=None, update=False):
        self.published.append(SimpleNamespace(data=data, id=(transient or {}).get("display_id"), update=update))

    def register(self, event, callback):
        self.callbacks[event].append(callback)

    def unregister(self, event, callback):
        self.callbacks[event].remove(callback)

    def end_cell(self):
        for callback in list(self.callbacks["post_execute"]):
            callback()


@pytest.fixture
def in_shell(monkeypatch):
    def enter(**options):
        shell = Shell(**options)
        monkeypatch.setattr(notebook, "ipython_shell", lambda: shell)
        return shell

    return enter


def test_a_notebook_is_given_the_widget_and_beside_it_a_page_that_stands_in_for_it(explore, in_shell):
    shell = in_shell()
    widget = explore(params(), name="params")
    widget._ipython_display_()
    shown, page = shell.published
    assert shown.data[VIEW]["model_id"] == widget.model_id
    assert shown.data["text/html"] == "" and shown.data["text/plain"].startswith("explore: params")
    assert page.id == widget._token and not page.update
    assert VIEW not in page.data and f'data-treeviz-fallback="{widget._token}"' in page.data["text/html"]
    assert "layers" in page.data["text/html"] and "layers" in page.data["text/plain"]
    assert "\x1b" not in page.data["text/plain"]


def test_the_page_is_renewed_once_after_the_cell_however_often_the_tree_was_replaced(explore, in_shell):
    shell = in_shell()
    widget = explore({"a": 1})
    widget._ipython_display_()
    del shell.published[:]
    for i in range(5):
        widget.tree = {"a": 1, f"b{i}": i}
    assert shell.published == []
    shell.end_cell()
    (renewed,) = shell.published
    assert renewed.update and renewed.id == widget._token
    assert "b4" in renewed.data["text/html"] and "b3" not in renewed.data["text/plain"]
    shell.end_cell()
    assert len(shell.published) == 1 and shell.callbacks["post_execute"] == []
    widget.tree = {"c": 1}
    shell.end_cell()
    assert len(shell.published) == 2


def test_what_was_never_displayed_or_is_closed_renews_no_page(explore, in_shell):
    shell = in_shell()
    widget = explore({"a": 1})
    widget.tree = {"a": 2}
    shell.end_cell()
    assert shell.published == [] and shell.callbacks["post_execute"] == []
    widget._ipython_display_()
    widget.tree = {"a": 3}
    del shell.published[:]
    widget.close()
    shell.end_cell()
    assert shell.published == [] and shell.callbacks["post_execute"] == []


def test_a_terminal_is_given_text(explore, in_shell):
    shell = in_shell(kernel=False, html=False)
    explore(params())._ipython_display_()
    (shown,) = shell.published
    assert "text/html" not in shown.data and "layers" in shown.data["text/plain"]


def test_where_outputs_are_pages_of_their_own_one_bundle_holds_both(explore, in_shell, monkeypatch):
    shell = in_shell()
    monkeypatch.setitem(__import__("sys").modules, "google.colab", SimpleNamespace())
    widget = explore(params())
    widget._ipython_display_()
    (shown,) = shell.published
    assert set(shown.data) == {VIEW, "text/html", "text/plain"} and "layers" in shown.data["text/html"]


def test_a_bundle_holds_what_is_asked_for(explore):
    widget = explore(params())
    bundle = lambda **asked: widget._repr_mimebundle_(**asked)[0]
    assert set(bundle()) == {VIEW, "text/html", "text/plain"}
    assert set(bundle(include={"text/plain"})) == {"text/plain"}
    assert set(bundle(exclude={VIEW})) == {"text/html", "text/plain"}
    assert set(bundle(include={VIEW, "text/html"}, exclude={"text/html"})) == {VIEW}
    assert bundle(include={"image/png"}) == {}
    view = tv.render(params())
    assert bundle()["text/html"] == view._repr_html_()
    assert bundle()["text/plain"] == view._repr_mimebundle_(include={"text/plain"})["text/plain"]


def test_a_closed_widget_is_displayed_as_a_line(explore, in_shell):
    shell = in_shell()
    widget = explore(params())
    widget.close()
    widget._ipython_display_()
    assert [shown.data for shown in shell.published] == [{"text/plain": "explore: closed"}]
    assert widget._repr_mimebundle_() == ({"text/plain": "explore: closed"}, {})


# The end


def test_close_lets_go_of_everything(wires, in_shell):
    class Heavy:
        """What an observer holds."""

        def hear(self, change): ...

    shell = in_shell()
    tree = params()
    widget = tv.explore(tree, keep=True)
    heavy = Heavy()
    widget.observe(heavy.hear, "value")
    widget.on_msg(lambda *args, heavy=heavy: None)
    widget._ipython_display_()
    widget.tree = tree = {**tree}
    widget.value = "['n']"
    refs = [weakref.ref(tree["layers"][0]["w"]), weakref.ref(widget._backend), weakref.ref(heavy)]
    held = ipywidgets.Widget.get_manager_state()["state"]
    models = [wire.comm_id for wire in wires]
    assert set(models) <= set(held)
    widget.close()
    shell.end_cell()
    del tree, heavy
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]
    assert [wire.sent[-1][0] for wire in wires] == ["comm_close"] * 2
    assert not set(models) & set(ipywidgets.Widget.get_manager_state()["state"])
    assert len(widget._packed) == 0
    widget.value = "['n']"
    widget.close()
    assert all(wire.sent[-1][0] == "comm_close" for wire in wires), "it goes on to talk"
    ref = weakref.ref(widget)
    wires.clear()
    del widget
    gc.collect()
    assert ref() is None


def test_messages_that_come_after_the_end_are_nothing(explore, wires):
    widget = explore(params())
    wire = widget.comm
    widget.close()
    n_sent = len(wire.sent)
    for data in (
        {"method": "custom", "content": GOOD},
        {"method": "update", "state": {"value": "['n']", "selection": [1]}, "buffer_paths": []},
        {"method": "request_state"},
        None,
    ):
        wire.handle_msg({"content": {"data": data}, "buffers": []})
    assert len(wire.sent) == n_sent and widget.selection == []


def test_closing_all_widgets_closes_explorers_too(explore):
    tree = params()
    widget = explore(tree, keep=True)
    widget.close_all()
    assert repr(widget) == "explore: closed"
