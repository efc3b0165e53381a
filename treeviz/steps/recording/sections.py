"""A tree that changes during a run gets another name, so that no step is lost: "grads since step 12"."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import is_beside, kind_of, section_of, sibling_name
from treeviz.steps.recording.decode import ReadSteps
from treeviz.steps.recording.history import History

MOST_SECTIONS = 16  # of a tree


class Sections:
    """Tells which section of a history each measured tree belongs to, by its leaves.

    A tree whose structure comes back, as of two models that take turns, goes on in its earlier section.
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, MeasuredTree]] = {}  # by the name of a tree: its last section, as it came
        self._unchanged: Sequence[MeasuredTree] | None = None

    def place(self, steps: ReadSteps, history: History) -> ReadSteps:
        """The steps, with the names of the trees in the history.

        Raises:
          ValueError: A tree has changed too often.
        """
        if steps.sources is self._unchanged or all(map(self._is_unchanged, steps.sources)):
            self._unchanged = steps.sources  # steps that were read together have the same list
            return steps
        sections: dict[str, str] = {}
        for source in sorted(steps.sources, key=_goes_with_gradients):
            wanted = self.of(source.name, history)
            if _goes_with_gradients(source):  # into their section, also where it comes later
                wanted = sections.get(sibling_name(source.name, "grads"), wanted)
            sections[source.name] = _section(source, wanted, steps.steps[0], history)
        self._newest.update({source.name: (sections[source.name], source) for source in steps.sources})
        if not any(sections.values()):
            return steps
        return steps._replace(
            sources=[source._replace(name=source.name + sections[source.name]) for source in steps.sources],
            numbers={name + sections[name]: numbers for name, numbers in steps.numbers.items()},
        )

    def of(self, name: str, history: History) -> str:
        """The section of the newest step of a tree; empty if it has not changed."""
        return self._newest[name][0] if name in self._newest else _known(name, history.sources)[-1]

    def _is_unchanged(self, source: MeasuredTree) -> bool:
        """Whether it is in no section, and the same objects came last."""
        section, last = self._newest.get(source.name, ("unknown", source))
        return not section and source.paths is last.paths and source.shapes is last.shapes


def _goes_with_gradients(source: MeasuredTree) -> bool:
    return is_beside(source.name)


def _known(name: str, sources: Collection[str]) -> list[str]:
    """The sections of a tree, the newest last."""
    return [section for each in sources for tree, section in [section_of(each)] if tree == name] or [""]


def _section(source: MeasuredTree, wanted: str, step: int, history: History) -> str:
    """The section with the structure of a tree: the wanted one, another one, or a new one."""
    if _fits(source, history.sources.get(source.name + wanted)):
        return wanted
    known = _known(source.name, history.sources)
    for section in reversed(known):
        if _fits(source, history.sources.get(source.name + section)):
            return section
    if len(known) >= MOST_SECTIONS:
        raise ValueError(f"{source.name} has had {len(known)} other structures before")
    section = f" since step {step}"
    while source.name + section in history.sources:  # the steps were counted from 0 again
        section += " again"
    return section


def _fits(new: MeasuredTree, old: MeasuredTree | None) -> bool:
    """Whether the leaves are the same. The sizes of an activation may differ from batch to batch."""
    if old is None or (old.paths is new.paths and old.shapes is new.shapes):
        return True
    if old.paths != new.paths or not kind_of(new.name):
        return old.paths == new.paths
    has_shapes = bool(old.shapes and new.shapes)  # files of older versions have none
    return old.sizes == new.sizes and old.dtypes == new.dtypes and not (has_shapes and old.shapes != new.shapes)
