// Weights of a network, packed for an instruction set.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "team.hpp"

namespace dragoman {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Allocates `count` elements, aligned to cache lines, and one readable cache line after them.
template <class T>
Memory<T> allocated(size_t count) {
  void* memory = std::aligned_alloc(64, rounded_up(int64_t(count * sizeof(T)) + 64, 64));
  if (!memory) throw std::bad_alloc();
  return Memory<T>(static_cast<T*>(memory));
}

// Memory for temporary values, which consecutive passes reuse. It grows with the need. After kPasses passes it shrinks
// if none of them needed a quarter of it.
template <class T>
class Buffer {
 public:
  // Returns memory for `count` elements with undefined values.
  T* fit(size_t count) {
    constexpr int kPasses = 256;
    most_ = std::max(most_, count);
    const bool is_over = ++num_passes_ == kPasses;
    if (count > capacity_ || (is_over && most_ < capacity_ / 4)) {
      memory_.reset();
      capacity_ = 0;
      memory_ = allocated<T>(most_ + most_ / 4);
      capacity_ = most_ + most_ / 4;
    }
    if (is_over) {
      num_passes_ = 0;
      most_ = 0;
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }
  const T& operator[](size_t i) const { return memory_[i]; }
  int64_t num_bytes() const { return int64_t(capacity_ * sizeof(T)); }

 private:
  Memory<T> memory_;
  size_t capacity_ = 0, most_ = 0;  // elements: allocated, and the largest need of the current passes
  int num_passes_ = 0;
};

// Temporary values of a pass.
struct Scratch {
  Buffer<float> floats;
  Buffer<uint8_t> bytes;

  int64_t num_bytes() const { return floats.num_bytes() + bytes.num_bytes(); }
};

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

inline void require_finite(const float* values, int64_t count, const char* what) {
  for (int64_t i = 0; i < count; ++i) require(std::isfinite(values[i]), what);
}

constexpr int kMaxInputs = 1 << 16;  // sums of this number of int8 products fit into 32 bits
constexpr int kMaxNarrowSum = 258;   // this sum of weights times an activation of at most 127 fits into 16 bits
constexpr float kMaxFactor = 1e28f;  // a sum of products times this factor is finite

// A weight matrix that owns its memory.
class PackedWeights {
 public:
  bool is_set() const { return view_.packed != nullptr; }
  const Weights& view() const { return view_; }

  // Element (input k, output n) is w[k * input_stride + n * output_stride]; bias can be null.
  //
  // Kernels without VNNI add products of activations of 7 bits in 16 bits: those of inputs 8 i + 0, 1, 4 and 5, and
  // those of 8 i + 2, 3, 6 and 7. This is exact for a column if neither its positive nor its negative weights of such a
  // group sum to more than kMaxNarrowSum. Otherwise only the products of two inputs are added in 16 bits.
  void pack(const int8_t* w, int64_t input_stride, int64_t output_stride, const float* factors, const float* bias,
            int inputs, int outputs, float scale, int zero_point, int levels, int center) {
    require(inputs >= 1 && outputs >= 1, "a product does not have inputs or outputs");
    require(inputs <= kMaxInputs, "a product has more than 2^16 inputs");
    require(scale == 0 || (std::isnormal(scale) && scale > 0),
            "the scale of activations is not 0 or a positive normal number");
    require(levels == 255 || (levels == 127 && scale > 0), "the levels are neither 255 nor, with a fixed scale, 127");
    require(zero_point >= 0 && zero_point <= (scale > 0 ? levels : 128),
            "the zero point is not between 0 and the levels, or 128 with scales by row");
    for (int n = 0; n < outputs; ++n)
      require(std::abs(factors[n]) * (scale > 0 ? scale : 1.0f) <= kMaxFactor, "a factor of a weight exceeds 1e28");
    if (bias) require_finite(bias, outputs, "a bias is not finite");
    allocate(inputs, outputs);
    std::memset(packed_.get(), 0, size_t(view_.panels()) * view_.groups() * kGroupBytes);
    if (levels == 127) center = 0;
    for (int64_t i = 0, count = int64_t(inputs) * outputs; center && i < count; ++i)
      if (w[i] == -128) center = 0;
    for (int n = 0; n < view_.panels() * kPanel; ++n) {
      const bool exists = n < outputs;
      int8_t* target = column(n);
      int32_t total = 0;
      int positive[2] = {}, negative[2] = {};  // sums of the two groups of eight inputs
      is_narrow_[n] = 255;
      for (int k = 0; exists && k < inputs; ++k) {
        const int8_t x = w[k * input_stride + n * output_stride];
        target[int64_t(k / kGroup) * kGroupBytes + k % kGroup] = x;
        total += x;
        if (k % 8 == 0) positive[0] = positive[1] = negative[0] = negative[1] = 0;
        int& sum = (x > 0 ? positive : negative)[k / 2 % 2];
        sum += std::abs(x);
        if (sum > kMaxNarrowSum) is_narrow_[n] = 0;
      }
      compensation_[n] = (center - zero_point) * total;
      factors_[n] = exists ? factors[n] * (scale > 0 ? scale : 1.0f) : 0;
      bias_[n] = exists && bias ? bias[n] : 0;
    }
    view_.scale = scale;
    view_.zero_point = zero_point;
    view_.center = center;
    view_.levels = levels;
  }

