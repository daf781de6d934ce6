// A running batch: the KV caches of its segments, and the decoder step over all of them.
#pragma once
#include <memory>
#include <vector>

#include "pass.hpp"

namespace dragoman {

// What one segment keeps between steps. Its caches belong to it alone: joining, leaving and growing move nobody else's.
struct Segment {
  int source_length = 0;
  int position = 0;       // steps taken
  int num_rows = 0;       // K of the last step
  int num_slots = 0;      // room of the self-attention caches, a multiple of 32
  bool is_finite = true;  // what the encoder made of the source; if not, no score of the segment is a number
  Memory<float> cross;    // for every layer keys [blocks][d][16], then values [source_length][d]
  Memory<float> pool;     // for every layer keys [num_slots / 16][d][16], then values [num_slots][d]
  std::vector<uint64_t> visible;  // [K][num_slots / 64, rounded up] bits: slots whose tokens are those of the row's hypothesis
  PackedWeights shortlist;        // columns of the projection; not set: all
  std::vector<int32_t> shortlist_ids;
};

// One step of plain beam search: what the search knows before it, and where the outcome goes. B segments, K rows before
// and W after the step; arrays are [B], [B][K] or [B][W].
struct SearchStep {
  const double* log_probs;       // [B][K] of the hypotheses, best first; -inf: no hypothesis
  const int64_t* token_ids;      // [B][K]
  const int64_t* parents;        // [B][K]
  const int64_t* beam_sizes;     // [B] at most W
  const int64_t* lengths;        // [B]
  const int64_t* min_tokens;     // [B] the shortest target, EOS not counted
  const double* bound_penalties; // [B] the length penalty that is best for a hypothesis that goes on
  const double* scores_to_beat;  // [B]
  const uint8_t* early_stopping; // [B]
  const int64_t* forbidden;      // token ids
  const int64_t* placeholders;   // [P] token ids, ascending
  const uint8_t* is_masked;      // [B][P] whether a segment must not take a placeholder
  double* next_log_probs;        // [B][W]
  int64_t* next_token_ids;       // [B][W]
  int64_t* next_parents;         // [B][W]
  float* next_steps;             // [B][W] log-probabilities of the tokens alone
  int64_t* finished;             // [B * W][2] segment and row of each hypothesis that took EOS, best first in a segment
  double* finished_log_probs;    // [B * W] EOS included
  float* finished_eos_log_probs; // [B * W]
  int64_t eos_id;
  int64_t num_bytes;             // set: what the caches of the batch take
  int32_t num_rows, width, num_candidates, num_threads, num_forbidden, num_placeholders;
  int32_t num_finished;          // set
  int32_t may_end;               // set: whether the best hypothesis of a segment can no longer beat those that finished
};

class Batch {
 public:
  explicit Batch(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  int num_segments() const { return int(segments_.size()); }
  int64_t num_bytes() const { return num_bytes_; }

  // Appends a segment; `cross` is what `encode` wrote, or keys and values [layers][2][H][S][D] of the encoder graph.
  // `shortlist` holds ascending token
  // ids, at least as many as any step asks candidates for; none: the whole vocabulary.
  void add(int source_length, const float* cross, bool is_from_graph, const int32_t* shortlist, int shortlist_size);
  // Keeps the segments at these indices, in this order.
  void keep(const int64_t* indices, int count);
  // Writes `cross` of a segment as `add` took it.
  void copy_cross(int segment, float* cross) const;

  // Appends a token to every row; see `StepBatch.step`. `wanted`, if any, has how many of the candidates each row [B, K]
  // needs; -inf and token 0 follow these, and rows of which none is wanted are left out. Scores of rows whose states are
  // not finite are NaN. After an error in what is passed the batch is as before; after another error it can be stepped
  // no more.
  // Candidates that `search` masks are left out; they keep their part in the softmax.
  void step(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted, int num_candidates,
            int num_threads, float* log_probs, int64_t* candidate_ids, const SearchStep* search = nullptr);

  // Takes a step and ranks: of the continuations of each segment those among the best K that are EOS finish, the best K
  // others go on. Rows that can no longer win are not computed; none of their continuations could either. Masked
  // placeholders are no continuations.
  void search(SearchStep& step);

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

  void check(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted,
             int num_candidates) const;
  void assign_slots(int num_rows, const int64_t* parents, const int32_t* wanted);
  void rank(SearchStep& step, int segment) const;
  void grow(Segment& segment, int needed);
  void describe_slots();
  int64_t bytes_of(const Segment& segment) const;

  std::shared_ptr<Model> model_;
  std::vector<std::unique_ptr<Segment>> segments_;
  int64_t num_bytes_ = 0;
  bool is_half_stepped_ = false;  // a step failed after it had changed segments

  // Of the step in hand.
  std::vector<Row> rows_;
  std::vector<Span> spans_;
  std::vector<uint64_t> inherited_, used_;
  std::vector<float> bias_;
  std::vector<uint8_t> seen_;
  Scratch scratch_;
  std::vector<int32_t> wanted_;        // of a search
  std::vector<float> log_probs_;
  std::vector<int64_t> candidate_ids_;
  std::vector<Best> best_;
  std::vector<Mask> masks_;       // of the segments; empty: nothing is masked
  std::vector<Candidate> found_;  // of all of these
};

}  // namespace dragoman
