// Gradient of a 3x3 convolution's weights: for every tap, the product over all pixels of the operand shifted
// by the tap with the operand that is not. The decoder's layer has the same weights, so both layers' products go
// into one sum. A block owns some channels of both operands, goes over its share of the tiles and writes one slab
// of [tap][channel][channel] sums; `sum_slabs` adds the slabs up in order.

constexpr int LONGEST = 8;  // parts in a run: what a run does is unrolled
constexpr int THREADS = WARPS_M * WARPS_N * WARPS_K * 32;
constexpr int IN_BLOCK = WARPS_M * 16, OUT_BLOCK = WARPS_N * NT * 8;
constexpr int HALO = TAPS == 9 ? 1 : 0;
constexpr int PIXELS = IMAGES * ROWS * COLUMNS;
constexpr bool IS_AHEAD = BUFFERS == 2;
constexpr int EACH = PIXELS / 16 / WARPS_K;  // parts of 16 pixels for each warp
typedef Strips<ROWS, COLUMNS, Strips<ROWS, COLUMNS, EACH < LONGEST ? EACH : LONGEST>::RUN> Parts;
constexpr int RUNS = PIXELS / 16 / Parts::RUN, REACH = HALO ? 3 : 1;  // taps in a row, and rows of taps
static_assert(IN % IN_BLOCK == 0 && OUT % OUT_BLOCK == 0 && NT % 2 == 0, "blocks cover the channels");
static_assert(PIXELS % (16 * WARPS_K) == 0, "warps share the pixels evenly");

template <Kind K> constexpr bool is_plain = K == RAW || K == IM2COL;
template <Kind K> constexpr bool has_grad = K == GRAD || K == GRAD_POOL;

struct Pair {
  Operand shifted, still;
};

