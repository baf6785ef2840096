// What kernels take from CUDA, on a CPU. The threads of a block are fibers, which run one after another, each until it
// waits for others: for its warp, in instructions that a warp does together, or for its block. Blocks run one by one.
// Shared memory begins as NaN, and so is read as NaN where a kernel reads what it has not written.

#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Dim {
  unsigned x = 0, y = 0, z = 0;
};
static Dim threadIdx, blockIdx, gridDim, blockDim;

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <typename To, typename From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float f) { return same_bits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return same_bits<float>(u); }
inline float __int_as_float(int i) { return same_bits<float>(i); }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = x | (unsigned long long)(y) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <typename T>
inline T __ldg(const T* p) { return *p; }
template <typename T, typename U>
inline T atomicAdd(T* p, U value) {
  const T before = *p;
  *p += value;
  return before;
}

alignas(128) static unsigned char buffers[256 * 1024];  // the shared memory whose size is told at the launch

namespace emulation {

constexpr int STACK_BYTES = 64 * 1024, LANES = 32, WORDS = 8;

struct Copy {
  unsigned char* to;
  const void* from;
};
struct Fiber {
  jmp_buf at;
  ucontext_t beginning;
  std::vector<char> stack = std::vector<char>(STACK_BYTES);
  std::vector<Copy> copies;  // that were started and not yet waited for
  bool is_started, is_done, waits_for_block;
  int parity;
};
struct Warp {
  int arrived;
  unsigned phase = 0;
  unsigned words[2][LANES][WORDS];
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static jmp_buf scheduler;
static int current;
static void (*body)();
static void** arguments;

static void leave() {
  const int self = current;
  if (!_setjmp(fibers[self].at)) _longjmp(scheduler, 1);
}
static void live() {
  body();
  fibers[current].is_done = true;
  _longjmp(scheduler, 1);
}
static void enter(int thread) {
  current = thread, threadIdx.x = thread;
  if (_setjmp(scheduler)) return;
  Fiber& fiber = fibers[thread];
  if (fiber.is_started) _longjmp(fiber.at, 1);
  fiber.is_started = true;
  getcontext(&fiber.beginning);
  fiber.beginning.uc_stack.ss_sp = fiber.stack.data();
  fiber.beginning.uc_stack.ss_size = STACK_BYTES;
  makecontext(&fiber.beginning, live, 0);
  setcontext(&fiber.beginning);
}
static bool can_run(int thread) { return !fibers[thread].is_done && !fibers[thread].waits_for_block; }
static int running(int warp) {
  int count = 0;
  for (int lane = 0; lane < LANES; ++lane) count += can_run(warp * LANES + lane);
  return count;
}
static void run_warp(int warp) {
  while (running(warp)) {
    for (int lane = 0; lane < LANES; ++lane)
      if (can_run(warp * LANES + lane)) enter(warp * LANES + lane);
    if (warps[warp].arrived && warps[warp].arrived == running(warp)) warps[warp].arrived = 0, ++warps[warp].phase;
  }
}
static void run_block() {
  for (Fiber& fiber : fibers) {
    fiber.is_started = fiber.is_done = fiber.waits_for_block = false, fiber.parity = 0;
    fiber.copies.clear();
  }
  for (Warp& warp : warps) warp.arrived = 0;
  memset(buffers, 0xff, sizeof buffers);
  for (bool is_over = false; !is_over;) {
    for (int warp = 0; warp < int(warps.size()); ++warp) run_warp(warp);
    is_over = true;
    for (Fiber& fiber : fibers) is_over = is_over && fiber.is_done, fiber.waits_for_block = false;
  }
}
static void wait_for_warp() {
  Warp& warp = warps[current / LANES];
  const unsigned phase = warp.phase;
  ++warp.arrived;
  while (warp.phase == phase) leave();
}
// Each lane of a warp gives some words, and reads those of all.
template <typename Read>
static void exchange(const unsigned* mine, int count, Read read) {
  auto& words = warps[current / LANES].words[fibers[current].parity ^= 1];
  memcpy(words[current % LANES], mine, 4 * count);
  wait_for_warp();
  read(words);
}

template <typename... Types, size_t... Indices>
static void call(void (*kernel)(Types...), std::index_sequence<Indices...>) {
  kernel(*reinterpret_cast<std::remove_cv_t<Types>*>(arguments[Indices])...);
}
template <typename... Types>
static void call(void (*kernel)(Types...)) { call(kernel, std::index_sequence_for<Types...>{}); }

template <auto KERNEL>
static void launch(void** given, int blocks_x, int blocks_y, int threads) {
  arguments = given;
  body = [] { call(KERNEL); };
  if (int(fibers.size()) != threads) fibers = std::vector<Fiber>(threads), warps = std::vector<Warp>(threads / LANES);
  gridDim = {unsigned(blocks_x), unsigned(blocks_y), 1}, blockDim = {unsigned(threads), 1, 1};
  for (int y = 0; y < blocks_y; ++y)
    for (int x = 0; x < blocks_x; ++x) {
      blockIdx = {unsigned(x), unsigned(y), 0};
      run_block();
    }
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::fibers[emulation::current].waits_for_block = true;
  emulation::leave();
}
template <typename T>
inline T from_lane(T value, int lane) {
  unsigned mine[2] = {};
  memcpy(mine, &value, sizeof value);
  emulation::exchange(mine, 2, [&](auto& words) { memcpy(&value, words[lane], sizeof value); });
  return value;
}
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int step) {
  return from_lane(value, emulation::current % emulation::LANES ^ step);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const unsigned mine = vote;
  unsigned votes = 0;
  emulation::exchange(&mine, 1, [&](auto& words) {
    for (int lane = 0; lane < emulation::LANES; ++lane) votes |= words[lane][0] << lane;
  });
  return votes;
}
template <typename T>
inline T __shfl_down_sync(unsigned, T value, int step, int width) {
  const int lane = emulation::current % emulation::LANES;
  return from_lane(value, lane % width + step < width ? lane + step : lane);
}
