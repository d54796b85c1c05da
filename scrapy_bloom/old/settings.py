"""The ``BLOOM_*`` settings of a crawl as one frozen, validated object. Knows no crawler and opens nothing."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from scrapy_bloom.old.errors import SettingsError
from scrapy_bloom.old.filter.chain import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    DEFAULT_GROWTH,
    MAX_ERROR_RATE,
    MAX_GROWTH,
    MIN_ERROR_RATE,
    MIN_GROWTH,
)
from scrapy_bloom.old.loops.options import LoopOptions, parse_loop_guard
from scrapy_bloom.old.url.rules import ALLOWED as RULES_ALLOWED
from scrapy_bloom.old.url.rules import parse_url_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_PREFIX = "BLOOM_"

MAX_CAPACITY = 10**12
"""More URLs than any crawl sees: the first layer alone would take 4 TB."""


@dataclass(frozen=True)
class BloomSettings:
    """What a user may set. Each attribute is the setting ``BLOOM_`` with the attribute's name in capitals."""

    capacity: int = DEFAULT_CAPACITY
    """URLs that the first layer is sized for."""
    error_rate: float = DEFAULT_ERROR_RATE
    """Bound on the chance that a new URL is taken for seen, for the whole chain."""
    growth: float = DEFAULT_GROWTH
    """How many times larger each next layer is."""
    max_age: float | None = None
    """Seconds after which a URL is forgotten and fetched once more; None: never."""
    sync_interval: float = 30.0
    """Seconds between writing dirty pages to disk; 0: only at close."""
    accept_lost_requests: bool = False
    """Whether to go on if the frontier lacks requests that its filter knows."""
    forget_failed: bool = False
    """Whether a request that finally failed may be tried again."""
    url_rules: tuple[str, ...] = ()
    """Names of the rules that merge further URLs, in order, with presets replaced by their rules."""
    loop_guard: LoopOptions | Literal[False] = False
    """What holds back URLs that belong to a crawl loop; False: nothing does."""
    redis_url: str | None = None
    """The server; None: as scrapy-redis' settings say, or ``redis://localhost:6379``. May hold a password."""
    redis_key: str | None = None
    """Prefix of the Redis keys; None: ``SCHEDULER_DUPEFILTER_KEY``, or ``bloom:%(spider)s``."""
    redis_engine: str = "auto"
    """``"bf"``, ``"bitmap"`` or ``"auto"``: bf if the server has it."""
    redis_shards: int = 1
    """Chains that the fingerprints are spread over, so that a cluster can share them out."""
    redis_on_error: str = "retry"
    """When the server is away: ``"retry"``, ``"allow"`` or ``"close"``."""
    redis_ttl: int | None = None
    """Seconds after the last use at which the server removes the filter; None: never."""
    fleet_worker: str | None = None
    """Name of this worker of a ``FleetScheduler``; None: one made of host and process."""
    fleet_lease: float = 60.0
    """Seconds of silence after which others get the requests that a worker holds."""
    fleet_host_workers: int = 0
    """Most workers that hold requests of one host at once; 0: any number."""
    fleet_secret: str | None = None
    """What pickled requests on the server are signed with; None: they are refused."""
    fleet_start_urls: str | None = None
    """Redis key of a list that others push start URLs to; None: there is none, and workers end by themselves."""
    fleet_max_idle: float = 0.0
    """Seconds without anything to do after which a worker that waits for start URLs ends; 0: never."""
    fleet_take_over: bool = True
    """Whether what scrapy-redis left of the spider is taken over at the start."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Read the settings of a crawl. They are strings if they come from a command line; None means the default.

        Raises:
            SettingsError: Names every value that is out of range or of the wrong type, and every unknown setting.

        """
        values: dict[str, Any] = {}
        problems = []
        for name in sorted(name for name in settings if isinstance(name, str) and name.startswith(_PREFIX)):
            value = settings[name]
            known = _KNOWN.get(name)
            if known is None:
                problems.append(_unknown(name, value))
            elif value is not None:
                try:
                    values[known.attribute] = known.parse(value)
                except SettingsError as error:  # from a setting with many parts
                    problems += error.problems
                except (TypeError, ValueError, OverflowError):
                    problems.append(f"{name} must be {known.allowed}, not {_shown(name, value)}")
        if problems:
            raise SettingsError(problems)
        return cls(**values)


