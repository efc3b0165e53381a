"""The command: `treeviz FILE`, `treeviz show`, `treeviz demo`, and what all commands have in common."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import mutated_files
import numpy as np
import pytest
import pythons

import treeviz
from treeviz import cli, demo_model, reader
from treeviz.cli import main, output
from treeviz.tree import stored
from treeviz.tree.describers import Budget

HOUSE = Path(treeviz.__file__).parents[1]


def command() -> list[str]:
    return [*pythons.command("jax"), "-W", "error", "-m", "treeviz"]


def run(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(HOUSE), "PYTHONIOENCODING": "utf-8", **options.pop("env", {})}
    return subprocess.run(
        [*command(), *arguments], capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=environment, **options
    )


@pytest.fixture
def params(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "params.npz"
    arrays = {f"layers/{i}/{name}": np.ones((4, 2 + i), np.float16) for i in range(12) for name in ("w", "b")}
    np.savez(path, **arrays, scale=np.float32(2))
    return path


@pytest.fixture
def small_demo(monkeypatch):
    """The demo's model, a thousand times smaller."""
    for name, n in {"N_VOCABULARY": 50, "N_CONTEXT": 16, "N_CHANNELS": 24, "N_BLOCKS": 2}.items():
        monkeypatch.setattr(demo_model, name, n)


