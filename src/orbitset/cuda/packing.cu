// The convolutions' weights, each layer's from a tensor of its own, in bfloat16 and in the order the tensor cores want.

struct Weights {
  const float* layers[MAX_LAYERS];
};

// A place is that of a layer, and below it that of the weight there; -1 where there is none. A thread takes 8.
extern "C" __global__ void __launch_bounds__(THREADS)
pack_weights(const Weights weights, const int4* __restrict__ places, int eighths, uint4* packed) {
  __shared__ const float* layers[MAX_LAYERS];  // which can be indexed; parameters would be copied for that
  if (threadIdx.x == 0)
#pragma unroll
    for (int k = 0; k < MAX_LAYERS; ++k) layers[k] = weights.layers[k];
  __syncthreads();
  auto read = [&](int place) {
    return place < 0 ? 0.f : layers[place >> PLACE_BITS][place & ((1 << PLACE_BITS) - 1)];
  };
  auto both = [&](int one, int other) { return pack(read(one), read(other)); };
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < eighths; i += gridDim.x * THREADS) {
    const int4 a = places[2 * i], b = places[2 * i + 1];
    packed[i] = make_uint4(both(a.x, a.y), both(a.z, a.w), both(b.x, b.y), both(b.z, b.w));
  }
}
