"""Where the URLs of these tests come from, and what "equal" means for two functions that may also raise."""

import itertools
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

REAL_LOOKING = tuple(Path(__file__).with_name("real_looking_urls.txt").read_text(encoding="utf-8").splitlines())

# What has to go wrong somewhere: separators, what escapes, what is stripped, what normalizes, what cannot be encoded.
RISKY_TOKENS = (
    *"/?#&=;+%:@.,!~*'()$-_|[]{}<>\"\\^` \t\n\r\x00\x1f\x7f0aAzZ9",
    *("%2F", "%2f", "%3B", "%3b", "%25", "%2E", "%2e", "%23", "%20", "%41", "%7e", "%00", "%C3%BC", "%ff", "%zz", "%2"),
    *("/.", "/..", "/./", "/../", "..;", "//", "&&", "==", "&=", "=&", "&amp;", ";a", ":80", ":65535", ":65536"),
    *("\u00fc", "\u00df", "\u212a", "\u3002", "\uff0f", "\u2025", "\U0001f600", "\ud800", "\udfff", "\ufeff", "\u2028"),
    *("[::1]", "u:p@", "xn--", "HTTP://", "http:", "ftp://", "data:,", "about:"),
)

# What leaves most URLs recognisable, so that answers are compared and not refusals.
MILD_TOKENS = (*"/?#&=;+.,!~*'()$-_:@aAzZ09", "%2F", "%20", "%41", "%7e", "%C3%BC", "&amp;", "==", "&&", ";a", "//")

NEAR_URLS = st.builds(
    "{}://{}{}{}{}".format,
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z0-9][a-z0-9._\-]{0,8}(:[0-9]{1,5})?", fullmatch=True),
    st.just("")
    | st.text(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/%2FfCc", max_size=20).map("/{}".format),
    st.just("")
    | st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30).map("?{}".format)
    | st.lists(st.builds("{}={}".format, st.text("aAbB0-._~+%24", max_size=3), st.text("a0=%3d+&;", max_size=3))).map(
        lambda pairs: f"?{'&'.join(pairs)}"
    ),
    st.just("") | st.text(max_size=6).map("#{}".format),
)
"""URLs in and just outside the set that is recognised."""

ANY_URLS = st.one_of(
    st.text(max_size=20),
    st.text(max_size=20).map("http://{}".format),
    st.text(max_size=20).map("http://a/{}".format),
    st.builds("{}://{}/{}".format, st.text(max_size=5), st.text(max_size=8), st.text(max_size=12)),
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


def mutations(count: int, seed: int) -> Iterator[str]:
    """*count* real-looking URLs with one to four random wounds each."""
    rng = random.Random(seed)
    for _ in range(count):
        url = rng.choice(REAL_LOOKING)
        tokens = rng.choice((MILD_TOKENS, RISKY_TOKENS))
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            i, j = sorted((rng.randrange(len(url) + 1), rng.randrange(len(url) + 1)))
            other = rng.choice(REAL_LOOKING)
            url = rng.choice(
                (
                    url[:i] + rng.choice(tokens) + url[i:],
                    url[:i] + rng.choice(tokens) + url[i + 1 :],
                    url[:i] + url[min(j, i + 4) :],
                    url[:j] + url[i : i + 8] + url[j:],
                    url[:i] + other[rng.randrange(len(other)) :],
                )
            )
        yield url
