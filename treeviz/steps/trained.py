"""What a training step trains, leaf by leaf, known from its trace."""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.analysis.facts import common_mesh, fact_columns, size_columns
from treeviz.steps.compiles.forecast import called_inside
from treeviz.steps.compiles.step_arguments import path_text, trace_of_arrays
from treeviz.steps.tracing.backward_rules import frames_of, is_jax_jit
from treeviz.steps.tracing.domains import WHOLE, Path, match_new_params
from treeviz.steps.tracing.moves import (
    Followed,
    Move,
    Rate,
    bits_of,
    derivative_ends,
    donated,
    follow,
    optax_functions,
)
from treeviz.steps.tracing.primitives import shape_and_dtype, size_of
from treeviz.tree.describers import load_libraries
from treeviz.tree.facts import Column, Note
from treeviz.tree.runtime import computed_once, gc_paused, is_installed
from treeviz.tree.table import TreeTable
from treeviz.tree.text import count_text, counted, guarded, number_text, percent_text
from treeviz.tree.walk import scan
from treeviz.views.tree_view import TreeView

# The traced step.


class _Program(NamedTuple):
    """A traced step. Its arguments are the arrays among the leaves of `trees`."""

    program: ClosedJaxpr
    table: TreeTable  # of `trees`
    nodes: list[Any]
    trees: OrderedDict[str, Any]  # the arguments of the step, by name
    leaves: list[Any]  # of all arguments
    paths: list[Path]  # of the arrays; the first key is the position or name of the argument
    places: list[int]  # of the arrays, among all leaves
    result_paths: list[Path]

    @property
    def rows(self) -> list[int]:
        """The rows of the arrays in the table."""
        rows = np.flatnonzero(self.table.is_leaf)
        return rows[self.places].tolist()

    @property
    def statistics(self) -> set[int]:
        """The arrays that their names or types in Flax say are batch statistics, no parameters."""
        types = [{self.table[at].type for at in (row, int(self.table.parent[row]))} for row in self.rows]
        in_flax = [i for i, path in enumerate(self.paths) if "batch_stats" in "".join(map(str, path))]
        return {*in_flax, *[i for i, names in enumerate(types) if "BatchStat" in names]}


def _traced(step: Callable, args: tuple, kwargs: dict[str, Any]) -> _Program:
    inside, args, kwargs = called_inside(step, args, kwargs)
    if not callable(inside) or type(inside).__name__ in ("Compiled", "Lowered", "Traced"):
        name = type(inside).__name__
        raise TypeError(
            f"trained: expected a function, got {name}: pass the function that was jitted, or jax.jit of it."
        )
    with gc_paused():
        traced = trace_of_arrays(inside, args, kwargs)
    load_libraries()
    return _Program(traced.traced.jaxpr, *scan(traced.trees, name="args"), *traced[1:])


def _number(leaf: Any) -> float | None:
    """The value of a real array with one element."""
    if not isinstance(leaf, jax.Array | np.ndarray) or leaf.size != 1 or not jnp.isrealobj(leaf):
        return None
    return guarded(lambda: float(np.asarray(leaf).reshape(())), lambda _: None)


# What happens to each parameter.


class _Fate(NamedTuple):
    """What a step does with one parameter."""

    kind: str  # "trained", or one of `_KINDS`
    why: str = ""
    lr: float = math.nan
    decay: float = math.nan
    warning: str = ""
    why_no_lr: str = ""

    @property
    def is_trained(self) -> bool:
        return self.kind in ("trained", "zero now")

    @property
    def text(self) -> str:
        word = {"trained": "yes", "zero now": "not now", "decay only": "decays only"}.get(self.kind, "no")
        word = "not known" if self.kind == "not known" else word
        return f"{word}: {self.why}" if self.why else word


