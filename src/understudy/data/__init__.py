"""Image sources, the data set with its declared domain, its partition into subsets, and sampling."""

from understudy.data.domain import SourceOptions

__all__ = ["SourceOptions"]
