// Shared by the kernels of the fused network. Activations lie as [image][row][column][channel] in bfloat16;
// a convolution's output is kept as it was before batch norm, and whoever reads it applies batch norm, ReLU
// and pooling on the way in. Batch norm is kept as sums over the batch, in float64.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;

struct Norm {
  const float* gamma;
  const float* beta;
  double* sums;       // [REPLICAS][2][C]: of y, of y * y
  double* grad_sums;  // the same of g, of g * y, g being the gradient after ReLU's mask
  float count;        // pixels in the batch
  float eps;
};

// So many sums are kept side by side, since blocks that add to the same one wait for each other.
constexpr int REPLICAS = 4;

__device__ __forceinline__ double total(const double* sums, int index, int channels) {
  double sum = 0;
#pragma unroll
  for (int k = 0; k < REPLICAS; ++k) sum += sums[k * 2 * channels + index];
  return sum;
}

// What a kernel reads: `values`, and where a gradient is read also `pre`, the output it belongs to. `switches` has a
// byte for each value that is un-pooled by them: which cell of its window it goes to.
struct Operand {
  const void* values;
  const void* pre;
  const u8* switches;
  Norm norm;
};

// How an operand is read.
enum Kind {
  RAW,        // as it is
  ACT,        // relu(norm(y))
  ACT_POOL,   // its maximum over 2x2 windows; y is twice as large
  ACT_UP,     // each value in a 2x2 window; y is half as large
  ACT_SWITCH, // the same, but in one cell of the window, with zeros in the others
  GRAD,       // gradient of y from that of relu(norm(y))
  GRAD_POOL,  // the same from that of its pooled maxima
  IM2COL,     // the 3x3 surroundings of each pixel of a float image as 16 channels, the last 7 zero
};

// What becomes of a kernel's output.
enum Output {
  STORE,       // nothing more
  STATS,       // sums for the batch norm that follows
  MASK,        // gradient of relu(norm(y)): masked, with sums
  MASK_POOL,   // gradient of pooled maxima: masked, with sums
  SUM_MASK,    // gradient of values that were copied to 2x2 windows: summed, masked, with sums
  SWITCH_MASK, // gradient of values that went to one cell of a window: taken from there, masked, with sums
  IMAGE,       // channel 0 alone, in float, with a bias
};
__device__ constexpr bool is_half(Kind kind) { return kind == ACT_UP || kind == ACT_SWITCH; }
__device__ constexpr bool is_half(Output output) { return output == SUM_MASK || output == SWITCH_MASK; }
__device__ constexpr bool is_masked(Output output) { return output == MASK || output == MASK_POOL || is_half(output); }

__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
  f[0] = low(v.x), f[1] = high(v.x), f[2] = low(v.y), f[3] = high(v.y);
  f[4] = low(v.z), f[5] = high(v.z), f[6] = low(v.w), f[7] = high(v.w);
}
__device__ __forceinline__ uint4 packed(const float (&f)[8]) {
  return make_uint4(pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7]));
}
__device__ __forceinline__ uint4 load16(const void* p, i64 element) {
  return __ldg(reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(p) + element));
}
// The switches of 8 neighbouring channels.
struct Switches {
  uint2 bytes = {};

