"""Where the URLs of these tests come from, and what "equal" means for two functions that may also raise."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REAL_LOOKING = tuple(Path(__file__).with_name("real_looking_urls.txt").read_text(encoding="utf-8").splitlines())

# What has to go wrong somewhere: separators, what escapes, what is stripped, what normalizes, what cannot be encoded.
RISKY_TOKENS = (
    *"/?#&=;+%:@.,!~*'()$-_|[]{}<>\"\\^` \t\n\r\x00\x1f\x7f0aAzZ9",
    *("%2F", "%2f", "%3B", "%3b", "%25", "%2E", "%2e", "%23", "%20", "%41", "%7e", "%00", "%C3%BC", "%ff", "%zz", "%2"),
    *(
        "/.",
        "/..",
        "/./",
        "/../",
        "..;",
        "//",
        "&&",
        "==",
        "&=",
        "=&",
        "&amp;",
        ";a",
        ":80",
        ":65535",
        ":65536",
        ":099",
    ),
    *("\u00fc", "\u00df", "\u212a", "\u3002", "\uff0f", "\u2025", "\U0001f600", "\ud800", "\udfff", "\ufeff", "\u2028"),
    *("[::1]", "u:p@", "xn--", "HTTP://", "http:", "ftp://", "data:,", "about:"),
)

# What leaves most URLs recognisable, so that answers are compared and not refusals.
MILD_TOKENS = (
    *"/?#&=;+.,!~*'()$-_:@aAzZ09",
    "%2F",
    "%20",
    "%41",
    "%7e",
    "%C3%BC",
    "&amp;",
    "==",
    "&&",
    ";a",
    "//",
    ".a",
)


def outcome(function: Callable[[Any], Any], argument: Any) -> Any:
    """What *function* returns, or the type and text of what it raises."""
    try:
        return function(argument)
    except Exception as error:
        return type(error), str(error)


def short_strings(alphabet: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from map("".join, itertools.product(alphabet, repeat=length))


def mutations(urls: tuple[str, ...], count: int, seed: int) -> Iterator[str]:
    """*count* real-looking URLs with one to four random wounds each."""
    rng = random.Random(seed)
    for _ in range(count):
        url = rng.choice(urls)
        tokens = rng.choice((MILD_TOKENS, RISKY_TOKENS))
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            i, j = sorted((rng.randrange(len(url) + 1), rng.randrange(len(url) + 1)))
            kind = rng.randrange(6)
            if kind <= 1:
                url = url[:i] + rng.choice(tokens) + url[i:]
            elif kind == 2:
                url = url[:i] + rng.choice(tokens) + url[i + 1 :]
            elif kind == 3:
                url = url[:i] + url[min(j, i + 4) :]
            elif kind == 4:
                url = url[:j] + url[i : i + 8] + url[j:]
            else:
                other = rng.choice(urls)
                url = url[:i] + other[rng.randrange(len(other)) :]
        yield url
