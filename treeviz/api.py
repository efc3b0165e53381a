"""The public functions for single trees: walk, render, explore, check, stackable and overlay."""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from treeviz.prepare import Prepared, check_flag, check_options, other_trees, prepare, scanned
from treeviz.tree.facts import Note
from treeviz.tree.layers import Stacked
from treeviz.tree.runtime import gc_paused
from treeviz.tree.table import TreeTable
from treeviz.views.text.terminal import RED, paragraph, terminal_color
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.analysis.checks.rule import TreeFinding
    from treeviz.analysis.checks.rule import Use as CheckUse
    from treeviz.analysis.checks.rules import Result
    from treeviz.analysis.compare.difference import Differences
    from treeviz.prepare import AnyColumn
    from treeviz.views.widget.widget import TreeWidget


# The implementation of `overlay`


class TreeOverlay(TreeView):
    """The leaves of a tree with the spec that each gets from a prefix, and all mismatches.

        x, params = jnp.ones((8, 3)), {"w": jnp.ones((3, 4))}
        view = treeviz.overlay((0, {"w": 1}), (x, params))
        print(view)
        view.differences            # [1]['w']: size: axis 1 has 4 ([0] has 8)

    Attributes:
      differences: Every mismatch as a `Difference`, in row order; empty if the prefix fits.
    """

    differences: Differences

    def __init__(self, table: TreeTable, shown: Sequence[str], differences: Differences) -> None:
        super().__init__(table, table.chosen(shown))
        object.__setattr__(self, "differences", differences)

    def text(self, *, width: int | None = None, **options: Any) -> str:
        """The table as aligned text, and below it hints that a line may have cut, such as corrected specs."""
        from treeviz.differ import long_hints

        shown = super().text(width=width, **options)
        return "\n".join([shown, *long_hints(self.differences, width, shown)])


# The implementation of `check`, `render(check=True)` and `treeviz check`

_COLUMNS = ("elements", "bytes", "nan", "inf")
_MOST_LINES = 10  # of one rule, where all are printed


