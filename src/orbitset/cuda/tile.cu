// Parts of an operand in shared memory.

// Where 8 channels of a pixel lie in shared memory, so that neighbouring pixels fall into different banks: narrow
// pixels lie close together with their groups of channels exchanged, wide ones 16 bytes apart.
template <int CHANNELS>
struct Layout {
  static constexpr bool IS_SWAPPED = CHANNELS <= 32;
  static constexpr int PITCH = CHANNELS * 2 + (IS_SWAPPED ? 0 : 16);

  static __device__ __forceinline__ int group(int column, int group) {
    if (CHANNELS == 16) return group ^ (column >> 2 & 1);
    if (CHANNELS == 32) return group ^ (column >> 1 & 3);
    return group;
  }
  static __device__ __forceinline__ int offset(int pixel, int which) { return pixel * PITCH + group(pixel, which) * 16; }
};

// How a warp's PARTS of 16 pixels lie in a tile: below each other, HIGH lines each (one, unless the tile is narrower), in
// runs that stay within an image.
template <int ROWS, int COLUMNS, int PARTS>
struct Strips {
  static constexpr int HIGH = COLUMNS < 16 ? 16 / COLUMNS : 1, ACROSS = COLUMNS < 16 ? 1 : COLUMNS / 16;
  static constexpr int FIT = ROWS / HIGH < 1 ? 1 : ROWS / HIGH;
  static constexpr int RUN = PARTS < FIT ? PARTS : FIT;
  static_assert(PARTS % RUN == 0 && FIT % RUN == 0, "runs fill images and warps");

  // The first pixel of a warp's part.
  static __device__ __forceinline__ int first(int warp, int part) {
    const int run = warp * (PARTS / RUN) + part / RUN;
    return (run / ACROSS * RUN + part % RUN) * HIGH * COLUMNS + run % ACROSS * 16;
  }
  // Lines that a run reads, if each part reads DOWN lines, one below the other: which line is the first of a part, and
  // which is read at all.
  static __device__ constexpr int lines(int down) { return (RUN - 1) * HIGH + down; }
  static __device__ constexpr bool is_of(int line) { return line >= 0 && line % HIGH == 0 && line / HIGH < RUN; }
  static __device__ constexpr bool is_read(int line, int down) {
    for (int each = 0; each < down; ++each)
      if (is_of(line - each)) return true;
    return false;
  }
};

// A tile of an operand in shared memory as [image][row][column][channel], in the layout above; rows are filled up to
// a multiple of 8 pixels. HALO pixels around it, zero outside the image. It is made in two steps:
// `fetch` starts copying what the operand is made of, `convert` makes it, once that has arrived, in its place.
// What does not fit there waits in EXTRA bytes beside the tile. A thread keeps to its column and channels, goes
// down the rows, and converts what it has fetched itself, so that the two need no barrier between them.
template <Kind KIND, int CHANNELS, int SLICE, int SIZE, int ROWS, int COLUMNS, int IMAGES, int HALO, int THREADS>
struct Tile {
  static constexpr int GROUPS = SLICE / 8;
  typedef Layout<SLICE> Shared;
  static constexpr int PITCH = Shared::PITCH;
  static constexpr int HEIGHT = ROWS + 2 * HALO;
  static constexpr int WIDTH = Shared::IS_SWAPPED ? (COLUMNS + 2 * HALO + 7) / 8 * 8 : COLUMNS + 2 * HALO;
  static constexpr int PIXELS = IMAGES * HEIGHT * WIDTH;  // with what fills up the rows
  static constexpr int BYTES = PIXELS * PITCH;
  static constexpr bool IS_POOLED = KIND == GRAD_POOL;  // goes by windows of 2x2, whose cells must be compared
  static constexpr int CELL = IS_POOLED ? 2 : 1;
  static constexpr int HIGH = IS_POOLED ? ROWS / 2 + 2 * HALO : HEIGHT, DOWN = IMAGES * HIGH;
  static constexpr int ACROSS = COLUMNS / CELL, WIDE = ACROSS + 2 * HALO;
  static constexpr int PLACES = DOWN * WIDE * GROUPS;
  static constexpr int MARGIN = 4, IMAGE_WIDTH = COLUMNS + 2 * MARGIN;  // of an image whose surroundings are wanted: 16 bytes aside
  static constexpr int EXTRA = KIND == IM2COL ? 4 * IMAGES * (ROWS + 2) * IMAGE_WIDTH
                                              : 16 * PLACES * (KIND == ACT_POOL ? 3 : KIND == GRAD || KIND == GRAD_POOL ? 1 : 0);
  static constexpr bool HAS_RIM = HALO > 0 && COLUMNS < SIZE;  // else what lies to both sides is outside
  static_assert(THREADS % GROUPS == 0, "a thread keeps to its channels");
  static_assert(ACROSS * GROUPS % THREADS == 0 || THREADS % (ACROSS * GROUPS) == 0, "threads cover whole rows");

