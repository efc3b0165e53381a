"""Functions in wrappers read as what they are: the transformation, the user's function, the user's file."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import treeviz

pytestmark = pytest.mark.oldest_jax


def loss(x):
    return (x**2).sum()


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


class Lies:
    """A callable that says that it wraps itself."""

    def __call__(self):
        raise AssertionError

    @property
    def __wrapped__(self):
        return Lies()


HERE = f"tree/{Path(__file__).name}"
LINE = loss.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("function", "made"),
    [
        (loss, ""),
        (jax.jit(loss), ""),
        (logged(loss), ""),
        (functools.lru_cache(loss), ""),
        (jax.custom_jvp(loss), ""),
        (jax.grad(loss), "grad of "),
        (jax.value_and_grad(loss), "value_and_grad of "),
        (jax.vmap(loss), "vmap of "),
        (jax.checkpoint(loss), "checkpoint of "),
        (jax.jacrev(loss), "jacrev of "),
        (jax.hessian(loss), "jacfwd of jacrev of "),
        (jnp.vectorize(loss), "vectorize of "),
        (jax.jit(jax.grad(logged(jax.vmap(jax.jit(loss))))), "grad of vmap of "),
    ],
)
def test_a_transformed_function_reads_as_the_users_function_and_what_was_done_to_it(function, made):
    text = f"{made}loss  {HERE}:{LINE}"
    (row,) = treeviz.walk([function]).leaves
    assert row.facts.text == text
    assert row.facts.static == () or made == "vectorize of "
    closure = treeviz.walk(jax.tree_util.Partial(function))[0]
    assert (closure.facts.text, closure.facts.static) == (text, row.facts.static)


def test_what_a_wrapper_and_its_function_captured_is_shown():
    scale = 2.5

    def scaled(x):
        return scale * loss(x)

    (row,) = treeviz.walk([jax.grad(logged(scaled))]).leaves
    assert row.facts.static[-1] == ("scale", "2.5")


@pytest.mark.parametrize("function", [jnp.sum, jax.nn.relu, jax.lax.scan, jax.eval_shape], ids=lambda f: f.__name__)
def test_functions_of_jax_itself_are_not_called_transformed(function):
    (row,) = treeviz.walk([function]).leaves
    assert row.facts.text.startswith(f"{function.__name__}  ")


def test_a_wrapper_without_an_end_is_a_leaf_like_others():
    (row,) = treeviz.walk([functools.partial(Lies())]).leaves
    assert row.kind == "function" and not row.notes
