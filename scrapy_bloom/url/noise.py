"""Recognises the parts of a URL that track a visitor or carry a session, by their names and forms.

The functions take a field of a canonical query, ``key=value``. The patterns search a path. A released rule never
changes, so a change to a name or a pattern here needs a rule with another name.
"""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TRACKING_2 = tuple(files(__package__).joinpath("tracking_2.txt").read_text(encoding="ascii").split())
"""Parameters of ``tracking_2``, besides all that begin with ``cm_mmc``, and a long ``__s``: those that Firefox, Brave,
ClearURLs and AdGuard strip on every site, except the ones that docs/rules.md lists."""


def _any_of(names: Iterable[str]) -> str:
    """Return a pattern of *names*, grouped by their first letters: that makes a search three times as fast."""
    groups = groupby(sorted(names), key=itemgetter(0))
    return "|".join(f"{first}(?:{'|'.join(name[1:] for name in group)})" for first, group in groups)


_AMP = "(?:amp%3B)*"  # of a link whose "&amp;" was escaped once too often

is_tracking_2 = re.compile(
    rf"{_AMP}(?:(?:{_any_of(TRACKING_2)}|cm_mmc[^=]*)(?:=.*)?|__s=[0-9A-Za-z]{{6,}})", re.DOTALL
).fullmatch

_OWN_NAMES = "phpsessid|cgisessid|oscsid|xtcsid|zenid"
_SHARED_NAMES = "sessionid|session_id|sessid|sid"
# Ids of records have these names, too: digits only, 24 hexadecimal digits (MongoDB), or capitals (ULID). So a session
# id must have a digit and either 26 characters with a lower-case letter, or 32 hexadecimal digits in capitals, or more.
_RANDOM = r"(?=[^=]*[0-9])(?:(?=[^=]*[a-z])[0-9A-Za-z]{26,}|(?=[^=]*[A-F])[0-9A-F]{32,})"
# Tokens of one visit: of forms in Moodle and WordPress, and of the search that led to a page in Koha and Shopify
_OF_A_VISIT = (
    r"sesskey=[0-9A-Za-z]{10}|_wpnonce=[0-9a-f]{10}|searchid=scs_[0-9_]+|query_desc=[^=]*|_pos=[0-9]+|_sid=[0-9a-f]{9}"
    r"|_ss=[a-z]|pr_(?:prod_strat|rec_id|rec_pid|ref_pid|seq)=[^=]*"
)
is_session_2 = re.compile(
    rf"{_AMP}(?:(?i:_?jsessionid)=[^=]{{10,}}|(?i:{_OWN_NAMES}|aspsessionid[a-z]{{8}})=(?:[0-9A-Za-z\-]|%2C){{22,}}"
    rf"|(?i:{_SHARED_NAMES})={_RANDOM}|(?i:s=[0-9a-f]{{32}})|{_OF_A_VISIT})"
).fullmatch
# ColdFusion: a short number and a token, always together. A cfid alone may be a record's.
has_coldfusion_token = re.compile(rf"[?&]{_AMP}(?i:cftoken)=[0-9A-Za-z\-]{{8,}}(?=&|\Z)").search
is_coldfusion = re.compile(rf"{_AMP}(?i:cfid|cftoken)=[0-9A-Za-z\-]+").fullmatch
# The servlet specification reserves the name, so the value may have any form: Jetty's are short, Tomcat's name a node.
# SAP writes its sessions in the same way.
JSESSIONID_2 = re.compile(r";(?:jsessionid|sap-ext-sid)=[^/?#;]+", re.IGNORECASE)
# ASP.NET without cookies: /(S(lit3py55t21z5v55vlm25s55))/orders.aspx, also with other tickets beside the session. Also
# as in ASP.NET 1: /(lit3py55t21z5v55vlm25s55)/orders.aspx
ASP_NET_2 = re.compile(
    r"/\((?:(?=[a-z]*[0-5])[a-z0-5]{24}|"
    r"(?:[AX]\([0-9A-Za-z_\-]+\))?S\([0-9a-z]{24}\)(?:F\([0-9A-Za-z_\-]+\))?)\)(?=/|\Z)"
)

find_noise = re.compile(
    rf"[?&]{_AMP}(?:{_any_of({'__s=', 'cm_mmc', *TRACKING_2})}"
    r"|sesskey=|_wpnonce=|searchid=|query_desc=|_pos=|_sid=|_ss=|pr_"
    rf"|(?i:s=|cftoken|_?jsessionid|aspsessionid|{_OWN_NAMES}|{_SHARED_NAMES}))"
).search
"""Find a parameter that one of these rules may drop. It may find others, too, and misses none."""