class _Step:
    """What a traced step does with its parameters."""

    def __init__(self, traced: _Program) -> None:
        self.traced, self.program = traced, traced.program
        self.any_values = follow(self.program, {})
        moves = self.any_values.moves
        if not moves.origins:
            raise ValueError(
                "trained: this step computes no gradient with jax.grad, jax.value_and_grad or jax.vjp, so it is not "
                "known what it trains. Pass the step that computes the gradients."
            )
        self.own: dict[int, int] = {}  # the bits of the gradients of each argument
        for bit, origin in moves.origins.items():
            if origin is not None:
                self.own[origin] = self.own.get(origin, 0) | 1 << bit
        self.of_any = sum(1 << bit for bit, origin in moves.origins.items() if origin is None)
        self.new = self._new_values()
        self.statistics = traced.statistics - self.own.keys()
        self.donated = donated(self.program)
        self.params = self._params()
        if not self.params:
            raise ValueError(
                "trained: the gradients in this step are of none of its arguments. Pass the parameters as an argument."
            )
        numbers = {i: _number(traced.leaves[place]) for i, place in enumerate(traced.places) if i not in self.own}
        self._numbers = {i: number for i, number in numbers.items() if number is not None}
        self.now = follow(self.program, self._numbers, is_of_first_turn=True)
        without = [p for p in self.params if p in self.own and not self.own[p] & ~moves.zeros]
        self._ends = derivative_ends(self.program, without) if without else {}
        self.fates = {p: self._fate(p) for p in self.params}

    def _new_values(self) -> dict[int, int]:
        """The result that is the new value of an argument, by numbers."""
        t, avals = self.traced, [*map(shape_and_dtype, self.program.jaxpr.outvars)]
        shares = [move.shares for move in self.any_values.results]
        arguments = range(len(t.paths))
        found = match_new_params(self.program, arguments, t.paths, t.result_paths, shares)
        new = {p: i for p, i in enumerate(found) if i is not None}
        for p in set(arguments) - new.keys():  # as of parameters that are flattened to one vector in between
            keys, aval = [*map(str, t.paths[p])], shape_and_dtype(self.program.jaxpr.invars[p])
            same = [keys, keys[1:]] if len(keys) > 1 else [keys]
            at = [i for i, path in enumerate(t.result_paths) if [*map(str, path)] in same and avals[i] == aval]
            if len(at) == 1 and at[0] not in new.values() and self.any_values.results[at[0]].arguments >> p & 1:
                new[p] = at[0]
        return new

    def _params(self) -> list[int]:
        """The arguments that are parameters: those with a gradient, and frozen ones.

        Frozen are arrays that the loss reads and that stay as they are, below the outermost node that holds nothing
        else and all parameters with a gradient, or in another argument that shares a key with these, as the other part
        of a partitioned model.
        """
        moves, paths = self.any_values.moves, self.traced.paths
        params = set(self.own) or {p for p in self.new if self._result(p).gradients & self.of_any}
        keys = [[str(key) for key in path] for path in paths]
        holders = sorted([keys[p][:-1] for p in params]) or [[]]  # what the first and the last share, all share
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(holders[0], holders[-1], strict=False))
        root = [key for key, _ in shared]
        arrays = {p for p, v in enumerate(self.program.jaxpr.invars) if _may_be_param(v) and p not in self.statistics}
        frozen = {p for p in arrays - params if p not in self.new or self.is_unchanged(p)}
        while len(root) > 1 and all(p in params | frozen for p in arrays if keys[p][: len(root) - 1] == root[:-1]):
            root = root[:-1]  # of a node that holds nothing but parameters
        in_params = {key for p in params for key in keys[p][max(len(root), 1) :] if not key[1:2].isdigit()}
        arguments, read = {keys[p][0] for p in params}, 0 if moves.loss is None else moves.loss.arguments
        for p in frozen:
            is_below = bool(root) and keys[p][: len(root)] == root
            if read >> p & 1 and (is_below or (keys[p][0] not in arguments and in_params & {*keys[p][1:]})):
                params.add(p)
        return sorted(params)

    @computed_once
    def _in_all_turns(self) -> Followed:
        """As `now`, but of a loop any turn counts."""
        return follow(self.program, self._numbers)

    def _result(self, p: int, at: Followed | None = None) -> Move:
        return (at or self.any_values).results[self.new[p]]

    def is_unchanged(self, p: int) -> bool:
        return self._result(p).shares.get(p) == WHOLE

    def _fate(self, p: int) -> _Fate:
        own, zeros = self.own.get(p, 0) or self.of_any * (p not in self.own), self.any_values.moves.zeros
        lost = "donated and not returned: deleted by the call" if p in self.donated else ""
        kind, why = "frozen", ""
        if p in self.own and not own & ~zeros:
            kind, why = "no gradient", self._why_no_gradient(p)
        elif p not in self.own and not self.of_any:
            why = "no gradient is taken"
        if p not in self.new:
            known = (kind, why) if why else ("not known", "no result is its new value")
            return _Fate(*known, warning=lost)
        if self.is_unchanged(p):
            return _Fate(kind, why) if why else _Fate("zero update", self._why_zero(p))
        then, now = self._result(p), self._result(p, self.now)
        decays, decay = _decay(then, p) != 0, _decay(now, p)
        if then.gradients & own & ~zeros:
            if not now.gradients & own and not self._result(p, self._in_all_turns).gradients & own:
                return _Fate("zero now", "zero update")
            rate, adds = _learning_rate(now.rate)
            decay = decay / rate if decay or not now.gradients else decay
            if adds:
                text = "optax.masked adds the gradient where its mask is False"
                return _Fate("trained", "adds its gradient, unscaled", decay=decay, warning=text)
            return _Fate("trained", "", rate, decay, why_no_lr=self._why_no_lr(now.rate) if math.isnan(rate) else "")
        why = why or "no gradient is in its update"
        if decay and not then.gradients and math.isfinite(decay):
            return _Fate("decay only", why, warning=f"decays by {number_text(100 * decay)} % a step")
        if decays or then.gradients:
            return _Fate("changed", why, warning="may change, but not by its gradient")
        return _Fate(kind if kind != "frozen" else "changed", why)  # and moments, which stay 0 without a gradient

    def _why_no_gradient(self, p: int) -> str:
        loss = self.any_values.moves.loss
        if loss is not None and not loss.arguments >> p & 1:
            return "unused by the loss"
        ends = self._ends.get(p, ())
        if not ends:
            return "its gradient is always 0"
        eqn = ends[0][0]
        what = {
            "convert_element_type": f"cast to {eqn.outvars[0].aval.dtype}",
            "mul": "times 0",
            **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), "comparison"),
        }
        more = f" and {counted(len(ends) - 1, 'more place')}" if len(ends) > 1 else ""
        return f"{what.get(eqn.primitive.name, eqn.primitive.name)}{_place(ends[0])}{more}"

    def _why_no_lr(self, rate: Rate | None) -> str:
        if rate is None or not rate.computed_from:
            return "no single number multiplies the update"
        paths = [path_text(self.traced.table, self.traced.rows[p]) for p in bits_of(max(rate.computed_from, 0))]
        more = f" and {len(paths) - 1:,} more" * (len(paths) > 1)
        return f"the step computes it from {paths[0] + more if paths else 'gradients'}"

    def _why_zero(self, p: int) -> str:
        eqn = self.any_values.moves.zero_updates.get(p)
        by_optax = eqn is not None and [name for name in optax_functions(eqn) if name.isidentifier()]
        if by_optax:
            return f"0 from optax.{by_optax[0]}"
        return f"zero update{'' if eqn is None else _place([eqn])}"

    def norm(self) -> tuple[int, float, float] | None:
        """Of the gradients by which trained leaves are scaled, those of leaves that are not trained.

        Returns:
          Their number, their elements, and the elements of all of these gradients; None if there are none.
        """
        moves, among = self.any_values.moves, 0
        for p, fate in self.fates.items():
            if fate.is_trained and self._result(p).gradients & ~self.own.get(p, 0):
                among |= self._result(p).gradients
        origins = {moves.origins[bit] for bit in bits_of(among)} - {None}
        idle = [p for p in origins if p in self.fates and self.fates[p].kind in ("frozen", "zero update", "decay only")]
        sizes = {p: size_of(self.program.jaxpr.invars[p]) for p in origins if p is not None}
        return (len(idle), sum(sizes[p] for p in idle), sum(sizes.values())) if idle else None