class _Known(NamedTuple):
    attribute: str
    allowed: str
    parse: Callable[[Any], Any]


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _number_between(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        number = _number(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _truth(value: Any) -> bool:
    """Read a truth value as Scrapy's ``getbool()`` does, and refuse what that refuses."""
    if value in ("0", "False", "false"):
        return False
    if value in ("1", "True", "true"):
        return True
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _positive_whole_number(value: Any) -> int:
    number = _number(value)
    if number < 1 or number != int(number):
        raise ValueError
    return int(number)


def _capacity(value: Any) -> int:
    number = _positive_whole_number(value)
    if number > MAX_CAPACITY:
        raise ValueError
    return number


def _whole_number(value: Any) -> int:
    return 0 if _number(value) == 0 else _positive_whole_number(value)


def _text_of(shortest: int, longest: int) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or not shortest <= len(value) <= longest:
            raise ValueError
        return value

    return parse


_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MIN_AGE, _MAX_AGE = 60, 10 * 365 * 86_400


def parse_age(value: Any) -> float:
    """Read seconds, or a number with a unit, such as ``"7d"``.

    Raises:
        ValueError: It is neither, or out of range.
        TypeError: Likewise.

    """
    text = str(value).strip().lower()
    unit = _UNITS.get(text[-1:], 0)
    seconds = _number(text[:-1]) * unit if unit and isinstance(value, str) else _number(value)
    if not _MIN_AGE <= seconds <= _MAX_AGE:
        raise ValueError
    return seconds


def _one_of(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return parse


def _server_url(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    parts = urlsplit(value)
    is_host = parts.scheme in {"redis", "rediss"} and parts.netloc
    if not is_host and not (parts.scheme == "unix" and parts.path):
        raise ValueError
    _ = parts.port  # raises ValueError if it is no port
    return value


def _key_prefix(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    # Braces would delimit a hash tag other than ours; a percent sign may only begin %(spider)s.
    if set(value) & set("{}") or "%" in value.replace("%(spider)s", "") or not value:
        raise ValueError
    return value


def _redis_key(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value or "%" in value.replace("%(spider)s", "").replace("%(name)s", ""):
        raise ValueError
    return value


def _seconds_or_never(value: Any) -> float:
    number = _number(value)
    if number != 0 and number < 1:
        raise ValueError
    return number


_KNOWN = {
    "BLOOM_CAPACITY": _Known("capacity", "a whole number of URLs from 1 to 1e12", _capacity),
    "BLOOM_ERROR_RATE": _Known(
        "error_rate",
        f"a probability from {MIN_ERROR_RATE} to {MAX_ERROR_RATE}",
        _number_between(MIN_ERROR_RATE, MAX_ERROR_RATE),
    ),
    "BLOOM_GROWTH": _Known(
        "growth", f"a number from {MIN_GROWTH:g} to {MAX_GROWTH:g}", _number_between(MIN_GROWTH, MAX_GROWTH)
    ),
    "BLOOM_MAX_AGE": _Known(
        "max_age", 'an age from 60 seconds to 10 years, such as "7d", "12h", "30m" or seconds', parse_age
    ),
    "BLOOM_SYNC_INTERVAL": _Known(
        "sync_interval", "a number of seconds from 0 (only at close) to 86400", _number_between(0, 86_400)
    ),
    "BLOOM_ACCEPT_LOST_REQUESTS": _Known("accept_lost_requests", "True or False", _truth),
    "BLOOM_FORGET_FAILED": _Known("forget_failed", "True or False", _truth),
    "BLOOM_URL_RULES": _Known("url_rules", RULES_ALLOWED, parse_url_rules),
    "BLOOM_LOOP_GUARD": _Known("loop_guard", "True, False or a dict of limits", parse_loop_guard),
    "BLOOM_REDIS_URL": _Known(
        "redis_url", "a URL such as redis://host:6379/0, rediss://:password@host or unix:///path", _server_url
    ),
    "BLOOM_REDIS_KEY": _Known("redis_key", "a key prefix without braces; %(spider)s is the spider's name", _key_prefix),
    "BLOOM_REDIS_ENGINE": _Known("redis_engine", "auto, bf or bitmap", _one_of("auto", "bf", "bitmap")),
    "BLOOM_REDIS_SHARDS": _Known("redis_shards", "a whole number, at least 1", _positive_whole_number),
    "BLOOM_REDIS_ON_ERROR": _Known("redis_on_error", "retry, allow or close", _one_of("retry", "allow", "close")),
    "BLOOM_REDIS_TTL": _Known("redis_ttl", "a whole number of seconds, at least 1", _positive_whole_number),
    "BLOOM_FLEET_WORKER": _Known("fleet_worker", "a name of 1 to 200 characters", _text_of(1, 200)),
    "BLOOM_FLEET_LEASE": _Known("fleet_lease", "a number of seconds from 1 to 86400", _number_between(1, 86_400)),
    "BLOOM_FLEET_HOST_WORKERS": _Known(
        "fleet_host_workers", "a whole number, at least 1, or 0 for any number", _whole_number
    ),
    "BLOOM_FLEET_START_URLS": _Known("fleet_start_urls", "a Redis key; %(spider)s is the spider's name", _redis_key),
    "BLOOM_FLEET_MAX_IDLE": _Known(
        "fleet_max_idle", "a number of seconds, at least 1, or 0 for any time", _seconds_or_never
    ),
    "BLOOM_FLEET_TAKE_OVER": _Known("fleet_take_over", "True or False", _truth),
    "BLOOM_FLEET_SECRET": _Known("fleet_secret", "a text of at least 16 characters", _text_of(16, 10_000)),
}


def _unknown(name: str, value: Any) -> str:
    close = difflib.get_close_matches(name, _KNOWN, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_KNOWN)}"
    return f"{name} (set to {_shown(name, value)}) is not a setting of this scrapy-bloom; {hint}"


def _shown(name: str, value: Any) -> str:
    """Return *value* for a message, unless it may be a server's URL or a secret."""
    is_secret = ("UR" in name and "REDIS" in name) or "SECR" in name
    return "a value not shown here, since it may hold a password" if is_secret else repr(value)
