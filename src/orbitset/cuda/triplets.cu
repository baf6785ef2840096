// Mining with one negative for each (anchor, positive), and the triplet loss with its gradient.

// Squared distances from products of codes with each other; a block takes ROWS of them.
extern "C" __global__ void __launch_bounds__(THREADS)
distances_from_products(const float* __restrict__ products, int num, float* distances) {
  __shared__ float own[ROWS];
  const int first = blockIdx.x * ROWS;
  if (threadIdx.x < ROWS && first + threadIdx.x < num) own[threadIdx.x] = products[i64(first + threadIdx.x) * (num + 1)];
  __syncthreads();
  for (int j = blockIdx.y * THREADS + threadIdx.x; j < num; j += gridDim.y * THREADS) {
    const float square = products[i64(j) * (num + 1)];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      const i64 row = first + k;
      if (row >= num) break;
      const float distance = own[k] + square - 2 * products[row * num + j];
      distances[row * num + j] = row == j || distance < 0 ? 0 : distance;  // NaN stays
    }
  }
}

__device__ __forceinline__ u32 ordered(float f) {  // as unsigned numbers, in the order of the floats
  const u32 bits = __float_as_uint(f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
typedef unsigned long long u64;

__device__ __forceinline__ u64 block_min(u64 value, u64* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other < value ? other : value;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < THREADS / 32; ++warp) value = scratch[warp] < value ? scratch[warp] : value;
  __syncthreads();
  return value;
}

// By one warp: the rows of an anchor's positives in ascending order, up to `places`; gives how many there are.
__device__ __forceinline__ int find_positives(const i64* orbits, int anchor, int num, int places, int* found) {
  const i64 orbit = orbits[anchor];
  int count = 0;
  for (int start = 0; start < num; start += 32) {
    const int j = start + threadIdx.x;
    const u32 same = __ballot_sync(0xffffffffu, j < num && orbits[j] == orbit && j != anchor);
    const int place = count + __popc(same & ((1u << threadIdx.x) - 1));
    if (same >> threadIdx.x & 1 && place < places) found[place] = j;
    count += __popc(same);
  }
  return count;
}

enum Variant { ELSE_FARTHEST, NEAREST_SEMIHARD, HARDEST };

// One block for each anchor. Places of an anchor hold its positives in ascending order.
extern "C" __global__ void __launch_bounds__(THREADS)
mine(const float* __restrict__ distances, const i64* __restrict__ orbits, int num, int places, int variant, float margin,
     i64* anchors, i64* positives, i64* negatives, bool* valid) {
  extern __shared__ int found[];  // up to `places` positives
  __shared__ int num_found, num_same;
  __shared__ u64 scratch[THREADS / 32];
  const int anchor = blockIdx.x;
  const i64 orbit = orbits[anchor];
  const float* row = distances + i64(anchor) * num;
  if (threadIdx.x < 32) {
    const int count = find_positives(orbits, anchor, num, places, found);
    if (threadIdx.x == 0) num_same = count, num_found = count < places ? count : places;
  }
  __syncthreads();
  const bool has_negatives = num_same + 1 < num;

  u64 fixed = ~0ull;  // does not depend on the positive: the nearest or farthest negative
  for (int j = threadIdx.x; j < num; j += THREADS) {
    if (orbits[j] == orbit) continue;
    const u32 key = ordered(row[j]);
    const u64 candidate = u64(variant == HARDEST ? key : ~key) << 32 | u32(j);
    fixed = candidate < fixed ? candidate : fixed;
  }
  if (variant != NEAREST_SEMIHARD) fixed = block_min(fixed, scratch);

  for (int place = 0; place < places; ++place) {
    const bool is_pair = place < num_found && has_negatives;
    int negative = int(u32(fixed));
    bool is_valid = is_pair;
    if (is_pair && variant != HARDEST) {
      const float ap = row[found[place]];
      u64 nearest = ~0ull;
      for (int j = threadIdx.x; j < num; j += THREADS) {
        const float an = row[j];
        if (an > ap && orbits[j] != orbit) {
          const u64 candidate = u64(ordered(an)) << 32 | u32(j);
          nearest = candidate < nearest ? candidate : nearest;
        }
      }
      nearest = block_min(nearest, scratch);
      const bool is_found = nearest != ~0ull && row[u32(nearest)] < __int_as_float(0x7f800000);
      if (variant == NEAREST_SEMIHARD) {
        is_valid = is_found && row[u32(nearest)] - ap <= margin;
        negative = int(u32(nearest));
      } else if (is_found) {
        negative = int(u32(nearest));
      }
    }
    if (threadIdx.x == 0) {
      const i64 at = i64(anchor) * places + place;
      anchors[at] = is_valid ? anchor : 0;
      positives[at] = is_valid ? found[place] : 0;
      negatives[at] = is_valid ? negative : 0;
      valid[at] = is_valid;
    }
  }
}

// One warp for each triplet: hinge, and how many triplets its anchor has.
extern "C" __global__ void __launch_bounds__(THREADS)
hinges(const float* __restrict__ codes, const double* __restrict__ distances, const i64* __restrict__ anchors,
       const i64* __restrict__ positives, const i64* __restrict__ negatives, const bool* __restrict__ valid, int triplets,
       int num, int size, float margin, float* hinge, int* counts) {
  const int lane = threadIdx.x % 32;
  for (int t = (blockIdx.x * THREADS + threadIdx.x) / 32; t < triplets; t += gridDim.x * THREADS / 32) {
    if (valid && !valid[t]) {
      if (lane == 0) hinge[t] = 0;
      continue;
    }
    const i64 a = anchors[t], p = positives[t], q = negatives[t];
    float to_p = 0, to_q = 0;
    if (distances) {
      to_p = float(distances[a * num + p]), to_q = float(distances[a * num + q]);
    } else {
      for (int i = lane; i < size; i += 32) {
        const float c = codes[a * size + i], x = c - codes[p * size + i], y = c - codes[q * size + i];
        to_p = fmaf(x, x, to_p), to_q = fmaf(y, y, to_q);
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        to_p += __shfl_xor_sync(0xffffffffu, to_p, step);
        to_q += __shfl_xor_sync(0xffffffffu, to_q, step);
      }
    }
    if (lane == 0) {
      const float h = to_p - to_q + margin;
      hinge[t] = h < 0 ? 0 : h;  // NaN stays
      atomicAdd(counts + a, 1);
    }
  }
}

// Sums over a stretch of triplets: hinge by its anchor's count, active ones, valid ones.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_hinges(const float* __restrict__ hinge, const i64* __restrict__ anchors, const bool* __restrict__ valid,
           const int* __restrict__ counts, int triplets, float* sums) {
  __shared__ float parts[3][THREADS];
  const int share = (triplets + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
  const int last = first + share < triplets ? first + share : triplets;
  float sum[3] = {};
  for (int t = first + threadIdx.x; t < last; t += THREADS) {
    if (valid && !valid[t]) continue;
    sum[0] += hinge[t] / counts[anchors[t]];
    sum[1] += hinge[t] > 0;
    sum[2] += 1;
  }
  for (int k = 0; k < 3; ++k) parts[k][threadIdx.x] = sum[k];
  for (int step = THREADS / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step)
      for (int k = 0; k < 3; ++k) parts[k][threadIdx.x] += parts[k][threadIdx.x + step];
  }
  if (threadIdx.x == 0)
    for (int k = 0; k < 3; ++k) sums[k * gridDim.x + blockIdx.x] = parts[k][0];
}