  static __device__ __forceinline__ Switches read(const u8* at) { return {__ldg(reinterpret_cast<const uint2*>(at))}; }
  __device__ __forceinline__ int cell(int i) const { return (i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8) & 0xff; }
};
__device__ __forceinline__ void store16(void* p, i64 element, const uint4& v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "l"(reinterpret_cast<u16*>(p) + element), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
// A copy into shared memory that goes on by itself; a thread sees its own when it has waited.
__device__ __forceinline__ void copy16(u8* to, const u16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ __forceinline__ void ldmatrix_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Per channel: relu(norm(y)) = max(0, scale y + shift); gradient of y = scale g + by_y y + constant.
struct Coefficients {
  float scale, shift, by_y, constant;
};

template <bool HAS_GRAD>
__device__ Coefficients coefficients(const Norm& norm, int channel, int channels) {
  double mean = total(norm.sums, channel, channels) / norm.count;
  double variance = total(norm.sums, channels + channel, channels) / norm.count - mean * mean;
  double inverse = rsqrt((variance > 0 ? variance : 0) + double(norm.eps));
  double scale = norm.gamma[channel] * inverse;
  Coefficients c = {float(scale), float(norm.beta[channel] - mean * scale), 0, 0};
  if (HAS_GRAD) {
    double g = total(norm.grad_sums, channel, channels) / norm.count;
    double gy = total(norm.grad_sums, channels + channel, channels) / norm.count;
    double by_y = -scale * inverse * inverse * (gy - mean * g);
    c.by_y = float(by_y);
    c.constant = float(-scale * g - by_y * mean);
  }
  return c;
}

// The coefficients of 8 neighbouring channels, from shared memory laid out as [4][channels].
template <int CHANNELS>
__device__ __forceinline__ void read8(const float* shared, int which, int first, float (&f)[8]) {
  const float4* p = reinterpret_cast<const float4*>(shared + which * CHANNELS + first);
  float4 a = p[0], b = p[1];
  f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}

template <bool HAS_GRAD>
__device__ void fill_coefficients(float* shared, const Norm& norm, int first, int count, int channels) {
  for (int c = threadIdx.x; c < count; c += blockDim.x) {
    Coefficients k = coefficients<HAS_GRAD>(norm, first + c, channels);
    shared[c] = k.scale, shared[count + c] = k.shift;
    shared[2 * count + c] = k.by_y, shared[3 * count + c] = k.constant;
  }
}

__device__ __forceinline__ uint4 activate(const uint4& v, const float (&scale)[8], const float (&shift)[8]) {
  float f[8];
  unpack(v, f);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    f[i] = fmaf(scale[i], f[i], shift[i]);
    f[i] = f[i] < 0.f ? 0.f : f[i];  // fmaxf would lose a NaN
  }
  return packed(f);
}
__device__ __forceinline__ u32 max2(u32 a, u32 b) {
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint4 largest(const uint4& a, const uint4& b) {
  return make_uint4(max2(a.x, b.x), max2(a.y, b.y), max2(a.z, b.z), max2(a.w, b.w));
}
__device__ __forceinline__ uint4 gradient(
    const uint4& g, const uint4& y, const float (&scale)[8], const float (&by_y)[8], const float (&constant)[8]) {
  float a[8], b[8];
  unpack(g, a);
  unpack(y, b);
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i] = fmaf(scale[i], a[i], fmaf(by_y[i], b[i], constant[i]));
  return packed(a);
}

__device__ __forceinline__ uint4 kept_at(const uint4& v, const Switches& switches, int cell) {
  float f[8];
  unpack(v, f);
#pragma unroll
  for (int i = 0; i < 8; ++i) f[i] = switches.cell(i) == cell ? f[i] : 0.f;
  return packed(f);
}

// Which of four cells holds the maximum of the rounded activations, the first of equals, for 8 channels;
// 4 where none is above zero.
__device__ __forceinline__ void find_largest(
    const float (&y)[4][8], const float (&scale)[8], const float (&shift)[8], int (&cell)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float best = 0.f;
    cell[i] = 4;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float a = fmaf(scale[i], y[k][i], shift[i]);
      a = low(pack(a, 0.f));
      if (a > best) best = a, cell[i] = k;
    }
  }
}

// Call `visit(line, column)` for every place of this thread in a table of LINES x COLUMNS places of GROUPS threads
// each. A thread keeps to its column as far as that is possible, and always to its group.
template <int LINES, int COLUMNS, int GROUPS, int THREADS, int UNROLL, typename Visit>
__device__ __forceinline__ void each_place(Visit visit) {
  constexpr int LENGTH = COLUMNS * GROUPS, STEP = LENGTH < THREADS ? THREADS / LENGTH : 1;
  static_assert(LENGTH % THREADS == 0 || THREADS % LENGTH == 0, "threads cover whole lines");
#pragma unroll
  for (int part = 0; part < LENGTH; part += THREADS) {
    const int column = (part + threadIdx.x % LENGTH) / GROUPS;
#pragma unroll UNROLL
    for (int line = threadIdx.x / LENGTH; line < LINES; line += STEP) visit(line, column);
  }
}

