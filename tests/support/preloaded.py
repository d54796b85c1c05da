"""Imports what a crawl imports when it begins, so that processes forked from this one need not.

Scrapy loads its components by their paths. That takes 0.8 s of CPU, and the rest of a short crawl 0.2 s.
"""

import gc
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import tldextract  # noqa: F401 - the cookies middleware imports it when the first response comes
import twisted.web.client  # noqa: F401 - the download handlers import it, or httpx, when the first request goes
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

import scrapy_bloom


def _paths(setting: object) -> Iterator[str]:
    """Return the paths of classes in the default of a *setting*: a string, a list of strings, or a dictionary."""
    if isinstance(setting, str) and setting.startswith("scrapy."):
        yield setting
    elif isinstance(setting, (list, tuple)):
        for part in setting:
            yield from _paths(part)
    elif hasattr(setting, "items"):
        for name, value in setting.items():
            yield from (*_paths(name), *_paths(value))


for default in Settings().values():
    for path in _paths(default):
        if "ftp" not in path:  # Twisted's FTP client installs a reactor, and each crawl has one of its own
            load_object(path)
for module in pkgutil.walk_packages(scrapy_bloom.__path__, "scrapy_bloom."):
    if not module.name.endswith("__main__"):
        import_module(module.name)

gc.collect()
gc.freeze()
