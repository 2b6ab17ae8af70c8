"""torch eager as the reference for .pt2 and .gguf files and Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from graphc.errors import InputError
from graphc.reference import FeedPort, Refused

Arrays = Mapping[str, npt.NDArray[np.generic]]


class TorchReference:
    """The exported program as torch runs it; for a folder the module itself, not its export."""

    kind = "torch"

    def __init__(self, path: Path, threads: int) -> None:
        from graphc.frontend.torch_export import require_torch

        require_torch(str(path))
        self.path, self._threads = path, threads
        self._names: tuple[str, ...]
        self._module: Any
        if path.is_dir():
            from graphc.frontend import huggingface, packed_folder

            plain = packed_folder.packing_of(path) is None
            build = huggingface.build if plain else packed_folder.reference
            self._module, inputs = build(path)
            self._names, self._spec = tuple(inputs), None
        elif path.suffix == ".gguf":
            from graphc.frontend import gguf

            self._module, inputs = gguf.reference(path)
            self._names, self._spec = tuple(inputs), None
        else:
            from graphc.frontend.torch_export import archive, program

            exported, _ = archive.read(path)
            with program.quiet():
                self._module = exported.module()
            self._names = program.input_names(exported)
            self._spec = exported.call_spec.in_spec

    @property
    def ports(self) -> tuple[FeedPort, ...]:
        """The inputs; of text models they are whole numbers [batch, sequence]."""
        return tuple(FeedPort(name, "int64", ("batch", "sequence")) for name in self._names)

    def run(self, feeds: Arrays) -> dict[str, npt.NDArray[np.generic]]:
        """All outputs by name, as the importer names them."""
        import torch

        from graphc.frontend.torch_export.program import leaf_names, quiet

        missing = [name for name in self._names if name not in feeds]
        if missing:
            raise InputError(f"input {missing[0]} is not given")
        tensors = {name: _tensor(feeds[name]) for name in self._names}
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(self._threads)
            with quiet(), torch.no_grad():
                result = self._module(**tensors) if self._spec is None else self._call(tensors)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise Refused(f"{self.path}: torch cannot run it: {lines[0][:300]}") from error
        finally:
            torch.set_num_threads(threads)
        leaves, spec = torch.utils._pytree.tree_flatten(result)
        named = zip(leaf_names(spec, len(leaves)), leaves, strict=True)
        return {name: _array(leaf) for name, leaf in named if isinstance(leaf, torch.Tensor)}

    def _call(self, tensors: Mapping[str, Any]) -> Any:
        import torch

        arguments, named = torch.utils._pytree.tree_unflatten(list(tensors.values()), self._spec)
        return self._module(*arguments, **named)


def _tensor(array: npt.NDArray[np.generic]) -> Any:
    import torch

    array = np.array(array, order="C")  # torch wants memory that it may write to
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> npt.NDArray[np.generic]:
    import torch

    tensor = tensor.detach().contiguous()
    is_half = tensor.dtype is torch.bfloat16
    array: npt.NDArray[np.generic] = (tensor.view(torch.int16) if is_half else tensor).numpy()
    return array.view(ml_dtypes.bfloat16) if is_half else array
