// Forward pass of rows through the layers of a stack, and the threads that share the work.
#pragma once
#include <algorithm>
#include <limits>

#include "model.hpp"

namespace dragoman {

constexpr double kMinParallelNs = 3000;  // shorter phases are not worth distributing
constexpr double kBytesPerNs = 40;       // typical for weights in the last cache

// Threads of a pass.
class Crew {
 public:
  Crew(Model& model, int num_threads) : lock_(model.team_mutex, std::defer_lock), macs_per_ns_(model.macs_per_ns) {
    if (num_threads <= 1 || !lock_.try_lock()) return;  // another batch uses the team: one thread gives the same result
    if (model.team_threads < num_threads) {
      model.team.reset(), model.team_threads = 1;
      model.team = std::make_unique<Team>(num_threads - 1);
      model.team_threads = num_threads;
    }
    team_ = model.team.get(), num_threads_ = num_threads;
  }
  int num_threads() const { return num_threads_; }
  // Number of tasks of `count` sequences. A task is one sequence, or a group of its heads if there are few sequences.
  int num_tasks(int count, int heads) const {
    return num_threads_ > 1 && count < 2 * num_threads_ ? count * std::min(heads, num_threads_) : count;
  }
  // Estimated time of a product: the larger of memory and compute time.
  double product_ns(int rows, const Weights& w) const {
    const double size = double(w.inputs) * w.outputs;
    return std::max(size / kBytesPerNs, rows * size / macs_per_ns_);
  }
  bool is_worth(double nanoseconds) const { return team_ && nanoseconds >= kMinParallelNs; }

  // Calls task(0) to task(count - 1); in this thread if the estimated total time `nanoseconds` is short.
  template <class Task>
  void run(int count, double nanoseconds, const Task& task) {
    if (count > 1 && count <= Team::kMaxTasks && is_worth(nanoseconds)) return team_->run(count, task);
    for (int i = 0; i < count; ++i) task(i);
  }

  // Calls task(begin, end) for parts of 0 .. count.
  template <class Task>
  void run_parts(int count, double nanoseconds, const Task& task) {
    const int parts = is_worth(nanoseconds) ? std::min(count, num_threads_ * 3) : 1;
    run(parts, nanoseconds, [&](int i) { task(int(int64_t(count) * i / parts), int(int64_t(count) * (i + 1) / parts)); });
  }

 private:
  std::unique_lock<std::mutex> lock_;
  Team* team_ = nullptr;
  int num_threads_ = 1;
  double macs_per_ns_;
};

// States of n rows and the operations of the layers.
class Pass {
 public:
  // `joined_columns` is the width of the widest stored product; the caller can use `more_floats` floats at `more`.
  Pass(Model& model, Crew& crew, Scratch& scratch, int n, int joined_columns, int64_t more_floats)
      : crew(crew), model_(model), kernels_(model.kernels), n_(n), d_(model.d), is_pre_(model.shape.is_pre_norm) {
    stride = rounded_up(d_, kPanel), joined_stride = rounded_up(joined_columns, kPanel);
    activation_ = Activation(model.shape.activation);
    const int64_t inner_stride = rounded_up((activation_ == kSwiglu ? 2 : 1) * model.shape.ffn_size, kPanel);
    uint8_t* bytes = scratch.bytes.fit(size_t(n * (stride + inner_stride)));
    states = scratch.floats.fit(size_t(n * (3 * stride + joined_stride + inner_stride + 1) + more_floats));
    normed_ = states + n * stride, mixed = normed_ + n * stride;
    joined = mixed + n * stride, inner_ = joined + n * joined_stride;
    more = inner_ + n * inner_stride;
    float* scales = more + more_floats;
    rounded = {bytes, stride, scales};
    rounded_inner_ = {bytes + n * stride, inner_stride, scales};
  }

  template <class Task>
  void for_rows(const Task& task) {
    crew.run_parts(n_, double(n_) * d_ * 0.3, [&](int begin, int end) {
      for (int r = begin; r < end; ++r) task(r);
    });
  }

  void embed(int r, Stack stack, int64_t token, const float* position) {
    const int table = model_.table_of(stack);
    float* state = states + r * stride;
    std::fill(state + d_ / 16 * 16, state + stride, 0.0f);
    kernels_.embed(model_.embeddings[table].get() + token * d_,
                   model_.embedding_factors[table][token] * model_.shape.embedding_factor, position, d_, state);
    if (model_.shape.has_embedding_norm) normalize(r, model_.stack_norms[stack][kEmbeddingNorm], state);
  }
  // Pre-norm: x += f(norm(x)); rounds the argument of f.
  void enter(int r, const Norm& norm, const Weights& w) {
    if (is_pre_) normalize(r, norm, normed_ + r * stride);
    round(result(r), r, w, rounded);
  }
  // Post-norm: x = norm(x + f(x)); `add_product` computes the sum.
  void leave(int r, const Norm& norm) {
    if (!is_pre_) normalize(r, norm, states + r * stride);
  }
  // Result of the last `enter`.
  const float* result(int r) const { return (is_pre_ ? normed_ : states) + r * stride; }
  bool is_finite(int r) const { return kernels_.is_finite(result(r), d_); }