// Where 8 channels of a pixel lie in shared memory, so that neighbouring pixels fall into different banks: narrow
// pixels lie close together with their groups of channels exchanged, wide ones 16 bytes apart.
template <int CHANNELS>
struct Layout {
  static constexpr bool IS_SWAPPED = CHANNELS <= 32;
  static constexpr int PITCH = CHANNELS * 2 + (IS_SWAPPED ? 0 : 16);

  static __device__ __forceinline__ int group(int column, int group) {
    if (CHANNELS == 16) return group ^ (column >> 2 & 1);
    if (CHANNELS == 32) return group ^ (column >> 1 & 3);
    return group;
  }
  static __device__ __forceinline__ int offset(int pixel, int which) { return pixel * PITCH + group(pixel, which) * 16; }
};

// A tile of an operand in shared memory as [image][row][column][channel], in the layout above; rows are filled up to
// a multiple of 8 pixels. HALO pixels around it, zero outside the image. It is made in two steps:
// `fetch` starts copying what the operand is made of, `convert` makes it, once that has arrived, in its place.
// What does not fit there waits in EXTRA bytes beside the tile. A thread keeps to its column and channels, goes
// down the rows, and converts what it has fetched itself, so that the two need no barrier between them.
template <Kind KIND, int CHANNELS, int SLICE, int SIZE, int ROWS, int COLUMNS, int IMAGES, int HALO, int THREADS>
struct Tile {
  static constexpr int GROUPS = SLICE / 8;
  typedef Layout<SLICE> Shared;
  static constexpr int PITCH = Shared::PITCH;
  static constexpr int HEIGHT = ROWS + 2 * HALO;
  static constexpr int WIDTH = Shared::IS_SWAPPED ? (COLUMNS + 2 * HALO + 7) / 8 * 8 : COLUMNS + 2 * HALO;
  static constexpr int PIXELS = IMAGES * HEIGHT * WIDTH;  // with what fills up the rows
  static constexpr int BYTES = PIXELS * PITCH;
  static constexpr bool IS_POOLED = KIND == GRAD_POOL;  // goes by windows of 2x2, whose cells must be compared
  static constexpr int CELL = IS_POOLED ? 2 : 1;
  static constexpr int HIGH = IS_POOLED ? ROWS / 2 + 2 * HALO : HEIGHT, DOWN = IMAGES * HIGH;
  static constexpr int ACROSS = COLUMNS / CELL, WIDE = ACROSS + 2 * HALO;
  static constexpr int PLACES = DOWN * WIDE * GROUPS;
  static constexpr int EXTRA = 16 * PLACES * (KIND == ACT_POOL ? 3 : KIND == GRAD || KIND == GRAD_POOL ? 1 : 0);
  static constexpr bool HAS_RIM = HALO > 0 && COLUMNS < SIZE;  // else what lies to both sides is outside
  static_assert(THREADS % GROUPS == 0, "a thread keeps to its channels");
  static_assert(ACROSS * GROUPS % THREADS == 0 || THREADS % (ACROSS * GROUPS) == 0, "threads cover whole rows");

  struct At {  // one place, a pixel or a window: its line and column in the tile, and where it lies in the image
    int line, column;
    int image, row;  // row: in pixels from the tile's first
    bool is_inside;
  };

  struct Channels {
    float scale[8], shift[8], by_y[8], constant[8];

    __device__ Channels(const float* coefs, int group) {
      if constexpr (KIND != RAW && KIND != IM2COL) {
        read8<SLICE>(coefs, 0, group * 8, scale);
        read8<SLICE>(coefs, 1, group * 8, shift);
      }
      if constexpr (KIND == GRAD || KIND == GRAD_POOL) {
        read8<SLICE>(coefs, 2, group * 8, by_y);
        read8<SLICE>(coefs, 3, group * 8, constant);
      }
    }
  };