  // Copies columns of another matrix.
  void pick(const Weights& from, const int32_t* columns, int count) {
    allocate(from.inputs, count);
    for (int n = 0; n < view_.panels() * kPanel; ++n) {
      const int32_t column = n < count ? columns[n] : columns[0];
      const int8_t* source = from.column(column);
      int8_t* target = this->column(n);
      for (int64_t k = 0; k < view_.groups(); ++k)
        std::memcpy(target + k * kGroupBytes, source + k * kGroupBytes, kGroup);
      compensation_[n] = from.compensation[column];
      factors_[n] = from.factors[column];
      bias_[n] = from.bias[column];
      is_narrow_[n] = from.is_narrow[column];
    }
    view_.scale = from.scale;
    view_.zero_point = from.zero_point;
    view_.center = from.center;
    view_.levels = from.levels;
  }

  int64_t num_bytes() const {
    constexpr int kColumnBytes =
        sizeof(*view_.factors) + sizeof(*view_.bias) + sizeof(*view_.compensation) + sizeof(*view_.is_narrow);
    return is_set() ? int64_t(view_.panels()) * kPanel * (view_.groups() * kGroup + kColumnBytes) : 0;
  }

 private:
  void allocate(int inputs, int outputs) {
    Weights view = {};
    view.inputs = inputs;
    view.outputs = outputs;
    const size_t num_columns = size_t(view.panels()) * kPanel;
    auto packed = allocated<int8_t>(num_columns * view.groups() * kGroup);
    auto factors = allocated<float>(num_columns), bias = allocated<float>(num_columns);
    auto compensation = allocated<int32_t>(num_columns);
    auto is_narrow = allocated<uint8_t>(num_columns);
    packed_ = std::move(packed);
    factors_ = std::move(factors);
    bias_ = std::move(bias);
    compensation_ = std::move(compensation);
    is_narrow_ = std::move(is_narrow);
    view.packed = packed_.get();
    view.factors = factors_.get();
    view.bias = bias_.get();
    view.compensation = compensation_.get();
    view.is_narrow = is_narrow_.get();
    view_ = view;
  }
  int8_t* column(int n) { return packed_.get() + (view_.column(n) - view_.packed); }

  Memory<int8_t> packed_;
  Memory<float> factors_, bias_;
  Memory<int32_t> compensation_;
  Memory<uint8_t> is_narrow_;
  Weights view_ = {};
};

struct Norm {
  Memory<float> scale, bias;
};

enum Stack { kDecoder, kEncoder };
enum ProductKind { kSelfIn, kSelfOut, kCrossQuery, kCrossOut, kInner, kOuter, kNumProducts };
// Encoder layers do not have the kinds for cross-attention. In a recurrent decoder, kSelfIn computes the inner state
// and the forget gate, and there is no kSelfOut.
enum NormKind { kSelfNorm, kCrossNorm, kFeedForwardNorm, kNumNorms };
enum StackNormKind { kFinalNorm, kEmbeddingNorm, kNumStackNorms };

struct Layer {
  PackedWeights products[kNumProducts];
  Norm norms[kNumNorms];
};

struct Shape {
  int32_t d_model, num_heads, ffn_size, num_layers, vocabulary_size, max_positions, is_pre_norm;
  int32_t num_encoder_layers;  // 0: without an encoder
  int32_t max_source_positions;
  int32_t source_vocabulary_size;  // of a separate source table; 0: source and target share one table
  int32_t activation, is_rms_norm, has_embedding_norm;
  int32_t is_recurrent;  // of the decoder
  float embedding_factor, epsilon;
};

struct Model {
  Model(const Shape& given, const Kernels& chosen, double macs_per_ns);

  // Layer -1 is the projection to the vocabulary; for the encoder, to the keys and values of all decoder layers.
  // The projection to the vocabulary is stored as rows [V][d]; null: tied to the embedding.
  void set_product(int stack, int layer, int kind, const int8_t* w, const float* factors, const float* bias,
                   float scale, int zero_point, int levels);
  // For layer -1, `kind` is a `StackNormKind`; the bias can be null.
  void set_norm(int stack, int layer, int kind, const float* scale, const float* bias);
  void set_embedding(int stack, const int8_t* table, const float* factors);
  void set_positions(int stack, const float* table);  // [max_positions or max_source_positions][d]
  void check_complete() const;
  // The stack that owns the embedding table of a stack, and the number of rows of the table.
  int table_of(int stack) const { return stack == kEncoder && shape.source_vocabulary_size ? kEncoder : kDecoder; }
  bool is_recurrent(int stack) const { return stack == kDecoder && shape.is_recurrent; }
  int num_tokens(int stack) const {
    return table_of(stack) == kEncoder ? shape.source_vocabulary_size : shape.vocabulary_size;
  }

  // Scratch memory for an encoder run, which returns it afterwards. Threads that encode at the same time have their
  // own.
  std::unique_ptr<Scratch> take_scratch();
  void return_scratch(std::unique_ptr<Scratch> scratch);
  int64_t scratch_bytes() const;  // of the scratch memory that is not taken

  Shape shape;
  const Kernels& kernels;
  double macs_per_ns;  // measured speed of products
  int d, head_size;
  std::vector<Layer> layers, encoder_layers;
  Norm stack_norms[2][kNumStackNorms];  // by stack
  PackedWeights projection, memory;
  Memory<int8_t> embeddings[2];        // by stack: [V, d]
  Memory<float> embedding_factors[2];  // [V]
  Memory<float> positions;             // [max_positions, d]
  Memory<float> source_positions;      // [max_source_positions, d]

  std::mutex team_mutex;       // held while a step runs on the team
  std::unique_ptr<Team> team;  // created at the first use
  int team_threads = 1;

 private:
  std::vector<Layer>& layers_of(int stack, int layer);
  void check_stack_norms(int stack) const;
  void put_norm(Norm& norm, const float* scale, const float* bias);

  mutable std::mutex scratch_mutex_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace dragoman