  struct At {  // one place, a pixel or a window: its line and column in the tile, and where it lies in the image
    int line, column;
    int image, row;  // row: in pixels from the tile's first
    bool is_inside;
  };

  struct Channels {
    float scale[8], shift[8], by_y[8], constant[8];

    __device__ Channels(const float* coefs, int group) {
      if constexpr (KIND != RAW && KIND != IM2COL) {
        read8<SLICE>(coefs, 0, group * 8, scale);
        read8<SLICE>(coefs, 1, group * 8, shift);
      }
      if constexpr (KIND == GRAD || KIND == GRAD_POOL) {
        read8<SLICE>(coefs, 2, group * 8, by_y);
        read8<SLICE>(coefs, 3, group * 8, constant);
      }
    }
  };

  // Call `visit(at)` for every place of this thread. Column -1 and ACROSS are the rim.
  template <bool WITH_RIM, typename Visit>
  static __device__ __forceinline__ void each(int n0, int h0, int w0, int images, Visit visit) {
    auto place = [&](int line, int column) {
      const int image = IMAGES == 1 ? 0 : line / HIGH, row = CELL * (line - image * HIGH - HALO);
      const bool is_inside = unsigned(h0 + row) < unsigned(SIZE) && (IMAGES == 1 || n0 + image < images);
      return At{line, column, image, row, is_inside};
    };
    each_place<DOWN, ACROSS, GROUPS, THREADS, IS_POOLED ? 1 : 2>([&](int line, int column) { visit(place(line, column)); });
    if constexpr (WITH_RIM)
      for (int index = threadIdx.x / GROUPS; index < DOWN * 2; index += THREADS / GROUPS) {
        At at = place(index / 2, index % 2 ? ACROSS : -1);
        at.is_inside = at.is_inside && unsigned(w0 + CELL * at.column) < unsigned(SIZE);
        visit(at);
      }
  }

  // Elements from the tile's first pixel, in a tensor as large as the tile's image times MORE / LESS.
  template <int MORE, int LESS>
  static __device__ __forceinline__ int offset(const At& at) {
    const int row = LESS == 2 ? at.row >> 1 : at.row * MORE, column = LESS == 2 ? at.column * CELL >> 1 : at.column * CELL * MORE;
    return ((at.image * (SIZE * MORE / LESS) + row) * (SIZE * MORE / LESS) + column) * CHANNELS;
  }
  template <int MORE, int LESS, typename T = u16>
  static __device__ __forceinline__ const T* first(const void* values, int channel, int n0, int h0, int w0) {
    constexpr int SIDE = SIZE * MORE / LESS;
    const i64 at = (i64(n0) * SIDE + h0 * MORE / LESS) * SIDE + w0 * MORE / LESS;
    return reinterpret_cast<const T*>(values) + at * CHANNELS + channel;
  }