  // Call `visit(at)` for every place of this thread. Column -1 and ACROSS are the rim.
  template <bool WITH_RIM, typename Visit>
  static __device__ __forceinline__ void each(int n0, int h0, int w0, int images, Visit visit) {
    auto place = [&](int line, int column) {
      const int image = IMAGES == 1 ? 0 : line / HIGH, row = CELL * (line - image * HIGH - HALO);
      const bool is_inside = unsigned(h0 + row) < unsigned(SIZE) && (IMAGES == 1 || n0 + image < images);
      return At{line, column, image, row, is_inside};
    };
    each_place<DOWN, ACROSS, GROUPS, THREADS, IS_POOLED ? 1 : 2>([&](int line, int column) { visit(place(line, column)); });
    if constexpr (WITH_RIM)
      for (int index = threadIdx.x / GROUPS; index < DOWN * 2; index += THREADS / GROUPS) {
        At at = place(index / 2, index % 2 ? ACROSS : -1);
        at.is_inside = at.is_inside && unsigned(w0 + CELL * at.column) < unsigned(SIZE);
        visit(at);
      }
  }

  // Elements from the tile's first pixel, in a tensor as large as the tile's image times MORE / LESS.
  template <int MORE, int LESS>
  static __device__ __forceinline__ int offset(const At& at) {
    const int row = LESS == 2 ? at.row >> 1 : at.row * MORE, column = LESS == 2 ? at.column * CELL >> 1 : at.column * CELL * MORE;
    return ((at.image * (SIZE * MORE / LESS) + row) * (SIZE * MORE / LESS) + column) * CHANNELS;
  }
  template <int MORE, int LESS, typename T = u16>
  static __device__ __forceinline__ const T* first(const void* values, int channel, int n0, int h0, int w0) {
    constexpr int SIDE = SIZE * MORE / LESS;
    const i64 at = (i64(n0) * SIDE + h0 * MORE / LESS) * SIDE + w0 * MORE / LESS;
    return reinterpret_cast<const T*>(values) + at * CHANNELS + channel;
  }

  static __device__ __forceinline__ u8* cell(u8* shared, const At& at, int k) {
    const int row = at.image * HEIGHT + at.row + HALO + k / 2, column = at.column * CELL + HALO + k % 2;
    return shared + (row * WIDTH + column) * PITCH + Shared::group(column, threadIdx.x % GROUPS) * 16;
  }
  // A window at the rim has cells that are not of the tile.
  static __device__ __forceinline__ bool has_cell(const At& at, int k) {
    if (!IS_POOLED || HALO == 0) return true;
    const int row = at.row + HALO + k / 2, column = at.column * CELL + HALO + k % 2;
    return unsigned(row) < unsigned(HEIGHT) && unsigned(column) < unsigned(WIDTH);
  }
  static __device__ __forceinline__ u8* beside(u8* extra, const At& at, int k) {
    return extra + ((k * DOWN + at.line) * WIDE + at.column + HALO) * GROUPS * 16;
  }

