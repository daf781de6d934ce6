// Running batch: KV caches of the segments, and the decoder step over all of them.
#pragma once
#include <memory>
#include <vector>

#include "pass.hpp"

namespace dragoman {

// State of one segment between steps. Each segment has its own caches, so that changes do not move other segments.
struct Segment {
  int source_length = 0;
  int position = 0;       // number of previous steps
  int num_rows = 0;       // K of the previous step
  int num_slots = 0;      // capacity of the self-attention caches, a multiple of 32
  bool is_finite = true;  // whether the encoder output is finite; otherwise all scores of the segment are NaN
  const float* cross;     // for each layer: keys [blocks][d][16], then values [source_length][d]
  Memory<float> own_cross;  // `cross`, unless it is the output of `encode`
  Memory<float> pool;     // for each layer: keys [num_slots / 16][d][16], then values [num_slots][d]
  std::vector<uint64_t> visible;  // [K][num_slots / 64, rounded up] bits: slots with tokens of the row's hypothesis
  PackedWeights shortlist;        // columns of the projection; all columns if not set
  std::vector<int32_t> shortlist_ids;
};

// Arguments and results of one step of beam search. B segments with K rows before and W rows after the step; arrays are
// [B], [B][K] or [B][W].
struct SearchStep {
  const double* log_probs;       // [B][K] of the hypotheses, best first; -inf: unused row
  const int64_t* token_ids;      // [B][K]
  const int64_t* parents;        // [B][K]
  const int64_t* beam_sizes;     // [B] at most W
  const int64_t* lengths;        // [B]
  const int64_t* min_tokens;     // [B] minimum target length, excluding EOS
  const double* bound_penalties; // [B] most favourable length penalty of a live hypothesis
  const double* scores_to_beat;  // [B]
  const uint8_t* early_stopping; // [B]
  const int64_t* forbidden;      // token ids
  const int64_t* placeholders;   // [P] token ids, ascending
  const uint8_t* is_masked;      // [B][P] whether a placeholder is not allowed in a segment
  double* next_log_probs;        // [B][W]
  int64_t* next_token_ids;       // [B][W]
  int64_t* next_parents;         // [B][W]
  float* next_steps;             // [B][W] log-probabilities of the tokens
  int64_t* finished;             // [B * W][2] segment and row of each finished hypothesis, best first within a segment
  double* finished_log_probs;    // [B * W] including EOS
  float* finished_eos_log_probs; // [B * W]
  int64_t eos_id;
  int64_t num_bytes;             // output: `Batch::num_bytes`
  int32_t num_rows, width, num_candidates, num_threads, num_forbidden, num_placeholders;
  int32_t num_finished;          // output
  int32_t may_end;               // output: whether the live hypotheses of a segment cannot beat its finished ones
};

class Batch {
 public:
  explicit Batch(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  int num_segments() const { return int(segments_.size()); }
  int64_t num_bytes() const;  // caches, encoder outputs and scratch memory

  // Appends a segment. `cross`, of `cross_size` floats, is the output of `encode`, or keys and values
  // [layers][2][H][S][D] of the encoder graph. The output of `encode` is not copied: it must remain unchanged, followed
  // by 64 readable bytes, until the segment is removed.
  // `shortlist` contains ascending token ids, at least the number of candidates of each step; without it, all tokens
  // are candidates.
  void add(int source_length, const float* cross, int64_t cross_size, bool is_from_graph, const int32_t* shortlist,
           int shortlist_size);
  // Keeps only the segments at these indices, in this order.
  void keep(const int64_t* indices, int count);
  // Writes the `cross` of a segment in the layout of `add`.
  void copy_cross(int segment, float* cross) const;

  // Appends a token to each row; see `StepBatch.step`. `wanted` is null or the number of candidates of each row [B, K],
  // which are padded with -inf and token 0; rows with 0 candidates are skipped. Scores of rows with non-finite states
  // are NaN. An invalid argument does not change the batch; after any other error, all further steps fail.
  // Candidates that `search` masks are excluded, but count in the softmax.
  void step(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted, int num_candidates,
            int num_threads, float* log_probs, int64_t* candidate_ids, const SearchStep* search = nullptr);

  // Runs a step and ranks the continuations of each segment: EOS among the best K finishes a hypothesis, and the best K
  // others stay live. Rows that can no longer win are not computed, as their continuations cannot win. Masked
  // placeholders are excluded.
  void search(SearchStep& step);

 private:
  struct Row {
    int segment;
    int64_t index;  // in [B, K]
    int slot;
  };
  struct Span {  // the live rows of a segment
    int first, count;
    int num_positions;   // number of slots up to the last visible one
    size_t bias, seen;   // offsets
  };

  void check(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted,
             int num_candidates) const;
  void assign_slots(int num_rows, const int64_t* parents, const int32_t* wanted);
  void rank(SearchStep& step, int segment) const;
  void grow(Segment& segment, int needed);
  void describe_slots();
  int64_t bytes_of(const Segment& segment) const;

  std::shared_ptr<Model> model_;
  std::vector<std::unique_ptr<Segment>> segments_;
  int64_t segments_bytes_ = 0;
  bool is_half_stepped_ = false;  // a step failed after it had changed segments

  // Temporary values of the current step.
  std::vector<Row> rows_;
  std::vector<Span> spans_;
  std::vector<uint64_t> inherited_, used_;
  std::vector<int32_t> wanted_;  // of `search`
  std::vector<Mask> masks_;      // of each segment; empty without masked tokens
  Scratch scratch_;
  Buffer<float> bias_;
  Buffer<uint8_t> seen_;
  Buffer<float> log_probs_;  // of `search`
  Buffer<int64_t> candidate_ids_;
  Buffer<Best> best_;
  Buffer<Candidate> found_;  // memory of `best_`
};

}  // namespace dragoman
