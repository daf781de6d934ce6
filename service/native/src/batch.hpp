// A running batch: the KV caches of its segments, and the decoder step over all of them.
#pragma once
#include <memory>
#include <vector>

#include "model.hpp"

namespace dragoman {

// What one segment keeps between steps. Its caches belong to it alone: joining, leaving and growing move nobody else's.
struct Segment {
  int source_length = 0;
  int position = 0;       // steps taken
  int num_rows = 0;       // K of the last step
  int num_slots = 0;      // room of the self-attention caches, a multiple of 64
  Memory<float> cross;    // for every layer keys [blocks][d][16], then values [source_length][d]
  Memory<float> pool;     // for every layer keys [num_slots / 16][d][16], then values [num_slots][d]
  std::vector<uint64_t> visible;  // [K][num_slots / 64] bits: slots whose tokens are those of the row's hypothesis
  PackedWeights shortlist;        // columns of the projection; not set: all
  std::vector<int32_t> shortlist_ids;
};

class Batch {
 public:
  explicit Batch(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  int num_segments() const { return int(segments_.size()); }
  int64_t num_bytes() const { return num_bytes_; }

  // Appends a segment; `cross` [layers][2][H][S][D] has keys and values. `shortlist` holds ascending token
  // ids, at least as many as any step asks candidates for; none: the whole vocabulary.
  void add(int source_length, const float* cross, const int32_t* shortlist, int shortlist_size);
  // Keeps the segments at these indices, in this order.
  void keep(const int64_t* indices, int count);
  // Writes `cross` of a segment as `add` took it.
  void copy_cross(int segment, float* cross) const;

  // Appends a token to every live row; see `StepBatch.step`. Rows with live[b, k] == 0 are left out: their outputs are
  // -inf and token 0. Returns whether all other rows have finite scores; those that have not are NaN.
  void step(int num_rows, const int64_t* token_ids, const int64_t* parents, const uint8_t* live, int num_candidates,
            int num_threads, float* log_probs, int64_t* candidate_ids);

 private:
  struct Row {
    int segment;
    int64_t index;  // in [B, K]
    int slot;
  };
  struct Span {  // the live rows of a segment
    int first, count;
    int num_positions;   // slots up to the last one that a row sees
    size_t bias, seen;   // offsets
  };

  void check(int num_rows, const int64_t* token_ids, const int64_t* parents, int num_candidates) const;
  void assign_slots(int num_rows, const int64_t* parents, const uint8_t* live);
  void grow(Segment& segment, int needed);
  void describe_slots();
  int64_t bytes_of(const Segment& segment) const;

  std::shared_ptr<Model> model_;
  std::vector<std::unique_ptr<Segment>> segments_;
  int64_t num_bytes_ = 0;

  // Of the step in hand.
  std::vector<Row> rows_;
  std::vector<Span> spans_;
  std::vector<uint64_t> inherited_, used_;
  std::vector<float> bias_;
  std::vector<uint8_t> seen_;
  Memory<float> floats_;
  size_t floats_room_ = 0;
  Memory<uint8_t> bytes_;
  size_t bytes_room_ = 0;
  std::vector<Best> best_;
  std::vector<float> best_values_;
  std::vector<int32_t> best_columns_;
};

}  // namespace dragoman
