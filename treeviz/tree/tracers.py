"""The class of JAX's tracers, which is undocumented: its absence must not break `import treeviz`."""

from __future__ import annotations

try:
    from jax.core import Tracer as Tracer  # type: ignore[assignment]
except ImportError:

    class Tracer:  # type: ignore[no-redef]
        """Without `jax.core.Tracer` no object is recognised as a tracer."""
