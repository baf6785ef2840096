// One step of Adam over many tensors of weights. A block takes THREADS x EACH numbers of one tensor.

struct Tensor {
  float* weights;
  const float* gradient;
  float* mean;  // of the gradients, decaying
  float* square;  // the same of their squares
  const float* steps;  // this one counted
  i64 count;
  i64 first_block;
};

struct Tensors {
  Tensor of[MAX_TENSORS];
};

extern "C" __global__ void __launch_bounds__(THREADS)
adam(const Tensors tensors, int num, const float* rate, double mean_decay, double square_decay, float eps) {
  __shared__ float step_size, to_square;
  int which = 0;
  while (which + 1 < num && blockIdx.x >= tensors.of[which + 1].first_block) ++which;
  const Tensor& t = tensors.of[which];
  if (threadIdx.x == 0) {  // both begin at zero, which is made up for
    step_size = *rate / (1 - pow(mean_decay, double(*t.steps)));
    to_square = rsqrt(1 - pow(square_decay, double(*t.steps)));
  }
  __syncthreads();
  const float keep = mean_decay, take = 1 - mean_decay, keep_square = square_decay, take_square = 1 - square_decay;
  const i64 first = (blockIdx.x - t.first_block) * THREADS * EACH + threadIdx.x;
  float weight[EACH], g[EACH], mean[EACH], square[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {  // all of them on their way before the first is waited for
    const i64 i = first + k * THREADS;
    if (i < t.count) weight[k] = t.weights[i], g[k] = t.gradient[i], mean[k] = t.mean[i], square[k] = t.square[i];
  }
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const i64 i = first + k * THREADS;
    if (i >= t.count) break;
    mean[k] = keep * mean[k] + take * g[k];
    square[k] = keep_square * square[k] + take_square * g[k] * g[k];
    t.mean[i] = mean[k];
    t.square[i] = square[k];
    t.weights[i] = weight[k] - step_size * mean[k] / (sqrtf(square[k]) * to_square + eps);
  }
}
