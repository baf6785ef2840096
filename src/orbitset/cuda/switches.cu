// Which cell of each 2x2 window holds the maximum of relu(norm(y)), a byte each: the first of equals.

constexpr int GROUPS = CHANNELS / 8;
static_assert(THREADS % GROUPS == 0, "a thread keeps to its channels");

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const Operand from, u8* __restrict__ to, int images) {
  __shared__ __align__(16) float coefs[4 * CHANNELS];
  fill_coefficients<false>(coefs, from.norm, 0, CHANNELS, CHANNELS);
  __syncthreads();

  const int group = threadIdx.x % GROUPS;
  float scale[8], shift[8];
  read8<CHANNELS>(coefs, 0, group * 8, scale);
  read8<CHANNELS>(coefs, 1, group * 8, shift);
  const int total = images * SIZE * SIZE * GROUPS;
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < total; index += gridDim.x * THREADS) {
    const int window = index / GROUPS;
    const int n = window / (SIZE * SIZE), h = window / SIZE % SIZE, w = window % SIZE;
    uint4 y[4], is_largest[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const i64 at = (i64(n) * 2 * SIZE + 2 * h + k / 2) * 2 * SIZE + 2 * w + k % 2;
      y[k] = load16(from.values, at * CHANNELS + group * 8);
    }
    find_largest(y, scale, shift, is_largest);
    u32 cells[4] = {};  // two each; where none is above zero, the first
#pragma unroll
    for (int p = 0; p < 4; ++p)
#pragma unroll
      for (int k = 1; k < 4; ++k) cells[p] |= pair(is_largest[k], p) & k * 0x00010001;
    const u32 bytes[2] = {__byte_perm(cells[0], cells[1], 0x6420), __byte_perm(cells[2], cells[3], 0x6420)};
    *reinterpret_cast<uint2*>(to + i64(window) * CHANNELS + group * 8) = make_uint2(bytes[0], bytes[1]);
  }
}
