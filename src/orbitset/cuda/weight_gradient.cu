// Gradient of a 3x3 convolution's weights: for every tap, the product over all pixels of the operand shifted
// by the tap with the operand that is not. The decoder's layer has the same weights, so both layers' products go
// into one sum. A block owns some channels of both operands, goes over its share of the tiles and writes one slab
// of [tap][channel][channel] sums; `sum_slabs` adds the slabs up in order.

constexpr int THREADS = WARPS_M * WARPS_N * WARPS_K * 32;
constexpr int IN_BLOCK = WARPS_M * 16, OUT_BLOCK = WARPS_N * NT * 8;
constexpr int HALO = TAPS == 9 ? 1 : 0;
constexpr int PIXELS = IMAGES * ROWS * COLUMNS;
constexpr bool IS_AHEAD = BUFFERS == 2;
constexpr int REACH = HALO ? 3 : 1;  // taps in a row, and rows of taps
static_assert(IN % IN_BLOCK == 0 && OUT % OUT_BLOCK == 0 && NT % 2 == 0, "blocks cover the channels");

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
  const int warp = threadIdx.x / 32;
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

    const u32 base = shared_address(shared);
    Products<Shifted, Still, ROWS, COLUMNS, IMAGES, REACH, NT, WARPS_K, true>::add(acc, base, base + Shifted::BYTES, warp_m, warp_n, warp_k);
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

  const int first_in = blockIdx.y / (OUT / OUT_BLOCK) * IN_BLOCK, first_out = blockIdx.y % (OUT / OUT_BLOCK) * OUT_BLOCK;
  write_slab<TAPS, NT, WARPS_M, WARPS_N, WARPS_K>(acc, reinterpret_cast<float*>(buffers),
                                                  slabs + i64(blockIdx.x) * TAPS * IN * OUT, IN, OUT, first_in, first_out);
}
