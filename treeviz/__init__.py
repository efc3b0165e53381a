"""The visual debugger for JAX pytrees."""

from treeviz.api import load_ipython_extension as load_ipython_extension
from treeviz.api import render as render
from treeviz.api import unload_ipython_extension as unload_ipython_extension
from treeviz.api import walk as walk
from treeviz.tree.level import child as child
from treeviz.tree.looks import Look as Look
from treeviz.tree.looks import describes as describes
from treeviz.tree.table import TreeTable as TreeTable
from treeviz.views.tree_view import TreeView as TreeView

__version__ = "0.1.0"