  // Rounds the attention outputs of all rows for the output product, which is added to the states. Rounding replaces
  // NaN and infinity by numbers, so the states must propagate them.
  void add_mixed(const Weights& w) {
    for_rows([&](int r) {
      if (!kernels_.is_finite(mixed + r * stride, d_))
        std::fill_n(states + r * stride, d_, std::numeric_limits<float>::quiet_NaN());
      round(mixed + r * stride, r, w, rounded);
    });
    add_product(rounded, w);
  }
  void store_product(const Weights& w) {
    multiply({rounded, n_, &w, 0, 0, Output::kStore, joined, joined_stride, {}, nullptr});
  }
  // max(0, x W1 + b1) W2 + b2, or another activation instead of the maximum, added to the states.
  void add_feed_forward(const Weights& into, const Weights& outer) {
    if (activation_ != kRelu || outer.has_row_scales()) {
      multiply({rounded, n_, &into, 0, 0, Output::kStore, inner_, rounded_inner_.stride, {}, nullptr});
      for_rows([&](int r) {
        float* row = inner_ + r * rounded_inner_.stride;
        if (activation_ != kRelu) kernels_.activate(row, outer.inputs, activation_);
        round(row, r, outer, rounded_inner_, activation_ == kRelu);
      });
    } else {
      multiply({rounded, n_, &into, 0, 0, Output::kRound, nullptr, 0, rounded_inner_, &outer});
    }
    add_product(rounded_inner_, outer);
  }

  // Calls task(sequence, first head, last head, number of the task); see `Crew::num_tasks`.
  template <class Task>
  void for_heads(int count, double positions, const Task& task) {
    const int heads = model_.shape.num_heads, parts = crew.num_tasks(count, heads) / std::max(count, 1);
    crew.run(count * parts, positions * d_ * 0.12, [&](int i) {
      task(i / parts, heads * (i % parts) / parts, heads * (i % parts + 1) / parts, i);
    });
  }

  Crew& crew;
  int64_t stride, joined_stride;
  float *states, *mixed, *joined, *more;  // [n][stride], except `joined`
  Rounded rounded;

 private:
  void normalize(int r, const Norm& norm, float* out) {
    kernels_.norm(states + r * stride, norm.scale.get(), norm.bias.get(), model_.shape.is_rms_norm, model_.shape.epsilon, d_, out);
  }
  void round(const float* row, int r, const Weights& w, const Rounded& out, bool rectifies = false) {
    kernels_.round(row, w.inputs, w, rectifies, out.bytes + r * out.stride, out.scales + r);
  }
  void add_product(const Rounded& a, const Weights& w) {
    multiply({a, n_, &w, 0, 0, Output::kAdd, states, stride, {}, nullptr});
  }
  void multiply(const Product& product) {
    const Weights& w = *product.weights;
    crew.run_parts(w.panels(), crew.product_ns(n_, w), [&](int begin, int end) {
      Product part = product;
      part.first_panel = begin, part.last_panel = end;
      kernels_.multiply(part);
    });
  }

  Model& model_;
  const Kernels& kernels_;
  int n_, d_;
  bool is_pre_;
  Activation activation_;
  float *normed_, *inner_;
  Rounded rounded_inner_;
};

// Offsets of keys and values of a layer in caches with keys [blocks][d][16] and values [positions][d] of each layer.
template <class Float>
Float* keys_of(Float* caches, int layer, int64_t keys_size, int64_t values_size) {
  return caches + layer * (keys_size + values_size);
}

// Writes elements `begin` to `end` of the key at a position.
inline void put_key(float* keys, int64_t position, const float* key, int d, int begin, int end) {
  float* at = keys + position / kBlock * d * kBlock + position % kBlock;
  for (int i = begin; i < end; ++i) at[int64_t(i) * kBlock] = key[i];
}

// Encodes sources, concatenated in `token_ids`; writes keys and values for cross-attention in the layout above.
void encode(Model& model, int num_sources, const int32_t* lengths, const int64_t* token_ids, float* const* cross,
            int num_threads);

}  // namespace dragoman
