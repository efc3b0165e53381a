"""What every test stands on: eight CPU devices, strict JAX, and how a run is shared among processes."""

from __future__ import annotations

import gc
import os

# Read by JAX when it starts, so before anything imports it. JAX_PLATFORMS=cuda tests on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

os.environ.pop("COLUMNS", None)  # an xdist worker has 80: text is as wide as in a single process

from pathlib import Path

import fast_imports  # noqa: F401
import jax
import pytest
from compiling import PLAIN
from hypothesis import settings
from jax._src import compiler

from treeviz.tree import walk

if jax.__version_info__ < (0, 5):  # one thread compiles: the other cores have work of their own
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"

jax.config.update("jax_numpy_rank_promotion", "raise")

TESTS = Path(__file__).parent
BROWSER, TRACING = TESTS / "browser", TESTS / "steps" / "tracing"
MOST_WORKERS = 8  # each takes one to two GB

# The files that take longest, slowest first. Workers take them first, so that none is alone with one at the end.
# What is neither here nor below tests/browser or tests/steps/tracing is marked `quick`.
SLOWEST = [
    "browser/test_widget_lab.py",
    "browser/test_live_lab.py",
    "browser/test_lab.py",
    "test_demos.py",
    "browser/test_hosts_lab.py",
    "browser/test_page.py",
    "steps/tracing/test_watch_bits.py",
    "steps/tracing/test_param_updates.py",
    "steps/tracing/test_watch.py",
    "steps/test_measure.py",
    "wild/test_steps.py",
    "browser/test_live.py",
    "browser/test_series.py",
    "steps/tracing/test_watch_frameworks.py",
    "inspector/test_inspector.py",
    "steps/tracing/test_param_updates_frameworks.py",
    "browser/test_widget.py",
    "browser/test_details.py",
    "steps/tracing/test_jax_moves.py",
    "steps/tracing/test_watch_sharded.py",
    "analysis/stats/test_jax_arrays.py",
    "test_samples.py",
    "test_gpu_benchmark.py",
    "test_transfer_guard.py",
    "test_hostile.py",
    "steps/tracing/test_watch_loops.py",
    "steps/nan_origin/test_locate.py",
    "tree/test_walk.py",
    "wild/test_faults.py",
    "cli/test_show.py",
    "inspector/test_live.py",
    "steps/tracing/test_watch_processes.py",
    "test_distributed.py",
    "analysis/compare/test_diff.py",
    "analysis/overlay/test_overlay.py",
    "steps/findings/test_causes.py",
    "analysis/details/test_details.py",
    "tree/files/test_hostile_files.py",
    "inspector/test_run_files.py",
    "analysis/side_by_side/test_side_by_side.py",
    "explorer/test_explored.py",
    "views/widget/test_widget.py",
    "views/picture/test_draw.py",
    "test_properties.py",
    "integrations/test_treescope.py",
    "integrations/test_optax_inspect.py",
    "integrations/test_flax_nnx.py",
    "integrations/test_flax.py",
    "test_house.py",
    "views/test_save.py",
    "test_jax_docs.py",
    "explorer/test_answers.py",
    "explorer/test_weak_tree.py",
    "inspector/test_watching.py",
    "test_public_names.py",
    "analysis/checks/test_check.py",
    "views/test_json.py",
    "integrations/test_files.py",
    "steps/test_series.py",
    "plugin/test_default_display.py",
    "inspector/test_runs.py",
    "integrations/test_describes.py",
    "steps/recording/test_decode.py",
    "steps/recording/test_interrupts.py",
    "test_budget.py",
]

# Where a run compares its results with those of the plain step at call 16: elsewhere that would be compiled in vain.
COMPARED = ["steps/tracing/test_compare_once.py", "test_public_names.py"]

N_EXAMPLES = 40  # of a property; Hypothesis has 100
LARGE = ("000 levels", "3,000 children", "2**40 paths", "200_000")  # in the names of cases


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--shots", default="", metavar="FOLDER", help="keep the screenshots of the browser tests here")
    parser.addoption(
        "--one-case-in", type=int, default=1, metavar="N", help="of the cases and examples of a test, each Nth"
    )


