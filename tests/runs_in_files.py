"""A run that a test writes into a file step by step, as a training process does."""

import numpy as np
from norm_runs import Run

from treeviz.steps.recording.history import History
from treeviz.steps.recording.history_file import keep

LAYERS = {f"['layers'][{i}]['{leaf}']": 10 for i in range(3) for leaf in ("b", "w")}


class Training:
    """A process that writes a run; every gradient is NaN from step 50 on."""

    def __init__(self, path):
        self.run, self.step = Run(dict(LAYERS), n_steps=100), 0
        self.run.grads[50:], self.run.bad[50:] = np.nan, 1
        self.history = History(self.run.sources[:1])
        self.path = keep(self.history, path)

    def go_on(self, n: int) -> None:
        for step in range(self.step, self.step + n):
            numbers = {"norm": self.run.grads[step], "nonfinite": self.run.bad[step]}
            self.history.append(step, {"grads": numbers})
        self.step += n
