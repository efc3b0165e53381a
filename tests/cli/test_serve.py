"""`treeviz serve`: what is listed, who is let in, and what can be read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, build_opener

import numpy as np
import pytest
import pythons
from own_thread import in_a_thread
from runs_in_files import Training

from treeviz.cli import main
from treeviz.cli.output import TROUBLE
from treeviz.inspector.panel import Throttle
from treeviz.steps.recording.history_file import Followed, keep, load

starlette = pytest.importorskip("treeviz.integrations.starlette", reason="starlette is not installed")
site = pytest.importorskip("treeviz.cli.site")
TestClient = pytest.importorskip("starlette.testclient").TestClient

PORT, TOKEN = 8710, "a-token"


@pytest.fixture
def folder(tmp_path):
    """A folder with runs, checkpoints and what is neither."""
    training = Training(tmp_path / "run.treeviz")
    training.go_on(60)
    (tmp_path / "old").mkdir()
    Training(tmp_path / "old" / "run.treeviz").go_on(10)
    os.utime(tmp_path / "old" / "run.treeviz", (1000, 1000))
    os.utime(tmp_path / "old" / "run.treeviz.journal", (1000, 1000))
    np.savez(tmp_path / "params.npz", **{"layers.0.w": np.arange(12.0).reshape(3, 4)})
    (tmp_path / "notes.txt").write_text("secret")
    (tmp_path / "secret.treeviz").symlink_to("/etc/passwd")
    (tmp_path / ".hidden.treeviz").write_bytes(b"")
    (tmp_path / "broken.treeviz").write_bytes(b"no run")
    return tmp_path


def client_of(served, *, token=True):
    client = TestClient(starlette.make_app(starlette.Pages(served), TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}")
    if token:
        client.cookies.set(f"treeviz-{PORT}", TOKEN)
    return client


def test_the_list_has_the_newest_first_and_says_what_is_wrong(folder):
    served = site.Site([folder])
    keys = [item["key"] for item in served.items()]
    assert sorted(keys) == ["broken.treeviz", "old/run.treeviz", "params.npz", "run.treeviz"]
    assert keys[-1] == "old/run.treeviz"
    served._searching.join()
    items = {item["key"]: item for item in served.items()}
    assert (items["run.treeviz"]["steps"], items["run.treeviz"]["step"]) == (60, "step 59")
    assert items["run.treeviz"]["findings"][0] == ["error", "6 of 6 leaves of grads were NaN or infinite at step 50."]
    assert "not a run that" in items["broken.treeviz"]["findings"][0][1]
    assert items["params.npz"]["kind"] == "checkpoint" and items["params.npz"]["bytes"] > 0
    assert [item["key"] for item in site.Site([folder / "run.treeviz", folder / "old" / "run.treeviz"]).items()] == [
        "run.treeviz",
        "run.treeviz'",
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},  # DNS rebinding
        {"host": "evil.example:8710"},
        {"host": "127.0.0.1.evil.example:8710"},
        {"host": "127.0.0.1:9000", "origin": "http://127.0.0.1:8710"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this machine
    ],
)
def test_a_stranger_is_not_let_in(folder, headers):
    client = client_of(site.Site([folder]))
    for path in ("/", "/list", "/at/run.treeviz", "/tree/run.treeviz", "/assets/site.js"):
        assert client.get(path, headers=headers).status_code == 403
    assert client.post("/ask/run.treeviz", json={}, headers=headers).status_code == 403


def test_the_token_becomes_a_cookie(folder):
    assert client_of(site.Site([folder])).get("/list", headers={"host": "localhost:9000"}).status_code == 200  # ssh -L
    client = client_of(site.Site([folder]), token=False)
    for path in ("/", "/list", "/?token=another", "/tree/run.treeviz", "/?token=ä"):
        assert client.get(path).status_code == 403
    answer = client.get(f"/two?left=a&token={TOKEN}&right=b", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/two?left=a&right=b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/").status_code == 200 and client.get("/list").status_code == 200
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    for path in ("/", "/list", "/two", "/assets/site.js", "/nothing"):
        headers = client.get(path).headers
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "access-control-allow-origin" not in client.get(path).headers


ELSEWHERE = ("notes.txt", "secret.treeviz", ".hidden.treeviz", "../run.treeviz", "..%2Frun.treeviz", "/etc/passwd")
ELSEWHERE += ("%2Fetc%2Fpasswd", "old/../notes.txt", "run.treeviz.journal", "", "%00", "a" * 5000)


@pytest.mark.parametrize("key", ELSEWHERE)
def test_nothing_is_read_that_is_not_in_the_list(folder, key):
    client = client_of(site.Site([folder]))
    for kind in ("tree", "events", "assets"):
        answer = client.get(f"/{kind}/{key}")
        assert answer.status_code == 404 and "secret" not in answer.text and "root:" not in answer.text
    assert client.get("/tree", params={"left": key, "right": "run.treeviz"}).status_code == 404


def test_a_checkpoint_is_read_on_demand(folder):
    client = client_of(site.Site([folder]))
    traits = json.loads(client.get("/tree/params.npz").content.partition(b"\n")[0])
    assert traits["_live"] == {} and "['layers'][0]" in traits["expanded"]
    request = {"op": "detail", "id": 7, "version": 0, "numbers": [3]}
    answer = client.post("/ask/params.npz", json=request).json()["content"]
    assert answer["id"] == 7 and answer["sections"][0]["drawn"]["range"] == [0.0, 11.0]
    assert client.post("/ask/params.npz", json={**request, "version": 5}).json()["content"]["stale"]
    assert client.post("/ask/params.npz", json={**request, "op": "cancel"}).status_code == 204
    assert client.post("/ask/params.npz", json={**request, "op": "save"}).status_code == 400
    assert client.post("/ask/params.npz", content=b"{").status_code == 415
    as_json = {"content-type": "application/json"}
    assert client.post("/ask/params.npz", content=b"{", headers=as_json).status_code == 400
    assert client.post("/ask/params.npz", content=b"[" * 60_000, headers=as_json).status_code == 400
    assert client.post("/ask/params.npz", content=b" " * 70_000, headers=as_json).status_code == 413
    assert client.get("/tree/broken.treeviz").status_code == 200  # a run may begin there


def test_two_runs_are_one_page_which_follows_both(folder):
    served, two = site.Site([folder]), {"left": "run.treeviz", "right": "old/run.treeviz"}
    client, events = client_of(served), []
    packed = client.get("/tree", params=two).content.partition(b"\n")[2]
    assert b"10 steps compared" in zlib.decompress(packed, -15)
    request = {"op": "detail", "id": 1, "version": 0, "numbers": [1]}
    assert client.post("/ask", params=two, json=request).json()["content"] == {"sections": [], "op": "answer", "id": 1}
    assert client.get("/tree", params={**two, "right": "params.npz"}).status_code == 422
    runs = served.open(tuple(two.values()), lambda *event: events.append(event))
    runs._throttle = Throttle(most_per_s=np.inf, share=np.inf)
    assert runs.poll() == "" and not events
    history = load(folder / "old" / "run.treeviz")
    numbers = {"grads": {"norm": np.ones(6), "nonfinite": np.zeros(6, np.int64)}}
    keep(history, folder / "old" / "run.treeviz")
    history.append(10, numbers)
    assert runs.poll() == "" and [(kind, content["version"]) for kind, content, _ in events] == [("tree", 1)]
    assert b"11 steps compared" in zlib.decompress(runs.content().partition(b"\n")[2], -15)


def test_few_items_stay_open(folder):
    for i in range(20):
        np.savez(folder / f"{i}.npz", w=np.ones(2))
    served, closed = site.Site([folder]), []
    client = client_of(served)
    opened = served.open
    served.open = lambda key, publish: Closing(opened(key, publish), closed)
    assert all(client.get(f"/tree/{i}.npz").status_code == 200 for i in range(20))
    assert len(closed) == 20 - starlette.MOST_OPEN


class Closing:
    def __init__(self, item, closed):
        self._item, self._closed = item, closed

    def __getattr__(self, name):
        return getattr(self._item, name)

    def close(self):
        self._closed.append(self._item)
        self._item.close()


def test_what_is_not_there_is_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "treeviz.integrations.starlette")
    assert main(["serve", str(tmp_path)]) == TROUBLE
    assert 'pip install "jax-treeviz[serve]"' in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["serve", str(tmp_path / "nothing")]) == TROUBLE
    assert "No such file" in capsys.readouterr().err


def test_an_inspector_serves_the_file_that_it_keeps(tmp_path, monkeypatch):
    from treeviz.inspector.inspector import GradientInspector

    ends, said = False, []

    class Process(subprocess.Popen):
        def __init__(self, command, **how):
            assert command[:5] == [sys.executable, "-P", "-m", "treeviz", "serve"]
            said.append(command[5:])
            program = "import sys; print(sys.argv[1], file=sys.stderr); sys.argv[2] == 'True' or sys.stdin.read()"
            super().__init__([sys.executable, "-c", program, text, str(ends)], **how)

    monkeypatch.setattr(subprocess, "Popen", Process)
    inspector = GradientInspector()
    file = inspector.keep(tmp_path / "run.treeviz")
    text = "Serving at http://127.0.0.1:8710/?token=t"
    server = inspector.serve(8710)
    assert server.url == "http://127.0.0.1:8710/at/run.treeviz?token=t"
    assert said == [[str(file), "--until-eof", "--port", "8710"]]
    server.close()
    text, ends = "treeviz: Address already in use", True
    with pytest.raises(OSError, match="the server did not start: treeviz: Address already in use"):
        inspector.serve()


@in_a_thread  # that of another test may have an event loop
def test_a_page_that_stops_reading_holds_nothing_up():
    async def received():
        channel, reads, stopped = starlette._Channel(), starlette.Stream(), starlette.Stream()
        channel.streams = {reads, stopped}
        buffer, events = bytes(starlette.MOST_WAITING // 8), []
        for n in range(20):
            channel.publish("message", {"n": n}, [buffer])
            await asyncio.sleep(0)
            events.append(await reads.get())
        missed = [await stopped.get()]
        channel.publish("message", {"n": 20}, [buffer])
        await asyncio.sleep(0)
        return events, [*missed, await stopped.get()], await reads.get()

    events, missed, last = asyncio.run(received())
    assert [json.loads(event.partition(b"data: ")[2])["content"]["n"] for event in events] == [*range(20)]
    assert missed == [b"event: missed\ndata: {}\n\n", last]


def test_a_page_that_comes_later_has_all_steps_and_the_others_are_left_alone(tmp_path):
    training, events = Training(tmp_path / "run.treeviz"), []
    training.go_on(5)
    served = site.Site([tmp_path])
    run = served.open("run.treeviz", lambda *event: events.append(event))
    run._panel._ticker.stop()  # which shows the whole run after five seconds
    training.go_on(5)
    run.poll()
    training.go_on(5)
    served.items()
    served._searching.join()
    assert served.items()[0]["steps"] == 15  # of the run that is open
    run.content()
    (kind, tree, _), (other, news, buffers) = events
    assert (kind, tree["version"], tree["status"]["state"]) == ("tree", 1, "running")
    assert (other, news["op"], news["n"], len(buffers)) == ("message", "append", 5, 5)
    content = run.content()
    traits = json.loads(content.partition(b"\n")[0])
    assert (traits["_version"], traits["_live"]["sequence"]) == (2, news["sequence"])
    assert run.content() == content and len(events) == 2
    run.close()


def test_a_run_that_another_one_replaces_is_shown_and_what_is_no_run_is_named(tmp_path):
    for name in ("run", "other"):
        Training(tmp_path / f"{name}.treeviz").go_on(5 if name == "run" else 10)
    events = []
    run = site.Site([tmp_path]).open("run.treeviz", lambda *event: events.append(event))
    for end in ("", ".journal"):
        os.replace(tmp_path / f"other.treeviz{end}", tmp_path / f"run.treeviz{end}")
    assert run.poll() == "" and [(kind, content["status"]["step"]) for kind, content, _ in events] == [("tree", 9)]
    packed = run.content().partition(b"\n")[2]
    (tmp_path / "run.treeviz").write_bytes(b"no run")
    assert "is not a run" in run.poll() and run.content().endswith(packed)
    (tmp_path / "run.treeviz").unlink()
    assert run.poll().endswith("run.treeviz is gone") and run.content().endswith(packed)
    run.close()


def test_who_sends_half_a_request_or_too_long_a_one_is_put_off(folder, monkeypatch):
    monkeypatch.setattr(starlette, "_REQUEST_WITHIN_S", 0.05)
    listening = starlette.listening_socket(0)
    server = starlette.Server(site.Site([folder]), TOKEN, 1)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        for request, answer in (
            (b"GET / HTTP/1.1\r\nHost: 127.0", b""),
            (b"GET /?" + b"a" * 1_000_000 + b" HTTP/1.1\r\n", b"HTTP/1.1 400"),
            (b"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", b"HTTP/1.1 403"),
        ):
            with socket.create_connection(listening.getsockname()[:2]) as client, contextlib.suppress(ConnectionError):
                client.sendall(request)
                assert client.recv(12) == answer
    finally:
        server.should_exit = True
        thread.join()


TRAIN = """
import sys
from runs_in_files import Training
training = Training("runs/run.treeviz")
for line in sys.stdin:
    training.go_on(int(line))
    print(training.step, flush=True)
