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
    float y[4][8];
    int cell[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const i64 at = (i64(n) * 2 * SIZE + 2 * h + k / 2) * 2 * SIZE + 2 * w + k % 2;
      unpack(load16(from.values, at * CHANNELS + group * 8), y[k]);
    }
    find_largest(y, scale, shift, cell);
    u32 bytes[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes[i / 4] |= (cell[i] & 3) << (i % 4 * 8);  // 4, none above zero, becomes 0
    *reinterpret_cast<uint2*>(to + i64(window) * CHANNELS + group * 8) = make_uint2(bytes[0], bytes[1]);
  }
}
