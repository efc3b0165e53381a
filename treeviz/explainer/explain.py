"""Add a note to an error from JAX that names the leaves at fault; the error itself stays as it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from itertools import chain
from types import TracebackType
from typing import Any

import jax

from treeviz.explainer import frames, libraries, raised
from treeviz.explainer.answers import ANSWERS, OUTER_ANSWERS
from treeviz.explainer.frames import NO_ANSWER, Answer, calls_in_jax, without_hidden
from treeviz.tree.runtime import Lock
from treeviz.tree.text import guarded, printable_lines
from treeviz.views.text.terminal import width_of, wrapped

TIME_LIMIT_S = 1.0
_MOST_LINES = 20
_FILTERING = "jax_traceback_filtering"
_KEEP_FRAMES = "tracebackhide"  # JAX marks its frames but keeps them


def explanation(error: BaseException, limit_s: float = TIME_LIMIT_S) -> str:
    """The leaves that made the call inside JAX fail; "" if the cause is unknown or takes longer than `limit_s`."""
    if not isinstance(error, Exception):
        return ""
    answers: list[str] = []
    explain = partial(guarded, lambda: answers.append(_explanation(error)), lambda _: None)
    worker = threading.Thread(target=explain, daemon=True)
    worker.start()
    worker.join(limit_s)
    return answers[0] if answers else ""


def _explanation(error: Exception) -> str:
    for title, details in _answers(error):
        if details:
            lines = [f"  {line}" for line in details[:_MOST_LINES]]
            if len(details) > _MOST_LINES:
                lines.append(f"  … {len(details) - _MOST_LINES:,} more")
            return printable_lines("\n".join([f"treeviz: {title}:", *lines]))
    return ""


def _answers(error: Exception) -> Iterator[Answer]:
    """Yields answers, outermost calls first: a library or a wrapper in JAX still has the user's trees."""
    calls = calls_in_jax(error)
    nothing = lambda _: NO_ANSWER  # noqa: E731
    buffers_answer = guarded(lambda: frames.explain_buffers(error), nothing)
    if guarded(lambda: frames.is_from_library(error), lambda _: False):
        yield buffers_answer
    for i in reversed(range(len(calls))):
        answer, needs = libraries.ANSWERS.get((calls[i].library, calls[i].function), (None, ()))
        if not calls[i].library:
            answer = OUTER_ANSWERS.get(calls[i].function)
        if answer is not None and all(name in calls[i].variables for name in needs):
            yield guarded(partial(answer, calls[i].variables, [calls[i], *calls[:i]]), nothing)
    for i, call in enumerate(calls):
        answer = None if call.library else ANSWERS.get(call.function)
        if answer is not None:
            yield guarded(partial(answer, call.variables, calls[i:]), nothing)
    yield buffers_answer
    last_answers = [raised.explain_operands, raised.explain_mapped_leaf]
    if guarded(lambda: raised.is_direct(error), lambda _: False):
        last_answers.reverse()
    by_error = (raised.explain_hashes, raised.explain_leaks, libraries.explain_scope, libraries.explain_optax_arguments)
    for answer in (*by_error, *last_answers):
        yield guarded(partial(answer, error), nothing)


