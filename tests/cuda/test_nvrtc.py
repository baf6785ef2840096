"""Kernels are compiled here, which takes no GPU; they are run in tests/test_gpu_kernels.py."""

import ctypes
import functools
from types import SimpleNamespace

import pytest
import torch

from orbitset.cuda import layers, nvrtc
from orbitset.cuda.adam import adam_source
from orbitset.cuda.code_norm import code_norm_source
from orbitset.cuda.fused_plan import Plan
from orbitset.cuda.packing import packing_source
from orbitset.cuda.triplets import triplets_source
from orbitset.encoders import RectifyingEncoder


@pytest.fixture(autouse=True)
def _needs_compiler(monkeypatch, tmp_path):
    try:
        nvrtc.nvrtc()
    except nvrtc.CompileError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


_accepted = set()


@functools.cache
def _quickly():
    """The option that leaves out optimisations, which NVRTC has from CUDA 12.8 on."""
    return ["--Ofast-compile=max"] if nvrtc.nvrtc_version() >= (12, 8) else []


@pytest.mark.parametrize(
    ("settings", "num", "uses_decoder"),
    [
        ({}, 256, True),
        ({}, 256, False),
        ({}, 1024, True),
        ({}, 1024, False),
        ({"size_px": 16, "channels": (16, 32, 64)}, 5, True),
        ({"size_px": 8, "channels": (16,)}, 5, True),
        ({"size_px": 32, "channels": (32, 32, 128), "code_size": 8}, 16, True),
        ({"unpooling": "switches"}, 256, True),
    ],
)
def test_every_kernel_of_a_network_is_accepted(settings, num, uses_decoder):
    """Its static assertions hold the plans made in Python to what the kernels assume. They take no machine
    code, which takes ten times as long."""
    sources = Plan(RectifyingEncoder(**settings)).sources(num, uses_decoder)
    for text in set(sources) - _accepted:
        with nvrtc.compiled(text, "--gpu-architecture=compute_90", *_quickly()):
            _accepted.add(text)


def test_every_kernel_of_a_network_becomes_machine_code():
    model = RectifyingEncoder(size_px=32, channels=(16, 32), unpooling="switches")
    nvrtc.compile_ahead(Plan(model).sources(256, True), "sm_90")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_other_kernels_compile(arch):
    for file in ("warp.cu", "squared_error.cu"):
        assert nvrtc.compile_cubin(nvrtc.source(file, {"THREADS": 128}), arch)
    for text in (triplets_source(), code_norm_source(), packing_source(), adam_source()):
        assert nvrtc.compile_cubin(text, arch)
    for down in (8, 32):
        assert nvrtc.compile_cubin(layers.finish_step_source(down), arch)
    assert nvrtc.compile_cubin(layers.find_switches(4, 128).text, arch)
    for kind, output in (
        ("ACT_POOL", "STORE"), ("RAW", "STATS"), ("GRAD", "STORE"), ("RAW", "MASK_POOL"),
    ):  # fmt: skip
        assert nvrtc.compile_cubin(layers.pointwise(4, 128, kind, output).text, arch)


def test_what_was_compiled_is_found_again(tmp_path, monkeypatch):
    text = nvrtc.source("warp.cu", {"THREADS": 128})
    first = nvrtc.cached_cubin(text, "sm_90")
    assert len(list(tmp_path.rglob("*.cubin"))) == 1
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert nvrtc.cached_cubin(text, "sm_90") == first


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert nvrtc.cached_cubin('extern "C" __global__ void nothing() {}', "sm_90")


def test_errors_are_the_compilers():
    with pytest.raises(nvrtc.CompileError, match="nonsense"):
        nvrtc.compile_cubin("nonsense", "sm_90")


def test_a_kernel_is_given_no_memory_of_another_kind():
    cpu = torch.device("cpu")
    assert nvrtc.pointer(None, torch.float32, cpu).value is None
    assert nvrtc.pointer(torch.zeros(2), torch.float32, cpu).value
    for tensor in (torch.zeros(2, dtype=torch.int32), torch.zeros(2, 2).T[:1]):
        with pytest.raises(ValueError, match="takes contiguous torch.int64"):
            nvrtc.pointer(tensor, torch.int64, cpu)


class _Driver:
    """Reads what it is given where it is said to lie, as the driver does during a launch."""

    def cuLaunchKernel(self, function, *given):
        whole, half, table = given[-2]
        self.seen = (
            given[:7],
            ctypes.c_int.from_address(whole).value,
            ctypes.c_float.from_address(half).value,
            list((ctypes.c_int * 3).from_address(table)),
        )
        return 0


def test_a_launch_says_where_its_arguments_lie(monkeypatch):
    driver = _Driver()
    monkeypatch.setattr(nvrtc, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    kernel = nvrtc.Kernel("", "some", threads=64, shared_bytes=16)
    monkeypatch.setattr(kernel, "_function", ctypes.c_void_p)
    kernel((3, 2), ctypes.c_int(-5), ctypes.c_float(0.5), (ctypes.c_int * 3)(1, 2, 3))
    assert driver.seen == ((3, 2, 1, 64, 1, 1, 16), -5, 0.5, [1, 2, 3])
