"""An add-on that hides a private part of Scrapy from scrapy-bloom, as if another Scrapy had named it otherwise."""

import sys
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object


class Hidden:
    """Stands for an attribute in its class: everybody but scrapy-bloom gets it."""

    def __init__(self, owner: type, name: str) -> None:
        self.name, self.original = name, vars(owner).get(name)

    def __get__(self, instance: Any, owner: type) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_name == "__getattr__":  # somebody asks through a proxy
            frame = frame.f_back
        if frame.f_globals["__name__"].startswith("scrapy_bloom."):
            raise AttributeError(self.name)
        if self.original is not None:
            return self.original.__get__(instance, owner)
        return instance.__dict__[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        if hasattr(self.original, "__set__"):
            self.original.__set__(instance, value)  # type: ignore[union-attr]
        else:
            instance.__dict__[self.name] = value


def hide(path: str) -> None:
    """Hide the part at *path*, such as ``scrapy.core.engine._Slot.nextcall``."""
    owner, _, name = path.rpartition(".")
    setattr(load_object(owner), name, Hidden(load_object(owner), name))


class HideParts:
    """Hides the parts that the setting ``HIDDEN`` names."""

    def update_settings(self, settings: BaseSettings) -> None:
        for part in settings.getlist("HIDDEN"):
            hide(part)
