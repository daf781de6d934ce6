// Running batch: KV caches of the segments, and the decoder step over all of them.
#pragma once
#include <memory>
#include <vector>

#include "pass.hpp"

namespace dragoman {

// Words of a bit set of slots.
inline size_t num_words_of(int num_slots) { return size_t(num_slots + 63) / 64; }

// State of one segment between steps. Each segment has its own caches, so that changes do not move other segments.
struct Segment {
  int source_length = 0;
  int position = 0;               // number of previous steps
  int num_rows = 0;               // K of the previous step
  int num_slots = 0;              // capacity of `pool`, a multiple of 32
  bool is_finite = true;          // whether the encoder output is finite; otherwise all scores of the segment are NaN
  const float* cross;             // for each layer: keys [blocks][d][16], then values [source_length][d]
  Memory<float> own_cross;        // `cross`, unless it is the output of `encode`
  Memory<float> pool;             // for each layer: keys [num_slots / 16][d][16], then values [num_slots][d]; if the
                                  // decoder is recurrent, cells [2][layers][num_slots][d rounded up to 16] of the rows
                                  // before and after even steps
  std::vector<uint64_t> visible;  // [K][num_slots / 64, rounded up] bits: slots with tokens of the row's hypothesis
  std::vector<int32_t> newest;    // [K][kLoopTokens] newest tokens of the row's hypothesis, the last one at the end
  PackedWeights shortlist;        // columns of the projection; all columns if not set
  std::vector<int32_t> shortlist_ids;

  size_t num_words() const { return num_words_of(num_slots); }
};

constexpr int kMaxRows = 1024;   // per segment
constexpr int kLoopTokens = 32;  // newest tokens of each row that are kept to find loops

// Arguments and results of a run: up to N steps of beam search. B segments have K rows before the run and W rows after
// each step. Without a comment, arrays are [B], [B][K] or, for the steps of the run, [N][B][W].
struct SearchRun {
  const double* log_probs;    // [B][K] of the hypotheses, best first; -inf: unused row
  const int64_t* token_ids;   // [B][K]
  const int64_t* parents;     // [B][K]
  const int64_t* beam_sizes;  // at most W
  const int64_t* lengths;
  const int64_t* min_tokens;      // minimum target length, excluding EOS
  const int64_t* max_tokens;      // maximum target length, including EOS
  const double* bound_penalties;  // most favourable length penalty of a live hypothesis
  const double* penalties;        // [B][P] length penalty of each length
  const double* scores_to_beat;
  const double* best_scores;      // [B][H] scores of the finished hypotheses that are kept, best first; -inf: none
  const int64_t* num_hypotheses;  // finished hypotheses that are kept, at most H
  const int64_t* num_finished;    // all finished hypotheses
  const uint8_t* early_stopping;
  const uint8_t* has_coverage;  // whether the caller scores finished hypotheses, which ends the run
  const uint8_t* is_guarded;    // whether a loop ends the run
  const int64_t* forbidden;     // token ids
  const int64_t* placeholders;  // [P] token ids, ascending
  const uint8_t* is_masked;     // [B][P] whether a placeholder is not allowed in a segment
  const int64_t* min_repeats;   // [L] number of repeats that make a loop of 1, 2, ... L tokens
  const int32_t* interrupt;     // null, or a number that other threads set to end the run
  double* next_log_probs;
  int64_t* next_token_ids;
  int64_t* next_parents;
  float* next_steps;              // log-probabilities of the tokens
  int64_t* finished;              // [N * B * W][3] step, segment and row of each finished hypothesis, in order
  double* finished_log_probs;     // [N * B * W] including EOS
  float* finished_eos_log_probs;  // [N * B * W]
  double* step_seconds;           // null, or [N] durations
  double max_seconds;             // the run ends with the first step after this time
  int64_t eos_id;
  int64_t num_bytes;  // output: `Batch::num_bytes`
  int32_t num_rows, width, num_candidates, num_threads, num_forbidden, num_placeholders;
  int32_t max_hypotheses, num_penalties, num_repeat_sizes;  // H, P, L
  int32_t loop_interval;                                    // lengths at which loops are looked for are multiples of it
  int32_t max_steps;                                        // N
  int32_t num_steps;                                        // output: steps taken, at least 1
  int32_t num_ended;                                        // output: finished hypotheses
  int32_t may_end;  // output: whether the search of a segment is over after the last step
};

// Appends a token to each of K rows of B segments; arrays are [B][K] or [B][K][num_candidates]. See `StepBatch.step`.
struct Step {
  int num_rows;
  const int64_t* token_ids;
  const int64_t* parents;
  const int32_t* wanted;  // null, or the number of candidates of each row, which are padded with -inf and token 0
  int num_candidates, num_threads;
  float* log_probs;                   // output
  int64_t* candidate_ids;             // output
  const SearchRun* search = nullptr;  // its masked candidates are excluded, but count in the softmax
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

  // Takes a step. Rows with 0 candidates are skipped. Scores of rows with non-finite states are NaN. An invalid
  // argument does not change the batch; after any other error, all further steps fail.
  void step(const Step& step);

  // Runs steps and ranks the continuations of each segment: EOS among the best K finishes a hypothesis, and the best K
  // others stay live. Rows that can no longer win are not computed, as their continuations cannot win. Masked
  // placeholders are excluded. The run ends after a step in which a search is over, a loop was found or the caller must
  // score a hypothesis, after `max_seconds`, and when it is interrupted.
  void search(SearchRun& run);

 private:
  struct Row {
    int segment, k;
    int64_t index;  // in [B][K]
    int slot;       // of the token; if the decoder is recurrent, the parent
  };
  struct Span {  // the live rows of a segment
    int first, count;
    int num_positions;  // number of slots up to the last visible one
    size_t bias, seen;  // offsets
  };

  void check(const Step& step) const;
  void assign_slots(const Step& step);
  void assign_cells(const Step& step);
  float* cell_of(const Segment& segment, bool is_next, int layer, int row) const;
  int inherit_slots(const Step& step, const Segment& segment, const Span& span);
  int64_t attention_scratch() const;
  void run_layers(Pass& pass, const int64_t* token_ids, float* scratch, int64_t scratch_size);
  void reset_best(const Step& step, int num_lists);
  void project(Pass& pass, int num_lists, float* sums);
  void write_candidates(const Step& step, Pass& pass, int num_lists, const float* sums);
  void record_tokens(const Step& step);
  void choose_rows(const SearchRun& run, const double* log_probs, int num_rows);
  bool rank(SearchRun& run, const double* log_probs, int num_rows, int segment);
  void finish(SearchRun& run, int segment, int row, double log_prob, float eos_log_prob);
  bool may_loop(const SearchRun& run, int segment) const;
  void grow(Segment& segment, int needed);
  void describe_slots();
  int64_t bytes_of(const Segment& segment) const;
  // Floats of a slot in one of the two parts of a layer's pool.
  int64_t slot_size() const { return model_->shape.is_recurrent ? rounded_up(model_->d, kLanes) : model_->d; }

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
  std::vector<int32_t> newest_;
  // Progress of a run:
  std::vector<double> scores_to_beat_, best_scores_;
  std::vector<int64_t> num_finished_;
  // Temporary values of a step:
  Buffer<float> bias_;
  Buffer<uint8_t> seen_;
  Buffer<float> log_probs_;  // of `search`
  Buffer<int64_t> candidate_ids_;
  Buffer<Best> best_;
  Buffer<Candidate> found_;  // memory of `best_`
};

}  // namespace dragoman
