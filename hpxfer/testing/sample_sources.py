"""The conformance suite of sample sources. Derive a pytest class from `SampleSourceSuite`, and define `source`."""

from __future__ import annotations

import numpy as np

from hpxfer.data import SAMPLE_SOURCES, Samples, open_samples, scaled

FEWEST = 20


def opened(source: str) -> Samples:
    found = open_samples(source)
    assert found is not None, f"{source} names no samples on this machine"
    return found


class SampleSourceSuite:
    """Derive from it, and define the fixture `source`: a name such as `mine:PATH` of at least 20 samples."""

    def test_the_row_is_registered_and_says_how_it_is_used(self, source: str) -> None:
        row = SAMPLE_SOURCES.get(source.partition(":")[0])
        assert source.startswith(f"{row.name}:")
        assert row.usage.startswith(f"{row.name}:")
        assert row.problem(source.partition(":")[2]) is None
        assert not row.is_path or open_samples(f"{row.name}:/nowhere/at/all") is None

    def test_samples_are_as_the_facts_say(self, source: str) -> None:
        found = opened(source)
        facts = found.facts
        assert (facts.num_classes > 0) != (facts.num_targets > 0)
        assert found.num_train is None or found.num_train >= FEWEST
        inputs, targets = found.train(0, 0, FEWEST, 0)
        assert inputs.shape == (FEWEST, facts.num_inputs)
        assert inputs.dtype == (np.uint8 if facts.is_pixels else np.float32)
        assert (found.normalization is not None) == facts.is_pixels
        assert np.isfinite(scaled(inputs, found.normalization)).all()
        if facts.num_classes:
            assert targets.shape == (FEWEST,)
            assert targets.dtype == np.int64
            assert ((targets >= 0) & (targets < facts.num_classes)).all()
        else:
            assert targets.shape == (FEWEST, facts.num_targets)
            assert targets.dtype == np.float32

    def test_samples_do_not_depend_on_how_many_are_read(self, source: str) -> None:
        found = opened(source)
        whole = found.train(1, 0, FEWEST, 0)
        for begin, end in ((0, 1), (3, FEWEST)):
            for one, other in zip(whole, found.train(1, begin, end, 0), strict=True):
                assert np.array_equal(one[begin:end], other)

    def test_what_is_kept_is_not_trained_on(self, source: str) -> None:
        """With all but five samples kept, an epoch has five samples, and the next one has the same."""
        found = opened(source)
        if found.num_train is not None:
            inputs, _ = found.train(0, 0, 10, found.num_train - 5)
            assert np.array_equal(np.unique(inputs[:5], axis=0), np.unique(inputs[5:], axis=0))

    def test_the_digest_is_a_function_of_the_samples(self, source: str) -> None:
        first, second = opened(source).digest(), opened(source).digest()
        assert (first, len(first)) == (second, 32)

    def test_chosen_classes_are_numbered_anew(self, source: str) -> None:
        num_classes = opened(source).facts.num_classes
        if num_classes > 1:
            found = open_samples(source, only=(num_classes - 1, 0))
            assert found is not None
            assert found.facts.num_classes == 2
            assert set(found.train(0, 0, FEWEST, 0)[1].tolist()) <= {0, 1}
            assert found.digest() == opened(source).digest()