  static __device__ void fetch(u8* shared, u8* extra, const Operand& from, int first_channel, int n0, int h0, int w0,
                               int images) {
    if constexpr (KIND == IM2COL) return;
    const int group = threadIdx.x % GROUPS, channel = first_channel + group * 8;
    extra += group * 16;
    // gradients of pooled maxima lie in a tensor half as large, as what is un-pooled does
    constexpr int MORE = KIND == ACT_POOL ? 2 : 1, LESS = is_half(KIND) || KIND == GRAD_POOL ? 2 : 1;
    const u16* const values = first<MORE, LESS>(from.values, channel, n0, h0, w0);
    const u16* const pre = first<1, 1>(from.pre, channel, n0, h0, w0);
    each<HAS_RIM>(n0, h0, w0, images, [&](const At& at) {
      if (!at.is_inside) return;
      const int place = offset<MORE, LESS>(at);
      if constexpr (KIND == ACT_POOL) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          copy16(k ? beside(extra, at, k - 1) : cell(shared, at, 0), values + place + (k / 2 * 2 * SIZE + k % 2) * CHANNELS);
      } else if constexpr (KIND == GRAD_POOL) {
        copy16(beside(extra, at, 0), values + place);
        // cells that are not of the tile must be compared too: those are read when it is converted
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (has_cell(at, k)) copy16(cell(shared, at, k), pre + offset<1, 1>(at) + (k / 2 * SIZE + k % 2) * CHANNELS);
      } else {
        copy16(cell(shared, at, 0), values + place);
        if constexpr (KIND == GRAD) copy16(beside(extra, at, 0), pre + place);
      }
    });
  }

  static __device__ void convert(u8* shared, u8* extra, const Operand& from, const float* coefs, int first_channel,
                                 int n0, int h0, int w0, int images) {
    if constexpr (KIND == IM2COL) {
      convert_im2col(shared, from, n0, h0, w0, images);
      return;
    }
    const int group = threadIdx.x % GROUPS, channel = first_channel + group * 8;
    const Channels c(coefs, group);
    const u16* const pre = first<1, 1>(from.pre, channel, n0, h0, w0);
    const u8* const switches = first<1, 2, u8>(from.switches, channel, n0, h0, w0);
    extra += group * 16;
    each<(HALO > 0)>(n0, h0, w0, images, [&](const At& at) {
      constexpr int CELLS = IS_POOLED ? 4 : 1;
      uint4 v[CELLS] = {};
      if (at.is_inside) {
        if constexpr (KIND == GRAD_POOL) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            v[k] = has_cell(at, k) ? *reinterpret_cast<const uint4*>(cell(shared, at, k))
                                   : load16(pre, offset<1, 1>(at) + (k / 2 * SIZE + k % 2) * CHANNELS);
          convert_window(v, *reinterpret_cast<const uint4*>(beside(extra, at, 0)), c);
        } else {
          v[0] = *reinterpret_cast<const uint4*>(cell(shared, at, 0));
          if constexpr (KIND == GRAD)
            v[0] = gradient(v[0], *reinterpret_cast<const uint4*>(beside(extra, at, 0)), c.scale, c.by_y, c.constant);
          else
            v[0] = activate(v[0], c.scale, c.shift);
          if constexpr (KIND == ACT_SWITCH)
            v[0] = kept_at(v[0], Switches::read(switches + offset<1, 2>(at)), (at.row & 1) * 2 + (at.column & 1));
          if constexpr (KIND == ACT_POOL)
#pragma unroll
            for (int k = 0; k < 3; ++k)
              v[0] = largest(v[0], activate(*reinterpret_cast<const uint4*>(beside(extra, at, k)), c.scale, c.shift));
        }
      }
#pragma unroll
      for (int k = 0; k < CELLS; ++k)
        if (has_cell(at, k)) *reinterpret_cast<uint4*>(cell(shared, at, k)) = v[k];
    });
  }

  static __device__ __forceinline__ void convert_window(uint4 (&v)[4], const uint4& arriving, const Channels& c) {
    float g[8], y[4][8];
    int cell[8];
    unpack(arriving, g);
#pragma unroll
    for (int k = 0; k < 4; ++k) unpack(v[k], y[k]);
    find_largest(y, c.scale, c.shift, cell);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float f[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        f[i] = fmaf(c.scale[i], cell[i] == k ? g[i] : 0.f, fmaf(c.by_y[i], y[k][i], c.constant[i]));
      v[k] = packed(f);
    }
  }

  static __device__ void convert_im2col(u8* shared, const Operand& from, int n0, int h0, int w0, int images) {
    static_assert(KIND != IM2COL || (SLICE == 16 && HALO == 0 && WIDTH == COLUMNS), "nine values fit into 16 channels");
    const float* image = reinterpret_cast<const float*>(from.values);
#pragma unroll 2
    for (int pixel = threadIdx.x; pixel < PIXELS; pixel += THREADS) {
      int n = n0 + pixel / (HEIGHT * WIDTH), place = pixel % (HEIGHT * WIDTH);
      int h = h0 + place / WIDTH, w = w0 + place % WIDTH;
      float f[9];
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
        int hh = h + tap / 3 - 1, ww = w + tap % 3 - 1;
        bool inside = n < images && unsigned(hh) < unsigned(SIZE) && unsigned(ww) < unsigned(SIZE);
        f[tap] = inside ? __ldg(image + (i64(n) * SIZE + hh) * SIZE + ww) : 0.f;
      }
      *reinterpret_cast<uint4*>(shared + Shared::offset(pixel, 0)) =
          make_uint4(pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7]));
      *reinterpret_cast<uint4*>(shared + Shared::offset(pixel, 1)) = make_uint4(pack(f[8], 0.f), 0, 0, 0);
    }
  }
};

