// Gradient of a 3x3 convolution's weights from two operands in shared memory: for every tap, the sum over pixels of
// products of their channels, one operand shifted by the tap. What comes first are the layer's inputs: the operand
// that is shifted, or the one that is not, when the other's shift is the tap's turned round. A warp owns 16 channels of
// the first by NT x 8 of the second, and takes every WARPS_K-th run of pixels.
template <typename Shifted, typename Still, int ROWS, int COLUMNS, int IMAGES, int REACH, int NT, int WARPS_K, bool IS_SHIFTED_FIRST>
struct Products {
  static constexpr int LONGEST = 8;  // parts in a run: what a run does is unrolled
  static constexpr int PARTS = IMAGES * ROWS * COLUMNS / 16, EACH = PARTS / WARPS_K;
  typedef Strips<ROWS, COLUMNS, Strips<ROWS, COLUMNS, EACH < LONGEST ? EACH : LONGEST>::RUN> Parts;
  static constexpr int RUNS = PARTS / Parts::RUN;
  static constexpr int MOVED = IS_SHIFTED_FIRST ? 1 : NT / 2, KEPT = IS_SHIFTED_FIRST ? NT / 2 : 1;  // fragments of 16 channels
  static_assert(PARTS % WARPS_K == 0, "warps share the pixels evenly");

  static __device__ __forceinline__ void add(float (&acc)[REACH * REACH][NT][4], u32 shifted, u32 still, int warp_m, int warp_n,
                                             int warp_k) {
    const int lane = threadIdx.x % 32;
    // rows of the stored matrices are pixels: of the first operand two halves of 8 along the sum
    const int first_pixel = lane % 8 + lane / 16 * 8, first_group = warp_m * 2 + lane / 8 % 2;
    const int second_pixel = lane % 16, second_group = warp_n * NT + lane / 16;
    const int moved_pixel = IS_SHIFTED_FIRST ? first_pixel : second_pixel, moved_group = IS_SHIFTED_FIRST ? first_group : second_group;
    const int kept_pixel = IS_SHIFTED_FIRST ? second_pixel : first_pixel, kept_group = IS_SHIFTED_FIRST ? second_group : first_group;
#pragma unroll 1
    for (int run = warp_k; run < RUNS; run += WARPS_K) {
      const int pixel = Parts::first(run, 0) + moved_pixel;
      const int image = pixel / (ROWS * COLUMNS), place = pixel % (ROWS * COLUMNS), column = place % COLUMNS;
      const u32 row = shifted + ((image * Shifted::HEIGHT + place / COLUMNS) * Shifted::WIDTH + column) * Shifted::PITCH;
      const int still_pixel = Parts::first(run, 0) + kept_pixel, still_column = still_pixel % COLUMNS;
      const u32 still_row = still + (still_pixel / COLUMNS * Still::WIDTH + still_column) * Still::PITCH;
      u32 kept[REACH][KEPT][4];  // of the last parts, which the lines below them are still multiplied with
#pragma unroll
      for (int line = 0; line < Parts::lines(REACH); ++line) {
        if (Parts::is_of(line))
#pragma unroll
          for (int n = 0; n < KEPT; ++n)
            ldmatrix_transposed(kept[line / Parts::HIGH % REACH][n],
                                still_row + line * Still::WIDTH * Still::PITCH +
                                    Still::Shared::group(still_column, kept_group + n * 2) * 16);
        if (!Parts::is_read(line, REACH)) continue;
#pragma unroll
        for (int right = 0; right < REACH; ++right) {
          u32 moved[MOVED][4];
#pragma unroll
          for (int n = 0; n < MOVED; ++n)
            ldmatrix_transposed(moved[n], row + (line * Shifted::WIDTH + right) * Shifted::PITCH +
                                              Shifted::Shared::group(column + right, moved_group + n * 2) * 16);
#pragma unroll
          for (int down = 0; down < REACH; ++down) {
            if (!Parts::is_of(line - down)) continue;
            u32(&waiting)[KEPT][4] = kept[(line - down) / Parts::HIGH % REACH];
            float(&to)[NT][4] =
                acc[IS_SHIFTED_FIRST ? down * REACH + right : (REACH - 1 - down) * REACH + REACH - 1 - right];
#pragma unroll
            for (int n = 0; n < NT / 2; ++n) {
              const u32(&a)[4] = IS_SHIFTED_FIRST ? moved[0] : waiting[0];
              const u32(&b)[4] = IS_SHIFTED_FIRST ? waiting[n % KEPT] : moved[n % MOVED];
              mma(to[2 * n], a, b[0], b[1]);
              mma(to[2 * n + 1], a, b[2], b[3]);
            }
          }
        }
      }
    }
  }
};

// The block's sums to [tap][channel][channel] of `slab`, those of warps that shared the pixels added up. `exchange` is
// shared memory for (WARPS_K - 1) x NT x 4 x 32 numbers of every other warp.
template <int TAPS, int NT, int WARPS_M, int WARPS_N, int WARPS_K>
__device__ __forceinline__ void write_slab(float (&acc)[TAPS][NT][4], float* exchange, float* slab, int inputs, int outputs,
                                           int first_in, int first_out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_k = warp / (WARPS_M * WARPS_N), warp_m = warp / WARPS_N % WARPS_M, warp_n = warp % WARPS_N;
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
        float* row = slab + (tap * inputs + in) * outputs + out;
        *reinterpret_cast<float2*>(row) = make_float2(acc[tap][n][0], acc[tap][n][1]);
        *reinterpret_cast<float2*>(row + 8 * outputs) = make_float2(acc[tap][n][2], acc[tap][n][3]);
      }
    }
  }
}
