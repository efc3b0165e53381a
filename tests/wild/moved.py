"""What really moves in a published step, beside what `treeviz.trained` says: python tests/wild/moved.py NAME…

Each step is run four times on its own results. A leaf of its state that is trained has other bits afterwards, one
that is not has the same. Without names, all published steps are run.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import jax
import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from wild.published import PUBLISHED

import treeviz as tv
from treeviz.steps.compiles.forecast import argument_names

# Pseudoscalars, whose gradients are 0 for these inputs, since all cross products in them are of collinear vectors.
STILL = {"params['Layer_1']['linear']['w[3,3] 8x0o,8x0o']", "params['out']['w[3,0] 8x0o,4x0e']"}


def paths(step, state) -> dict[str, object]:
    """The leaves of the state by the paths that `trained` gives them."""
    names = argument_names(step, len(state))
    return {name + row.keystr: leaf for name, tree in zip(names, state, strict=True) for row, leaf in rows(tree)}


def rows(tree):
    return zip(tv.walk(tree).leaves, jax.tree.leaves(tree), strict=True)


def wrong(step, view, before, after) -> list[str]:
    """The leaves of which `trained` says something else than two states show."""
    before, after = (paths(step, state) for state in (before, after))
    moved = {path for path in before if not np.array_equal(before[path], after[path], equal_nan=True)}
    still = [f"{path} did not move" for path in view.trained if path in before.keys() - moved - STILL]
    return still + [f"{path} moved: {why}" for path, why in view.untrained.items() if path in moved]


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def main(names: list[str]) -> None:
    n_right = 0
    for name in names or PUBLISHED:
        step, state, batch, _ = PUBLISHED[name][1]()
        start = time.process_time()
        try:
            view = tv.trained(step, *state, *batch(0))
        except Exception:
            print(f"{name}: {traceback.format_exc(limit=-3)}")
            continue
        trace_s = time.process_time() - start
        after = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, state)
        for number in range(4):
            after = as_tuple(step(*after, *batch(number)))[: len(state)]
        differences = wrong(step, view, state, after)
        n_right += not differences
        alarms = [note.text for row in view.table.leaves for note in row.notes]
        print(f"{name}: {' · '.join(view.table.headline)} ({trace_s:.1f} s)", *differences, *alarms, sep="\n    ")
    print(f"{n_right} of {len(names or PUBLISHED)} steps move what is trained")


if __name__ == "__main__":
    from wild import agents, densities, language, libraries, projects, sciences, sequences

    assert agents and densities and language and libraries and projects and sciences and sequences
    with jax.numpy_rank_promotion("allow"):
        main(sys.argv[1:])