def _may_be_param(v: Any) -> bool:
    shape, dtype = shape_and_dtype(v)
    return bool(shape) and jnp.issubdtype(dtype, jnp.inexact)


def _decay(move: Move, p: int) -> float:
    """The part of an argument by which its new value is smaller; NaN if it is not known."""
    share = move.shares.get(p)
    if share is None or not share.is_main or not share.is_sure or move.unshared >> p & 1:
        return math.nan
    return 1 - share.factor


def _learning_rate(rate: Rate | None) -> tuple[float, bool]:
    """The learning rate, NaN if it is not known; and whether the gradient itself is added."""
    if rate is None or (rate.n == 0 and not rate.is_gradient) or (rate.n > 1 and not rate.is_optax):
        return math.nan, False
    if abs(rate.factor) == 1 and not rate.is_gradient:  # it was multiplied before
        return math.nan, False
    return abs(rate.factor), rate.n == 0 and rate.factor > 0


def _place(chain: Sequence[Any]) -> str:
    """ " at model.py:12", the line of an equation, followed by those that call its function; "" if it is not known.

    JAX caches the traces of its own functions, with the frames of their first caller.
    """
    start = max([i for i, eqn in enumerate(chain) if i and is_jax_jit(eqn)], default=0)
    frames = frames_of(chain[start].source_info.traceback)
    own = next((frame for frame in frames if not is_installed(frame.file)), frames[0] if frames else None)
    return f" at {str(own).partition(' in ')[0]}" if own else ""


