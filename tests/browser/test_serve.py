"""`treeviz serve` in a browser: the list, a run that grows, two runs, and a server that goes away."""

from __future__ import annotations

import contextlib
import re
import threading

import numpy as np
import pytest
from browser.conftest import new_window
from runs_in_files import Training

starlette = pytest.importorskip("treeviz.integrations.starlette", reason="starlette is not installed")

from treeviz.cli.site import Site  # noqa: E402


@contextlib.contextmanager
def serving(path, port=None):
    """The server of a folder, in a thread. Yields its port."""
    listening = starlette.listening_socket(port or 0)
    port = listening.getsockname()[1]
    server = starlette.Server(Site([path]), "t", port)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def opened(chromium):
    """A page, and what goes wrong there."""
    page, watch = new_window(chromium)
    yield page, watch
    assert not watch.taken()
    page.context.close()


def test_a_run_is_followed_until_the_server_ends(opened, tmp_path):
    window, watch = opened
    training = Training(tmp_path / "run.treeviz")
    training.go_on(5)
    with serving(tmp_path) as port:
        window.goto(f"http://127.0.0.1:{port}/?token=t")
        assert "token" not in window.url
        window.get_by_role("link", name="run", exact=True).click()
        expect(window.get_by_role("treeitem").first).to_contain_text("params")
        others = [window.context.new_page() for _ in range(6)]  # one more than a browser opens connections
        for other in others:
            other.goto(window.url)
            expect(other.get_by_role("treeitem").first).to_contain_text("params")
        training.go_on(10)
        for page in (window, *others):
            expect(page.locator(".live")).to_contain_text("step 14")
        for other in others[1:]:
            other.close()
        expect(window.get_by_role("treeitem").filter(has_text="[2]")).to_have_count(1)
        window.get_by_role("treeitem").filter(has_text="[2]").press("ArrowLeft")  # closed rows stay closed
        training.go_on(40)
        expect(others[0].locator(".live")).to_contain_text("step 54")
        expect(window.locator(".banner")).to_contain_text("6 of 6 leaves of grads were NaN or infinite at step 50")
        window.reload()
        expect(window.locator(".banner")).to_contain_text("at step 50")
        watch.is_on = False  # a browser reports each request that nobody answers
    status = window.get_by_role("status").filter(has_text="does not answer")
    expect(status).to_be_visible()
    training.go_on(3)
    with serving(tmp_path, port):
        expect(status).to_have_count(0)
        expect(window.locator(".live")).to_contain_text("step 57")


def test_the_list_and_two_runs(opened, tmp_path):
    window, _ = opened
    np.savez(tmp_path / "params.npz", w=np.arange(12.0).reshape(3, 4))
    with serving(tmp_path) as port:
        window.goto(f"http://127.0.0.1:{port}/?token=t")
        expect(window.get_by_role("status")).to_have_text("0 runs, 1 checkpoint")
        trainings = {name: Training(tmp_path / f"{name}.treeviz") for name in ("a", "b")}
        for name, training in trainings.items():
            training.go_on(60 if name == "b" else 10)
        expect(window.get_by_role("status")).to_have_text("2 runs, 1 checkpoint")
        expect(window.get_by_role("row").filter(has_text="at step 50")).to_have_count(1)
        for name in ("a", "b"):
            window.get_by_label(f"Choose {name}.treeviz").check()
        window.get_by_role("link", name="Compare the two").click()
        expect(window.get_by_text("10 steps compared")).to_be_visible()
        trainings["a"].go_on(5)
        expect(window.get_by_text("15 steps compared")).to_be_visible()
        window.goto(f"http://127.0.0.1:{port}/at/params.npz")
        window.get_by_role("treeitem").last.click()
        expect(window.get_by_text(re.compile(r"\[0:3, 0:4\] float64"))).to_be_visible()
        window.goto(f"http://127.0.0.1:{port}/")
        window.get_by_label("Search names").fill("para")
        expect(window.get_by_role("row")).to_have_count(2)


def expect(locator):
    from playwright.sync_api import expect as expect_of

    return expect_of(locator)
