// What the step asks of an instruction set: a table of functions, and the values they work on.
//
// Matrices of activations are [rows][stride] with the stride a multiple of 64 elements: kernels read and write whole
// panels, and what lies behind a row's own elements is never used.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dragoman {

constexpr int kPanel = 64;   // columns of a weight matrix that lie together: [panel][inputs / 4][64][4]
constexpr int kBlock = 16;   // positions whose keys lie together: [block][d][16]
constexpr int kChunk = 16;   // panels whose sums of exponentials are added up before those of other chunks

inline constexpr int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// A weight matrix as the products read it.
struct Weights {
  int inputs, outputs;
  const int8_t* packed;       // [panels][inputs rounded up to 4, / 4][64][4]; what does not exist is 0
  const float* factors;       // [panels * 64], times the scale of the activations if that is fixed
  const float* bias;          // [panels * 64]; 0 where there is none
  const int32_t* beginnings;  // [panels * 64] (center - zero_point) times the sum of the column
  float scale;                // of the activations; 0: each row has its own
  int zero_point;             // of the activations
  int center;                 // what the product subtracts from activations: 0, or 128

  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  bool has_row_scales() const { return scale == 0; }
};

// Of feed-forward blocks; SwiGLU is swish of a gate, which lies behind the other half of the columns, times that half.
enum Activation { kRelu, kGelu, kSwish, kSwiglu, kNumActivations };

// Activations rounded to bytes.
struct Rounded {
  uint8_t* bytes;    // [rows][stride]
  int64_t stride;
  float* scales;     // [rows], used if the weights have row scales
};

struct Candidate {
  float value;
  int32_t column;
};

// Whether `a` goes before `b`; ties go to the lower column.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.column < b.column);
}

// Tokens that are not taken in the rows of a segment.
struct Mask {
  const int64_t* token_ids;      // [count] ascending
  const uint8_t* is_masked;      // [count]
  int count;
  const int32_t* shortlist_ids;  // the token of each column, ascending; null: columns are tokens
  int32_t first_column, last_column;  // all that may be masked are within
};

// The best C columns of a row that are not masked. A few are kept best first; many (sampling may want the whole vocabulary), for which an
// insertion would move half of the others each time, are a heap with the worst on top as soon as there are C of them.
struct Best {
  static constexpr int kFew = 64;

  Candidate* found;  // [capacity]
  int count, capacity;
  float threshold;   // what a value must exceed to be taken
  const Mask* mask;  // null: nothing is masked

  bool is_ordered() const { return capacity <= kFew; }
};

enum class Output { kStore, kAdd, kRound };

struct Product {
  Rounded a;
  int rows;
  const Weights* weights;
  int first_panel, last_panel;
  Output output;
  float* out;             // kStore, kAdd: [rows][out_stride]
  int64_t out_stride;
  Rounded next;           // kRound: max(0, product) with the fixed scale of `next_weights`
  const Weights* next_weights;
};

// Logits of some panels of the vocabulary, of which only these are kept.
struct Projection {
  Rounded a;
  int rows;
  const Weights* weights;
  int chunk;     // of kChunk panels
  Best* best;    // [rows], which chunks of higher columns may be added to later
  float* sums;   // [rows][32]: 16 greatest logits, and 16 sums of exponentials relative to these, of the chunk
};

struct Attention {
  int rows, heads, head_size, first_head, last_head;
  const float* query;      // [rows][query_stride]
  int64_t query_stride;
  const float* keys;       // [blocks][d][16]
  const float* values;     // [positions][value_stride]
  int64_t value_stride;
  int num_positions;
  const float* bias;       // [rows][blocks * 16], 0 or kLowest, row by row; null: nothing but the end is hidden
  const uint8_t* is_seen;  // [positions] by any row; null: all are
  float* scratch;          // [4][blocks * 16]
  float* out;              // [rows][out_stride]
  int64_t out_stride;
};

struct Kernels {
  const char* name;
  int center;  // see Weights, whose center is 0 nevertheless if one of them is -128
  void (*multiply)(const Product&);
  void (*project)(const Projection&);
  void (*attend)(const Attention&);
  // states [rows][stride] = table[token] * factors[token] * factor + positions
  void (*embed)(const int8_t* table_row, float factor, const float* position, int d, float* out);
  // normed = LayerNorm(x), or RMSNorm(x) and a bias; it may be x itself
  void (*norm)(const float* x, const float* scale, const float* bias, bool is_rms, float epsilon, int d, float* normed);
  // x = activation(x), n columns of it; not of ReLU, which rounding applies
  void (*activate)(float* x, int n, Activation activation);
  // rounds a row for a product; a row scale is written to *scale
  void (*round)(const float* x, int n, const Weights& weights, bool rectifies, uint8_t* out, float* scale);
  bool (*is_finite)(const float* x, int n);
  // logarithm of the sum of exponentials of a row, whose `sums` of a chunk lie every `stride` floats
  float (*log_sum)(const float* sums, int64_t stride, int num_chunks);
};

// Each null where the compiler cannot make it.
const Kernels* avx512_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx2_kernels();

}  // namespace dragoman