# The view.


class TrainedLeaves(TreeView):
    """The parameters of a step, and whether it trains each.

    Attributes:
      summary: One sentence: "12.6 M of 8.0 B parameters are trained: all `lora_*`".
      trained: The paths of the leaves that are trained.
      untrained: The path of each other parameter, and the reason.
    """

    summary: str
    trained: list[str]
    untrained: dict[str, str]


def trained(step: Callable, *args: Any, **kwargs: Any) -> TrainedLeaves:
    """Show which parameters a step trains, and why others stay as they are, without running or compiling it.

        view = tv.trained(update, params, x, y)
        print(view.summary)
        assert not view.untrained

    The step is traced once, and gradients are followed through the trace from the loss to the new parameters. Each leaf
    is trained ("yes"), or not, with the reason: the loss does not depend on it, its derivative ends at a
    `stop_gradient`, a cast to integers or the like (at this line), no gradient is taken, its update is zero, the
    learning rate is 0 at this step, or it only decays. Learning rates and weight decays are those by which the program
    multiplies, in a loop in its first turn; they, and schedules, need the count or the hyperparameters in the
    optimizer's state as arrays of one element, whose values are read. Those that the step computes from gradients, as
    `optax.contrib.prodigy` does, are unknown, and the headline says so. What the trace does not show is "not known".

    Takes one to two traces of the step, and about 20 µs for each operation in it. No other values are read.

    Args:
      step: A function, jitted or not, also of `equinox.filter_jit` or `nnx.jit`; or a bound method or a
        `functools.partial` of it. It computes gradients by `jax.grad`, `jax.value_and_grad` or `jax.vjp`.
      *args, **kwargs: The arguments of a call; may be trees of `jax.ShapeDtypeStruct`.

    Returns:
      A view of the parameters: of all leaves with a gradient, and of those that the loss reads beside them.

    Raises:
      ValueError: The step computes no gradient.
      TypeError: It is no function. Other exceptions are the step's own, raised while it is traced.
    """
    traced = _traced(step, args, kwargs)
    with gc_paused():
        return _view(_Step(traced))


