"""A request as bytes: a pickle of ``request.to_dict()``, as in Scrapy's disk queues."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import request_from_dict

from scrapy_bloom.components.round_trip import MARK_OF_A_CLASS, attributes_of, check_values
from scrapy_bloom.frontier.stored import MARK, PICKLE_PROTOCOL
from scrapy_bloom.loops.share import Mark

if TYPE_CHECKING:
    from scrapy import Spider

# A plain request has these; leaving them out halves the size, and Scrapy fills them in when it reads the request.
DEFAULTS = {name: value for name, value in Request("data:,").to_dict().items() if name != "url"}


def dumps(request: Request, spider: Spider | None, mark: Mark | None = None) -> bytes:
    """Return *request*, whose callbacks are methods of *spider*, and the loop guard's *mark* of it as bytes.

    Raises:
        ValueError: It cannot be serialized, or would come back as another request.

    """
    try:
        attributes = attributes_of(request, spider)
        if "_class" not in attributes:  # another class may have other defaults
            for name, default in DEFAULTS.items():
                value = attributes[name]
                if value == default and type(value) is type(default):
                    del attributes[name]
        if mark is not None:
            attributes[MARK] = tuple(mark)  # a class of ours would tie the job to this version
        body = pickle.dumps(attributes, PICKLE_PROTOCOL)
        if MARK_OF_A_CLASS in body:
            check_values(attributes)
    except Exception as error:  # of objects of the user's in meta
        raise ValueError(str(error)) from error
    # Version and length of the only frame, 11 of some 120 bytes, tell nothing: pickle.loads() does without them.
    return body[11:] if int.from_bytes(body[3:11], "little") == len(body) - 11 else body


def loads(body: bytes, spider: Spider | None) -> tuple[Request, Mark | None]:
    """Return the request in *body* and its mark. May raise anything: unpickling runs other people's code.

    A job directory is as trusted as with Scrapy's own queues, which are pickles, too.
    """
    attributes: dict[str, Any] = pickle.loads(body)  # noqa: S301 - see the docstring
    mark = attributes.pop(MARK, None)
    return request_from_dict(attributes, spider=spider), None if mark is None else Mark(*mark)
