// A 3x3 convolution on the tensor cores: forward, gradient of its input, or tied transposed convolution,
// which differ only in the weights they are given and in how the operand is read and the result finished.
//
// A block takes one tile after another: the operand with a rim of one pixel into shared memory, all nine
// taps from there, the result back through shared memory. With two BUFFERS the next tile is fetched meanwhile.
// The 16-pixel parts of a warp lie below each other, so that what is read from shared memory for one of them serves
// the three taps of a column: those of the parts above it too.

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int PIXELS = IMAGES * ROWS * COLUMNS;
constexpr bool IS_AHEAD = BUFFERS == 2;
constexpr int HALO = TAPS == 9 ? 1 : 0;
constexpr int STEPS = IN / 16;
typedef Strips<ROWS, COLUMNS, MT> Parts;
constexpr int RUN = Parts::RUN, RUNS = MT / RUN, REACH = HALO ? 3 : 1;  // taps in a row, and rows of taps
typedef Layout<OUT> Staged;
constexpr int OUT_GROUPS = OUTPUT == IMAGE ? 1 : OUT / 8;
typedef Tile<KIND, IN, IN, SIZE, ROWS, COLUMNS, IMAGES, HALO, THREADS> Input;
static_assert(WARPS_M * MT * 16 == PIXELS && WARPS_N * NT * 8 == OUT && NT % 2 == 0, "the warps cover the tile");
static_assert(THREADS % OUT_GROUPS == 0, "a thread keeps to its channels");

// Beside the gradient of a layer's input that of its weights, if that is asked for: the products of what the result
// is masked by, the layer's input, with the gradient that arrives, that of its output. A decoder's layer has the weights
// of an encoder's, which goes the other way.
constexpr Kind MASKED_BY = OUTPUT == MASK_POOL ? ACT_POOL : OUTPUT == SUM_MASK ? ACT_UP : OUTPUT == SWITCH_MASK ? ACT_SWITCH : ACT;
constexpr bool IS_ENCODER = KIND == GRAD_POOL || OUTPUT == MASK_POOL;

template <int WARPS>
struct WeightGradient {
  typedef Tile<MASKED_BY, OUT, OUT, SIZE, ROWS, COLUMNS, IMAGES, 0, WARPS * 32> Still;
  static constexpr int INPUTS = IS_ENCODER ? OUT : IN, OUTPUTS = IS_ENCODER ? IN : OUT;
  static constexpr int ALONG_IN = INPUTS / 16, ALONG_OUT = OUTPUTS / 16, SHARED_BY = WARPS / (ALONG_IN * ALONG_OUT);
  typedef Products<Input, Still, ROWS, COLUMNS, IMAGES, REACH, 2, SHARED_BY, !IS_ENCODER> Own;
  static_assert(SHARED_BY * ALONG_IN * ALONG_OUT == WARPS, "the warps cover the channels");
  float acc[TAPS][2][4] = {};

  static __device__ __forceinline__ Operand operand(const Operand& to) { return {to.pre, nullptr, to.switches, to.norm}; }
  static __device__ __forceinline__ void fetch(u8* shared, u8* extra, const Operand& to, int n0, int h0, int w0, int images) {
    Still::fetch(shared + STILL_AT, extra + Input::EXTRA, operand(to), 0, n0, h0, w0, images);
  }
  static __device__ __forceinline__ void convert(u8* shared, u8* extra, const Operand& to, const float* coefs, int n0, int h0,
                                                 int w0, int images) {
    Still::convert(shared + STILL_AT, extra + Input::EXTRA, operand(to), coefs, 0, n0, h0, w0, images);
  }
  __device__ __forceinline__ void add(u32 base) {
    const int warp = threadIdx.x / 32;
    Own::add(acc, base, base + STILL_AT, warp / ALONG_OUT % ALONG_IN, warp % ALONG_OUT, warp / (ALONG_IN * ALONG_OUT));
  }
  __device__ __forceinline__ void write(u8* buffers, float* slabs) {
    __syncthreads();
    write_slab<TAPS, 2, ALONG_IN, ALONG_OUT, SHARED_BY>(acc, reinterpret_cast<float*>(buffers),
                                                        slabs + i64(blockIdx.x) * TAPS * IN * OUT, INPUTS, OUTPUTS, 0, 0);
  }
};

