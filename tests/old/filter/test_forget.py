"""Taking fingerprints back, against a Python set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import ScalableBloomFilter

FINGERPRINTS = st.sampled_from([b"%d" % number for number in range(12)])


@given(st.lists(st.tuples(st.sampled_from(["add", "forget", "recall"]), FINGERPRINTS), max_size=60))
def test_add_forget_and_recall_do_what_a_set_does(steps: list[tuple[str, bytes]]) -> None:
    """Through growth, exactly: a forgotten fingerprint is new once, and a recalled one is as if never forgotten."""
    seen = ScalableBloomFilter(capacity=2, error_rate=1e-9)
    present, taken_back = set[bytes](), set[bytes]()
    for step, fingerprint in steps:
        if step == "add":
            assert seen.add(fingerprint) is (fingerprint not in present)
            present.add(fingerprint)
            taken_back.discard(fingerprint)
        elif step == "forget":
            assert seen.forget(fingerprint) is (fingerprint in present)
            if fingerprint in present:
                present.discard(fingerprint)
                taken_back.add(fingerprint)
        else:
            assert seen.recall(fingerprint) is (fingerprint in taken_back)
            if fingerprint in taken_back:
                present.add(fingerprint)
                taken_back.discard(fingerprint)
        assert len(seen) == len(present)
        assert seen.forgotten == len(taken_back)
        assert {
            fingerprint for fingerprint in (b"%d" % number for number in range(12)) if fingerprint in seen
        } == present
        seen._check()


def test_a_fingerprint_too_long_for_the_record_is_refused() -> None:
    """Rather than forgotten in memory only."""
    with pytest.raises(ValueError, match="65535"):
        ScalableBloomFilter().forget(bytes(65_536))
