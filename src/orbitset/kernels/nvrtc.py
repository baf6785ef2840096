"""CUDA C++ compiled when it is first needed, and launched on torch's current stream.

Only two libraries are asked for, both of which come with torch's CUDA builds or the driver: NVRTC compiles
and the driver launches. What was compiled is kept in the user's cache folder.
"""

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from orbitset.files import write_atomically

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NUM_REGISTERS = 4
_LOCAL_BYTES = 3


class CompileError(RuntimeError):
    """NVRTC or the driver refused; the message is theirs."""


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


def compile_cubin(source: str, arch: str) -> bytes:
    """Machine code for one architecture, such as sm_90."""
    library = nvrtc()
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"orbitset.cu", 0, None, None
    )
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    try:
        if library.nvrtcCompileProgram(program, len(options), array):
            raise CompileError(_log(library, program))
        size = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


_known: dict[tuple[str, str], bytes] = {}


def compile_ahead(sources: Iterable[str]) -> None:
    """Compile several at once, for `Kernel` to find them done: the first time, that takes seconds."""
    arch = _arch()
    wanted = [source for source in set(sources) if (source, arch) not in _known]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        cubins = threads.map(lambda source: cached_cubin(source, arch), wanted)
        _known.update(((source, arch), cubin) for source, cubin in zip(wanted, cubins, strict=True))


def _arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def cached_cubin(source: str, arch: str) -> bytes:
    """As `compile_cubin`, but compiled once per machine."""
    key = repr((source, arch, nvrtc_version()))
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(root) / "orbitset" / "kernels" / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        cubin = compile_cubin(source, arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, cubin)
    except OSError:
        pass  # a cache that cannot be written is only slower
    return cubin


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CompileError(f"{what}: {(text.value or b'unknown error').decode()}")


class Kernel:
    """One compiled function with its launch shape."""

    def __init__(
        self,
        source: str,
        name: str,
        *,
        threads: int,
        shared_bytes: int = 0,
    ) -> None:
        torch.cuda.init()
        cubin = _known.get((source, _arch())) or cached_cubin(source, _arch())
        self.name, self.threads, self.shared_bytes = name, threads, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        torch.cuda.current_stream()  # makes the context current
        torch.zeros(1, device="cuda")
        _check(_driver().cuModuleLoadData(ctypes.byref(self._module), cubin), f"loading {name}")
        _check(
            _driver().cuModuleGetFunction(
                ctypes.byref(self._function), self._module, name.encode()
            ),
            f"finding {name}",
        )
        if shared_bytes > 32 * 1024:  # static shared memory comes on top of it
            status = _driver().cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared_bytes)
            _check(status, f"{name} asks for {shared_bytes} bytes of shared memory")

    def attribute(self, which: int) -> int:
        value = ctypes.c_int()
        _driver().cuFuncGetAttribute(ctypes.byref(value), which, self._function)
        return value.value

    @property
    def registers(self) -> int:
        return self.attribute(_NUM_REGISTERS)

    @property
    def spilled_bytes(self) -> int:
        return self.attribute(_LOCAL_BYTES)

    @functools.cached_property
    def resident_blocks(self) -> int:
        """How many blocks the whole device holds at once."""
        per_multiprocessor = ctypes.c_int()
        status = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(per_multiprocessor), self._function, self.threads, self.shared_bytes
        )
        _check(status, f"occupancy of {self.name}")
        count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        return max(1, per_multiprocessor.value) * count

    def __call__(self, grid: tuple[int, int], *arguments: Any) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in arguments)
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = _driver().cuLaunchKernel(
            self._function, *grid, 1, self.threads, 1, 1, self.shared_bytes, stream, pointers, None
        )
        _check(status, f"launching {self.name}")
