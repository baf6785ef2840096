// What a convolution does on the way in and out, without the convolution: used at the top of the network.

constexpr int GROUPS = CHANNELS / 8;
static_assert(THREADS % GROUPS == 0, "a thread keeps to its channels");

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const Operand from, const Operand to, int images) {
  __shared__ __align__(16) float in_coefs[KIND == RAW ? 4 : 4 * CHANNELS];
  __shared__ __align__(16) float out_coefs[OUTPUT == MASK_POOL ? 4 * CHANNELS : 4];
  __shared__ __align__(16) u8 scratch[OUTPUT == STORE ? 16 : 16 * THREADS * 4];
  if constexpr (KIND != RAW) fill_coefficients<KIND == GRAD>(in_coefs, from.norm, 0, CHANNELS, CHANNELS);
  if constexpr (OUTPUT == MASK_POOL) fill_coefficients<false>(out_coefs, to.norm, 0, CHANNELS, CHANNELS);
  __syncthreads();

  const int group = threadIdx.x % GROUPS;
  float scale[8], shift[8], by_y[8], constant[8], out_scale[8], out_shift[8];
  if constexpr (KIND != RAW) {
    read8<CHANNELS>(in_coefs, 0, group * 8, scale);
    read8<CHANNELS>(in_coefs, 1, group * 8, shift);
    read8<CHANNELS>(in_coefs, 2, group * 8, by_y);
    read8<CHANNELS>(in_coefs, 3, group * 8, constant);
  }
  if constexpr (OUTPUT == MASK_POOL) {
    read8<CHANNELS>(out_coefs, 0, group * 8, out_scale);
    read8<CHANNELS>(out_coefs, 1, group * 8, out_shift);
  }
  Sums sums;
  const int total = images * SIZE * SIZE * GROUPS;
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < total; index += gridDim.x * THREADS) {
    int pixel = index / GROUPS;
    int n = pixel / (SIZE * SIZE), h = pixel / SIZE % SIZE, w = pixel % SIZE;
    uint4 v;
    if constexpr (KIND == ACT_POOL) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        i64 at = (i64(n) * 2 * SIZE + 2 * h + k / 2) * 2 * SIZE + 2 * w + k % 2;
        uint4 cell = activate(load16(from.values, at * CHANNELS + group * 8), scale, shift);
        v = k == 0 ? cell : largest(v, cell);
      }
    } else {
      v = load16(from.values, i64(pixel) * CHANNELS + group * 8);
      if constexpr (KIND == GRAD)
        v = gradient(v, load16(from.pre, i64(pixel) * CHANNELS + group * 8), scale, by_y, constant);
    }
    const i64 wide = (i64(n) * 2 * SIZE + 2 * h) * 2 * SIZE + 2 * w;
    const i64 at = i64(pixel) * CHANNELS + group * 8;
    v = finished<OUTPUT, CHANNELS, SIZE>(to, v, out_scale, out_shift, sums, at, wide * CHANNELS + group * 8);
    store16(const_cast<void*>(to.values), at, v);
  }
  if constexpr (OUTPUT == STATS) add_sums<CHANNELS, THREADS>(scratch, sums, to.norm.sums);
  if constexpr (OUTPUT == MASK_POOL) add_sums<CHANNELS, THREADS>(scratch, sums, to.norm.grad_sums);
}