def _view(step: _Step) -> TrainedLeaves:
    table, leaves = _table(step)
    fates = {row: step.fates[p] for row, p in leaves.items() if p in step.fates}
    texts, notes, n_trained = [""] * len(table), {}, np.zeros(len(table))
    rates, decays = np.full(len(table), np.nan), np.full(len(table), np.nan)
    trained, untrained = {}, {}
    for row, fate in fates.items():
        texts[row], rates[row], decays[row] = fate.text, fate.lr, fate.decay
        (trained if fate.is_trained else untrained)[row] = fate
        n_trained[row] = table[row].facts.elements * fate.is_trained
        if fate.warning:
            notes[row] = (Note("warning", fate.warning),)
    help = "Elements of the leaves that are trained"
    columns = [
        Column("trained", "trained", texts, help="Whether the step trains the leaf; if not, why"),
        Column("lr", "lr", rates, format="number", help="Learning rate: the factor of its update in the new value"),
        Column("decay", "decay", decays, format="number", help="Weight decay: the factor of the leaf in its update"),
        Column("trained_elements", "trained elements", n_trained, format="count", rollup="sum", help=help),
    ]
    summary = _summary(table, fates)
    table = table.with_columns(*fact_columns(table, common_mesh(table)), *size_columns(table), *columns)
    table = table.with_notes(notes).with_headline(summary, *_remarks(step, fates))
    shown = ["trained", *(["lr"] if not np.isnan(rates).all() else []), *(["decay"] if np.nansum(decays) else [])]
    view = TrainedLeaves(table, table.chosen([*shown, "trained_elements", "elements"]))
    whole, rows = step.traced.table, step.traced.rows
    text = {row: path_text(whole, rows[p]) for row, p in leaves.items() if p in step.fates}
    # The view is a frozen dataclass.
    vars(view).update(
        summary=summary,
        trained=[text[row] for row in trained],
        untrained={text[row]: fate.why or fate.kind for row, fate in untrained.items()},
    )
    return view


def _table(step: _Step) -> tuple[TreeTable, dict[int, int]]:
    """The table of the innermost node that holds all parameters, and the argument in each of its leaves."""
    traced, trees = step.traced, step.traced.trees
    table, nodes = traced.table, traced.nodes
    argument_of = {row: i for i, row in enumerate(traced.rows)}
    table_rows = np.flatnonzero(table.is_leaf).tolist()
    held = [row for row, i in argument_of.items() if i in step.fates]
    top = int(table.parent[held[0]])
    while held[-1] >= table.end[top]:
        top = int(table.parent[top])
    if top == 0:  # of several arguments
        tops = {table.path(row)[0].segment for row in held}
        trees = OrderedDict((key, tree) for key, tree in trees.items() if key in tops)
        kept = [row for row in table_rows if table.path(row)[0].segment in tops]
        table, _ = scan(trees, name="args")
    else:
        kept = [row for row in table_rows if top <= row < table.end[top]]
        table, _ = scan(nodes[top], name=path_text(table, top))
    pairs = zip(np.flatnonzero(table.is_leaf).tolist(), kept, strict=True)
    return table, {row: argument_of[old] for row, old in pairs if old in argument_of}


def _summary(table: TreeTable, fates: Mapping[int, _Fate]) -> str:
    """The sentence of `TrainedLeaves.summary`."""
    sizes = {row: table[row].facts.elements for row in fates}
    trained = [row for row in fates if fates[row].is_trained]
    others = [row for row in fates if not fates[row].is_trained]
    parts = []
    for kind, (one, several) in _KINDS.items():
        rows = {row: None for row in others if fates[row].kind == kind}
        names = Counter(_keys(table, row)[-1] for row in rows)
        if len(names) <= _MOST_NAMES and names.keys().isdisjoint(_keys(table, row)[-1] for row in trained) and trained:
            counts = [f"{n} `{name}`" if n > 1 else f"`{name}`" for name, n in names.items()]
            text = " and ".join([*[", ".join(counts[:-1])] * (len(counts) > 1), *counts[-1:]])
        else:
            groups = _groups(table, rows, fates.keys() - rows.keys()) if len(rows) < len(fates) else ""
            text = counted(len(rows), "leaf", "leaves") + f" in {groups}" * bool(groups)
        parts += [f"{text} {one if len(rows) == 1 else several}"] if rows and several else []
    n = sum(sizes[row] for row in trained)
    if not others:
        return f"all {count_text(n)} parameters are trained" if n != 1 else "the one parameter is trained"
    groups = _groups(table, trained, others)
    first = f"{count_text(n)} of {count_text(sum(sizes.values()))} parameters are trained"
    first = first if trained else f"none of {count_text(sum(sizes.values()))} parameters is trained"
    return "; ".join([f"{first}: all {groups}" if groups else first, *parts])


