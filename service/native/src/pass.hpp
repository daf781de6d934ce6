// Forward pass of rows through the layers of a stack, and the threads that share the work.
#pragma once
#include <algorithm>
#include <limits>

#include "model.hpp"

namespace dragoman {

constexpr double kMinParallelNs = 3000;  // shorter phases are not worth distributing
constexpr double kBytesPerNs = 40;       // typical for weights in the last cache

// Threads of a pass.
class ThreadGroup {
 public:
  ThreadGroup(Model& model, int num_threads)
      : lock_(model.team_mutex, std::defer_lock), macs_per_ns_(model.macs_per_ns) {
    if (num_threads <= 1 || !lock_.try_lock()) return;  // another batch uses the team: one thread gives the same result
    if (model.team_threads < num_threads) {
      model.team.reset();
      model.team_threads = 1;
      model.team = std::make_unique<Team>(num_threads - 1);
      model.team_threads = num_threads;
    }
    team_ = model.team.get();
    num_threads_ = num_threads;
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
    run(parts, nanoseconds,
        [&](int i) { task(int(int64_t(count) * i / parts), int(int64_t(count) * (i + 1) / parts)); });
  }

 private:
  std::unique_lock<std::mutex> lock_;
  Team* team_ = nullptr;
  int num_threads_ = 1;
  double macs_per_ns_;
};

// Some heads of the attention of a sequence.
struct HeadTask {
  int index, sequence, first_head, last_head;
};

// Keys and values of a sequence in a layer; see `Attention`.
struct KeysValues {
  const float *keys, *values;
  int64_t value_stride;
  int num_positions;
  const float* bias = nullptr;
  const uint8_t* is_seen = nullptr;
};

// States of n rows and the operations of the layers.
class Pass {
 public:
  // `joined_columns` is the width of the widest stored product; the caller can use `more_floats` floats at `more`.
  Pass(Model& model, ThreadGroup& threads, Scratch& scratch, int n, int joined_columns, int64_t more_floats)
      : threads(threads), model_(model), kernels_(model.kernels), n_(n), d_(model.d), is_pre_(model.shape.is_pre_norm) {
    stride = rounded_up(d_, kPanel);
    joined_stride = rounded_up(joined_columns, kPanel);
    activation_ = Activation(model.shape.activation);
    const int64_t inner_stride = rounded_up((activation_ == kSwiglu ? 2 : 1) * model.shape.ffn_size, kPanel);
    uint8_t* bytes = scratch.bytes.fit(size_t(n * (stride + inner_stride)));
    states = scratch.floats.fit(size_t(n * (3 * stride + joined_stride + inner_stride + 1) + more_floats));
    normed_ = states + n * stride;
    mixed_ = normed_ + n * stride;
    joined = mixed_ + n * stride;
    inner_ = joined + n * joined_stride;
    more = inner_ + n * inner_stride;
    float* scales = more + more_floats;
    rounded = {bytes, stride, scales};
    rounded_inner_ = {bytes + n * stride, inner_stride, scales};
  }

  template <class Task>
  void for_rows(const Task& task) {
    threads.run_parts(n_, double(n_) * d_ * 0.3, [&](int begin, int end) {
      for (int r = begin; r < end; ++r) task(r);
    });
  }

  void embed(int r, Stack stack, int64_t token, const float* position) {
    const int table = model_.table_of(stack);
    float* state = states + r * stride;
    std::fill(state + d_ / kLanes * kLanes, state + stride, 0.0f);
    kernels_.embed(model_.embeddings[table].get() + token * d_,
                   model_.embedding_factors[table][token] * model_.shape.embedding_factor, position, d_, state);
    if (model_.shape.has_embedding_norm) normalize(r, model_.stack_norms[stack][kEmbeddingNorm], state);
  }

  // Runs the layers of a stack, from rows that `pre_norm_and_quantize` rounded for the first product to rows rounded
  // for `last`. `attend_self(layer)` and `attend_cross(layer)` call `attend` for all sequences; null: no
  // cross-attention. In a recurrent decoder, `attend_self` adds the recurrence to the states.
  template <class AttendSelf, class AttendCross>
  void run_layers(Stack stack, const Weights& last, const AttendSelf& attend_self, const AttendCross& attend_cross) {
    const std::vector<Layer>& layers = stack == kEncoder ? model_.encoder_layers : model_.layers;
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const auto weights = [&](ProductKind kind) -> const Weights& { return layer.products[kind].view(); };
      const Norm *self_norm = &layer.norms[kSelfNorm], *cross_norm = &layer.norms[kCrossNorm];
      const Norm& feed_forward_norm = layer.norms[kFeedForwardNorm];
      store_product(weights(kSelfIn));
      attend_self(int(i));
      if (!model_.is_recurrent(stack)) add_mixed(weights(kSelfOut));
      if constexpr (std::is_null_pointer_v<AttendCross>) {
        change_norm(*self_norm, feed_forward_norm, weights(kInner));
      } else {
        change_norm(*self_norm, *cross_norm, weights(kCrossQuery));
        store_product(weights(kCrossQuery));
        attend_cross(int(i));
        add_mixed(weights(kCrossOut));
        change_norm(*cross_norm, feed_forward_norm, weights(kInner));
      }
      add_feed_forward(weights(kInner), weights(kOuter));
      if (i + 1 == layers.size()) change_norm(feed_forward_norm, model_.stack_norms[stack][kFinalNorm], last);
      else change_norm(feed_forward_norm, layers[i + 1].norms[kSelfNorm], layers[i + 1].products[kSelfIn].view());
    }
  }

