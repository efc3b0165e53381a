"""The plugin for IPython and notebooks: trees are displayed without a call, and magics. IPython is never imported."""
