"""The ``BLOOM_*`` settings of a crawl as one frozen, validated object."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from scrapy_bloom.errors import SettingsError
from scrapy_bloom.filter.plan import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE, MAX_ERROR_RATE, MIN_ERROR_RATE
from scrapy_bloom.loops.limits import LoopOptions, options_of
from scrapy_bloom.url.rules import ALLOWED as RULES_ALLOWED
from scrapy_bloom.url.rules import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy.settings import BaseSettings
    from typing_extensions import Self

OTHERS = "*"
"""In ``BLOOM_PAGES_PER_HOST``, stands for every host that is not named."""
MAX_CAPACITY = 10**12
"""More URLs than any crawl sees: the first layer alone would take 4 TB."""


@dataclass(frozen=True)
class ChangesOptions:
    """The parts of ``BLOOM_CHANGES``."""

    key: tuple[str, ...] = ()
    """Fields that name an item; empty: its page, its class and its place among the items of that class there."""
    ignore: tuple[str, ...] = ()
    """Fields that do not count."""
    field: str = ""
    """Field that receives ``new`` or ``changed``; "": none does."""
    code: str = ""
    """Takes the place of the digest of the spider's code; "": nothing does."""


@dataclass(frozen=True)
class BloomSettings:
    """What a user may set. Each attribute is the setting ``BLOOM_`` with the attribute's name in capitals."""

    capacity: int = DEFAULT_CAPACITY
    """URLs that the first layer is sized for."""
    error_rate: float = DEFAULT_ERROR_RATE
    """Bound on the chance that a new URL is taken for seen, for the whole chain."""
    max_age: float | None = None
    """Seconds after which a URL is forgotten and fetched once more; None: never."""
    url_rules: tuple[str, ...] = ()
    """Names of the rules that merge further URLs, in order, with presets replaced by their rules."""
    loop_guard: LoopOptions | Literal[False] = False
    """How the crawl is shared among kinds of URLs, and which URLs are dropped; False: not at all."""
    forget_failed: bool = False
    """Whether a request that finally failed may be tried again."""
    delta: str | bool | None = None
    """Directory that lists the pages that gave an item in earlier runs, to skip them; True: ``.scrapy/delta``."""
    delta_reset: bool = False
    """Whether to forget these pages before the crawl. Deprecated: the command ``forget`` has ``--delta``."""
    changes: ChangesOptions | Literal[False] = False
    """How items of one cycle are compared with those of the last; False: not at all."""
    pages_per_host: Mapping[str, int | None] | None = None
    """Most pages of each host; ``"*"`` is every other host. Further requests stay in the queue. None: no limit."""
    redis_url: str | None = None
    """The server; None: as scrapy-redis' settings say, or ``redis://localhost:6379``. May hold a password."""
    redis_key: str = "bloom:%(spider)s"
    """Prefix of the Redis keys."""
    fleet_start_urls: str | None = None
    """Redis key of a list that others push start URLs to; None: there is none, and workers end by themselves."""
    fleet_secret: str | None = None
    """What pickled requests on the server are signed with; None: they are refused."""
    fleet_lease: float = 60.0
    """Seconds of silence after which others get the requests that a worker holds."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Read the settings of a crawl. They are strings if they come from a command line; None means the default.

        Raises:
            SettingsError: Names every value that is out of range or of the wrong type, and every unknown setting.

        """
        values: dict[str, Any] = {}
        problems = []
        for name in sorted(name for name in settings if isinstance(name, str) and name.startswith("BLOOM_")):
            value = settings[name]
            if name not in _KNOWN:
                problems.append(_unknown(name, value))
            elif value is not None:
                allowed, parse = _KNOWN[name]
                try:
                    values[name.removeprefix("BLOOM_").lower()] = parse(value)
                except SettingsError as error:  # from a setting with many parts
                    problems += error.problems
                except (TypeError, ValueError, OverflowError, RecursionError):
                    problems.append(f"{name} must be {allowed}, not {_shown(name, value)}")
        if problems := problems + _contradictions(values, settings):
            raise SettingsError(problems)
        return cls(**values)


def _contradictions(values: Mapping[str, Any], settings: BaseSettings) -> list[str]:
    """Return which settings do not go together."""
    if not values.get("changes"):
        return []
    others = [f"BLOOM_{name.upper()}" for name in ("delta", "redis_url") if values.get(name)]
    problems = [f"BLOOM_CHANGES does not work together with {name}: take one of them out" for name in others]
    if not settings.get("JOBDIR"):
        problems.append("BLOOM_CHANGES needs a JOBDIR, which keeps what the last cycle knew")
    return problems


def _number(value: Any, low: float, high: float) -> float:
    number = float(value)
    if isinstance(value, bool) or not low <= number <= high:
        raise ValueError
    return number


def _count(value: Any) -> int:
    number = _number(value, 1, MAX_CAPACITY)
    if number != int(number):
        raise ValueError
    return int(number)


