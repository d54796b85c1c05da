"""Every exception that scrapy-bloom raises on purpose, each with a message a person can act on."""

from __future__ import annotations


class BloomError(Exception):
    """Base class of everything below, so that one ``except`` catches it all."""
