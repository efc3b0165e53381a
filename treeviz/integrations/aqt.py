"""AQT: quantized tensors with their bits, and the shapes of the scales."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from, quantized_text
from treeviz.tree.describers import Description


@describes_from("aqt.jax.v2.aqt_tensor", "QTensor")
def q_tensor(node: Any) -> Description:
    of = node.dequant_dtype
    text = quantized_text(node.qvalue, *(node.scale or ()))
    static = [("tiling_state", node.tiling_state)] if node.tiling_state is not None else []
    return Description("node", text=text, static=[*([("dequant_dtype", of)] if of is not None else []), *static])
