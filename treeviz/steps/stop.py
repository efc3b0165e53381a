"""The exception that ends a training run."""


class StopTraining(Exception):
    """A finding of a kind in `GradientInspector(raise_on=...)` ended the run. The message is the finding.

    Of a watched step it is the only exception of the inspector that reaches the loop; all others become warnings.

        inspector = tv.GradientInspector(raise_on={"nonfinite"})
        update = inspector.watch(update)
        try:
            for _ in range(100):
                params = update(params, x, y)
        except tv.StopTraining as stop:
            print(stop)  # which leaf, since which step, and what to try
    """
