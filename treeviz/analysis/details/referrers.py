"""The referrers of an object: variables, attributes and containers, as the garbage collector tracks them."""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any, NamedTuple

from treeviz.analysis.details.source import place_of
from treeviz.tree.keys import stored_attributes
from treeviz.tree.safe_repr import class_name, function_name, has_base, module_name, value_text, visible

MOST_HOLDERS = 24
_MOST_AT_ONCE = 40  # objects whose referrers are searched together
_MOST_LEVELS = 6
# Before Python 3.13, reading the local variables of a running function keeps them alive as long as it runs.
SEES_LOCALS = sys.version_info >= (3, 13)
_OURS = __name__.partition(".")[0]
_ATTRIBUTES = ".__dict__"
_ATTRIBUTE = re.compile(r"^\['(\w+)'\]")


class _Step(NamedTuple):
    """An object that leads to the searched one, and the rest of the path from there: "['w']"."""

    node: Any
    rest: str


def referrers(node: Any, goes_on: Callable[[], bool]) -> tuple[list[str], bool]:
    """The referrers of an object, as Python expressions where possible, and whether the search was complete.

    Searches up to six levels, to variables of modules and functions. Keeps nothing alive. Each level
    visits all objects that the garbage collector tracks, some 100 ms in a large process. Containers of
    only numbers and NumPy arrays are not tracked, but their referrers are.

    Args:
      goes_on: Called before each level; False ends the search.
    """
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if type(module) is types.ModuleType}
    found: dict[str, None] = {}
    seen: set[tuple[int, int]] = set()
    level, is_all = [_Step(node, "")], True
    for _ in range(_MOST_LEVELS):
        if not level or len(found) >= MOST_HOLDERS:
            break
        if not goes_on():
            is_all = False
            break
        level, cut = _one_up(level, modules, seen, found)
        is_all = is_all and not cut
    # An object without a known referrer is named by its class.
    for step in level:
        found.setdefault(f"{_unnamed(step.node)}{step.rest}")
    return list(found)[:MOST_HOLDERS], is_all and len(found) <= MOST_HOLDERS


def _one_up(level: list[_Step], modules: dict[int, str], seen: set[tuple[int, int]], found: dict[str, None]) -> Any:
    """The referrers of the objects of a level. Complete expressions are added to `found`."""
    wanted: dict[int, list[_Step]] = {}  # one object may lead to the searched one in several ways
    for step in level:
        wanted.setdefault(id(step.node), []).append(step)
    reached: set[int] = set()
    new: set[tuple[int, int]] = set()
    above: list[_Step] = []
    mine = {id(level), id(wanted), id(above)} | set(map(id, level))
    for holder in _referrers([steps[0].node for steps in wanted.values()]):
        if id(holder) in mine or _is_our_code(holder) or _is_of_module(holder, modules):
            continue
        if _is_ours(module_name(type(holder))):
            reached.update(map(id, gc.get_referents(holder)))
            found.setdefault("treeviz: a widget that was asked to keep its tree, or a function that was given it")
            continue
        for name, step in ((name, step) for name, below in _references(holder, wanted) for step in wanted[below]):
            rest = name + step.rest
            if name == _ATTRIBUTES:
                rest = _ATTRIBUTE.sub(r".\1", step.rest)
            reached.add(id(step.node))
            if id(holder) in modules:
                found.setdefault(_variable(modules[id(holder)], rest))
            elif isinstance(holder, types.FrameType):
                code = holder.f_code
                where = place_of(code.co_filename, code.co_firstlineno)
                name = _variable("__main__", rest) if rest else "a variable"
                found.setdefault(f"{name} in {visible(code.co_name, 60)} ({where}), which runs")
            elif isinstance(holder, types.FunctionType):
                found.setdefault(f"the function {function_name(holder)}" + _of(rest))
            elif (id(holder), id(step.node)) not in seen:
                new.add((id(holder), id(step.node)))
                above.append(_Step(holder, rest))
    seen |= new
    for step in level:
        if id(step.node) not in reached and step.rest:
            found.setdefault(f"{_unnamed(step.node)}{step.rest}")
    return above[:_MOST_AT_ONCE], len(above) > _MOST_AT_ONCE


