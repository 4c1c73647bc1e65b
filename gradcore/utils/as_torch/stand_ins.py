"""Stand-ins for names of PyTorch's that packages import without a need for them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gradcore.errors import NotCovered

#: Modules of PyTorch's, with those in them, that packages import all the same.
MODULES = """__config__ _C _dynamo _higher_order_ops _inductor _subclasses _tensor_str ao autograd.forward_ad autograd.profiler
    backends.mkldnn distributed distributions.utils distributions.wishart export fft futures fx jit.annotations nested
    nn.attention.flex_attention nn.common_types nn.parallel.distributed nn.parallel.scatter_gather overrides profiler
    quasirandom serialization types utils._foreach_utils utils.cpp_extension utils.data._utils utils.dlpack utils.flop_counter
    utils.tensorboard""".split()
#: Names in modules that gradcore has.
NAMES = {
    "": """Future PyTorchFileReader ScriptModule Stream SymBool SymFloat SymInt TensorType complex complex32 layout
        memory_format sparse_bsc sparse_bsr sparse_coo sparse_csc sparse_csr svd_lowrank""",
    "cuda": "CUDAGraph StreamContext graph",
    "distributed": """FileStore HashStore ProcessGroup ReduceOp TCPStore all_gather all_reduce barrier broadcast
        device_mesh fsdp get_rank get_world_size group nn rpc""",
    "distributions": "Kumaraswamy",
    "utils.data.dataloader": """_BaseDataLoaderIter _MultiProcessingDataLoaderIter _SingleProcessDataLoaderIter _collate_fn_t
        _worker_init_fn_t""",
    "hub": "HASH_REGEX download_url_to_file get_dir urlparse",
    "optim": "SparseAdam",
    "jit": "_overload _overload_method RecursiveScriptModule ScriptFunction ScriptModule interface trace"}


class Unused(type):
    """The type of stand-ins. Each is a class, for annotations, ``isinstance`` and classes that are derived from it."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        """The function or class that is given alone, as to a decorator. Raises NotCovered for anything else."""
        if len(args) == 1 and callable(args[0]) and not named:
            return args[0]
        raise NotCovered(f"{cls.__module__}.{cls.__qualname__} is not implemented by gradcore: it can be mentioned, not used")

    def __getitem__(cls, of: Any) -> Any:
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no attribute {name!r}")
        return stand_in(cls.__module__, f"{cls.__qualname__}.{name}")


def stand_in(module: str, path: str) -> Unused:
    """A stand-in for a name of a module."""
    return Unused(path.rpartition(".")[2], (), {"__module__": module, "__qualname__": path})


class UnusedModule(ModuleType):
    """A module that has a stand-in for every name, but for those that are given."""

    def __init__(self, name: str, given: dict[str, Any] | None = None) -> None:
        super().__init__(name, "Names that can be imported and mentioned, but not used.")
        self.__path__: list[str] = []
        self.__version__ = "0"
        vars(self).update(given or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        made = stand_in(self.__name__, name)
        setattr(self, name, made)
        return made