class explain_errors:
    """Add to an error from JAX the paths of the leaves that caused it.

        with tv.explain_errors():
            new_params = jax.tree.map(jnp.add, params, grads)

        @tv.explain_errors()
        def train(params, grads):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    In IPython and Jupyter, one call of `tv.explain_errors()` covers all later cells, and `tv.explain_errors().stop()`
    ends it. With pytest, `pytest -p treeviz.pytest` adds the explanations to the reports.

    Explains errors of:
      JAX: `jax.tree.map`, `jax.tree.transpose`, `vmap`, `pmap`, `shard_map`, `scan`, `while_loop`, `fori_loop`,
        `cond`, `switch`, `jit` and compiled functions, `device_put`, `grad`, `jacfwd`, `jvp`, `vjp`, `checkpoint`,
        `custom_vjp` and `custom_jvp` rules, donated arrays.
      Libraries: optax updates; restores by Orbax, `equinox.tree_deserialise_leaves` and
        `flax.serialization.from_bytes`; `flax.nnx.merge` and `update`; `equinox.tree_at`.

    If the function given to `jax.tree.map` raised, the note names the leaf. If shapes do not match in a Linen, NNX or
    Equinox model, it names the parameters and the input. For static arguments, it names the part without a hash.

    The original error is raised with a note (PEP 678). Only flatten functions of the user run again, and an explanation
    that takes more than a second is dropped. Inside the block, `jax_traceback_filtering` is "tracebackhide", since the
    trees are read from JAX's frames; errors that leave the block have the default filtered traceback.
    """

    def __init__(self) -> None:
        self._shell = _shell()
        self._began = self._shell is not None and _explain_cells(self._shell)

    def __enter__(self) -> explain_errors:
        self.leave_cells()
        keep_frames()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setting = restore_filtering()
        if error is None:
            return
        add_explanation(error)
        if setting in ("auto", "quiet_remove_frames", "remove_frames") and self._shell is None:
            guarded(lambda: BaseException.with_traceback(error, without_hidden(trace)), lambda _: None)

    def __call__(self, function: Callable) -> Callable:
        self.leave_cells()

        @wraps(function)
        def explained(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return explained

    def leave_cells(self) -> None:
        """Cover no cells from now on, unless they were covered before this object."""
        if self._began:
            self.stop()
        self._began = False

    def stop(self) -> None:
        """Stop explaining the errors of cells."""
        if self._shell is not None:
            _explain_no_cells(self._shell)


def add_explanation(error: BaseException) -> str:
    """Add the explanation to the error as a note, once. Returns it; "" if there is none."""
    notes = guarded(lambda: error.__notes__, lambda _: ())
    if type(notes) is list:
        for note in notes:
            if type(note) is str and note.startswith("treeviz: "):
                return note
    text = guarded(lambda: explanation(error), lambda _: "")
    if text:
        guarded(lambda: error.add_note(fitted(text, width_of(sys.stderr))), lambda _: None)
    return text


def fitted(text: str, width: int | None) -> str:
    """The explanation wrapped to `width`; unchanged if `width` is None."""
    return "\n".join(chain.from_iterable(wrapped(line, width, "    ") for line in text.split("\n")))


_lock = Lock()
_open: list[str | None] = []  # the setting before the first of the open blocks, once for each of them


def keep_frames() -> None:
    """Make JAX keep its frames in tracebacks, since they hold the trees, until `restore_filtering` is called as often.

    Does nothing if this version of JAX lacks the setting.
    """
    with _lock:  # blocks may overlap, also in several threads
        _open.append(_open[0] if _open else getattr(jax.config, _FILTERING, None))
        _set_filtering(_KEEP_FRAMES if _open[0] is not None else None)


def restore_filtering() -> str | None:
    """End one `keep_frames`; the last one restores the setting. Returns the setting before the first one."""
    with _lock:
        before = _open.pop() if _open else None
        if not _open:
            _set_filtering(before)
    return before


def _set_filtering(setting: str | None) -> None:
    if setting is not None:
        guarded(lambda: jax.config.update(_FILTERING, setting), lambda _: None)


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _explain_cells(shell: Any) -> bool:
    """Returns False if cells are explained already."""
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        return False
    shell.events.register("post_run_cell", _explain_cell)
    return True


def _explain_no_cells(shell: Any) -> None:
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        shell.events.unregister("post_run_cell", _explain_cell)


def _explain_cell(result: Any) -> None:
    """Print the explanation of a cell's error below its traceback."""
    error = getattr(result, "error_in_exec", None)
    text = "" if error is None else add_explanation(error)
    if text:
        print(fitted(text, width_of(sys.stdout)))
