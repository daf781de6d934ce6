// Kernels of an instruction set: a table of functions and their arguments.
//
// Activation matrices are [rows][stride], with a stride of a multiple of 64 elements. Kernels read and write whole
// panels; padding at the end of a row is never used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if (!defined(__x86_64__) && !defined(__AARCH64EL__)) || !defined(__GNUC__) || defined(__clang__)
#error "dragoman-native requires GCC on x86-64 or little-endian aarch64"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math changes results: all instruction sets must give the same bits"
#endif

namespace dragoman {

constexpr int kLanes = 16;  // floats that are processed together: one vector
constexpr int kPanel = 64;  // columns of a weight matrix per panel: [panel][inputs / 4][64][4]
constexpr int kGroup = 4;   // inputs whose weights of a column are adjacent
constexpr int kGroupBytes = kPanel * kGroup;
constexpr int kPanelVectors = kPanel / kLanes;
constexpr int kBlock = kLanes;        // positions of keys per block: [block][d][16]
constexpr int kChunk = 16;            // panels whose sums of exponentials are added before the sums of chunks
constexpr int kRowSums = 2 * kLanes;  // floats of a row in `Projection::sums`
constexpr float kLowest = -3e38f;     // score of a hidden position; its exponential is exactly 0

inline constexpr int64_t rounded_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Packed weight matrix.
struct Weights {
  int inputs, outputs;
  const int8_t* packed;         // [panels][inputs rounded up to 4, / 4][64][4]; padding is 0
  const float* factors;         // [panels * 64], including the scale of the activations if it is fixed
  const float* bias;            // [panels * 64]; 0 without a bias
  const int32_t* compensation;  // [panels * 64] (center - zero_point) times the sum of the column: start of each sum
  float scale;                  // of the activations; 0: one scale per row
  int zero_point;               // of the activations
  int center;                   // subtracted from the activations by the product: 0 or 128
  int levels;                   // largest rounded activation: 127 or 255
  const uint8_t* is_narrow;     // [panels * 64] 255: sums of some products of the column fit into 16 bits, see `pack`

  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  int chunks() const { return (panels() + kChunk - 1) / kChunk; }
  int groups() const { return (inputs + kGroup - 1) / kGroup; }
  const int8_t* panel(int i) const { return packed + int64_t(i) * groups() * kGroupBytes; }
  const int8_t* column(int n) const { return panel(n / kPanel) + n % kPanel * kGroup; }  // of the first group
  bool has_row_scales() const { return scale == 0; }
};

// Activations of feed-forward blocks. SwiGLU is swish(second half of the columns, the gate) times the first half.
enum Activation { kRelu, kGelu, kSwish, kSwiglu, kNumActivations };

// Activations rounded to bytes.
struct Rounded {
  uint8_t* bytes;  // [rows][stride]
  int64_t stride;
  float* scales;  // [rows], used if the weights have row scales
};

struct Candidate {
  float value;
  int32_t column;
};

// Returns whether `a` ranks before `b`; ties go to the lower column.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.column < b.column);
}

// Tokens that are excluded in the rows of a segment.
struct Mask {
  const int64_t* token_ids;  // [count] ascending
  const uint8_t* is_masked;  // [count]
  int count;
  const int32_t* shortlist_ids;       // the token of each column, ascending; null: columns are tokens
  int32_t first_column, last_column;  // range of all columns that can be masked
};

// The best C columns of a row that are not masked. Up to `kFew` are sorted, best first. More (sampling can request the
// whole vocabulary) become a heap with the worst on top once C are found, because an insertion into a sorted array
// would move half of the others.
struct Best {
  static constexpr int kFew = 64;

  Candidate* found;  // [capacity]
  int count, capacity;
  float threshold;   // minimum value, exclusive
  const Mask* mask;  // null: without masked tokens

  bool is_ordered() const { return capacity <= kFew; }
};

enum class Output { kStore, kAdd, kRound };

struct Product {
  Rounded a = {};
  int rows = 0;
  const Weights* weights = nullptr;
  int first_panel = 0, last_panel = 0;
  Output output = Output::kStore;
  float* out = nullptr;  // kStore, kAdd: [rows][out_stride]
  int64_t out_stride = 0;
  Rounded next = {};  // kRound: max(0, product) with the fixed scale of `next_weights`
  const Weights* next_weights = nullptr;
};

// Results from the logits of some panels of the vocabulary; the logits are not stored.
struct Projection {
  Rounded a;
  int rows;
  const Weights* weights;
  int chunk;    // index of the chunk of kChunk panels
  Best* best;   // [rows]; later chunks with higher columns can be added
  float* sums;  // [rows][32]: 16 maximum logits of the chunk, and 16 sums of exponentials relative to them
};

struct Attention {
  int rows, heads, head_size, first_head, last_head;
  const float* query;  // [rows][query_stride]
  int64_t query_stride;
  const float* keys;    // [blocks][d][16]
  const float* values;  // [positions][value_stride]
  int64_t value_stride;
  int num_positions;
  const float* bias;       // [rows][blocks * 16], 0 or kLowest, for each row; null: only padding is hidden
  const uint8_t* is_seen;  // [positions] whether any row sees the position; null: all are visible
  float* scratch;          // [4][blocks * 16]
  float* out;              // [rows][out_stride]
  int64_t out_stride;
};

struct Kernels {
  const char* name;
  int center;  // default of Weights::center, which is always 0 with 127 levels or if a weight is -128
  void (*multiply)(const Product&);
  void (*project)(const Projection&);
  void (*attend)(const Attention&);
  // states [rows][stride] = table[token] * factors[token] * factor + positions
  void (*embed)(const int8_t* table_row, float factor, const float* position, int d, float* out);
  // normed = LayerNorm(x), or RMSNorm(x) plus a bias; normed and x can be the same array
  void (*norm)(const float* x, const float* scale, const float* bias, bool is_rms, float epsilon, int d, float* normed);
  // x = activation(x), n columns; ReLU is part of the rounding instead
  void (*activate)(float* x, int n, Activation activation);
  // SSRU: f = sigmoid(gate); cell = f * former + (1 - f) * inner; state += max(0, cell). `former` is null for zeros.
  void (*recur)(const float* inner, const float* gate, const float* former, int d, float* cell, float* state);
  // rounds a row for a product; a row scale is written to *scale
  void (*round)(const float* x, int n, const Weights& weights, bool rectifies, uint8_t* out, float* scale);
  bool (*is_finite)(const float* x, int n);
  // logarithm of the sum of exponentials of a row; `sums` of consecutive chunks are `stride` floats apart
  float (*log_sum)(const float* sums, int64_t stride, int num_chunks);
};

// Each file kernels_NAME.cpp compiles kernels.inc and the .inc files that it includes, inside its own namespace.
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

// On x86-64.
const Kernels* amx_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512bw_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx2_kernels();

// On aarch64.
const Kernels* i8mm_kernels();
const Kernels* dotprod_kernels();
const Kernels* neon_kernels();

}  // namespace dragoman
