"""Qwix: quantized arrays with their bits, and the shape of the scale."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from, quantized_text
from treeviz.tree.describers import Description


@describes_from("qwix", "QArray")
def q_array(node: Any) -> Description:
    return Description("node", text=quantized_text(node.qvalue, node.scale, qtype=node.qtype), static=())
