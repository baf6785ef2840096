import pytest

from orbitset.kernels import layers, nvrtc


@pytest.fixture(autouse=True)
def _needs_compiler(monkeypatch, tmp_path):
    try:
        nvrtc.nvrtc()
    except nvrtc.CompileError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_kernels_compile_and_are_cached(tmp_path, monkeypatch):
    shape = layers.convolution_shape(8, 16, 16, "ACT", "STATS")
    _, source, _, _ = layers.convolution_plan(8, 16, 16, "ACT", "STATS", shape)
    first = nvrtc.cached_cubin(source, "sm_90")
    assert len(list(tmp_path.rglob("*.cubin"))) == 1
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert nvrtc.cached_cubin(source, "sm_90") == first


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert nvrtc.cached_cubin('extern "C" __global__ void nothing() {}', "sm_90")


def test_errors_are_the_compilers():
    with pytest.raises(nvrtc.CompileError, match="identifier"):
        nvrtc.compile_cubin("nonsense", "sm_90")