def test_a_file_is_shown_as_a_tree_whose_lists_are_in_order(params, capsys):
    assert main([str(params)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("params · 25 leaves · ")
    keys = [match[1] for line in lines if (match := re.search(r"[├└]─ (\[\d+\]) ", line))]
    assert keys == [f"[{i}]" for i in range(12)]
    assert sum("float16[4,3]" in line for line in lines) == 2


def test_find_lists_rows_by_expressions_that_lead_to_them(params, capsys):
    assert main([str(params), "--find", "layers/3/*"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"params['layers'][3]['{name}']  float16[4,5]" for name in "bw"]
    assert printed.err == "2 of 39 rows match\n"


def test_find_takes_a_file_s_own_name_of_a_tensor_and_a_printed_path(params, capsys):
    for query in ("layers.3.w", "layers[3].w", "layers/3/w", "['layers'][3]['w']", "params['layers'][3]['w']"):
        assert main([str(params), "--find", query]) == 0
        assert capsys.readouterr() == ("params['layers'][3]['w']  float16[4,5]\n", "1 of 39 rows match\n")


@pytest.mark.parametrize(
    ("query", "near"),
    [("layrs.3.w", "layers.3.w"), ("dtype:flaot16", "dtype:float16"), ("zzz", ""), ("-params", "")],
)
def test_a_query_that_finds_nothing_names_a_near_one(params, capsys, query, near):
    assert main([str(params), f"--find={query}"]) == output.DIFFERENT
    hint = f". Did you mean --find {near}?" if near else ""
    assert capsys.readouterr() == ("", f"0 of 39 rows match{hint}\n")


def test_find_lists_leaves_with_the_numbers_that_it_compares(params, capsys):
    assert main([str(params), "--find", "bytes > 100"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"    104 B  params['layers'][11]['{name}']  float16[4,13]" for name in "bw"
    ]
    assert main([str(params), "--find", "bytes:90..100 elements:>2", "--sort", "elements", "--top", "1"]) == 0
    assert capsys.readouterr().out == "       48       96 B  params['layers'][10]['b']  float16[4,12]\n"
    assert main([str(params), "--find", "bytes:>1k"]) == 0  # no leaf has as many
    assert capsys.readouterr().out == "   1.4 kB  params['layers']  list\n"


def test_the_status_says_whether_find_found_anything(params, capsys):
    assert main([str(params), "--find", "nowhere"]) == output.DIFFERENT
    assert main([str(params), "--find", "bytes:>many"]) == output.TROUBLE
    assert capsys.readouterr().err.splitlines()[-1].startswith("treeviz: ")


@pytest.mark.parametrize("name", ["html", "text", "json", "svg", "png", "md", "mmd"])
def test_the_view_is_written_to_files_which_is_said_beside_the_tree(params, capsys, name):
    assert main([params.name, f"--{name}", "out.file"]) == 0
    assert (params.parent / "out.file").stat().st_size > 0
    printed = capsys.readouterr()
    assert (printed.out.count("float16[4,"), printed.err) == (24, "Wrote out.file\n")


def test_an_output_takes_the_place_of_the_tree_on_standard_output(params, capsys):
    assert main([params.name, "--json", "-", "--text", "out.txt"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "params"
    assert printed.err == "Wrote out.txt\n" and "float16[4,2]" in (params.parent / "out.txt").read_text("utf-8")


def test_leaves_are_listed_by_a_column_the_greatest_first(params, capsys):
    assert main([params.name, "--top", "2"]) == 0
    first = "    104 B  params['layers'][11]['b']  float16[4,13]"
    assert capsys.readouterr().out.splitlines() == [first, first.replace("'b'", "'w'")]
    assert main([params.name, "--find", "scale", "--sort", "mean"]) == 0  # which reads the values
    assert capsys.readouterr().out == "        2  params['scale']  float32[]\n"
    assert main([params.name, "--sort", "byte"]) == main([params.name, "--sort", "dtype"]) == output.TROUBLE
    lines = capsys.readouterr().err.splitlines()
    assert "Did you mean bytes?" in lines[0] and "a column of numbers" in lines[1]


def test_columns_are_chosen_by_name(params, capsys):
    assert main([params.name, "--columns", "mean,max"]) == 0
    title = capsys.readouterr().out.splitlines()[1].split()
    assert title == ["mean", "max"]
    assert main([params.name, "--width", "30", "--text", "out.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 26 <= max(map(len, lines)) <= 30 and lines == Path("out.txt").read_text("utf-8").splitlines()


def test_a_summary_in_markdown_holds_what_names_may_not_break(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", **{"```": np.ones(2), "a|b": np.ones(2, bool)})
    np.savez("b.npz", **{"```": np.ones(3), "a|b": np.ones(3, bool)})
    assert main(["a.npz", "--github"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("### a · 2 leaves · ") and printed.count("````") == 2
    assert main(["a.npz", "--find", '"a|b"', "--github"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["```text", "a['a|b']  bool[2]", "```"]
    assert main(["diff", "a.npz", "b.npz", "--github"]) == output.DIFFERENT
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == ["| ````['```']```` | shape: (2,) → (3,) |", "| `['a\\|b']` | shape: (2,) → (3,) |"]


def test_depth_limits_what_is_shown(params, capsys):
    assert main([str(params), "--depth", "1"]) == 0
    assert "[0]" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit:
        main([str(params), "--depth", "-1"])
    assert exit.value.code == 2


def test_stats_read_the_values(params, capsys):
    assert main([str(params), "--stats"]) == 0
    assert "mean" in capsys.readouterr().out
    assert main([str(params), "--find", "mean:=2"]) == 0
    assert capsys.readouterr().out == "        2  params['scale']  float32[]\n"
    assert main([str(params), "--find", "nan"]) == output.DIFFERENT
    np.savez(params, bad=np.array([1, np.nan]), good=np.ones(2))
    capsys.readouterr()
    assert main([str(params), "--find", "nan"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("params['bad']  float64[2]\n", "1 of 3 rows match\n")


def test_a_stack_opens_into_its_layers(params, capsys):
    assert main([str(params), "--stacked", "3/*", "--stacked", "layers/4/w", "--find", "kind:layer"]) == 0
    found = [f"params['layers']{leaf}[{i}]" for leaf in ("[3]['b']", "[3]['w']", "[4]['w']") for i in range(4)]
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == found
    assert main([params.name, "--stacked", "layer/*"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("treeviz: --stacked 'layer/*': no array") and "treeviz params.npz --find 'layer/*'" in error


def test_what_a_display_leaves_out_is_shown_on_request_and_always_searched(params, capsys, monkeypatch):
    monkeypatch.setattr("treeviz.prepare.DISPLAY", Budget(max_rows=20, read_s=-1.0, hint="; whole=True shows more"))
    assert main([str(params), "--stats"]) == 0
    printed = capsys.readouterr().out
    assert "more" in printed and "not read" in printed
    assert main([str(params), "--stats", "--whole"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("float16[4,") == 24 and "not read" not in printed
    assert main([str(params), "--find", "mean:=2", "--stats"]) == 0
    assert capsys.readouterr().out == "        2  params['scale']  float32[]\n"


def test_help_and_version(capsys):
    for argument, text in (("--help", "`treeviz FILE` is"), ("--version", f"treeviz {treeviz.__version__}\n")):
        with pytest.raises(SystemExit) as exit:
            main([argument])
        assert exit.value.code == 0
        printed = capsys.readouterr().out
        assert text in printed and max(map(len, printed.splitlines())) <= 80


def test_help_names_the_formats_that_are_read(capsys, monkeypatch):
    monkeypatch.setitem(reader.READERS, ".acme", lambda path: {})
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    assert ".acme; an Orbax or" in " ".join(capsys.readouterr().out.split())


def test_a_terminal_that_lacks_characters_gets_escapes(tmp_path):
    np.savez(tmp_path / "a.npz", **{"é": np.ones(2)})
    shown = run("a.npz", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert shown.returncode == 0
    assert "\\xe9" in shown.stdout and shown.stdout.isascii()


def test_a_pipe_gets_plain_text_and_all_rows(tmp_path):
    np.savez(tmp_path / "many.npz", **{f"a{i}": np.ones(1) for i in range(300)})
    shown = run("many.npz", cwd=tmp_path)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert len([line for line in shown.stdout.splitlines() if re.search(r"[├└]─ a\d+ ", line)]) == 300


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGPIPE")
def test_a_reader_that_leaves_is_no_error(tmp_path):
    np.savez(tmp_path / "many.npz", **{f"a{i}": np.ones(1) for i in range(3_000)})
    reader = "import os; os.read(0, 10); os.close(0)"
    writer = subprocess.Popen(
        [*command(), "many.npz"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOUSE)},
    )
    subprocess.run([sys.executable, "-c", reader], stdin=writer.stdout, check=True)
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait() == cli.PIPE_CLOSED


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sh")
@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        (">&-", "Wrote a.txt\ntreeviz: standard output is closed\n"),
        (">&- 2>&-", ""),
        pytest.param(
            ">/dev/full",
            "Wrote a.txt\ntreeviz: No space left on device\n",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device"),
        ),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_status_2_after_the_file_is_saved(tmp_path, redirected, message):
    np.save(tmp_path / "a.npy", np.ones(2))
    shown = subprocess.run(
        ["sh", "-c", f'"$@" a.npy --text a.txt {redirected}', "sh", *command()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOUSE)},
    )
    assert (shown.returncode, shown.stderr) == (output.TROUBLE, message)
    assert "float64[2]" in (tmp_path / "a.txt").read_text()


def test_the_demo_writes_its_page_here_and_prints_the_tree(small_demo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["demo", "--stats"]) == 0
    printed = capsys.readouterr()
    assert all(word in printed.out for word in ("TrainState", "ScaleByAdamState", "key<fry>[]"))
    said, erased, rest = printed.err.split("\r")
    assert said.startswith("Making") and erased == " " * len(said)
    assert rest == ("Wrote treeviz-demo.html\nOpen treeviz-demo.html in a browser, or run: treeviz demo --open\n")
    page = (tmp_path / "treeviz-demo.html").read_text("utf-8")
    assert "ScaleByAdamState" in page


def test_the_demo_without_optax_shows_the_same_tree_and_says_so(small_demo, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optax")
    monkeypatch.chdir(tmp_path)
    theirs = treeviz.walk(demo_model.train_state())
    monkeypatch.setattr(demo_model, "has_optax", lambda: False)
    ours = treeviz.walk(demo_model.train_state())
    assert [(row.keystr, row.type, row.shape, row.dtype, row.notes) for row in ours] == [
        (row.keystr, row.type, row.shape, row.dtype, row.notes) for row in theirs
    ]
    assert main(["demo"]) == 0
    assert "Without optax, named tuples with its names hold the optimizer state" in capsys.readouterr().err


def test_the_demo_has_the_parameters_of_gpt2_small():
    """124,439,808: https://huggingface.co/openai-community/gpt2, without the causal masks."""
    shapes = jax.eval_shape(demo_model.gpt2_params, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 124_439_808
    assert len(jax.tree.leaves(shapes)) == 148
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype("float32")}


def test_the_same_seed_gives_the_same_parameters(small_demo):
    first, second = (jax.tree.leaves(demo_model.train_state(3).params) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_demo_of_full_size_runs_as_a_command_of_its_own(tmp_path):
    shown = run("demo", "--html", "gpt2.html", cwd=tmp_path, env={"XLA_FLAGS": ""})
    assert shown.stderr == "Wrote gpt2.html\n"
    assert shown.returncode == 0
    assert "124.4 M parameters · 373.3 M elements" in shown.stdout  # and twice as many moments
    assert "float32[50257,768]" in shown.stdout
    assert os.listdir(tmp_path) == ["gpt2.html"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("treeviz de", ["demo"]),
        ("treeviz di", ["diff", "disk.npz"]),
        ("treeviz disk", ["disk.npz"]),
        ("treeviz diff a.npz --rt", ["--rtol"]),
        ("treeviz a.npz --so", ["--sort"]),  # as of show
        ("treeviz a.npz b --so", ["--sort"]),
        ("treeviz --ver", ["--version"]),
    ],
)
def test_a_shell_completes_commands_files_and_options(tmp_path, monkeypatch, line, words):
    monkeypatch.chdir(tmp_path)
    Path("disk.npz").touch()
    argcomplete = pytest.importorskip("argcomplete")
    monkeypatch.setattr("argcomplete.finders.os.fdopen", lambda *_: io.StringIO())  # it closes pytest's descriptor 9
    answer = io.StringIO()
    monkeypatch.setattr(
        argcomplete, "autocomplete", partial(argcomplete.autocomplete, output_stream=answer, exit_method=sys.exit)
    )
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " ", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert answer.getvalue().split() == words


def test_a_bar_shows_how_much_was_read_and_is_gone_before_anything_is_printed(params, monkeypatch, capsys):
    tqdm = pytest.importorskip("tqdm").tqdm
    seen = []

    class Bar(tqdm):
        def update(self, n=1):
            seen.append((self.n + n, self.total))
            return super().update(n)

    monkeypatch.setattr("tqdm.tqdm", Bar)
    monkeypatch.setattr("treeviz.cli.output.DELAY_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main([params.name, "--stats"]) == 0
    n_bytes = sum(array.nbytes for array in np.load(params).values())
    assert seen[-1] == (n_bytes, n_bytes)
    printed = capsys.readouterr()
    assert "reading" in printed.err and "reading" not in printed.out and not stored.on_read
    assert main([params.name, "--find", "mean:=2"]) == 0
    assert capsys.readouterr().err.split("\r")[-1] == "1 of 39 rows match\n"
    seen.clear()
    pytest.importorskip("fsspec").filesystem("memory").pipe("/params.npz", params.read_bytes())
    assert main(["memory://params.npz"]) == 0 and not stored.on_fetch
    assert [pair[0] == pair[1] > 0 for pair in seen] == [True], "what is fetched before values are read"


def test_a_tree_in_python_is_found_in_the_folder_of_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = [each for each in sys.path if each]
    monkeypatch.setattr(sys, "path", [*path])
    (tmp_path / "model_of_this_test.py").write_text("params = {'w': [1.0, 2.0]}")
    assert main(["model_of_this_test:params", "--find", "w/1"]) == 0
    assert "['w'][1]" in capsys.readouterr().out and sys.path == path
    assert main(["no_such_module:params"]) == 2 and sys.path == path


def test_no_output_replaces_what_is_read_or_may_be_a_checkpoint(params, capsys):
    mutated_files.zarr(params.parent)
    Path("link.txt").symlink_to(params)
    os.link(params, "hard.html")
    before = {path: path.read_bytes() for path in params.parent.rglob("*") if path.is_file()}
    read, in_folder = "would overwrite an input file", "would overwrite a file in the input folder"
    for command, file, option, out, why in (
        ("show", "params.npz", "html", "params.npz", read),
        ("show", "params.npz", "text", "link.txt", read),
        ("check", "params.npz", "html", "hard.html", read),
        ("grads", "params.npz", "svg", f"{params.parent}/../{params.parent.name}/params.npz", read),
        (
            "show",
            "params.npz",
            "md",
            "new.SafeTensors",
            format_name := "is named like a checkpoint, a run or a module",
        ),
        ("diff", "zarr", "mmd", "new.treeviz", format_name),
        ("show", "params.npz", "html", "run.treeviz.journal", format_name),
        ("show", "model:params", "text", "model.py", format_name),
        ("diff", "zarr", "json", "zarr/a/.zarray", in_folder),
        ("show", "zarr", "png", "zarr/a/0.0", in_folder),
    ):
        assert main([command, *[file] * (1 + (command == "diff")), f"--{option}", out]) == 2
        instead = f"Write --{option} tree{output._SUFFIXES[option]}, for example."
        assert capsys.readouterr().err == f"treeviz: --{option} {out} {why}. {instead}\n"
    assert {path: path.read_bytes() for path in before} == before
    for _ in range(2):  # an output of before may be replaced
        assert main(["zarr", "--json", "zarr/tree.json", "--html", "zarr/tree.html"]) == 0


class _FixedPath(list):
    """A path of imports that nobody may change."""

    insert = append = extend = __setitem__ = __iadd__ = None


def test_to_show_a_file_imports_nothing_from_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for write in (mutated_files.zarr, *map(mutated_files.SAMPLES.get, ("gguf", "torch", "npz"))):
        with contextlib.suppress(pytest.skip.Exception):  # the library is not installed
            write(tmp_path)
    files = [file.name for file in tmp_path.iterdir()]
    monkeypatch.setattr(sys, "path", path := _FixedPath(each for each in sys.path if each))
    for arguments in (*([file] for file in files), ["check", "m.npz"], ["diff", "m.npz", "m.npz"]):
        assert main(arguments) < 2
    assert main(["m.npz", "--stats", "--png", "m.png"]) in (0, 2)  # without matplotlib
    assert sys.path is path and str(tmp_path) not in path
    for library in ("gguf", "matplotlib", "tensorstore", "torch", "tqdm", "argcomplete"):
        (tmp_path / f"{library}.py").write_text(f"open('RAN {library}', 'w').close()")
    assert not run(
        "diff", min(files), max(files), cwd=tmp_path
    ).stderr  # `python -m`, which puts the folder on the path
    assert not list(tmp_path.glob("RAN *"))
