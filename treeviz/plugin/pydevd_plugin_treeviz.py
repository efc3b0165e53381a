"""What pydevd imports: in the wheel this file lies in `pydevd_plugins/extensions`, where pydevd looks for it."""

from _pydevd_bundle.pydevd_extension_api import StrPresentationProvider, TypeResolveProvider  # type: ignore
from _pydevd_bundle.pydevd_extension_utils import extensions_of_type  # type: ignore

from treeviz.plugin import variables

__all__ = ["ArrayFacts", "Summaries"]


class Summaries(variables.Summaries, StrPresentationProvider):
    def __init__(self):
        super().__init__(self._is_of_another)

    def _is_of_another(self, cls, name):
        others = [each for each in extensions_of_type(StrPresentationProvider) if each is not self]
        return any(each.can_provide(cls, name) for each in others)


class ArrayFacts(variables.ArrayFacts, TypeResolveProvider):
    pass