  // Pre-norm: x += f(norm(x)); rounds the argument of f.
  void pre_norm_and_quantize(int r, const Norm& norm, const Weights& w) {
    if (is_pre_) normalize(r, norm, normed_ + r * stride);
    round(result(r), r, w, rounded);
  }
  // Result of the last `pre_norm_and_quantize`.
  const float* result(int r) const { return (is_pre_ ? normed_ : states) + r * stride; }
  bool is_finite(int r) const { return kernels_.is_finite(result(r), d_); }

  void store_product(const Weights& w) {
    multiply(w, {.a = rounded, .output = Output::kStore, .out = joined, .out_stride = joined_stride});
  }

  // Calls attend_heads(task) for `count` sequences; see `ThreadGroup::num_tasks`. `positions` is the number of visible
  // positions of all rows.
  template <class AttendHeads>
  void for_heads(int count, double positions, const AttendHeads& attend_heads) {
    const int heads = model_.shape.num_heads, parts = threads.num_tasks(count, heads) / std::max(count, 1);
    threads.run(count * parts, positions * d_ * 0.12, [&](int i) {
      attend_heads(HeadTask{i, i / parts, heads * (i % parts) / parts, heads * (i % parts + 1) / parts});
    });
  }

  // Computes the attention outputs of rows from their queries, the first columns of `joined`.
  void attend(const HeadTask& task, int first_row, int num_rows, const KeysValues& source, float* scratch) {
    kernels_.attend({
        .rows = num_rows,
        .heads = model_.shape.num_heads,
        .head_size = model_.head_size,
        .first_head = task.first_head,
        .last_head = task.last_head,
        .query = joined + first_row * joined_stride,
        .query_stride = joined_stride,
        .keys = source.keys,
        .values = source.values,
        .value_stride = source.value_stride,
        .num_positions = source.num_positions,
        .bias = source.bias,
        .is_seen = source.is_seen,
        .scratch = scratch,
        .out = mixed_ + first_row * stride,
        .out_stride = stride,
    });
  }

  ThreadGroup& threads;
  int64_t stride, joined_stride;
  float *states, *joined, *more;  // `states`: [n][stride]; `joined`: [n][joined_stride] the last stored product
  Rounded rounded;

 private:
  // Post-norm: x = norm(x + f(x)); `add_product` computes the sum.
  void post_norm(int r, const Norm& norm) {
    if (!is_pre_) normalize(r, norm, states + r * stride);
  }
  // From one sublayer to the product of the next one.
  void change_norm(const Norm& ended, const Norm& next, const Weights& w) {
    for_rows([&](int r) {
      post_norm(r, ended);
      pre_norm_and_quantize(r, next, w);
    });
  }
  // Rounds the attention outputs of all rows for the output product, which is added to the states. Rounding replaces
  // NaN and infinity by numbers, so the states must propagate them.
  void add_mixed(const Weights& w) {
    for_rows([&](int r) {
      if (!kernels_.is_finite(mixed_ + r * stride, d_))
        std::fill_n(states + r * stride, d_, std::numeric_limits<float>::quiet_NaN());
      round(mixed_ + r * stride, r, w, rounded);
    });
    add_product(rounded, w);
  }
  // max(0, x W1 + b1) W2 + b2, or another activation instead of the maximum, added to the states.
  void add_feed_forward(const Weights& into, const Weights& outer) {
    if (activation_ != kRelu || outer.has_row_scales()) {
      multiply(into, {.a = rounded, .output = Output::kStore, .out = inner_, .out_stride = rounded_inner_.stride});
      for_rows([&](int r) {
        float* row = inner_ + r * rounded_inner_.stride;
        if (activation_ != kRelu) kernels_.activate(row, outer.inputs, activation_);
        round(row, r, outer, rounded_inner_, activation_ == kRelu);
      });
    } else {
      multiply(into, {.a = rounded, .output = Output::kRound, .next = rounded_inner_, .next_weights = &outer});
    }
    add_product(rounded_inner_, outer);
  }

  void normalize(int r, const Norm& norm, float* out) {
    kernels_.norm(states + r * stride, norm.scale.get(), norm.bias.get(), model_.shape.is_rms_norm,
                  model_.shape.epsilon, d_, out);
  }
  void round(const float* row, int r, const Weights& w, const Rounded& out, bool rectifies = false) {
    kernels_.round(row, w.inputs, w, rectifies, out.bytes + r * out.stride, out.scales + r);
  }
  void add_product(const Rounded& a, const Weights& w) {
    multiply(w, {.a = a, .output = Output::kAdd, .out = states, .out_stride = stride});
  }
  // Multiplies all rows by all panels; sets these fields of `product`.
  void multiply(const Weights& w, Product product) {
    product.rows = n_;
    product.weights = &w;
    threads.run_parts(w.panels(), threads.product_ns(n_, w), [&](int begin, int end) {
      Product part = product;
      part.first_panel = begin;
      part.last_panel = end;
      kernels_.multiply(part);
    });
  }

  Model& model_;
  const Kernels& kernels_;
  int n_, d_;
  bool is_pre_;
  Activation activation_;
  float *normed_, *mixed_, *inner_;  // [n][stride] normed states and attention outputs; feed-forward blocks
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
