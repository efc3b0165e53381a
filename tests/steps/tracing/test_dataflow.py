"""What a domain knows goes through calls, branches, loops and `shard_map`, and holds in every turn of a loop."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from treeviz.steps.tracing.dataflow import Domain, forward

pytestmark = pytest.mark.oldest_jax

x = jnp.arange(4.0)


class Sources(Domain[frozenset]):
    """Which arguments a value is made of: all that a program could use."""

    def __init__(self):
        self.visited = []

    def unknown(self, atom):
        return frozenset()

    def results(self, eqn, operands):
        return [frozenset().union(*operands)] * len(eqn.outvars)

    def join(self, values, atom):
        return frozenset().union(*values)

    def visit(self, eqn, operands):
        self.visited.append((eqn.primitive.name, frozenset().union(*operands)))


class Constants(Domain[float | None]):
    """The number that a scalar is, by addition alone."""

    def unknown(self, atom):
        return None

    def constant(self, value):
        return None if np.shape(value) else float(value)

    def results(self, eqn, operands):
        is_sum = eqn.primitive.name == "add" and None not in operands
        return [sum(operands)] if is_sum else operands if eqn.primitive.name == "convert_element_type" else ()


def sources(function, *arguments):
    program = jax.make_jaxpr(function)(*arguments)
    found = forward(program, Sources(), [frozenset([i]) for i in range(len(program.jaxpr.invars))])
    return [sorted(each) for each in found]


def scan(a, b, c):
    """The carry gets `b` in the first turn, and `c` two turns later."""

    def turn(carry, entry):
        first, second, third = carry
        return (first + second, second * third, third + entry), second

    return lax.scan(turn, (a, b, 0.0), jnp.full(5, c))


def while_loop(a, b, c):
    return lax.while_loop(lambda s: s[0] < c, lambda s: (s[0] + 1.0, s[0] * s[1]), (a, b))


def cond(a, b, c):
    return lax.cond(a > 0, lambda b, c: (b, c), lambda b, c: (c * 2, 1.0), b, c)


def calls(a, b, c):
    inner = jax.jit(lambda a, b: (jax.checkpoint(jnp.sin)(a), b))
    return inner(a, b)[0], inner(c, b)


def in_a_shard_map(a, b, c):
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    mapped = shard_map(lambda a, b: (a + b, a), mesh=mesh, in_specs=(P("data"), P()), out_specs=(P("data"), P("data")))
    return mapped(x * a, b)


# A function of three scalars, and the arguments that each of its results may depend on, without the conditions.
PROGRAMS = {
    scan: [[0, 1, 2], [1, 2], [2], [1, 2]],
    while_loop: [[0], [0, 1]],
    cond: [[1, 2], [2]],
    calls: [[0], [2], [1]],
    in_a_shard_map: [[0, 1], [0]],
}


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_what_is_known_goes_through_every_kind_of_program(function):
    assert sources(function, 1.0, 2.0, 3.0) == PROGRAMS[function]


def test_what_a_loop_changes_is_unknown_and_what_it_keeps_is_known():
    def step(a):
        def turn(carry, _):
            kept, _, counted = carry
            return (kept + 0.0, kept, counted + 1.0), kept

        return lax.scan(turn, (3.0, 4.0, 0.0), None, length=4), a

    program = jax.make_jaxpr(step)(x)
    assert forward(program, Constants(), [None]) == [3.0, None, None, 3.0, None]


def test_each_equation_is_visited_once_in_order_with_what_holds_in_every_turn():
    domain, program = Sources(), jax.make_jaxpr(scan)(1.0, 2.0, 3.0)
    forward(program, domain, [frozenset([i]) for i in range(3)])
    names = [name for name, _ in domain.visited]
    assert names.index("scan") < names.index("mul") < len(names)
    assert names.count("mul") == 1 and names.count("add") == 2  # of several turns
    assert dict(domain.visited)["mul"] == frozenset([1, 2])  # as in the last turn


def test_the_condition_of_a_loop_is_visited_with_what_the_loop_carries():
    domain, program = Sources(), jax.make_jaxpr(while_loop)(1.0, 2.0, 3.0)
    forward(program, domain, [frozenset([i]) for i in range(3)])
    assert ("lt", frozenset([0, 2])) in domain.visited


def test_a_program_is_followed_up_to_an_equation():
    program = jax.make_jaxpr(lambda a: jnp.cos(jnp.sin(a)))(1.0)
    domain = Sources()
    forward(program, domain, [frozenset([0])], last=program.jaxpr.eqns[1])
    assert [name for name, _ in domain.visited] == ["sin"]


def test_a_primitive_that_a_domain_does_not_enter_is_asked_of_the_domain():
    class Whole(Sources):
        enters = frozenset(["jit", "pjit"])

    program = jax.make_jaxpr(scan)(1.0, 2.0, 3.0)
    found = forward(program, Whole(), [frozenset([i]) for i in range(3)])
    assert found == [frozenset([0, 1, 2])] * 4


def test_the_domain_in_contributing_knows_what_it_promises():
    page = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text("utf-8")
    code: dict = {}
    exec(re.search(r"```python\n([^`]*class Zeros.*?)```", page, re.DOTALL)[1], code)

    def step(a, b):
        return lax.scan(lambda carry, entry: (carry * entry, -entry), 0.0, a * 0.0)[0], a * b

    is_zero, with_zeros = code["zeros_in"](step, x, 2.0)
    assert is_zero == [True, False] and "neg" in with_zeros  # in the scan
