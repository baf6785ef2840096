// In place of what kernels say in the GPU's own language: rounding to bfloat16, copies into shared memory that go on by
// themselves, and the tensor cores.

static unsigned rounded(float f) {
  const u32 bits = __float_as_uint(f);
  return f != f ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float half(u32 pair, int which) { return __uint_as_float(which ? pair & 0xffff0000u : pair << 16); }
static u32 pack(float lo, float hi) { return rounded(lo) | rounded(hi) << 16; }
static u32 pack_relu(float lo, float hi) { return pack(lo < 0 ? 0 : lo, hi < 0 ? 0 : hi); }
static float larger(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
static u32 max2(u32 a, u32 b) { return pack(larger(half(a, 0), half(b, 0)), larger(half(a, 1), half(b, 1))); }
static u32 max2_of_numbers(u32 a, u32 b) { return pack(fmaxf(half(a, 0), half(b, 0)), fmaxf(half(a, 1), half(b, 1))); }

static void store16(void* p, i64 element, const uint4& v) { memcpy(static_cast<u16*>(p) + element, &v, 16); }
static u32 shared_address(const void* p) { return static_cast<const u8*>(p) - buffers; }

static void copy16(u8* to, const u16* from) {
  if (to < buffers || to + 16 > buffers + sizeof buffers) abort();
  memset(to, 0xff, 16);  // till it is waited for
  emulation::fibers[emulation::current].copies.push_back({to, from});
}
static void wait_for_copies() {
  auto& copies = emulation::fibers[emulation::current].copies;
  for (const auto& copy : copies) memcpy(copy.to, copy.from, 16);
  copies.clear();
}

// Lane i gives the address of row i % 8 of matrix i / 8.
static void read_matrices(u32 (&r)[4], u32 address, bool is_transposed) {
  const int row = emulation::current % 32 / 4, column = emulation::current % 4 * 2;
  emulation::exchange(&address, 1, [&](auto& addresses) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      u16 pair[2];
      for (int k = 0; k < 2; ++k) {
        const int from_row = is_transposed ? column + k : row, from_column = is_transposed ? row : column + k;
        memcpy(pair + k, buffers + addresses[matrix * 8 + from_row][0] + from_column * 2, 2);
      }
      r[matrix] = pair[0] | u32(pair[1]) << 16;
    }
  });
}
static void ldmatrix(u32 (&r)[4], u32 address) { read_matrices(r, address, false); }
static void ldmatrix_transposed(u32 (&r)[4], u32 address) { read_matrices(r, address, true); }

// 16x16 times 16x8. Lane 4g + t holds rows g and g + 8 of the first matrix and column g of the second, of both the
// places 2t, 2t + 1, 2t + 8 and 2t + 9 along the sum.
static void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int row = emulation::current % 32 / 4, column = emulation::current % 4 * 2;
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  emulation::exchange(mine, 6, [&](auto& words) {
    for (int i = 0; i < 4; ++i) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) {
        const u32 left = words[row * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
        const u32 right = words[(column + i % 2) * 4 + k % 8 / 2][4 + k / 8];
        sum += half(left, k % 2) * half(right, k % 2);
      }
      c[i] += sum;
    }
  });
}
