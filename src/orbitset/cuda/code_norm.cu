// Batch norm of codes, each way in one kernel. A block takes ENTRIES of all codes; a thread goes down two of them.

constexpr int ACROSS = ENTRIES / 2, DOWN = THREADS / ACROSS;

__device__ __forceinline__ float2 both(u32 v) { return make_float2(low(v), high(v)); }

// Summed over the block's rows, for every thread of a column; in the same order each time.
__device__ __forceinline__ float2 down_the_columns(float2 value, float2 (*parts)[ACROSS]) {
  const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
  parts[y][x] = value;
  __syncthreads();
#pragma unroll
  for (int step = DOWN / 2; step > 0; step /= 2) {
    if (y < step) {
      parts[y][x].x += parts[y + step][x].x;
      parts[y][x].y += parts[y + step][x].y;
    }
    __syncthreads();
  }
  const float2 sum = parts[0][x];
  __syncthreads();
  return sum;
}

// `saved` takes mean and 1 / standard deviation, [2][size]; `rounded` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
normalise(const u32* __restrict__ linear, const float2* __restrict__ gamma, const float2* __restrict__ beta, int num,
          int size, float eps, float momentum, float2* running_mean, float2* running_variance, i64* batches, float2* saved,
          float2* codes, u32* rounded) {
  __shared__ float2 parts[DOWN][ACROSS];
  const int pairs = size / 2, column = blockIdx.x * ACROSS + threadIdx.x % ACROSS, first = threadIdx.x / ACROSS;
  if (blockIdx.x == 0 && threadIdx.x == 0) ++*batches;
  float2 sum = {}, squares = {};
#pragma unroll 8
  for (int row = first; row < num; row += DOWN) {
    const float2 x = both(linear[i64(row) * pairs + column]);
    sum.x += x.x, sum.y += x.y;
  }
  sum = down_the_columns(sum, parts);
  const float2 mean = make_float2(sum.x / num, sum.y / num);
#pragma unroll 8
  for (int row = first; row < num; row += DOWN) {
    const float2 x = both(linear[i64(row) * pairs + column]);
    squares.x = fmaf(x.x - mean.x, x.x - mean.x, squares.x), squares.y = fmaf(x.y - mean.y, x.y - mean.y, squares.y);
  }
  squares = down_the_columns(squares, parts);
  const float2 inverse = make_float2(rsqrtf(squares.x / num + eps), rsqrtf(squares.y / num + eps));
  const float2 by = gamma[column], plus = beta[column];
  const float2 scale = make_float2(by.x * inverse.x, by.y * inverse.y);
#pragma unroll 8
  for (int row = first; row < num; row += DOWN) {
    const i64 at = i64(row) * pairs + column;
    const float2 x = both(linear[at]);
    const float2 code = make_float2(fmaf(x.x - mean.x, scale.x, plus.x), fmaf(x.y - mean.y, scale.y, plus.y));
    codes[at] = code;
    if (rounded) rounded[at] = pack(code.x, code.y);
  }
  if (first == 0) {
    saved[column] = mean, saved[pairs + column] = inverse;
    float2 m = running_mean[column], v = running_variance[column];
    m.x += momentum * (mean.x - m.x), m.y += momentum * (mean.y - m.y);
    v.x += momentum * (squares.x / (num - 1) - v.x), v.y += momentum * (squares.y / (num - 1) - v.y);
    running_mean[column] = m, running_variance[column] = v;
  }
}

// Back again: `arriving` is the gradient of the codes, `more` is added to it where it is not null. Gives the rounded
// gradient of what was normalised, its sums, which are a bias's gradient, and those of gamma and beta.
extern "C" __global__ void __launch_bounds__(THREADS)
normalise_gradient(const u32* __restrict__ linear, const float2* __restrict__ saved, const float2* __restrict__ gamma,
                   const float2* __restrict__ arriving, const u32* __restrict__ more, int num, int size, u32* gradient,
                   float2* gamma_gradient, float2* beta_gradient, float2* bias_gradient) {
  __shared__ float2 parts[DOWN][ACROSS];
  const int pairs = size / 2, column = blockIdx.x * ACROSS + threadIdx.x % ACROSS, first = threadIdx.x / ACROSS;
  const float2 mean = saved[column], inverse = saved[pairs + column], by = gamma[column];
  auto read = [&](int row, float2& unit, float2& g) {
    const i64 at = i64(row) * pairs + column;
    const float2 x = both(linear[at]);
    unit = make_float2((x.x - mean.x) * inverse.x, (x.y - mean.y) * inverse.y);
    g = arriving[at];
    if (more) {
      const float2 m = both(more[at]);
      g.x += m.x, g.y += m.y;
    }
  };
  float2 sum = {}, product = {}, left = {};
#pragma unroll 4
  for (int row = first; row < num; row += DOWN) {
    float2 unit, g;
    read(row, unit, g);
    sum.x += g.x, sum.y += g.y;
    product.x = fmaf(g.x, unit.x, product.x), product.y = fmaf(g.y, unit.y, product.y);
  }
  sum = down_the_columns(sum, parts);
  product = down_the_columns(product, parts);
#pragma unroll 4
  for (int row = first; row < num; row += DOWN) {
    float2 unit, g;
    read(row, unit, g);
    g.x = by.x * inverse.x * (g.x - sum.x / num - unit.x * (product.x / num));
    g.y = by.y * inverse.y * (g.y - sum.y / num - unit.y * (product.y / num));
    left.x += g.x, left.y += g.y;
    gradient[i64(row) * pairs + column] = pack(g.x, g.y);
  }
  left = down_the_columns(left, parts);
  if (first == 0) gamma_gradient[column] = product, beta_gradient[column] = sum, bias_gradient[column] = left;
}
