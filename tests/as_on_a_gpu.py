"""The CPU as a GPU: values are not in host memory, and reading them is a transfer that a guard can forbid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest
from jax._src import array
from jax._src.lib import guard_lib


def is_read_allowed() -> bool:
    """Whether the guard of this thread lets an array's values go to the host."""
    state, levels = guard_lib.thread_local_state(), guard_lib.TransferGuardLevel
    level = state.device_to_host if state.device_to_host is not None else guard_lib.global_state().device_to_host
    if level == levels.DISALLOW_EXPLICIT:
        return False
    return level != levels.DISALLOW or state.explicit_device_get


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """No array is taken to lie in host memory, and `jax.transfer_guard` is asked before its values are read.

    XLA does not ask on the CPU, where NumPy looks at the values where they lie.
    """
    read = array.ArrayImpl._value

    def guarded(self):
        if not is_read_allowed():
            raise RuntimeError(f"Disallowed device-to-host transfer: shape={self.shape}, dtype={self.dtype}")
        return read.fget(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array.ArrayImpl, "_value", property(guarded))
        patch.setattr(jax, "default_backend", lambda: "gpu")
        for name, module in [*sys.modules.items()]:
            if name.startswith("treeviz.") and hasattr(module, "lies_on_host"):
                patch.setattr(module, "lies_on_host", lambda array: False)
        yield
