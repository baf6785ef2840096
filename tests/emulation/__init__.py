"""CUDA kernels on a CPU: compiled as C++ against `cuda.h`, and called with the addresses of CPU tensors."""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

COMPILER = shutil.which("g++")
_FOLDER = Path(__file__).parent
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-w",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    "-fPIC",
]
_compiling = threading.Lock()
_built = tempfile.TemporaryDirectory(prefix="orbitset-emulated-")
_INSTRUCTIONS = re.findall(r"^static \w+ (\w+)\(", (_FOLDER / "instructions.h").read_text(), re.M)


class EmulatedKernel:
    """Stands in for `orbitset.cuda.nvrtc.Kernel`."""

    resident_blocks = 3

    def __init__(self, text, name, *, threads, shared_bytes=0):
        if threads % 32:
            raise ValueError(f"{name} has {threads} threads; whole warps are emulated")
        self.text, self.name, self.threads = text, name, threads
        self._run = None

    def __call__(self, grid, *arguments):
        if self._run is None:
            self._run = ctypes.CDLL(str(compiled(self.text, self.name))).run
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._run(addresses, *grid, self.threads)


def compiled(text, name):
    """The library it is compiled to, gone when the process is."""
    source = _translated(text, name)
    library = Path(_built.name) / f"{hashlib.sha256(source.encode()).hexdigest()}.so"
    if not library.exists():
        subprocess.run(
            [COMPILER, *_FLAGS, "-shared", f"-I{_headers()}", "-x", "c++", "-", "-o", library],
            input=source, text=True, check=True,
        )  # fmt: skip
    return library


def _headers():
    """Their folder, where the long one is compiled."""
    folder = Path(_built.name)
    with _compiling:
        if not (folder / "cuda.h.gch").exists():
            for header in _FOLDER.glob("*.h"):
                shutil.copy(header, folder)
            subprocess.run([COMPILER, *_FLAGS, folder / "cuda.h"], check=True)
    return folder


def _translated(text, name):
    for instruction in _INSTRUCTIONS:
        text = _without(text, instruction)
    text = re.sub(r"extern __shared__ [^;]* buffers\[\];", "", text)
    shared = r"\1* \2 = reinterpret_cast<\1*>(buffers);"
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", shared, text)
    types = "typedef long long i64;\n"
    text = text.replace(types, types + '#include "instructions.h"\n', 1)
    call = f"emulation::launch<{name}>(given, x, y, threads);"
    run = f'extern "C" void run(void** given, int x, int y, int threads) {{ {call} }}'
    return f'#include "cuda.h"\n{text}\n{run}\n'


def _without(text, function):
    """Its definition taken out."""
    found = re.search(rf"__device__ __forceinline__ \w+ {function}\([^{{]*{{", text)
    if found is None:
        return text
    depth, end = 1, found.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[: found.start()] + text[end:]