template <>
struct WeightGradient<0> {
  static __device__ void fetch(u8*, u8*, const Operand&, int, int, int, int) {}
  static __device__ void convert(u8*, u8*, const Operand&, const float*, int, int, int, int) {}
  __device__ void add(u32) {}
  __device__ void write(u8*, float*) {}
};

// Where the result is the gradient of the first layer's activations, that of its weights too, if that is asked for; the result
// is not stored then. What batch norm adds to the gradient of a layer's output is known only when the whole result is, but it
// is linear in what is known of each pixel: sums of the products of the image's 3x3 surroundings, once with the result
// and once with themselves, are enough (`first_gradient` of finish_step.cu).
template <int WARPS>
struct FirstLayer {
  typedef Tile<IM2COL, 16, 16, SIZE, ROWS, COLUMNS, IMAGES, 0, WARPS * 32> Surroundings;
  typedef Tile<RAW, OUT, OUT, SIZE, ROWS, COLUMNS, IMAGES, 0, WARPS * 32> Result;
  template <typename Other> using By = Products<Surroundings, Other, ROWS, COLUMNS, IMAGES, 1, 2, WARPS, true>;
  static_assert(WARPS > 0 && OUT == 16 && OUTPUT == MASK, "the first layer has 16 channels");
  float acc[2][1][2][4] = {};

  static __device__ __forceinline__ void fetch(u8* buffers, const float* image, int n0, int h0, int w0, int images) {
    Surroundings::fetch(nullptr, buffers + FIRST_AT + Surroundings::BYTES, Operand{image}, 0, n0, h0, w0, images);
  }
  static __device__ __forceinline__ void convert(u8* buffers, int n0, int h0, int w0, int images) {
    u8* const own = buffers + FIRST_AT;
    Surroundings::convert(own, own + Surroundings::BYTES, Operand{}, nullptr, 0, n0, h0, w0, images);
  }
  __device__ __forceinline__ void add(u32 result, u32 surroundings) {
    const int warp = threadIdx.x / 32;
    By<Result>::add(acc[0], surroundings, result, 0, 0, warp);
    By<Surroundings>::add(acc[1], surroundings, surroundings, 0, 0, warp);
  }
  __device__ __forceinline__ void write(u8* buffers, float* slabs) {
    __syncthreads();
#pragma unroll
    for (int which = 0; which < 2; ++which)
      write_slab<1, 2, 1, 1, WARPS>(acc[which], reinterpret_cast<float*>(buffers), slabs + (i64(blockIdx.x) * 2 + which) * 256, 16,
                                    16, 0, 0);
  }
};

