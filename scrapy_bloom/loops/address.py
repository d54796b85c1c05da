"""Splits a URL into parts, and masks segments that look like random tokens or numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

DEEPEST = 8  # folders of a path that are told apart
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE).fullmatch
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE).fullmatch
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w~=+-]{16,}", re.IGNORECASE).fullmatch
_SESSION = re.compile(r"\((?:[A-Z]\([^()]*\))+\)", re.IGNORECASE).fullmatch
"""As ASP.NET writes it without cookies: ``/(S(lit3py55t21z5v55vlm25s55))/orders.aspx``."""
_SLUG = re.compile(r"[a-z]{2,}[-_+]").search
_mixed = re.compile(r"(?<![^\W_])(?=[^\W_]*[a-z]\d+[a-z])[^\W_]{9,}", re.IGNORECASE).sub
"""Letters and digits in turn: a token with something before or behind it."""
_mask_digits = re.compile(r"\d+").sub
_split = re.compile(r"(?:[a-z][\w+.-]*:)?(?://)?([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE | re.DOTALL).match


@lru_cache(4_096)
def mask(segment: str) -> str:
    """Return *segment* of a path with numbers and random text masked: ``N``, ``H``, ``HASH``, ``UUID``, ``TOKEN``."""
    if segment.isalpha():
        return segment
    if segment.isdigit():
        return "N"
    segment = _mixed("H", segment)
    if _UUID(segment):
        return "UUID"
    if _HASH(segment):
        return "HASH"
    if _TOKEN(segment) and not _SLUG(segment):
        return "TOKEN"
    return _mask_digits("N", segment)


class Address(NamedTuple):
    """A URL in parts."""

    host: str
    segments: tuple[str, ...]
    """Segments of the path, which are separated by slashes. The last one is empty if the path ends with a slash."""
    parameters: tuple[tuple[str, str], ...]
    """Of its path, ``(";name", "name=value")``, and of its query, ``("?name", "name=value")``."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the parts of *url*."""
        match = _split(url)
        assert match is not None  # noqa: S101 -- every part of the pattern may be empty
        host, path, query = match.groups()
        segments, parameters = [], []
        if ":" in path or "%3A" in path:
            path = path.replace("%3A", ":").replace(":", ":/")
        for segment in path.split("/")[1:]:
            if segment.startswith("(") and _SESSION(segment):
                parameters.append((";", segment))
                continue
            if ";" in segment:
                segment, _, parameter = segment.partition(";")
                parameters.append((";" + parameter.partition("=")[0][:20], parameter))
            segments.append(segment)
        if query:
            parameters += [("?" + pair.partition("=")[0][:30], pair) for pair in query.split("&") if pair]
        return cls(host.lower()[:100], tuple(segments), tuple(parameters))

    def mask(self, at: int) -> str:
        """Return the segment *at* with what looks drawn or counted replaced."""
        return mask(self.segments[at])[:60]

    def key(self) -> str:
        """Return text that is the same for the same address, in whichever order its parameters are."""
        parameters = "&".join(sorted(pair for _, pair in self.parameters))
        return f"{self.host}/{'/'.join(self.segments)}?{parameters}"

    def without(self, part: str) -> Address | None:
        """Return the address without *part*, as :mod:`~scrapy_bloom.loops.aliases` names it; None if it has none."""
        if part[0] in "?;":
            kept = tuple(pair for pair in self.parameters if pair[0] != part)
            return None if len(kept) == len(self.parameters) else self._replace(parameters=kept)
        _, index, text = part.split("/", 2)
        segments = self.segments
        at = int(index) + (len(segments) if index[0] == "-" else 0)
        if len(segments) < 2 or not 0 <= at < len(segments) or self.mask(at) != text:
            return None
        return self._replace(segments=segments[:at] + segments[at + 1 :])

    def names(self) -> list[str]:
        """Return the names of the URL's kinds below the host, from the outside in."""
        segments = [mask(segment)[:60] for segment in self.segments]
        names = [name for name, _ in self.parameters if name[0] == ";"][:1]
        names += [f"{segment}/" for segment in segments[:-1][:DEEPEST]]
        leaf = segments[-1] if segments else ""
        keys = sorted({_mask_digits("N", name[1:]) for name, _ in self.parameters if name[0] == "?"})
        return names + ([f"{leaf}?", "&".join(keys)[:90]] if keys else [leaf or "$"])
