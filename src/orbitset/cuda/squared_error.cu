// Squared distance of each image to its target times a weight, and its gradient; one block for each image.

extern "C" __global__ void __launch_bounds__(THREADS)
squared_errors(const float* __restrict__ images, const float* __restrict__ targets, const float*, float weight, int size,
               float* errors) {
  __shared__ float parts[THREADS / 32];
  const i64 first = i64(blockIdx.x) * size;
  float sum = 0;
  for (int i = threadIdx.x; i < size; i += THREADS) {
    const float difference = images[first + i] - targets[first + i];
    sum = fmaf(difference, difference, sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < THREADS / 32; ++warp) sum += parts[warp];
    errors[blockIdx.x] = weight * sum;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
squared_errors_gradient(const float* __restrict__ images, const float* __restrict__ targets,
                        const float* __restrict__ arriving, float weight, int size, float* gradient) {
  const i64 first = i64(blockIdx.x) * size;
  const float twice = 2 * weight * *arriving;
  for (int i = threadIdx.x; i < size; i += THREADS)
    gradient[first + i] = twice * (images[first + i] - targets[first + i]);
}