def pytest_configure(config: pytest.Config):
    """No test depends on a clock or on luck: a run finds what every other run finds."""
    n_examples = N_EXAMPLES // config.option.one_case_in
    settings.register_profile("treeviz", max_examples=n_examples, deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("treeviz")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config):
    """Share the files of a folder among processes, one more than cores since tests in a browser wait.

    Files and tests that are named run in this process.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):
        return  # without pytest-xdist, or in a worker
    if option.numprocesses is None and not (option.usepdb or option.collectonly):
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        has_folder = any(Path(argument).is_dir() for argument in config.args)
        if has_folder and n_cores > 1 and os.environ["JAX_PLATFORMS"] == "cpu":  # a GPU is for one process
            option.numprocesses = min(n_cores + 1, MOST_WORKERS)
    if option.numprocesses and option.dist == "no":
        option.dist = "loadfile"
        option.loadscopereorder = False  # it knows how many tests a file has, and not how long they take
        option.maxworkerrestart = option.maxworkerrestart or "0"  # a test that hangs ends the run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Each file goes to a process as a whole; those that share one JupyterLab go to the same one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "JupyterLab" if file.endswith("_lab.py") else file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    thin_out(config, items, config.option.one_case_in)
    place = {TESTS / name: number for number, name in enumerate(SLOWEST)}
    gone = [str(path) for path in place if not path.exists()]
    if gone:
        raise pytest.UsageError(f"tests/conftest.py: SLOWEST names files that are not there: {', '.join(gone)}")
    quick = {path for path in {item.path for item in items} - {*place} if not {BROWSER, TRACING} & {*path.parents}}
    for item in items:
        if item.path in quick:
            item.add_marker("quick")
    # Within a file those that are marked `optimized` come last, since each change of that costs all compiled programs.
    first = {item.path: number for number, item in reversed([*enumerate(items)])}
    is_worker = hasattr(config, "workerinput")
    items.sort(
        key=lambda item: (
            place.get(item.path, len(place)) if is_worker else 0,
            first[item.path],
            item.get_closest_marker("optimized") is not None,
        )
    )


def thin_out(config: pytest.Config, items: list[pytest.Item], n: int) -> None:
    """Keep one case in `n`, but one of each test, from one test to the next another one: some test tries what is tried.

    Where n is not 1, without trees that are only large: each of their nodes is like those of the others.
    """
    if n == 1:
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        is_large = any(text in item.nodeid for text in LARGE) or item.get_closest_marker("large") is not None
        if not is_large:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {id(item) for number, cases in enumerate(tests.values()) for item in cases[number % min(n, len(cases)) :: n]}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def forget_what_stays() -> None:
    """Collecting garbage, and searching for who holds an object, need not look again at what stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without a search for garbage, of which imports make hardly any: that takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        forget_what_stays()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item):
    """Compile quickly, but for tests that are marked `optimized`."""
    global is_plain, in_file
    if item.path != in_file:
        in_file = item.path
        for key in [key for key in compiled if len(key[0]) > LARGE_PROGRAM]:
            del compiled[key]
        forget_what_stays()
    was_plain, is_plain = is_plain, bool(PLAIN) and not item.get_closest_marker("optimized")
    if is_plain != was_plain:
        jax.clear_caches()  # JAX would go on with the programs that it has
    # Every view of these trees would have a hundred thousand rows, and each of them is like the others.
    is_endless = "[2**40 paths" in item.nodeid or "contains itself" in item.nodeid
    walk.MAX_REPEATED_ROWS = 2_000 if is_endless else max_repeated_rows


def get_compile_options(*args, env_options_overrides=None, **keywords):
    overrides = {**(PLAIN if is_plain else {}), **(env_options_overrides or {})}
    return optimized_options(*args, env_options_overrides=overrides, **keywords)


def compile_once(backend, module, *how, **keywords):
    """What XLA made of the same program for the same devices with the same options: many tests of a file jit alike."""
    program = str(module)
    if "callback" in program:  # it calls what this module does not name
        return compile_anew(backend, module, *how, **keywords)
    parts = [part.SerializeAsString() if hasattr(part, "SerializeAsString") else str(part) for part in how]
    key = program, *parts, str(keywords)
    if key not in compiled:
        compiled[key] = compile_anew(backend, module, *how, **keywords)
    return compiled[key]


max_repeated_rows = walk.MAX_REPEATED_ROWS
in_file: Path | None = None
is_plain = bool(PLAIN)  # while tests are collected, too
compiled: dict[tuple, object] = {}  # in this file, and small programs, such as of jnp.ones, that other files have, too
LARGE_PROGRAM = 3000  # characters
optimized_options, compiler.get_compile_options = compiler.get_compile_options, get_compile_options
XLA = "backend_compile_and_load" if hasattr(compiler, "backend_compile_and_load") else "backend_compile"  # jax < 0.7
compile_anew = getattr(compiler, XLA)
setattr(compiler, XLA, compile_once)


@pytest.fixture(scope="session")
def shots(request: pytest.FixtureRequest):
    """`shots(page, "name.png")` keeps a screenshot in the folder that `--shots` names; without it nobody would look."""
    folder = request.config.getoption("--shots")

    def keep(page, name: str, **options) -> None:
        if folder:
            page.screenshot(path=Path(folder, name), **options)

    return keep


@pytest.fixture
def seen():
    """What `watch` tells of is kept here."""
    from watched import Recorder  # JAX is set up by now

    return Recorder()


@pytest.fixture
def explore():
    """`treeviz.explore`, whose widgets are closed at the end."""
    import treeviz as tv

    made = []

    def make(tree, **options):
        made.append(tv.explore(tree, **options))
        return made[-1]

    yield make
    for widget in made:
        widget.close()


@pytest.fixture
def mlp():
    """The parameters of a small multilayer perceptron."""
    from watched import init_mlp_params

    return init_mlp_params([1, 8, 8])


@pytest.fixture
def layer(mlp):
    """The parameters of its first layer: where two layers say no more than one, half is compiled."""
    return mlp[:1]


@pytest.fixture(scope="session", autouse=True)
def patience():
    """What an explorer answers is whole, however slow the machine is."""
    from treeviz.analysis import details as detail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail, "MOST_SECONDS", 600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_unread():
    """What treeviz cannot read of a step costs a user some numbers and a note; here it is an error."""
    from treeviz.steps.tracing.jax_private import Unread

    def note(self, lost: str, error: Exception) -> None:
        raise AssertionError(lost) from error

    original = Unread.note
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unread, "note", note)
        yield original


@pytest.fixture(scope="module", autouse=True)
def never_compared(request: pytest.FixtureRequest):
    """A run of any length compiles no plain step, but in the files of `COMPARED`."""
    from treeviz.steps.tracing import verify

    with pytest.MonkeyPatch.context() as patch:
        if request.path not in [TESTS / name for name in COMPARED]:
            patch.setattr(verify, "AT_CALL", 1 << 60)
        yield


@pytest.fixture
def may_be_unread(nothing_unread, monkeypatch: pytest.MonkeyPatch):
    """What treeviz cannot read costs in this test what it costs a user."""
    from treeviz.steps.tracing.jax_private import Unread

    monkeypatch.setattr(Unread, "note", nothing_unread)