template <>
struct FirstLayer<0> {
  static __device__ void fetch(u8*, const float*, int, int, int, int) {}
  static __device__ void convert(u8*, int, int, int, int) {}
  __device__ void add(u32, u32) {}
  __device__ void write(u8*, float*) {}
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
NAME(const Operand from, const uint4* __restrict__ weights, const Operand to, const float* bias, int images, float* slabs,
     const float* first_input, float* first_slabs) {
  extern __shared__ __align__(16) u8 buffers[];
  __shared__ __align__(16) float in_coefs[KIND == RAW || KIND == IM2COL ? 4 : 4 * IN];
  __shared__ __align__(16) float out_coefs[is_masked(OUTPUT) ? 4 * OUT : 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;

  if constexpr (KIND != RAW && KIND != IM2COL)
    fill_coefficients<KIND == GRAD || KIND == GRAD_POOL>(in_coefs, from.norm, 0, IN, IN);
  if constexpr (is_masked(OUTPUT)) fill_coefficients<false>(out_coefs, to.norm, 0, OUT, OUT);
  __syncthreads();

  // the address of a tap's operand is the sum of a part by run of parts, one by column and channels, one by row
  u32 row_offset[RUNS], lane_offset[REACH][STEPS];
#pragma unroll
  for (int run = 0; run < RUNS; ++run) {
    int pixel = Parts::first(warp_m, run * RUN) + lane % 16;
    int image = pixel / (ROWS * COLUMNS), place = pixel % (ROWS * COLUMNS);
    row_offset[run] = ((image * Input::HEIGHT + place / COLUMNS) * Input::WIDTH + place % COLUMNS) * Input::PITCH;
  }
#pragma unroll
  for (int shift = 0; shift < REACH; ++shift)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
      lane_offset[shift][step] = shift * Input::PITCH +
          Layout<IN>::group(lane % 16 % COLUMNS + shift, step * 2 + lane / 16) * 16;

  Sums sums;
  WeightGradient<GIVES_WEIGHTS ? THREADS / 32 : 0> own_weights;
  FirstLayer<GIVES_FIRST ? THREADS / 32 : 0> first_layer;
  typedef Place<SIZE, ROWS, COLUMNS, IMAGES> Start;
  u8* const extra = buffers + BUFFERS * BUFFER_BYTES;
  auto fetch = [&](int tile, u8* into) {
    const Start at(tile);
    Input::fetch(into, extra, from, 0, at.n0, at.h0, at.w0, images);
    own_weights.fetch(into, extra, to, at.n0, at.h0, at.w0, images);
    first_layer.fetch(buffers, first_input, at.n0, at.h0, at.w0, images);
  };
  const int tiles = Start::count(images);
  u8* shared = buffers;
  if (IS_AHEAD && blockIdx.x < tiles) fetch(blockIdx.x, shared);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Start at_tile(tile);
    const int n0 = at_tile.n0, h0 = at_tile.h0, w0 = at_tile.w0;
    if (!IS_AHEAD) fetch(tile, shared);
    wait_for_copies();
    Input::convert(shared, extra, from, in_coefs, 0, n0, h0, w0, images);
    own_weights.convert(shared, extra, to, out_coefs, n0, h0, w0, images);
    first_layer.convert(buffers, n0, h0, w0, images);
    __syncthreads();
    if (IS_AHEAD && tile + gridDim.x < tiles)
      fetch(tile + gridDim.x, shared == buffers ? buffers + BUFFER_BYTES : buffers);

    const u32 base = shared_address(shared);
    own_weights.add(base);
    float acc[MT][NT][4] = {};
    const uint4* fragments = weights + warp_n * (NT / 2) * 32 + lane;
#pragma unroll
    for (int right = 0; right < REACH; ++right)
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        uint4 b[REACH][NT / 2];
#pragma unroll
        for (int down = 0; down < REACH; ++down)
#pragma unroll
          for (int n = 0; n < NT / 2; ++n)
            b[down][n] = __ldg(fragments + (((down * 3 + right) * STEPS + step) * (OUT / 16) + n) * 32);
#pragma unroll
        for (int run = 0; run < RUNS; ++run)
#pragma unroll
          for (int line = 0; line < Parts::lines(REACH); ++line) {
            if (!Parts::is_read(line, REACH)) continue;
            u32 a[4];
            ldmatrix(a, base + row_offset[run] + lane_offset[right][step] + line * Input::WIDTH * Input::PITCH);
#pragma unroll
            for (int down = 0; down < REACH; ++down) {
              if (!Parts::is_of(line - down)) continue;
              float(&to)[NT][4] = acc[run * RUN + (line - down) / Parts::HIGH];
#pragma unroll
              for (int n = 0; n < NT / 2; ++n) {
                mma(to[2 * n], a, b[down][n].x, b[down][n].y);
                mma(to[2 * n + 1], a, b[down][n].z, b[down][n].w);
              }
            }
          }
      }
    __syncthreads();

#pragma unroll
    for (int m = 0; m < MT; ++m) {
      int pixel = Parts::first(warp_m, m) + lane / 4;
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        u8* at = shared + lane % 4 * 4;
        if constexpr (OUTPUT == IMAGE) {
          if (n == 0 && warp_n == 0 && lane % 4 == 0) {
            *reinterpret_cast<float*>(shared + pixel * 4) = acc[m][n][0];
            *reinterpret_cast<float*>(shared + (pixel + 8) * 4) = acc[m][n][2];
          }
        } else {
          *reinterpret_cast<u32*>(at + Staged::offset(pixel, warp_n * NT + n)) = pack(acc[m][n][0], acc[m][n][1]);
          *reinterpret_cast<u32*>(at + Staged::offset(pixel + 8, warp_n * NT + n)) = pack(acc[m][n][2], acc[m][n][3]);
        }
      }
    }
    __syncthreads();