"""


def test_the_guide_word_for_word_in_two_processes_each_of_which_may_be_killed(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "command.md").read_text("utf-8")
    (command,) = re.findall(r"^treeviz (serve runs/) --port 8710$", guide, re.MULTILINE)
    (tmp_path / "runs").mkdir()
    how = {"cwd": tmp_path, "text": True, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}}
    python, pipe = pythons.command("jax"), subprocess.PIPE
    serve = [*python, "-m", "treeviz", *command.split(), "--port", "0"]
    with (
        subprocess.Popen([*python, "-c", TRAIN], stdin=pipe, stdout=pipe, **how) as training,
        subprocess.Popen(serve, stderr=pipe, **how) as server,
    ):

        def go_on(n: int) -> int:
            training.stdin.write(f"{n}\n")
            training.stdin.flush()
            return int(training.stdout.readline())

        def steps() -> int | None:
            items = json.loads(browser.open(urljoin(address, "/list")).read())
            return items[0].get("steps") if items else None

        try:
            address = re.search(r"http\S+", server.stderr.readline())[0]
            browser = build_opener(HTTPCookieProcessor())
            assert b"site.js" in browser.open(address).read()
            for n in (5, 10):
                at = go_on(n)
                while steps() != at:
                    time.sleep(0.02)
            server.kill()
            assert go_on(10) == 25 and len(load(tmp_path / "runs" / "run.treeviz")) == 25
            training.kill()
            followed = Followed(tmp_path / "runs" / "run.treeviz")
            assert followed.read() and followed.n_unread == 0 and len(followed.history) == 25
        finally:
            training.kill()
            server.kill()
