"""Add to an error of JAX what is wrong with its trees, without changing the error."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from shutil import get_terminal_size
from types import TracebackType
from typing import Any

import jax

from treeviz.explainer import frames as caller
from treeviz.explainer import libraries, raised
from treeviz.explainer import libraries as linen
from treeviz.explainer import raised as hashes
from treeviz.explainer.answers import ANSWERS, AROUND
from treeviz.explainer.frames import Answer, calls_in_jax, without_hidden
from treeviz.tree.text import guarded, printable_lines
from treeviz.views.text.terminal import wrapped

TIME_LIMIT_S = 1.0
_MOST_LINES = 20
_FILTERING = "jax_traceback_filtering"
_KEEP_FRAMES = "tracebackhide"  # JAX marks its frames, in place of cutting them off


def explanation(error: BaseException, limit_s: float = TIME_LIMIT_S) -> str:
    """What is wrong with the trees of the call inside JAX that raised; "" if it is not known, or not known in time."""
    if not isinstance(error, Exception):
        return ""
    answers: list[str] = []
    worker = threading.Thread(target=lambda: answers.append(_explanation(error)), daemon=True)
    worker.start()
    worker.join(limit_s)
    return answers[0] if answers else ""


def _explanation(error: Exception) -> str:
    for title, found in _answers(error):
        if found:
            lines = [f"  {each}" for each in found[:_MOST_LINES]]
            if len(found) > _MOST_LINES:
                lines.append(f"  … {len(found) - _MOST_LINES:,} more")
            return printable_lines("\n".join([f"treeviz: {title}:", *lines]))
    return ""


def _answers(error: Exception) -> Iterator[Answer]:
    """Of what is around the call first, a library or a part of JAX: it has the user's trees."""
    calls = calls_in_jax(error)
    of_buffers = guarded(lambda: caller.of_buffers(error), lambda _: ("", ()))
    if guarded(lambda: caller.is_from_library(error), lambda _: False):
        yield of_buffers
    for i in reversed(range(len(calls))):
        answer, needs = libraries.ANSWERS.get((calls[i].library, calls[i].function), (None, ()))
        if not calls[i].library:
            answer = AROUND.get(calls[i].function)
        if answer is not None and all(name in calls[i].variables for name in needs):
            yield guarded(lambda answer=answer, i=i: answer([calls[i], *calls[:i]]), lambda _: ("", ()))
    for i, call in enumerate(calls):
        answer = None if call.library else ANSWERS.get(call.function)
        if answer is not None:
            yield guarded(lambda answer=answer, i=i: answer(calls[i:]), lambda _: ("", ()))
    yield of_buffers
    last = [raised.of_operands, raised.of_mapped]
    if guarded(lambda: raised.is_direct(error), lambda _: False):
        last.reverse()
    for answer in (hashes.of_hashes, linen.of_scope, *last):
        yield guarded(lambda answer=answer: answer(error), lambda _: ("", ()))


class explain_errors:
    """Say below an error of JAX which leaves of which tree it is about, with their paths.

        with tv.explain_errors():
            new_params = jax.tree.map(jnp.add, params, grads)

        @tv.explain_errors()
        def train(params, grads):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    In IPython and Jupyter `tv.explain_errors()` alone explains the errors of all cells that follow, and
    `tv.explain_errors().stop()` ends it. With pytest, `pytest -p treeviz.pytest` adds it to the reports.

    It knows `jax.tree.map`, `vmap`, `pmap`, `shard_map`, `scan`, `while_loop`, `fori_loop`, `cond`, `switch`, `jit` and
    what it compiled, `device_put`, `grad`, `jacfwd`, `jvp`, `vjp`, `checkpoint`, the rules of `custom_vjp` and
    `custom_jvp`, `jax.tree.transpose`, donated arrays, updates of optax, and the restores of Orbax, of
    `equinox.tree_deserialise_leaves` and of `flax.serialization.from_bytes`, `flax.nnx.merge` and `update`, and
    `equinox.tree_at`. Of a function that raised in
    `jax.tree.map` it names the leaf, of shapes that do not fit in a model of Linen, NNX or Equinox the parameters and
    the input, and of static arguments what in them has no hash. The error is raised as it was, with a note (PEP 678):
    nothing of the user's runs again but flatten functions, and what takes more than a second is left unsaid.
    Inside the block JAX's setting `jax_traceback_filtering` is "tracebackhide", so that the trees can be found; the
    traceback of an error that leaves the block is filtered as by default.
    """

    def __init__(self) -> None:
        self._settings: list[Any] = []
        self._shell = _shell()
        self._began = self._shell is not None and _explain_cells(self._shell)

    def __enter__(self) -> explain_errors:
        self._leave_cells()
        self._settings.append(keep_frames())
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setting = self._settings.pop()
        set_filtering(setting)
        if error is None:
            return
        add_explanation(error)
        if setting in ("auto", "quiet_remove_frames", "remove_frames") and self._shell is None:
            error.__traceback__ = without_hidden(error.__traceback__)

    def __call__(self, function: Callable) -> Callable:
        self._leave_cells()

        @functools.wraps(function)
        def explained(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return explained

    def _leave_cells(self) -> None:
        """Of a block or a function: explain nothing else."""
        if self._began:
            self.stop()
        self._began = False

    def stop(self) -> None:
        """Explain no more errors of cells."""
        if self._shell is not None:
            _explain_no_cells(self._shell)


def add_explanation(error: BaseException) -> str:
    """Add a note with the explanation to an error, once. Returns it; "" if there is none."""
    known = [note for note in getattr(error, "__notes__", ()) if type(note) is str and note.startswith("treeviz: ")]
    if known:
        return known[0]
    text = guarded(lambda: explanation(error), lambda _: "")
    if text:
        guarded(lambda: error.add_note(fitted(text, _width_of(sys.stderr))), lambda _: None)
    return text


def fitted(text: str, width: int | None) -> str:
    """An explanation in lines of a width, without one as it is."""
    return "\n".join(chain.from_iterable(wrapped(line, width, "    ") for line in text.split("\n")))


def _width_of(stream: Any) -> int | None:
    """The width of a terminal; None of what is none, such as a log."""
    return get_terminal_size().columns if guarded(lambda: stream.isatty(), lambda _: False) else None


def keep_frames() -> str | None:
    """Have JAX keep its frames in tracebacks, so that the trees can be found. Returns the setting before."""
    before = getattr(jax.config, _FILTERING, None)
    set_filtering(_KEEP_FRAMES if before is not None else None)
    return before


def set_filtering(setting: str | None) -> None:
    """A JAX that does not have the setting goes on as it is."""
    if setting is not None:
        guarded(lambda: jax.config.update(_FILTERING, setting), lambda _: None)


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _explain_cells(shell: Any) -> bool:
    """Returns whether it was not so before."""
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        return False
    shell.events.register("post_run_cell", _explain_cell)
    return True


def _explain_no_cells(shell: Any) -> None:
    if _explain_cell in shell.events.callbacks.get("post_run_cell", ()):
        shell.events.unregister("post_run_cell", _explain_cell)


def _explain_cell(result: Any) -> None:
    """Print the explanation of the error of a cell below its traceback."""
    error = getattr(result, "error_in_exec", None)
    text = "" if error is None else add_explanation(error)
    if text:
        print(fitted(text, _width_of(sys.stdout)))