def _unpacked(value: Any) -> Any:
    """Return the dict that *value* is the JSON of, as on a command line; any other value as it is."""
    return json.loads(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


def _loop_guard(value: Any) -> LoopOptions | Literal[False]:
    """Read a truth value or a dict of limits, also in JSON."""
    value = _unpacked(value)
    if hasattr(value, "items"):  # a dict, or Scrapy's BaseSettings, which it makes of dicts in places
        return options_of(dict(value.items()))
    return LoopOptions() if _truth(value) else False


def _changes(value: Any) -> ChangesOptions | Literal[False]:
    """Read a truth value or a dict of options, also in JSON."""
    value = _unpacked(value)
    if not hasattr(value, "items"):
        return ChangesOptions() if _truth(value) else False
    options = dict(value.items())
    for name in ("key", "ignore"):
        names = options.get(name, ())
        options[name] = (names,) if isinstance(names, str) else tuple(names)
    changes = ChangesOptions(**options)  # TypeError if a name is unknown
    if not all(isinstance(text, str) for text in (*changes.key, *changes.ignore, changes.field, changes.code)):
        raise ValueError
    return changes


def _pages_per_host(value: Any) -> dict[str, int | None]:
    """Read a number of pages, or a dict of such numbers by host, also in JSON. None stands for no limit."""
    value = _unpacked(value)
    if not hasattr(value, "items"):
        return {OTHERS: _count(value)}
    limits = dict(value.items())
    if not all(isinstance(host, str) and host and "/" not in host and host.count(":") != 1 for host in limits):
        raise ValueError
    return {host: None if most is None else _count(most) for host, most in limits.items()}


def _truth(value: Any) -> bool:
    """Read a truth value that Scrapy's ``getbool()`` reads, too."""
    if str(value) not in {"0", "1", "False", "True", "false", "true"}:
        raise ValueError
    return str(value) in {"1", "True", "true"}


def _directory(value: Any) -> str | bool:
    is_path = isinstance(value, (str, os.PathLike)) and str(value) not in {"", *"01", "True", "true", "False", "false"}
    return str(value) if is_path else _truth(value)


_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MIN_AGE, _MAX_AGE = 60, 10 * 365 * 86_400


def _age(value: Any) -> float:
    """Read seconds, or a number with a unit, such as ``"7d"``."""
    text = str(value).strip().lower()
    unit = _UNITS.get(text[-1:])
    return _number(float(text[:-1]) * unit if unit else value, _MIN_AGE, _MAX_AGE)


def _secret(value: Any) -> str:
    if not isinstance(value, str) or len(value) < 16:
        raise ValueError
    return value


def _server_url(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    parts = urlsplit(value)
    is_host = parts.scheme in {"redis", "rediss"} and parts.netloc
    if not is_host and not (parts.scheme == "unix" and parts.path):
        raise ValueError
    _ = parts.port  # raises ValueError if it is not a port
    return value


def _prefix(value: Any) -> str:
    if set(_redis_key(value)) & set("{}"):  # they would delimit a hash tag other than ours
        raise ValueError
    return _redis_key(value)


def _redis_key(value: Any) -> str:
    if not isinstance(value, str) or not value or "%" in value.replace("%(spider)s", "").replace("%(name)s", ""):
        raise ValueError
    return value


_KNOWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BLOOM_CAPACITY": ("a whole number of URLs from 1 to 1e12", _count),
    "BLOOM_ERROR_RATE": (
        f"a probability from {MIN_ERROR_RATE} to {MAX_ERROR_RATE}",
        partial(_number, low=MIN_ERROR_RATE, high=MAX_ERROR_RATE),
    ),
    "BLOOM_MAX_AGE": ('an age from 60 seconds to 10 years, such as "7d", "12h", "30m" or seconds', _age),
    "BLOOM_URL_RULES": (RULES_ALLOWED, lambda value: resolve(value).names),
    "BLOOM_LOOP_GUARD": ("True, False or a dict of limits", _loop_guard),
    "BLOOM_FORGET_FAILED": ("True or False", _truth),
    "BLOOM_DELTA": ("a directory, True or False", _directory),
    "BLOOM_DELTA_RESET": ("True or False", _truth),
    "BLOOM_CHANGES": (
        'True, False or a dict such as {"key": ["sku"], "ignore": ["scraped_at"], "field": "change"}',
        _changes,
    ),
    "BLOOM_PAGES_PER_HOST": (
        'a whole number of pages from 1, or a dict such as {"*": 1000, "example.com": 50000, "example.org": None}',
        _pages_per_host,
    ),
    "BLOOM_REDIS_URL": ("a URL such as redis://host:6379/0, rediss://:password@host or unix:///path", _server_url),
    "BLOOM_REDIS_KEY": ("a key prefix without braces; %(spider)s is the spider's name", _prefix),
    "BLOOM_FLEET_START_URLS": ("a Redis key; %(spider)s is the spider's name", _redis_key),
    "BLOOM_FLEET_SECRET": ("a text of at least 16 characters", _secret),
    "BLOOM_FLEET_LEASE": ("a number of seconds from 1 to 86400", partial(_number, low=1, high=86_400)),
}


def _unknown(name: str, value: Any) -> str:
    close = difflib.get_close_matches(name, _KNOWN, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_KNOWN)}"
    return f"{name} (set to {_shown(name, value)}) is not a setting of this scrapy-bloom; {hint}"


def _shown(name: str, value: Any) -> str:
    """Return *value* for a message, unless it may be a server's URL or a secret."""
    is_secret = ("UR" in name and "REDIS" in name) or "SECR" in name
    return "a value not shown here, since it may hold a password" if is_secret else repr(value)