class TreeFindings(list["TreeFinding"]):
    """A list of findings, the worst first. Prints one line for each, and a fix for the first of each rule.

    On a terminal, `print` wraps the lines, and errors are red.
    """

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Pairs of a line and the level of its finding; "" for other lines."""
        n_all, n_shown = Counter(finding.code for finding in self), Counter[str]()
        for finding in self:
            n, code = n_shown[finding.code] + 1, finding.code
            n_shown[code] = n
            if n <= _MOST_LINES:
                yield str(finding), finding.level
                yield from ((f"    {line}", "") for line in finding.fix.split("\n") if n == 1 and finding.fix)
            elif n == n_all[code]:
                yield f"… {n - _MOST_LINES:,} more of {code}", ""

    def __repr__(self) -> str:
        return "\n".join([line for line, _ in self._lines()]) or "no finding"

    def __str__(self) -> str:
        color, lines = terminal_color(sys.stdout), []
        for line, level in self._lines():
            style = RED if color and level == "error" else ""
            lines += paragraph(line, "", style=style, in_files=False) if level else [line]
        return "\n".join(lines) or "no finding"


class CheckedTree(TreeView):
    """A tree with a badge in the row of each finding, for `treeviz check`. As text it lists only the findings."""

    findings: TreeFindings

    def __init__(self, table: TreeTable, found: TreeFindings) -> None:
        super().__init__(table, table.chosen([name for name in _COLUMNS if name in table.columns]))
        object.__setattr__(self, "findings", found)

    def lines(self, width: int | None = None) -> Iterator[str]:
        yield from repr(self.findings).split("\n")

    def json(self) -> str:
        """The JSON of a view with `findings`, [{code, level, path, row, sentence, fix}, …]."""
        names = ("code", "level", "path", "row", "sentence", "fix")
        rows = json.dumps([{name: getattr(finding, name) for name in names} for finding in self.findings])
        return f'{super().json()[:-1]},\n"findings": {rows}}}'


def checked_tree(tree: Any, *, name: str, for_: CheckUse, values: bool, ignore: Collection[str]) -> CheckedTree:
    """The findings of `check` as a view of the tree."""
    from treeviz.analysis.checks.rules import findings, with_badges

    table, results = _checked(tree, name, for_, values, False, ignore)
    with gc_paused():
        return CheckedTree(with_badges(table, results), TreeFindings(findings(table, results)))


def _checked(
    tree: Any, name: str, for_: CheckUse, values: bool, roundtrip: bool, ignore: str | Collection[str]
) -> tuple[TreeTable, list[Result]]:
    from treeviz.analysis.checks.rule import USES, Checked
    from treeviz.analysis.checks.rules import run_rules

    if for_ not in USES:
        raise ValueError(f"check: for_ must be one of {', '.join(map(repr, USES))}, not {for_!r}")
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    for code in ignore:
        _rule(code)
    table, nodes = scanned(tree, None, name)
    if values:
        from treeviz.analysis.stats import value_statistics

        columns, reasons = value_statistics(table, nodes)
        table = table.with_columns(*columns).with_notes({row: (Note("info", text),) for row, text in reasons.items()})
    with gc_paused():
        return table, run_rules(Checked(table, nodes, for_), roundtrip=roundtrip, ignore=ignore)


def with_findings(prepared: Prepared, use: bool | CheckUse) -> Prepared:
    """The tree with a badge for each finding; see `check` of `treeviz.render`."""
    from treeviz.analysis.checks.rule import USES, Checked
    from treeviz.analysis.checks.rules import run_rules, with_badges

    use = "any" if use is True else use
    if use not in USES:
        raise TypeError(f"check= must be True or one of {', '.join(map(repr, USES))}.")
    with gc_paused():
        table = with_badges(prepared.table, run_rules(Checked(prepared.table, prepared.nodes, use)))
    return prepared._replace(table=table)


def explain(code: str) -> str:
    """Explain a rule: what it detects, why, and when it can be ignored.

    Raises:
      ValueError: The rule does not exist.
    """
    rule = _rule(code.upper())
    option = {
        "values": " It reads the values: check(tree, values=True).",
        "roundtrip": " It unflattens nodes, which runs their code: check(tree, roundtrip=True).",
    }.get(rule.needs, "")
    without = f"To leave it out: check(tree, ignore=[{rule.code!r}]).{option}"
    return f"{rule.code} ({rule.level})\n\n{rule.about}\n\n{without}"


def _rule(code: str):
    from treeviz.analysis.checks.rules import RULES

    if code not in RULES:
        near = difflib.get_close_matches(str(code), RULES, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"check: there is no rule {code!r}; there are {', '.join(sorted(RULES))}.{hint}")
    return RULES[code]


def walk(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None, name: str = "tree") -> TreeTable:
    """Convert a pytree to a table with one row per node, depth first, as JAX sees it.

    The walk is iterative: a tree may be 200,000 levels deep. Cycles, flatten functions that raise, keys that cannot
    be sorted and an exhausted budget are reported in their rows. No array values are read, and the table keeps no
    references to the tree. Takes about 3 µs per leaf.

        table = tv.walk(params)
        [(row.keystr, row.shape) for row in table.leaves]

    Args:
      tree: Any pytree: parameters, a model, an optimizer state, gradients, a tree of
        `jax.ShapeDtypeStruct`, tracers inside `jit`, or a bare `PyTreeDef`.
      is_leaf: As in `jax.tree.leaves`: nodes for which it returns True are shown as leaves.
      name: The name of the root, in its row and in expressions.

    Returns:
      A `TreeTable` with columns of facts (type, shape, dtype, sharding …) and sizes.
    """
    return scanned(tree, is_leaf, name)[0]


def render(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    values: bool = False,
    stacked: Stacked = (),
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int | None = None,
    whole: bool = False,
    check: bool | CheckUse = False,
    beside: Mapping[str, Any] | None = None,
    **trees: Any,
) -> TreeView:
    """Show any pytree: structure, shapes, dtypes, sizes, sharding and static fields of every leaf and subtree.

    The result displays itself in a notebook; in a terminal, `print` it; in a script, call `.save("x.html")` or
    `.show()`. It is a snapshot that keeps no references to arrays. Nothing is computed, copied or transferred from a
    device unless `stats`, `values` or a function in `columns` requires it. Takes about 3 to 20 µs per leaf.

        tv.render(params, grads=grads, opt_state=opt_state, stats=True)   # side by side

    Args:
      tree: Any pytree; see `walk`.
      name: The name of the root, in its row and in copied expressions.
      columns: The columns to show first: names from `view.table.columns`; functions of a leaf, optionally as
        `treeviz.column(function, rollup="sum")`; or `Column` objects. The page also offers the other columns.
      stats: Add min, max, mean, std, rms, the counts of zeros, NaN and infinities, and a histogram of magnitudes,
        for every array and every subtree. They are computed on the array's device, and all results are
        transferred at once. Takes about 4 ns per element on a CPU. Arrays that are partly in another process, or have
        more than 10^9 elements in host memory, are not read; their rows report this.
      values: Draw the values of the arrays with treescope in the details of the rows, and show the first 20 leaves of
        types unknown to JAX as treescope does. If treescope fails, the page draws the values itself. Copies a bounded
        part of every array to the host: see `treeviz.integrations.treescope`.
      stacked: Globs of the key paths of arrays (or of nodes above them) that hold all layers of a model along their
        first axis, as in a model that scans over layers: "layers/*". {"layers/*": 1} names another axis. Such an array
        gets a row with statistics for each layer, which `view.find("layers/w[3]")` finds. These rows are not leaves
        for JAX, and are not counted as leaves.
      is_leaf: As in `jax.tree.leaves`.
      depth: The number of levels that are open at first. None: as many as fit.
      whole: Walk, read (see `stats`) and send the whole tree. By default a display takes about 5 s, and its page at
        most 3 MB: 100,000 rows, 2 s for the walk of each tree, 2.5 s for the values of arrays in host memory. Rows and
        values that are left out are counted.
      check: Show the findings of `check` as badges, for `view.find("T101")`: True, or the use of the tree, such as
        "jit".
      beside: Other trees by name, for names that are also options.
      **trees: Other trees. Their subtrees with the structure of `tree` (gradients, Adam's mu and nu, an average;
        leaves may be missing) become columns, at most twelve per tree: of dtypes, or with `stats` of root mean
        squares. The page's column menu has more. A mask, labels or `in_axes` may also be a prefix of `tree`: see
        `overlay`.

    Raises:
      TypeError: A keyword is neither an option nor a tree, or a tree was given for an option.
      ValueError: `columns` names a column that the table does not have, or a glob in `stacked` matches no array.
    """
    check_flag("values", values)
    check_options(name=name, columns=columns, is_leaf=is_leaf, depth=depth, stacked=stacked)
    options = {"name": name, "columns": columns, "stats": stats, "stacked": stacked, "is_leaf": is_leaf}
    prepared = prepare(tree, trees=other_trees("render", beside, trees), whole=whole, **options)
    if check:
        prepared = with_findings(prepared, check)
    drawn = None
    if values:
        from treeviz.integrations.treescope import pictures

        drawn = pictures(prepared.table, prepared.nodes)
    return TreeView(prepared.table, prepared.columns, depth=depth, whole=whole, values=drawn)


def explore(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    stacked: Stacked = (),
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int | None = None,
    whole: bool = False,
    check: bool | CheckUse = False,
    keep: bool = False,
    beside: Mapping[str, Any] | None = None,
    **trees: Any,
) -> TreeWidget:
    """Explore any pytree in a notebook, and react to clicks in Python.

        widget = tv.explore(params)
        widget.value = "['layers'][0]['w']"        # go there; .query, .selection and .expanded likewise
        widget.observe(lambda change: print(change.new), "value")
        widget.selected                            # the selected nodes
        widget.selected_paths                      # their key paths, for a mask: see `TreeWidget.selected_paths`
        widget.tree = new_params                   # rows keep their place, changed ones flash

    Searching, sorting and folding work while the kernel is busy. Without a kernel, such as in a saved notebook, the
    output is the page of `render`. The widget keeps no references to the tree.

    Args:
      tree: Any pytree; see `walk`. For a `treeviz.diff`, which accepts no options here, the details of a row show
        statistics and a window of values of both trees and of their difference.
      keep: Keep the tree alive while the widget is open.
      name, columns, stats, stacked, is_leaf, depth, whole, check, beside, **trees: As for `render`.

    Raises:
      TypeError: A keyword is neither an option nor a tree.
      ValueError: `columns` names a column that the table does not have, or a glob in `stacked` matches no array.
    """
    from treeviz.differ import TreeDiff
    from treeviz.explorer import Explored, ExploredDiff
    from treeviz.views.widget.widget import TreeWidget

    def make_view(tree: Any, trees: Mapping[str, Any]) -> tuple[TreeView, list[Any]]:
        options = {"name": name, "columns": columns, "stats": stats, "stacked": stacked, "is_leaf": is_leaf}
        prepared = prepare(tree, trees=trees, whole=whole, **options)
        if check:
            prepared = with_findings(prepared, check)
        return TreeView(prepared.table, prepared.columns, depth=depth, whole=whole), prepared.nodes

    check_flag("keep", keep)
    check_options(name=name, columns=columns, is_leaf=is_leaf, depth=depth, stacked=stacked)
    if type(tree) is TreeDiff:
        if columns or stats or stacked or is_leaf or whole or keep or beside or trees:
            raise TypeError("explore: a diff is shown as it is: pass options to treeviz.diff")
        return TreeWidget(ExploredDiff(tree))
    return TreeWidget(Explored(tree, make_view, trees=other_trees("explore", beside, trees), keep=keep))


def check(
    tree: Any,
    *,
    for_: CheckUse = "any",
    values: bool = False,
    roundtrip: bool = False,
    ignore: str | Collection[str] = (),
) -> TreeFindings:
    """Find problems and likely problems in a tree: each with its leaf, a sentence, and Python that fixes it.

        for finding in tv.check(params, for_="grad"):
            print(finding.code, finding.path, finding.sentence)
        assert not [finding for finding in tv.check(params) if finding.level == "error"]
        tv.render(params, check=True).find("T101")

    Problems are arrays that JAX cannot see, arrays and NaN in static fields, cycles, repeated keys, deleted arrays,
    arrays on different devices, leaves that JAX does not accept, odd dtypes, shared objects and more. `finding.about`
    and `treeviz check --explain T101` explain a rule. Runs no user code except flatten functions, `hash` of static
    data, and `repr` of keys and static data, guarded; reads no values. Takes 1.2 to 3 times as long as `walk`.

    Args:
      tree: Any pytree; see `walk`.
      for_: The use of the tree: "jit" (an argument of a jitted function), "grad" (differentiated), or "state" (an input
        and output of a training step). Text and functions are errors in these.
      values: Also find NaN, infinities, arrays of zeros, values that cannot be read, and PRNG keys or random numbers
        that are the same in two places; for the cost of reading values, see `stats` of `render`.
      roundtrip: Unflatten a node of each registered class, also with placeholders, as JAX does. Runs user code.
      ignore: Codes of rules to leave out.

    Returns:
      A list of `TreeFinding`, errors first; `print` shows one line each, and one fix of each kind.

    Raises:
      ValueError: `for_` is unknown, or a code in `ignore` has no rule.
    """
    from treeviz.analysis.checks.rules import findings

    table, results = _checked(tree, "tree", for_, values, roundtrip, ignore)
    with gc_paused():
        return TreeFindings(findings(table, results))


def stackable(trees: Iterable[Any]) -> Differences:
    """Explain why `jax.tree.map(lambda *x: jnp.stack(x), *trees)` cannot stack trees into one.

    Stack trees to run an ensemble with `jax.vmap`, or the layers of a model with `jax.lax.scan`. Every tree is compared
    with the first: structure, static data, shapes and dtypes. Each mismatch has the path of its leaf.

        layers = [{"w": jnp.ones((4, 4))}, {"w": jnp.ones((4, 4))}, {"w": jnp.ones((4, 8))}]
        tv.stackable(layers)    # tree 2: ['w']: shape: (4, 4) → (4, 8)
        assert not tv.stackable(layers[:2])

    A "dtype" difference names the dtype that `jnp.stack` returns for the two, unless it raises; all other differences
    make it raise. Leaves that are neither arrays nor numbers, such as functions, have the kind "python type". Devices
    are not compared. Takes about 3 µs per leaf of each tree; no values are read.

    Args:
      trees: At least one tree. A leaf may also be a `jax.ShapeDtypeStruct`.

    Returns:
      A list of `Difference`, with the index in `trees` as `.tree`; empty if stacking works and keeps each dtype.

    Raises:
      TypeError: `trees` is one tree, such as a dict, or is empty.
    """
    from treeviz.analysis.compare.map_mismatch import unstackable

    return unstackable(trees)


def overlay(
    prefix: Any,
    tree: Any,
    *,
    use: Literal["in_axes", "out_axes", "shardings", "mask", "labels"] = "in_axes",
    mesh: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> TreeOverlay:
    """Show the spec that each leaf of a tree gets from a prefix, the origin of the spec, and all mismatches.

        params = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}
        view = tv.overlay((None, 0), (params, jnp.ones((8, 3))))
        print(view)
        view.differences                               # []: jax.vmap takes these in_axes
        tv.overlay({"w": 0}, params).differences       # did you mean in_axes=({'w': 0},)?

        mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))    # an AbstractMesh needs no devices
        tv.overlay(jax.sharding.PartitionSpec("data"), params, use="shardings", mesh=mesh)

    A leaf of the prefix applies to the whole subtree at its position; in these rows, the column shows `0 ← [1]`:
    inherited from [1]. JAX reports one mismatch at a time, this function all of them, but at most 1,000 leaves that do
    not fit their spec. No function is called except a mask or labels, and no values are read. Takes as long as two
    walks.

    Args:
      prefix: The specs: a tree prefix of the other tree, or a tree of the same depth.
      tree: For "in_axes", the tuple of arguments; anything else is a single argument. For "out_axes", the result for
        one example, such as from `jax.eval_shape`.
      use: The use of the specs.
        "in_axes": for `jax.vmap`. Axes must be in range and have equal sizes, and at least one must be mapped. For
        leaves that are arrays and numbers, a prefix fits exactly if `jax.vmap` accepts it.
        "out_axes": axes must be in range; whether a result depends on a mapped argument is unknown.
        "shardings": each is a `PartitionSpec`, a sharding, or None (the compiler decides). The axes must exist in the
        mesh and divide those of the leaf. Shows the shape and the bytes per device, and which large leaves would be
        replicated on every device, with the axes that could split them. A checkpoint of Orbax, from `read`, stands for
        the specs with which it was saved.
        "mask": True or False, or a function of the tree. None is a node without leaves, also for "labels".
        "labels": hashable values, or a function of the tree; the headline counts each label.
      mesh: The `Mesh` or `AbstractMesh` for `PartitionSpec`s.
      is_leaf: Nodes of the prefix for which it returns True are single specs.

    Returns:
      A view of the tree, with `.differences`.

    Raises:
      ValueError: `use` is unknown, or `mesh` is given for a use other than "shardings".
    """
    from treeviz.analysis.compare.aligned import Side
    from treeviz.analysis.overlay import USES, overlaid

    if use not in USES:
        raise ValueError(f"overlay: unknown use={use!r}; use one of {', '.join(map(repr, USES))}")
    if mesh is not None and use != "shardings":
        raise ValueError(f"overlay: mesh= is only for use='shardings', not for {use!r}")
    if use == "in_axes" and type(tree) is not tuple:
        tree = (tree,)
    side = Side(*scanned(tree, None, "args" if use == "in_axes" else "tree"))
    return TreeOverlay(*overlaid(prefix, side, USES[use](mesh), is_leaf))
