"""Tests in threads of their own, where what they spend of the depth of recursion is lost with the thread."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor


def in_a_thread(test):
    """Run a test in a thread.

    Each error of `PyTreeDef.flatten_up_to` takes some of its thread's depth of recursion and gives none back (jax
    0.10.2, Python 3.11): after some thousand of them, the tests that come next in a process raise RecursionError.
    """

    @functools.wraps(test)
    def run(*args, **kwargs):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(test, *args, **kwargs).result()

    return run
