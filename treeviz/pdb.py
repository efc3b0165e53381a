"""pdb that prints trees: `PYTHONBREAKPOINT=treeviz.pdb.set_trace`, or `pytest --pdb --pdbcls=treeviz.pdb:Pdb`."""

from treeviz.plugin.shown import Pdb as Pdb
from treeviz.plugin.shown import set_trace as set_trace
