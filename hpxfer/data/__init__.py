"""Data: from the `data` section of a sweep to the batches of token ids or samples that a trainer reads."""

from hpxfer.data.batches import Batch, Data, SampleData, TokenData
from hpxfer.data.cautions import data_cautions, largest_id
from hpxfer.data.files import matching_files, read_bytes
from hpxfer.data.made.makers import MAKERS
from hpxfer.data.made.teacher import polynomial
from hpxfer.data.manifest import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    PROGRESS_FILE,
    Manifest,
    NumTokens,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    SplitName,
    TokenizerEntry,
    inspected,
    read_manifest,
)
from hpxfer.data.reference import check_length, data_ref, is_here, open_data, point_keys, require_data
from hpxfer.data.samples import Samples, scaled
from hpxfer.data.sources import (
    SAMPLE_SOURCES,
    SOURCES,
    DataSource,
    load_corpus,
    open_dataset,
    open_samples,
    opened,
    register_data_source,
    register_sample_source,
    row_of,
    source_of,
)
from hpxfer.data.tokens import Corpus, Dataset
from hpxfer.data.windows import shuffled, words
