// What is left when all layers are through: weight gradients from their slabs, and batch norm's gradients
// and running statistics from their sums.

struct Slabs {
  const float* slabs[2];  // of one kernel, or of one for the encoder's layer and one for the decoder's
  int counts[2];
  float* gradient;  // [out][tap][in], as channels-last weights lie
  int in, out, stride;  // stride: floats from one slab to the next
  int first_block;
};

struct AllSlabs {
  Slabs layers[MAX_LAYERS];
};

constexpr int ACROSS = 32, EACH = 4, WIDTH = ACROSS * EACH;

extern "C" __global__ void __launch_bounds__(ACROSS * DOWN) sum_slabs(const AllSlabs all, int num_layers) {
  __shared__ __align__(16) float parts[DOWN][WIDTH];
  int layer = 0;
  while (layer + 1 < num_layers && int(blockIdx.x) >= all.layers[layer + 1].first_block) ++layer;
  const Slabs& s = all.layers[layer];
  const int x = threadIdx.x % ACROSS * EACH, y = threadIdx.x / ACROSS;
  const int first = (blockIdx.x - s.first_block) * WIDTH, count = 9 * s.in * s.out;  // whole groups of EACH
  float4 sum = make_float4(0, 0, 0, 0);
  if (first + x < count)
    for (int from = 0; from < 2; ++from) {
      const float* slabs = s.slabs[from] + first + x;
#pragma unroll 8
      for (int k = y; k < s.counts[from]; k += DOWN) {
        const float4 more = __ldg(reinterpret_cast<const float4*>(slabs + i64(k) * s.stride));
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
    }
  *reinterpret_cast<float4*>(&parts[y][x]) = sum;
  __syncthreads();
  const int element = first + threadIdx.x;
  if (threadIdx.x >= WIDTH || element >= count) return;
  float total = 0;
#pragma unroll
  for (int k = 0; k < DOWN; ++k) total += parts[k][threadIdx.x];
  const int out = element % s.out, in = element / s.out % s.in, tap = element / s.out / s.in;
  s.gradient[(out * 9 + tap) * s.in + in] = total;
}

// The first layer's weights, from sums of [channel][tap] each: of the decoder's layer tied to it, where there is one; of the
// image's surroundings times the gradient of the layer's activations; and of the surroundings times themselves, the tenth
// of which is a one. The gradient of its output is `scale` times that of its activations and `by_y` times the output, which
// is a product of weights with surroundings, and a constant.
extern "C" __global__ void __launch_bounds__(160)
first_gradient(const Norm norm, const float* weights, const float* decoder, const float* by_gradient, const float* by_surroundings,
               float* gradient) {
  const int channel = threadIdx.x / 9, tap = threadIdx.x % 9;
  if (channel >= 16) return;
  const Coefficients c = coefficients<true>(norm, channel, 16);
  float by_output = 0;
#pragma unroll
  for (int k = 0; k < 9; ++k)
    by_output = fmaf(low(pack(weights[channel * 9 + k], 0.f)), by_surroundings[tap * 9 + k], by_output);
  const float rest = fmaf(c.by_y, by_output, c.constant * by_surroundings[9 * 9 + tap]);
  gradient[threadIdx.x] = (decoder ? decoder[threadIdx.x] : 0.f) + fmaf(c.scale, by_gradient[threadIdx.x], rest);
}

struct NormUpdate {
  Norm norm;
  float* running_mean;
  float* running_variance;
  float* gamma_gradient;
  float* beta_gradient;
  i64* batches;  // so many were seen
  int channels;
  float momentum;
};

struct AllNorms {
  NormUpdate norms[MAX_NORMS];
};

extern "C" __global__ void __launch_bounds__(128) update_norms(const AllNorms all, int has_gradient) {
  const NormUpdate& u = all.norms[blockIdx.x];
  if (!has_gradient && threadIdx.x == 0) ++*u.batches;
  for (int c = threadIdx.x; c < u.channels; c += blockDim.x) {
    double mean = total(u.norm.sums, c, u.channels) / u.norm.count;
    double variance = total(u.norm.sums, u.channels + c, u.channels) / u.norm.count - mean * mean;
    if (variance < 0) variance = 0;
    if (has_gradient) {
      double g = total(u.norm.grad_sums, c, u.channels), gy = total(u.norm.grad_sums, u.channels + c, u.channels);
      u.beta_gradient[c] = float(g);
      u.gamma_gradient[c] = float((gy - mean * g) * rsqrt(variance + double(u.norm.eps)));
    } else {
      double unbiased = variance * u.norm.count / (u.norm.count - 1.0);
      u.running_mean[c] += u.momentum * (float(mean) - u.running_mean[c]);
      u.running_variance[c] += u.momentum * (float(unbiased) - u.running_variance[c]);
    }
  }
}
