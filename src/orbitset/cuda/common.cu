// Shared by the kernels of the fused network, as tile.cu is. Activations lie as [image][row][column][channel] in bfloat16;
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
  IM2COL,     // the 3x3 surroundings of each pixel of a float image as nine channels, a one and six zeros
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
__device__ __forceinline__ u32 pack_relu(float lo, float hi) {  // a NaN stays
  u32 r;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// Of two numbers each, all bits where it holds.
__device__ __forceinline__ u32 bits(bool in_low, bool in_high) { return (in_low ? 0xffffu : 0) | (in_high ? 0xffff0000u : 0); }
__device__ __forceinline__ u32 is_equal(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm("set.eq.u32.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#else
  return bits(low(a) == low(b), high(a) == high(b));
#endif
}
__device__ __forceinline__ u32 is_positive(u32 a) {
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(0));
  return r;
#else
  return bits(low(a) > 0.f, high(a) > 0.f);
#endif
}
__device__ __forceinline__ u32& pair(uint4& v, int i) { return reinterpret_cast<u32*>(&v)[i]; }
__device__ __forceinline__ u32 pair(const uint4& v, int i) { return reinterpret_cast<const u32*>(&v)[i]; }
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

__device__ __forceinline__ float normed(const uint4& v, int i, const float (&scale)[8], const float (&shift)[8]) {
  return fmaf(scale[i], i % 2 ? high(pair(v, i / 2)) : low(pair(v, i / 2)), shift[i]);
}
__device__ __forceinline__ uint4 activate(const uint4& v, const float (&scale)[8], const float (&shift)[8]) {
  uint4 r;
#pragma unroll
  for (int p = 0; p < 4; ++p) pair(r, p) = pack_relu(normed(v, 2 * p, scale, shift), normed(v, 2 * p + 1, scale, shift));
  return r;
}
__device__ __forceinline__ u32 max2(u32 a, u32 b) {
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 max2_of_numbers(u32 a, u32 b) {  // a NaN counts as none
  u32 r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
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

// For 8 channels, all bits where a cell of four holds the maximum of the rounded activations: the first of equals,
// and none if none is above zero.
__device__ __forceinline__ void find_largest(
    const uint4 (&y)[4], const float (&scale)[8], const float (&shift)[8], uint4 (&is_largest)[4]) {
  uint4 a[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = activate(y[k], scale, shift);
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const u32 most = max2_of_numbers(max2_of_numbers(pair(a[0], p), pair(a[1], p)), max2_of_numbers(pair(a[2], p), pair(a[3], p)));
    u32 open = is_positive(most);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const u32 found = is_equal(pair(a[k], p), most);
      pair(is_largest[k], p) = open & found;
      open &= ~found;
    }
    pair(is_largest[3], p) = open;
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

  __device__ __forceinline__ void add(const uint4& a, const uint4& b) {
    float f[8], g[8];
    unpack(a, f);
    unpack(b, g);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      first[i] += f[i];
      second[i] = fmaf(f[i], g[i], second[i]);
    }
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

// 8 channels of one output pixel, masked and summed as OUTPUT asks. `at` is its first channel's place, `wide` that of
// its window's first cell in a tensor with twice as many rows and columns.
template <Output OUTPUT, int CHANNELS, int SIZE>
__device__ __forceinline__ uint4 finished(const Operand& to, uint4 v, const float (&scale)[8], const float (&shift)[8],
                                          Sums& sums, i64 at, i64 wide) {
  if constexpr (OUTPUT == STATS) {
    sums.add(v, v);
  } else if constexpr (OUTPUT == MASK || is_half(OUTPUT)) {
    const uint4 y = load16(to.pre, at);
#pragma unroll
    for (int p = 0; p < 4; ++p)
      pair(v, p) &= is_positive(pack(normed(y, 2 * p, scale, shift), normed(y, 2 * p + 1, scale, shift)));
    sums.add(v, y);
  } else if constexpr (OUTPUT == MASK_POOL) {
    uint4 y[4], is_largest[4], best;
#pragma unroll
    for (int k = 0; k < 4; ++k) y[k] = load16(to.pre, wide + (k / 2 * 2 * SIZE + k % 2) * CHANNELS);
    find_largest(y, scale, shift, is_largest);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      u32 any = 0, found = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        any |= pair(is_largest[k], p);
        found |= pair(is_largest[k], p) & pair(y[k], p);
      }
      pair(best, p) = found;
      pair(v, p) &= any;
    }
    sums.add(v, best);
  }
  return v;
}