_KINDS = {  # of the fates of parameters that are not trained, of one leaf and of several
    "frozen": ("", ""),
    "no gradient": ("gets no gradient", "get no gradient"),
    "zero update": ("gets a zero update", "get a zero update"),
    "decay only": ("only decays", "only decay"),
    "changed": ("may change, but not by its gradient", "may change, but not by their gradients"),
    "not known": ("is not known", "are not known"),
}


def _keys(table: TreeTable, row: int) -> list[str]:
    """The keys of a row, without that of the array in a variable."""
    keys = [key.segment for key in table.path(row)]
    return keys[:-1] if len(keys) > 1 and keys[-1] in ("value", "raw_value") else keys or [table.name]


def _groups(table: TreeTable, rows: Iterable[int], others: Iterable[int]) -> str:
    """ "`lora_*`": a key that all rows have and no other; "" if there is none."""
    paths, left = ([_keys(table, row) for row in some] for some in (rows, others))
    for level in (-1, 0, 1, 2, -2):
        names, not_these = ({"".join(keys[level:][:1]) for keys in some} for some in (paths, left))
        if not names or "" in names or names & not_these:
            continue
        starts = Counter(name.split("_")[0] + "_" for name in names if "_" in name)
        for start, k in starts.items():
            if k > 1 and not any(name.startswith(start) for name in not_these):
                names = {name for name in names if not name.startswith(start)} | {start + "*"}
        if len(names) <= _MOST_NAMES:
            return ", ".join(f"`{name}`" for name in sorted(names))
    return ""


_MOST_NAMES = 4


def _remarks(step: _Step, fates: Mapping[int, _Fate]) -> list[str]:
    """What the headline says besides the summary."""
    found = []
    for attribute, text in (("lr", "learning rate"), ("decay", "weight decay")):
        values = [getattr(fate, attribute) for fate in fates.values()]
        texts = [number_text(x) for x in sorted(x for x in values if x > 0)]
        found += [f"{text} {' to '.join(dict.fromkeys([texts[0], texts[-1]]))}"] if texts else []
    reasons = Counter(fate.why_no_lr for fate in fates.values() if fate.why_no_lr)
    for reason, n in reasons.most_common(1):
        whose = "" if n == sum(fate.is_trained for fate in fates.values()) else f" of {counted(n, 'leaf', 'leaves')}"
        found.append(f"learning rate{whose} unknown: {reason}")
    n_zero = sum(fate.kind == "zero now" for fate in fates.values())
    n_adding = sum(fate.why.startswith("adds") for fate in fates.values())
    if n_zero:
        n = sum(fate.is_trained for fate in fates.values())
        why = "a schedule that starts at 0, or gradients that are accumulated"
        found.append(f"{n_zero:,} of {counted(n, 'update')} {'is' if n_zero == 1 else 'are'} 0 at this step: {why}")
    if n_adding:
        found.append(f"{counted(n_adding, 'leaf', 'leaves')} without an optimizer: the gradient itself is added")
    norm = step.norm()
    if norm:
        n, elements, of_all = norm
        found.append(
            f"the norm by which gradients are scaled or clipped includes {counted(n, 'leaf', 'leaves')} not trained, "
            f"{percent_text(elements, of_all)} of its elements"
        )
    n_kept = sum(p in step.new and step.is_unchanged(p) for p in step.statistics)
    found += [f"{counted(n_kept, 'batch statistic')} returned unchanged"] * bool(n_kept)
    n_lost = sum(p in step.donated and p not in step.new for p in step.fates)
    return [*found, *[f"{n_lost:,} donated and not returned"] * bool(n_lost)]
