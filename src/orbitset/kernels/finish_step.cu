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

constexpr int ACROSS = 32;

extern "C" __global__ void __launch_bounds__(ACROSS * DOWN) sum_slabs(const AllSlabs all, int num_layers) {
  __shared__ float parts[DOWN][ACROSS];
  int layer = 0;
  while (layer + 1 < num_layers && int(blockIdx.x) >= all.layers[layer + 1].first_block) ++layer;
  const Slabs& s = all.layers[layer];
  const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
  const int element = (blockIdx.x - s.first_block) * ACROSS + x;
  const bool inside = element < 9 * s.in * s.out;
  float sum = 0;
  if (inside)
    for (int from = 0; from < 2; ++from) {
      const float* slabs = s.slabs[from] + element;
#pragma unroll 8
      for (int k = y; k < s.counts[from]; k += DOWN) sum += slabs[i64(k) * s.stride];
    }
  parts[y][x] = sum;
  __syncthreads();
  if (y > 0 || !inside) return;
  sum = 0;
#pragma unroll
  for (int k = 0; k < DOWN; ++k) sum += parts[k][x];
  const int out = element % s.out, in = element / s.out % s.in, tap = element / s.out / s.in;
  s.gradient[(out * 9 + tap) * s.in + in] = sum;
}

struct NormUpdate {
  Norm norm;
  float* running_mean;
  float* running_variance;
  float* gamma_gradient;
  float* beta_gradient;
  int channels;
  float momentum;
};

struct AllNorms {
  NormUpdate norms[MAX_NORMS];
};

extern "C" __global__ void __launch_bounds__(128) update_norms(const AllNorms all, int has_gradient) {
  const NormUpdate& u = all.norms[blockIdx.x];
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
