"""The page of an inspector, from a training run to what a person sees in Chromium."""

from __future__ import annotations

import jax
from browser.driving import opened, row, settled
from watched import init_mlp_params, loss_fn, mlp_data

import treeviz as tv

BAD = 25  # the step


def test_a_run_that_went_wrong_shows_where_and_when(open_page, shots):
    x, y = mlp_data()

    def update(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss_fn)(params, x, y))

    inspector = tv.GradientInspector(name="mlp", heavy_every=10, activations=True)
    step = inspector.watch(jax.jit(update))
    params = init_mlp_params([1, 8, 8, 1])
    for number in range(40):
        params = step(params, x, y.at[0].set(float("nan")) if number == BAD else y)
    page = open_page(inspector.render().html(), width=1300)
    opened(page)
    assert page.locator(".headline").inner_text().split("\n")[2:4] == ["40 steps", "step 39"]
    assert page.locator(".row .bad").first.inner_text() == "NaN/Inf"
    assert page.get_by_text("in rms").count() and page.get_by_text("out rms").count()
    n = len(inspector.findings)
    page.get_by_text(f"Findings ({n})").click()
    found = page.locator(".finding").first
    assert found.inner_text().startswith("nonfinite") and f"at step {BAD}" in found.inner_text()
    found.click()
    assert settled(page).get_by_role("slider", name="Heat map").count() == 1
    row(page, "biases").first.click()
    assert settled(page).get_by_role("img", name="magnitudes of grads").count() == 1
    assert page.locator("svg.chart").count() >= 1
    shots(page, "gradients.png")