// Where tile number `index` begins.
template <int SIZE, int ROWS, int COLUMNS, int IMAGES>
struct Place {
  int n0, h0, w0;
  static constexpr int DOWN = SIZE / ROWS, ACROSS = SIZE / COLUMNS;

  __device__ explicit Place(int index)
      : n0(index / (DOWN * ACROSS) * IMAGES), h0(index / ACROSS % DOWN * ROWS), w0(index % ACROSS * COLUMNS) {}
  static __device__ int count(int images) { return (images + IMAGES - 1) / IMAGES * DOWN * ACROSS; }
};

// What a thread has summed for its 8 channels, and how the block adds that to the batch norm's sums.
struct Sums {
  float first[8] = {}, second[8] = {};

  __device__ __forceinline__ void add(int i, float a, float b) {
    first[i] += a;
    second[i] = fmaf(a, b, second[i]);
  }
};

template <int CHANNELS, int THREADS>
__device__ void add_sums(u8* shared, const Sums& sums, double* to) {
  constexpr int GROUPS = CHANNELS / 8;
  float* table = reinterpret_cast<float*>(shared);  // [16][THREADS]
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    table[i * THREADS + threadIdx.x] = sums.first[i];
    table[(8 + i) * THREADS + threadIdx.x] = sums.second[i];
  }
  __syncthreads();
  // several threads share a channel, then add up among neighbours
  constexpr int VALUES = 2 * CHANNELS, SHARE = THREADS / VALUES > 0 ? (THREADS / VALUES > 8 ? 8 : THREADS / VALUES) : 1;
  for (int item = threadIdx.x; item < VALUES * SHARE; item += THREADS) {
    int value = item / SHARE, part = item % SHARE;
    int which = value / CHANNELS, channel = value % CHANNELS;
    const float* row = table + (which * 8 + channel % 8) * THREADS;
    double sum = 0;
    for (int t = channel / 8 + part * GROUPS; t < THREADS; t += GROUPS * SHARE) sum += row[t];
#pragma unroll
    for (int step = SHARE / 2; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step, SHARE);
    if (part == 0) atomicAdd(to + blockIdx.x % REPLICAS * VALUES + value, sum);
  }
}

// Finish 8 channels of one output pixel: mask and sum as OUTPUT asks, and store. `at` is its first channel's place,
// `wide` that of its window's first cell in a tensor with twice as many rows and columns.
template <Output OUTPUT, int CHANNELS, int SIZE>
__device__ __forceinline__ void finish(const Operand& to, uint4 v, const float (&scale)[8], const float (&shift)[8],
                                       Sums& sums, i64 at, i64 wide) {
  if constexpr (OUTPUT != STORE) {
    float f[8];
    unpack(v, f);
    if constexpr (OUTPUT == STATS) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.add(i, f[i], f[i]);
    } else if constexpr (OUTPUT == MASK || is_half(OUTPUT)) {
      float y[8];
      unpack(load16(to.pre, at), y);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        f[i] = fmaf(scale[i], y[i], shift[i]) > 0.f ? f[i] : 0.f;
        sums.add(i, f[i], y[i]);
      }
      v = packed(f);
    } else if constexpr (OUTPUT == MASK_POOL) {
      float y[4][8];
      int cell[8];
#pragma unroll
      for (int k = 0; k < 4; ++k) unpack(load16(to.pre, wide + (k / 2 * 2 * SIZE + k % 2) * CHANNELS), y[k]);
      find_largest(y, scale, shift, cell);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float best = 0.f;
#pragma unroll
        for (int k = 0; k < 4; ++k) best = cell[i] == k ? y[k][i] : best;
        f[i] = cell[i] < 4 ? f[i] : 0.f;
        sums.add(i, f[i], best);
      }
      v = packed(f);
    }
  }
  store16(const_cast<void*>(to.values), at, v);
}
