"""The step itself is compiled in a thread while its twin is."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest
from watched import Recorder, watch

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="a call does not find what is compiled ahead")


@pytest.fixture
def compiling_threads():
    threads: list[str] = []

    def compiled(event: str, *_, **__) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            threads.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    yield threads
    jax.monitoring.unregister_event_duration_listener(compiled)


def watched_step():
    @jax.jit
    def update(params, x):
        return params - 0.1 * jax.grad(lambda p: jnp.sum((x * p) ** 2))(params)

    return watch(update, Recorder(), every=2), jnp.ones(3), jnp.arange(3.0)


def test_the_step_itself_is_compiled_once_and_in_a_thread(compiling_threads):
    update, params, x = watched_step()
    compiling_threads.clear()
    for _ in range(4):
        params = update(params, x)
    assert sorted(compiling_threads) == ["MainThread", "treeviz compilation"]


def test_a_step_with_options_of_its_thread_is_compiled_there(compiling_threads):
    update, params, x = watched_step()
    compiling_threads.clear()
    with jax.default_matmul_precision("float32"):
        for _ in range(4):
            params = update(params, x)
    assert compiling_threads == ["MainThread"] * 2
