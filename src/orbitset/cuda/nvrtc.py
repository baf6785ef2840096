"""CUDA C++ compiled when it is first needed, and launched on torch's current stream.

Only two libraries are asked for, both of which come with torch's CUDA builds or the driver: NVRTC compiles
and the driver launches. What was compiled is kept in the user's cache folder.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitset.files import cache_folder, write_atomically

_SHARED = ("common.cu", "tile.cu", "products.cu")
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FOLDER = Path(__file__).parent


class CompileError(RuntimeError):
    """NVRTC refused; the message is its own."""


class LaunchError(RuntimeError):
    """The driver refused; the message is its own."""


def source(file: str, constants: Mapping[str, object], name: str = "") -> str:
    """A kernel file behind what all share and its constants, its function named for profiles."""
    types = {
        key: "Output" if key == "OUTPUT" else "Kind" if key.endswith("KIND") else "int"
        for key in constants
    }
    lines = (f"constexpr {types[key]} {key} = {value};\n" for key, value in constants.items())
    shared, own = map(_text, _SHARED), _text(file)
    return f"{''.join(shared)}#define NAME {name}\n{''.join(lines)}{own}"


@functools.cache
def _text(file: str) -> str:
    return (_FOLDER / file).read_text()


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """The compiler's library, wherever torch's installation or the system has it."""
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    folders = [Path(p) / "nvidia" for p in sys.path if p]
    found = [f for folder in folders for f in sorted(folder.glob(f"*/lib/{name}"))]
    for candidate in [*found, Path(name), Path("/usr/local/cuda/lib64") / name]:
        try:
            for builtins in candidate.parent.glob(f"libnvrtc-builtins.so.{major}*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # else it looks elsewhere
            return ctypes.CDLL(str(candidate))
        except OSError:
            continue
    raise CompileError(f"{name} was not found; it comes with torch's CUDA builds")


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_cubin(text: str, arch: str) -> bytes:
    """Machine code for one architecture, such as sm_90."""
    with compiled(text, f"--gpu-architecture={arch}") as (library, program):
        size = ctypes.c_size_t()
        status = library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        status = status or library.nvrtcGetCUBIN(program, cubin)
        if status or not size.value:
            raise CompileError(f"NVRTC gave no machine code for {arch}: error {status}")
        return cubin.raw


@contextlib.contextmanager
def compiled(text: str, *options: str) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    """NVRTC and its program, compiled; gone afterwards."""
    library = nvrtc()
    program = ctypes.c_void_p()
    array = (ctypes.c_char_p * (1 + len(options)))(b"--std=c++17", *(o.encode() for o in options))
    status = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"orbitset.cu", 0, None, None
    )
    if status:
        raise CompileError(f"NVRTC made no program: error {status}")
    try:
        if library.nvrtcCompileProgram(program, len(array), array):
            raise CompileError(_log(library, program))
        yield library, program
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


_known: dict[tuple[str, str], bytes] = {}


def compile_ahead(sources: Iterable[str], arch: str) -> None:
    """Compile several at once, for `Kernel` to find them done: the first time, that takes seconds."""
    wanted = [text for text in set(sources) if (text, arch) not in _known]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        cubins = threads.map(lambda text: cached_cubin(text, arch), wanted)
        _known.update(((text, arch), cubin) for text, cubin in zip(wanted, cubins, strict=True))


@functools.cache
def are_available(device: torch.device) -> bool:
    """Whether kernels can be compiled and run there: an NVIDIA GPU, Ampere or later, and its compiler."""
    if device.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    try:
        compile_cubin('extern "C" __global__ void nothing() {}', arch_of(device))
    except CompileError:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def serve(*tensors: Tensor) -> bool:
    """Whether kernels can run on these tensors, all of one GPU."""
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and are_available(devices.pop())


def arch_of(device: torch.device | int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def cached_cubin(text: str, arch: str) -> bytes:
    """As `compile_cubin`, but compiled once per machine."""
    key = repr((text, arch, nvrtc_version()))
    path = cache_folder() / "kernels" / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        cubin = compile_cubin(text, arch)
    with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
        write_atomically(path, cubin)
    return cubin


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"{what}: {(text.value or b'unknown error').decode()}")


def pointer(tensor: Tensor | None, dtype: torch.dtype, device: torch.device) -> ctypes.c_void_p:
    """A tensor's memory for a kernel, which would read anything else just as gladly."""
    if tensor is None:
        return ctypes.c_void_p(None)
    if tensor.device != device or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(
            f"a kernel on {device} was given {tensor.dtype} on {tensor.device}; it takes contiguous {dtype}"
        )
    return ctypes.c_void_p(tensor.data_ptr())


class Kernel:
    """One function with its launch shape, loaded on each GPU when first launched there."""

    def __init__(self, text: str, name: str, *, threads: int, shared_bytes: int = 0) -> None:
        self.text, self.name = text, name
        self.threads, self.shared_bytes = threads, shared_bytes
        self._functions: dict[int, ctypes.c_void_p] = {}
        self._resident: dict[int, int] = {}

    def _function(self) -> ctypes.c_void_p:
        """On the current GPU."""
        device = torch.cuda.current_device()
        if device in self._functions:
            return self._functions[device]
        arch = arch_of(device)
        cubin = _known.get((self.text, arch)) or cached_cubin(self.text, arch)
        torch.zeros(1, device=f"cuda:{device}")  # makes torch's context current
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), cubin), f"loading {self.name}")
        status = _driver().cuModuleGetFunction(ctypes.byref(function), module, self.name.encode())
        _check(status, f"finding {self.name}")
        if self.shared_bytes > 32 * 1024:  # static shared memory comes on top of it
            status = _driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, self.shared_bytes)
            _check(status, f"{self.name} asks for {self.shared_bytes} bytes of shared memory")
        self._functions[device] = function
        return function

    @property
    def resident_blocks(self) -> int:
        """How many blocks the whole current GPU holds at once."""
        device = torch.cuda.current_device()
        if device not in self._resident:
            per_multiprocessor = ctypes.c_int()
            status = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(per_multiprocessor),
                self._function(),
                self.threads,
                ctypes.c_size_t(self.shared_bytes),
            )
            _check(status, f"occupancy of {self.name}")
            count = torch.cuda.get_device_properties(device).multi_processor_count
            self._resident[device] = max(1, per_multiprocessor.value) * count
        return self._resident[device]

    def __call__(self, grid: tuple[int, int], *arguments: Any) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        function = self._function()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = _driver().cuLaunchKernel(
            function, *grid, 1, self.threads, 1, 1, self.shared_bytes, stream, pointers, None
        )
        _check(status, f"launching {self.name}")
