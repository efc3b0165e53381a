"""The processes of a distributed run compare their settings through JAX's coordinator, before they watch a step."""

from __future__ import annotations

import contextlib
from collections import Counter

import jax

from treeviz.steps.tracing.jax_private import TO_COMPARE_PROCESSES, distributed_state
from treeviz.tree.private_names import missing_names, warn_of_missing, why_missing


def announce(step: str) -> None:
    """Tell the other processes of a distributed run that this one watches a step of this name."""
    state = distributed_state()
    if state is not None:
        with contextlib.suppress(Exception):  # such as that it was told before
            state.client.key_value_set(f"treeviz/{step}/{state.process_id}", "watched")


_n_asked: Counter[str] = Counter()  # by the name of a step


def agreed(step: str, answer: str, timeout_s: float, *, join_s: float) -> str:
    """Empty if all processes of a distributed run give the same answer; else why they do not, the same in each.

    Uses the coordinator, not the devices: if a process never asks, the others give up and do not hang.

    Args:
      timeout_s: How long to wait for the answer of a process that has announced this step.
      join_s: How long to wait until it announces it.
    """
    missing = why_missing(missing_names(TO_COMPARE_PROCESSES))
    if missing and jax.process_count() > 1:
        return missing
    if missing:
        warn_of_missing(TO_COMPARE_PROCESSES, stacklevel=5)
        return ""
    state = distributed_state()
    if state is None:
        return ""
    announce(step)
    question, me = f"treeviz/{step}/asked {_n_asked[step]}", state.process_id
    _n_asked[step] += 1
    why = "agreed"
    try:
        state.client.key_value_set(f"{question}/{me}", answer)
        for process in range(state.num_processes):
            why = f"process {process} did not watch this step within {join_s:g} s of its first call in process {me}"
            state.client.blocking_key_value_get(f"treeviz/{step}/{process}", int(join_s * 1000))
            why = f"process {process} did not call this step within {timeout_s:g} s of its first call in process {me}"
            theirs = state.client.blocking_key_value_get(f"{question}/{process}", int(timeout_s * 1000))
            if theirs != answer:
                why = f"process {process} watches it with {theirs}, process {me} with {answer}"
                break
            why = "agreed"
    except Exception as error:
        why = f"{why} ({type(error).__name__})"
    try:  # the first decision is that of all, so that none runs what another has given up
        state.client.key_value_set(f"{question}/decision", why)
    except Exception:
        try:
            why = state.client.blocking_key_value_get(f"{question}/decision", int(join_s * 1000))
        except Exception as error:
            return f"the processes cannot be compared ({type(error).__name__}: {error})"
    return "" if why == "agreed" else why
