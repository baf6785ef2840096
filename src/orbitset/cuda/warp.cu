// Each chosen image under its own affine parameters on a square canvas, bilinear, black outside: uint8 in,
// float in [0, 1] out. Must agree with `orbitset.orbits.affine.warp_reference`.

extern "C" __global__ void __launch_bounds__(THREADS)
warp(const u8* __restrict__ images, const i64* __restrict__ rows, const float* __restrict__ params, int params_stride,
     float* __restrict__ out, int channels, int height, int width, int canvas) {
  __shared__ float matrix[6];
  const int n = blockIdx.x;
  if (threadIdx.x == 0) {
    const float* p = params + i64(n) * params_stride;
    float sin_r, cos_r;
    sincosf(p[0], &sin_r, &cos_r);
    sin_r /= p[2], cos_r /= p[2];
    float xx = cos_r + p[1] * sin_r, xy = sin_r - p[1] * cos_r;
    matrix[0] = xx, matrix[1] = xy, matrix[2] = -(xx * p[3] + xy * p[4]);
    matrix[3] = -sin_r, matrix[4] = cos_r, matrix[5] = sin_r * p[3] - cos_r * p[4];
  }
  __syncthreads();
  const u8* image = images + (rows ? rows[n] : i64(n)) * channels * height * width;
  const float middle = (canvas - 1) * 0.5f;
  const int step = gridDim.y * THREADS, rows_on = step / canvas, columns_on = step % canvas;
  int pixel = blockIdx.y * THREADS + threadIdx.x, at_row = pixel / canvas, at_column = pixel % canvas;
  for (; pixel < canvas * canvas; pixel += step) {
    const float dx = at_column - middle, dy = at_row - middle;
    at_row += rows_on, at_column += columns_on;
    if (at_column >= canvas) at_column -= canvas, ++at_row;
    const float x = matrix[0] * dx + matrix[1] * dy + matrix[2] + (width - 1) * 0.5f;
    const float y = matrix[3] * dx + matrix[4] * dy + matrix[5] + (height - 1) * 0.5f;
    const float left = floorf(x), top = floorf(y);
    const float right_share = x - left, bottom_share = y - top;
    const bool is_inside = x > -1.f && y > -1.f && x < width && y < height;  // false too where int would overflow
    const int column = is_inside ? int(left) : 0, row = is_inside ? int(top) : 0;
    for (int channel = 0; channel < channels; ++channel) {
      const u8* plane = image + i64(channel) * height * width;
      float sum = 0;
      if (is_inside)
#pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
          const int r = row + corner / 2, c = column + corner % 2;
          const float share = (corner / 2 ? bottom_share : 1 - bottom_share) * (corner % 2 ? right_share : 1 - right_share);
          if (unsigned(r) < unsigned(height) && unsigned(c) < unsigned(width)) sum += share * __ldg(plane + r * width + c);
        }
      out[((i64(n) * channels + channel) * canvas * canvas) + pixel] = sum * (1.f / 255.f);
    }
  }
}
