"""The module that pydevd imports. The wheel puts it into `pydevd_plugins/extensions`, which pydevd searches."""

from _pydevd_bundle.pydevd_extension_api import StrPresentationProvider, TypeResolveProvider  # type: ignore
from _pydevd_bundle.pydevd_extension_utils import extensions_of_type  # type: ignore

from treeviz.plugin import variables

__all__ = ["ArrayFacts", "Summaries"]


class Summaries(variables.Summaries, StrPresentationProvider):
    def __init__(self):
        super().__init__(self._is_of_another)

    def _is_of_another(self, cls, name):
        others = [provider for provider in extensions_of_type(StrPresentationProvider) if provider is not self]
        return any(provider.can_provide(cls, name) for provider in others)


class ArrayFacts(variables.ArrayFacts, TypeResolveProvider):
    pass