constexpr double ONE = 1099511627776.0;  // 2^40: whole numbers add up the same in every order

__device__ __forceinline__ void add_both_ways(u64* weights, int num, i64 one, i64 other, i64 weight) {
  atomicAdd(weights + one * num + other, u64(weight));
  atomicAdd(weights + other * num + one, u64(weight));
}

// Weights of the graph whose edges are pairs: +1 / count for (anchor, positive), -1 / count for (anchor, negative).
extern "C" __global__ void __launch_bounds__(THREADS)
scatter_weights(const float* __restrict__ hinge, const i64* __restrict__ anchors, const i64* __restrict__ positives,
                const i64* __restrict__ negatives, const int* __restrict__ counts, int triplets, int num, u64* weights) {
  for (int t = blockIdx.x * THREADS + threadIdx.x; t < triplets; t += gridDim.x * THREADS) {
    if (hinge[t] == 0) continue;  // one that is NaN pulls too, so that the gradient shows it
    const i64 a = anchors[t];
    const i64 weight = i64(ONE / counts[a]);
    add_both_ways(weights, num, a, positives[t], weight);
    add_both_ways(weights, num, a, negatives[t], -weight);
  }
}

// What the edges do to each code, in a graph of few edges whose weights are given both ways: the sum of weight times
// difference, times a number. A block takes one code, or HELD entries of it for each thread.
extern "C" __global__ void __launch_bounds__(THREADS)
pull(const float* __restrict__ codes, const i64* __restrict__ weights, const float* __restrict__ factor, int num, int size,
     float* gradient) {
  __shared__ int others[THREADS];
  __shared__ float strengths[THREADS];
  __shared__ int counts[THREADS / 32];
  const int row = blockIdx.x, first = blockIdx.y * THREADS * HELD + threadIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const double unit = *factor / ONE;
  float own[HELD] = {}, sum[HELD] = {};
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (first + k * THREADS < size) own[k] = codes[i64(row) * size + first + k * THREADS];
  for (int start = 0; start < num; start += THREADS) {
    const int j = start + threadIdx.x;
    const i64 weight = j < num ? weights[i64(row) * num + j] : 0;
    const u32 found = __ballot_sync(0xffffffffu, weight != 0);
    if (lane == 0) counts[warp] = __popc(found);
    __syncthreads();
    int place = __popc(found & ((1u << lane) - 1)), edges = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
      place += w < warp ? counts[w] : 0;
      edges += counts[w];
    }
    if (weight != 0) others[place] = j, strengths[place] = float(unit * double(weight));
    __syncthreads();
#pragma unroll 4
    for (int edge = 0; edge < edges; ++edge) {
      const float* other = codes + i64(others[edge]) * size + first;
#pragma unroll
      for (int k = 0; k < HELD; ++k)
        if (first + k * THREADS < size) sum[k] = fmaf(strengths[edge], own[k] - other[k * THREADS], sum[k]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (first + k * THREADS < size) gradient[i64(row) * size + first + k * THREADS] = sum[k];
}

// Those weights over every triplet, one block for each anchor; beside them its mean hinge, active and all triplets.
extern "C" __global__ void __launch_bounds__(THREADS)
weigh_every(const double* __restrict__ distances, const i64* __restrict__ orbits, int num, double margin, i64* weights,
            double* sums) {
  extern __shared__ double limits[];  // of up to `num` positives: distance plus margin, row, active negatives
  __shared__ double parts[THREADS];
  __shared__ int num_positives, num_active;
  const int most = num < 32 ? 32 : num;
  int* rows = reinterpret_cast<int*>(limits + most);
  int* inside = rows + most;
  const int anchor = blockIdx.x;
  const i64 orbit = orbits[anchor];
  const double* row = distances + i64(anchor) * num;
  i64* out = weights + i64(anchor) * num;
  if (threadIdx.x < 32) {
    const int found = find_positives(orbits, anchor, num, num, rows);
    if (threadIdx.x == 0) num_positives = found, num_active = 0, out[anchor] = 0;
  }
  __syncthreads();
  for (int place = threadIdx.x; place < num_positives; place += THREADS)
    limits[place] = row[rows[place]] + margin, inside[place] = 0;
  __syncthreads();
  const double count = double(num_positives) * (num - 1 - num_positives);
  const i64 weight = count > 0 ? i64(ONE / count) : 0;
  double sum = 0;
  for (int j = threadIdx.x; j < num; j += THREADS) {
    if (orbits[j] == orbit) continue;
    const double an = row[j];
    double over = 0;
    int beyond = 0;
    for (int place = 0; place < num_positives; ++place) {
      if (limits[place] > an) {
        over += limits[place];
        ++beyond;
        atomicAdd(inside + place, 1);
      }
    }
    sum += over - beyond * an;
    out[j] = -weight * beyond;
    atomicAdd(&num_active, beyond);
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int place = threadIdx.x; place < num_positives; place += THREADS) out[rows[place]] = weight * inside[place];
  if (threadIdx.x == 0) {
    for (int t = 1; t < THREADS; ++t) sum += parts[t];
    sums[anchor] = count > 0 ? sum / count : 0;
    sums[num + anchor] = num_active;
    sums[2 * num + anchor] = count;
  }
}

// The graph's Laplacian, degree minus weights, in float, times a number.
extern "C" __global__ void __launch_bounds__(THREADS)
laplacian(const i64* __restrict__ weights, const float* __restrict__ factor, int num, int is_one_way, float* out) {
  __shared__ double parts[THREADS];
  const int row = blockIdx.x;
  const double unit = *factor / ONE;
  double degree = 0;
  for (int j = threadIdx.x; j < num; j += THREADS) {
    const i64 weight = weights[i64(row) * num + j] + (is_one_way ? weights[i64(j) * num + row] : 0);
    degree += double(weight);
    out[i64(row) * num + j] = float(-unit * double(weight));
  }
  parts[threadIdx.x] = degree;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int t = 1; t < THREADS; ++t) degree += parts[t];
    out[i64(row) * num + row] += float(unit * degree);
  }
}