    if constexpr (OUTPUT == IMAGE) {
      for (int pixel = threadIdx.x; pixel < PIXELS; pixel += THREADS) {
        int n = n0 + pixel / (ROWS * COLUMNS), place = pixel % (ROWS * COLUMNS);
        int h = h0 + place / COLUMNS, w = w0 + place % COLUMNS;
        float* image = reinterpret_cast<float*>(const_cast<void*>(to.values));
        if (n < images)
          image[(i64(n) * SIZE + h) * SIZE + w] = *reinterpret_cast<float*>(shared + pixel * 4) + bias[0];
      }
    } else {
      const int group = threadIdx.x % OUT_GROUPS;
      float scale[8], shift[8];
      if constexpr (is_masked(OUTPUT)) {
        read8<OUT>(out_coefs, 0, group * 8, scale);
        read8<OUT>(out_coefs, 1, group * 8, shift);
      }
      constexpr int SHRINK = is_half(OUTPUT) ? 2 : 1, SIDE = SIZE / SHRINK, HIGH = ROWS / SHRINK;
      const i64 first = ((i64(n0) * SIDE + h0 / SHRINK) * SIDE + w0 / SHRINK) * OUT + group * 8;
      const i64 first_wide = ((i64(n0) * 2 * SIZE + h0 * 2) * 2 * SIZE + w0 * 2) * OUT + group * 8;
      each_place<IMAGES * HIGH, COLUMNS / SHRINK, OUT_GROUPS, THREADS, 4>([&](int line, int column) {
        const int image = IMAGES == 1 ? 0 : line / HIGH, row = line - image * HIGH;
        if (IMAGES > 1 && n0 + image >= images) return;
        const int pixel = line * SHRINK * COLUMNS + column * SHRINK;
        const i64 at = first + ((image * SIDE + row) * SIDE + column) * OUT;
        uint4 v = *reinterpret_cast<const uint4*>(shared + Staged::offset(pixel, group));
        if constexpr (is_half(OUTPUT)) {
          float f[8];
          unpack(v, f);
          Switches switches;
          if constexpr (OUTPUT == SWITCH_MASK) switches = Switches::read(to.switches + at);
#pragma unroll
          for (int k = 1; k < 4; ++k) {
            float other[8];
            const int beside = pixel + k / 2 * COLUMNS + k % 2;
            unpack(*reinterpret_cast<const uint4*>(shared + Staged::offset(beside, group)), other);
#pragma unroll
            for (int i = 0; i < 8; ++i)
              f[i] = OUTPUT == SUM_MASK ? f[i] + other[i] : switches.cell(i) == k ? other[i] : f[i];
          }
          v = packed(f);
        }
        const i64 wide = first_wide + ((image * 2 * SIZE + row * 2) * 2 * SIZE + column * 2) * OUT;
        v = finished<OUTPUT, OUT, SIDE>(to, v, scale, shift, sums, at, wide);
        if constexpr (GIVES_FIRST) *reinterpret_cast<uint4*>(shared + Staged::offset(pixel, group)) = v;
        else store16(const_cast<void*>(to.values), at, v);
      });
    }
    if constexpr (GIVES_FIRST) {
      __syncthreads();
      first_layer.add(base, shared_address(buffers + FIRST_AT));
    }
    if (IS_AHEAD) shared = shared == buffers ? buffers + BUFFER_BYTES : buffers;
    else __syncthreads();
  }
  if constexpr (OUTPUT == STATS) add_sums<OUT, THREADS>(buffers, sums, to.norm.sums);
  if constexpr (is_masked(OUTPUT)) add_sums<OUT, THREADS>(buffers, sums, to.norm.grad_sums);
  own_weights.write(buffers, slabs);
  first_layer.write(buffers, first_slabs);
}
