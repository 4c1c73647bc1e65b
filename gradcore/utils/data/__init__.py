"""Data sets, samplers and ``DataLoader``, with the names of ``torch.utils.data``."""

from gradcore.utils.data import _utils as _utils
from gradcore.utils.data.collate import default_collate, default_convert
from gradcore.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from gradcore.utils.data.distributed import DistributedSampler
from gradcore.utils.data.loader import DataLoader, get_worker_info
from gradcore.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler",
           "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler",
           "TensorDataset", "WeightedRandomSampler", "default_collate", "default_convert", "get_worker_info", "random_split"]
