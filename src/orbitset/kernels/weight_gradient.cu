// Gradient of a 3x3 convolution's weights: for every tap, the product over all pixels of the operand shifted
// by the tap with the operand that is not. A block owns some channels of both, goes over its share of the
// tiles and writes one slab of [tap][channel][channel] sums; `sum_slabs` adds the slabs up in order.

constexpr int THREADS = WARPS_M * WARPS_N * WARPS_K * 32;
constexpr int IN_BLOCK = WARPS_M * 16, OUT_BLOCK = WARPS_N * NT * 8;
constexpr int HALO = TAPS == 9 ? 1 : 0;
constexpr int PIXELS = IMAGES * ROWS * COLUMNS;
constexpr bool IS_AHEAD = BUFFERS == 2;
typedef Tile<KIND, IN, IN_BLOCK, SIZE, ROWS, COLUMNS, IMAGES, HALO, THREADS> Shifted;
typedef Tile<OTHER_KIND, OUT, OUT_BLOCK, SIZE, ROWS, COLUMNS, IMAGES, 0, THREADS> Still;
static_assert(IN % IN_BLOCK == 0 && OUT % OUT_BLOCK == 0 && NT % 2 == 0, "blocks cover the channels");
static_assert(PIXELS % (16 * WARPS_K) == 0, "warps share the pixels evenly");

template <Kind K> constexpr bool is_plain = K == RAW || K == IM2COL;
template <Kind K> constexpr bool has_grad = K == GRAD || K == GRAD_POOL;

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
NAME(const Operand shifted, const Operand still, float* slabs, int images) {
  extern __shared__ __align__(16) u8 buffers[];
  __shared__ __align__(16) float shifted_coefs[is_plain<KIND> ? 4 : 4 * IN_BLOCK];
  __shared__ __align__(16) float still_coefs[is_plain<OTHER_KIND> ? 4 : 4 * OUT_BLOCK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_k = warp / (WARPS_M * WARPS_N), warp_m = warp / WARPS_N % WARPS_M, warp_n = warp % WARPS_N;
  const int first_in = blockIdx.y / (OUT / OUT_BLOCK) * IN_BLOCK, first_out = blockIdx.y % (OUT / OUT_BLOCK) * OUT_BLOCK;

  if constexpr (!is_plain<KIND>)
    fill_coefficients<has_grad<KIND>>(shifted_coefs, shifted.norm, first_in, IN_BLOCK, IN);
  if constexpr (!is_plain<OTHER_KIND>)
    fill_coefficients<has_grad<OTHER_KIND>>(still_coefs, still.norm, first_out, OUT_BLOCK, OUT);
  __syncthreads();

  float acc[TAPS][NT][4] = {};
  typedef Place<SIZE, ROWS, COLUMNS, IMAGES> Start;
  u8* const extra = buffers + BUFFERS * (Shifted::BYTES + Still::BYTES);
  auto fetch = [&](int tile, u8* to) {
    const Start at(tile);
    Shifted::fetch(to, extra, shifted, first_in, at.n0, at.h0, at.w0, images);
    Still::fetch(to + Shifted::BYTES, extra + Shifted::EXTRA, still, first_out, at.n0, at.h0, at.w0, images);
  };
  const int tiles = Start::count(images);
  u8* shared = buffers;
  if (IS_AHEAD && blockIdx.x < tiles) fetch(blockIdx.x, shared);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Start at_tile(tile);
    const int n0 = at_tile.n0, h0 = at_tile.h0, w0 = at_tile.w0;
    u8* const still_shared = shared + Shifted::BYTES;
    u8* const other = shared == buffers ? buffers + Shifted::BYTES + Still::BYTES : buffers;
    if (!IS_AHEAD) fetch(tile, shared);
    wait_for_copies();
    Shifted::convert(shared, extra, shifted, shifted_coefs, first_in, n0, h0, w0, images);
    Still::convert(still_shared, extra + Shifted::EXTRA, still, still_coefs, first_out, n0, h0, w0, images);
    __syncthreads();
    if (IS_AHEAD && tile + gridDim.x < tiles) fetch(tile + gridDim.x, other);

    for (int step = warp_k; step < PIXELS / 16; step += WARPS_K) {
      // rows of the stored matrices are pixels: two halves of 8 along the sum
      int pixel = step * 16 + lane % 8 + lane / 16 * 8;
      int image = pixel / (ROWS * COLUMNS), place = pixel % (ROWS * COLUMNS);
      int at = (image * Shifted::HEIGHT + place / COLUMNS) * Shifted::WIDTH + place % COLUMNS;
      u32 shifted_at = shared_address(shared) + at * Shifted::PITCH + (warp_m * 16 + lane / 8 % 2 * 8) * 2;
      int still_pixel = step * 16 + lane % 16;
      u32 still_at = shared_address(still_shared) + still_pixel * Still::PITCH + (warp_n * NT * 8 + lane / 16 * 8) * 2;
      u32 b[NT / 2][4];
#pragma unroll
      for (int n = 0; n < NT / 2; ++n) ldmatrix_transposed(b[n], still_at + n * 32);
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        u32 a[4];
        ldmatrix_transposed(a, shifted_at + (TAPS == 9 ? (tap / 3 * Shifted::WIDTH + tap % 3) * Shifted::PITCH : 0));
#pragma unroll
        for (int n = 0; n < NT / 2; ++n) {
          mma(acc[tap][2 * n], a, b[n][0], b[n][1]);
          mma(acc[tap][2 * n + 1], a, b[n][2], b[n][3]);
        }
      }
    }
    if (IS_AHEAD) shared = other;
    else __syncthreads();
  }
  __syncthreads();

  float* slab = slabs + i64(blockIdx.x) * TAPS * IN * OUT;
  float* exchange = reinterpret_cast<float*>(buffers);
  const int partner = (warp_m * WARPS_N + warp_n) * 32 + lane;
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    if constexpr (WARPS_K > 1) {  // tap by tap, so that little shared memory is needed
      if (warp_k > 0)
#pragma unroll
        for (int i = 0; i < NT * 4; ++i)
          exchange[((warp_k - 1) * NT * 4 + i) * WARPS_M * WARPS_N * 32 + partner] = acc[tap][i / 4][i % 4];
      __syncthreads();
      if (warp_k == 0)
#pragma unroll
        for (int i = 0; i < NT * 4; ++i)
          for (int k = 0; k < WARPS_K - 1; ++k)
            acc[tap][i / 4][i % 4] += exchange[(k * NT * 4 + i) * WARPS_M * WARPS_N * 32 + partner];
      __syncthreads();
    }
    if (warp_k == 0) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        int in = first_in + warp_m * 16 + lane / 4, out = first_out + (warp_n * NT + n) * 8 + lane % 4 * 2;
        float* row = slab + (tap * IN + in) * OUT + out;
        *reinterpret_cast<float2*>(row) = make_float2(acc[tap][n][0], acc[tap][n][1]);
        *reinterpret_cast<float2*>(row + 8 * OUT) = make_float2(acc[tap][n][2], acc[tap][n][3]);
      }
    }
  }
}