template <Kind KIND, Kind OTHER>
__device__ __forceinline__ void add_products(float (&acc)[TAPS][NT][4], u8* buffers, float* coefs, const Pair& from, int images) {
  typedef Tile<KIND, IN, IN_BLOCK, SIZE, ROWS, COLUMNS, IMAGES, HALO, THREADS> Shifted;
  typedef Tile<OTHER, OUT, OUT_BLOCK, SIZE, ROWS, COLUMNS, IMAGES, 0, THREADS> Still;
  typedef Place<SIZE, ROWS, COLUMNS, IMAGES> Start;
  constexpr int BUFFER = Shifted::BYTES + Still::BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_k = warp / (WARPS_M * WARPS_N), warp_m = warp / WARPS_N % WARPS_M, warp_n = warp % WARPS_N;
  const int first_in = blockIdx.y / (OUT / OUT_BLOCK) * IN_BLOCK, first_out = blockIdx.y % (OUT / OUT_BLOCK) * OUT_BLOCK;
  float* const still_coefs = coefs + 4 * IN_BLOCK;
  u8* const extra = buffers + BUFFERS * BUFFER;

  __syncthreads();
  if constexpr (!is_plain<KIND>) fill_coefficients<has_grad<KIND>>(coefs, from.shifted.norm, first_in, IN_BLOCK, IN);
  if constexpr (!is_plain<OTHER>) fill_coefficients<has_grad<OTHER>>(still_coefs, from.still.norm, first_out, OUT_BLOCK, OUT);
  __syncthreads();

  auto fetch = [&](int tile, u8* to) {
    const Start at(tile);
    Shifted::fetch(to, extra, from.shifted, first_in, at.n0, at.h0, at.w0, images);
    Still::fetch(to + Shifted::BYTES, extra + Shifted::EXTRA, from.still, first_out, at.n0, at.h0, at.w0, images);
  };
  const int tiles = Start::count(images);
  u8* shared = buffers;
  if (IS_AHEAD && blockIdx.x < tiles) fetch(blockIdx.x, shared);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Start at_tile(tile);
    const int n0 = at_tile.n0, h0 = at_tile.h0, w0 = at_tile.w0;
    u8* const next = shared == buffers ? buffers + BUFFER : buffers;
    if (!IS_AHEAD) fetch(tile, shared);
    wait_for_copies();
    Shifted::convert(shared, extra, from.shifted, coefs, first_in, n0, h0, w0, images);
    Still::convert(shared + Shifted::BYTES, extra + Shifted::EXTRA, from.still, still_coefs, first_out, n0, h0, w0, images);
    __syncthreads();
    if (IS_AHEAD && tile + gridDim.x < tiles) fetch(tile + gridDim.x, next);

    const u32 base = shared_address(shared), still_base = base + Shifted::BYTES;
#pragma unroll 1
    for (int run = warp_k; run < RUNS; run += WARPS_K) {
      // rows of the stored matrices are pixels: two halves of 8 along the sum
      const int pixel = Parts::first(run, 0) + lane % 8 + lane / 16 * 8;
      const int image = pixel / (ROWS * COLUMNS), place = pixel % (ROWS * COLUMNS), column = place % COLUMNS;
      const u32 row = base + ((image * Shifted::HEIGHT + place / COLUMNS) * Shifted::WIDTH + column) * Shifted::PITCH;
      const int still_pixel = Parts::first(run, 0) + lane % 16, still_column = still_pixel % COLUMNS;
      const u32 still_row = still_base + (still_pixel / COLUMNS * Still::WIDTH + still_column) * Still::PITCH;
      u32 b[REACH][NT / 2][4];  // of the last parts, which the lines below them are still multiplied with
#pragma unroll
      for (int line = 0; line < Parts::lines(REACH); ++line) {
        if (Parts::is_of(line))
#pragma unroll
          for (int n = 0; n < NT / 2; ++n)
            ldmatrix_transposed(b[line / Parts::HIGH % REACH][n],
                                still_row + line * Still::WIDTH * Still::PITCH +
                                    Layout<OUT_BLOCK>::group(still_column, warp_n * NT + n * 2 + lane / 16) * 16);
        if (!Parts::is_read(line, REACH)) continue;
#pragma unroll
        for (int right = 0; right < REACH; ++right) {
          u32 a[4];
          ldmatrix_transposed(a, row + (line * Shifted::WIDTH + right) * Shifted::PITCH +
                                     Layout<IN_BLOCK>::group(column + right, warp_m * 2 + lane / 8 % 2) * 16);
#pragma unroll
          for (int down = 0; down < REACH; ++down) {
            if (!Parts::is_of(line - down)) continue;
            u32(&still)[NT / 2][4] = b[(line - down) / Parts::HIGH % REACH];
            float(&to)[NT][4] = acc[down * 3 + right];
#pragma unroll
            for (int n = 0; n < NT / 2; ++n) {
              mma(to[2 * n], a, still[n][0], still[n][1]);
              mma(to[2 * n + 1], a, still[n][2], still[n][3]);
            }
          }
        }
      }
    }
    if (IS_AHEAD) shared = next;
    else __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
NAME(const Pair encoder, const Pair decoder, float* slabs, int images) {
  extern __shared__ __align__(16) u8 buffers[];
  __shared__ __align__(16) float coefs[4 * (IN_BLOCK + OUT_BLOCK)];
  float acc[TAPS][NT][4] = {};
  add_products<KIND, OTHER_KIND>(acc, buffers, coefs, encoder, images);
  if constexpr (HAS_DECODER) add_products<DECODER_KIND, DECODER_OTHER_KIND>(acc, buffers, coefs, decoder, images);
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_k = warp / (WARPS_M * WARPS_N), warp_m = warp / WARPS_N % WARPS_M, warp_n = warp % WARPS_N;
  const int first_in = blockIdx.y / (OUT / OUT_BLOCK) * IN_BLOCK, first_out = blockIdx.y % (OUT / OUT_BLOCK) * OUT_BLOCK;
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