  static __device__ __forceinline__ u8* cell(u8* shared, const At& at, int k) {
    const int row = at.image * HEIGHT + at.row + HALO + k / 2, column = at.column * CELL + HALO + k % 2;
    return shared + (row * WIDTH + column) * PITCH + Shared::group(column, threadIdx.x % GROUPS) * 16;
  }
  // A window at the rim has cells that are not of the tile.
  static __device__ __forceinline__ bool has_cell(const At& at, int k) {
    if (!IS_POOLED || HALO == 0) return true;
    const int row = at.row + HALO + k / 2, column = at.column * CELL + HALO + k % 2;
    return unsigned(row) < unsigned(HEIGHT) && unsigned(column) < unsigned(WIDTH);
  }
  static __device__ __forceinline__ u8* beside(u8* extra, const At& at, int k) {
    return extra + ((k * DOWN + at.line) * WIDE + at.column + HALO) * GROUPS * 16;
  }

  static __device__ void fetch(u8* shared, u8* extra, const Operand& from, int first_channel, int n0, int h0, int w0,
                               int images) {
    if constexpr (KIND == IM2COL) {
      fetch_image(extra, from, n0, h0, w0, images);
      return;
    }
    const int group = threadIdx.x % GROUPS, channel = first_channel + group * 8;
    extra += group * 16;
    // gradients of pooled maxima lie in a tensor half as large, as what is un-pooled does
    constexpr int MORE = KIND == ACT_POOL ? 2 : 1, LESS = is_half(KIND) || KIND == GRAD_POOL ? 2 : 1;
    const u16* const values = first<MORE, LESS>(from.values, channel, n0, h0, w0);
    const u16* const pre = first<1, 1>(from.pre, channel, n0, h0, w0);
    each<HAS_RIM>(n0, h0, w0, images, [&](const At& at) {
      if (!at.is_inside) return;
      const int place = offset<MORE, LESS>(at);
      if constexpr (KIND == ACT_POOL) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          copy16(k ? beside(extra, at, k - 1) : cell(shared, at, 0), values + place + (k / 2 * 2 * SIZE + k % 2) * CHANNELS);
      } else if constexpr (KIND == GRAD_POOL) {
        copy16(beside(extra, at, 0), values + place);
        // cells that are not of the tile must be compared too: those are read when it is converted
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (has_cell(at, k)) copy16(cell(shared, at, k), pre + offset<1, 1>(at) + (k / 2 * SIZE + k % 2) * CHANNELS);
      } else {
        copy16(cell(shared, at, 0), values + place);
        if constexpr (KIND == GRAD) copy16(beside(extra, at, 0), pre + place);
      }
    });
  }

  static __device__ void convert(u8* shared, u8* extra, const Operand& from, const float* coefs, int first_channel,
                                 int n0, int h0, int w0, int images) {
    if constexpr (KIND == IM2COL) {
      convert_im2col(shared, extra, n0, h0, w0, images);
      return;
    }
    const int group = threadIdx.x % GROUPS, channel = first_channel + group * 8;
    const Channels c(coefs, group);
    const u16* const pre = first<1, 1>(from.pre, channel, n0, h0, w0);
    const u8* const switches = first<1, 2, u8>(from.switches, channel, n0, h0, w0);
    extra += group * 16;
    each<(HALO > 0)>(n0, h0, w0, images, [&](const At& at) {
      constexpr int CELLS = IS_POOLED ? 4 : 1;
      uint4 v[CELLS] = {};
      if (at.is_inside) {
        if constexpr (KIND == GRAD_POOL) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            v[k] = has_cell(at, k) ? *reinterpret_cast<const uint4*>(cell(shared, at, k))
                                   : load16(pre, offset<1, 1>(at) + (k / 2 * SIZE + k % 2) * CHANNELS);
          convert_window(v, *reinterpret_cast<const uint4*>(beside(extra, at, 0)), c);
        } else {
          v[0] = *reinterpret_cast<const uint4*>(cell(shared, at, 0));
          if constexpr (KIND == GRAD)
            v[0] = gradient(v[0], *reinterpret_cast<const uint4*>(beside(extra, at, 0)), c.scale, c.by_y, c.constant);
          else
            v[0] = activate(v[0], c.scale, c.shift);
          if constexpr (KIND == ACT_SWITCH)
            v[0] = kept_at(v[0], Switches::read(switches + offset<1, 2>(at)), (at.row & 1) * 2 + (at.column & 1));
          if constexpr (KIND == ACT_POOL)
#pragma unroll
            for (int k = 0; k < 3; ++k)
              v[0] = largest(v[0], activate(*reinterpret_cast<const uint4*>(beside(extra, at, k)), c.scale, c.shift));
        }
      }
#pragma unroll
      for (int k = 0; k < CELLS; ++k)
        if (has_cell(at, k)) *reinterpret_cast<uint4*>(cell(shared, at, k)) = v[k];
    });
  }

  static __device__ __forceinline__ void convert_window(uint4 (&v)[4], const uint4& arriving, const Channels& c) {
    uint4 is_largest[4];
    find_largest(v, c.scale, c.shift, is_largest);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint4 g = arriving;
#pragma unroll
      for (int p = 0; p < 4; ++p) pair(g, p) &= pair(is_largest[k], p);
      v[k] = gradient(g, v[k], c.scale, c.by_y, c.constant);
    }
  }

  static __device__ void fetch_image(u8* extra, const Operand& from, int n0, int h0, int w0, int images) {
    constexpr int PARTS = IMAGE_WIDTH / 4;
    const float* image = reinterpret_cast<const float*>(from.values);
    for (int part = threadIdx.x; part < IMAGES * (ROWS + 2) * PARTS; part += THREADS) {
      const int line = part / PARTS, n = n0 + line / (ROWS + 2);
      const int h = h0 + line % (ROWS + 2) - 1, w = w0 + part % PARTS * 4 - MARGIN;
      if (n < images && unsigned(h) < unsigned(SIZE) && unsigned(w) < unsigned(SIZE))
        copy16(extra + part * 16, reinterpret_cast<const u16*>(image + (i64(n) * SIZE + h) * SIZE + w));
    }
  }
  // Of pixels that other threads have fetched.
  static __device__ void convert_im2col(u8* shared, const u8* extra, int n0, int h0, int w0, int images) {
    static_assert(KIND != IM2COL || (SLICE == 16 && HALO == 0 && WIDTH == COLUMNS), "nine values fit into 16 channels");
    __syncthreads();
#pragma unroll 2
    for (int pixel = threadIdx.x; pixel < PIXELS; pixel += THREADS) {
      const int image = pixel / (ROWS * COLUMNS), row = pixel / COLUMNS % ROWS, column = pixel % COLUMNS;
      const float* first = reinterpret_cast<const float*>(extra) + (image * (ROWS + 2) + row) * IMAGE_WIDTH + column + MARGIN - 1;
      const bool is_image = n0 + image < images;
      float f[9];
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
        const int h = h0 + row + tap / 3 - 1, w = w0 + column + tap % 3 - 1;
        const bool is_inside = is_image && unsigned(h) < unsigned(SIZE) && unsigned(w) < unsigned(SIZE);
        f[tap] = is_inside ? first[tap / 3 * IMAGE_WIDTH + tap % 3] : 0.f;
      }
      *reinterpret_cast<uint4*>(shared + Shared::offset(pixel, 0)) =
          make_uint4(pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7]));
      *reinterpret_cast<uint4*>(shared + Shared::offset(pixel, 1)) = make_uint4(pack(f[8], is_image ? 1.f : 0.f), 0, 0, 0);
    }
  }
};