def _referrers(nodes: list[Any]) -> list[Any]:
    arguments = tuple(nodes)  # which Python 3.13 finds among their referrers
    found = gc.get_referrers(*arguments)
    wanted = set(map(id, nodes))
    # A dict of NumPy arrays is not tracked, but its referrers are. Frames of running functions are not tracked either.
    for inner in () if all(map(gc.is_tracked, nodes)) else gc.get_referents(*gc.get_objects()):
        is_hidden = (type(inner) is dict or type(inner) is tuple) and not gc.is_tracked(inner)
        if is_hidden and any(id(each) in wanted for each in (inner.values() if type(inner) is dict else inner)):
            found.append(inner)
    for frame in sys._current_frames().values() if SEES_LOCALS else ():
        while frame is not None:
            if not _is_our_code(frame) and any(id(each) in wanted for each in frame.f_locals.values()):
                found.append(frame)
            frame = frame.f_back
    return [each for each in found if each is not nodes and each is not arguments]


def _is_of_module(holder: Any, modules: Container[int]) -> bool:
    """Whether it is the frame of a module that runs, whose variables the module has."""
    if not isinstance(holder, types.FrameType) or holder.f_code.co_name != "<module>":
        return False
    return holder.f_locals is holder.f_globals and id(holder.f_globals) in modules


def _is_our_code(holder: Any) -> bool:
    """Whether it is a frame or function of treeviz, which runs this search."""
    if isinstance(holder, types.FrameType):
        return _is_ours(holder.f_globals.get("__name__"))
    return isinstance(holder, types.FunctionType) and _is_ours(holder.__globals__.get("__name__"))


def _is_ours(module: Any) -> bool:
    return type(module) is str and module.partition(".")[0] == _OURS


def _references(holder: Any, wanted: Container[int]) -> Iterator[tuple[str, int]]:
    """("['w']", id) for each wanted object that the holder refers to."""
    if isinstance(holder, types.FrameType):
        pairs = ((f"[{name!r}]", value) for name, value in list(holder.f_locals.items()) if SEES_LOCALS)
    elif has_base(type(holder), dict):
        pairs = ((f"[{value_text(key, 60)}]", value) for key, value in list(dict.items(holder)))
    elif has_base(type(holder), list, tuple):
        base = list if has_base(type(holder), list) else tuple
        pairs = (
            ("" if type(value) is types.CellType else f"[{i}]", value)
            for i, value in enumerate(list(base.__iter__(holder)))
        )
    else:
        attributes = stored_attributes(holder)
        if id(attributes) in wanted:
            yield _ATTRIBUTES, id(attributes)
            return
        pairs = ((f".{visible(str(name), 60)}", value) for name, value in list(attributes.items()))
    is_named = False
    for name, value in islice(pairs, 1_000_000):
        if id(value) in wanted:
            is_named = True
            yield name, id(value)
    if not is_named:
        yield from (("", id(value)) for value in gc.get_referents(holder) if id(value) in wanted)


def _variable(module: str, rest: str) -> str:
    """ "params['w']", "numpy.random.x"; IPython's output caches are marked."""
    name, _, after = rest.removeprefix("['").partition("']")
    if module != "__main__":
        return f"{visible(module)}.{name}{after}"
    if name in ("_oh", "Out"):
        return f"Out{after}, which IPython keeps"
    is_cache = name.strip("_") == "" or name.strip("_i").isdigit()
    return f"{name}{after}, which IPython keeps" if is_cache else f"{name}{after}"


def _of(rest: str) -> str:
    return f", as …{rest}" if rest else ""


def _unnamed(node: Any) -> str:
    return f"<{class_name(node if type(node) is type else type(node))}>"
