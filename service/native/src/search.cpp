// Beam search over the steps of a batch.
#include <algorithm>
#include <chrono>
#include <limits>

#include "batch.hpp"

namespace dragoman {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

}  // namespace

// Appends the tokens of a step to the newest tokens of the rows.
void Batch::record_tokens(const Step& step) {
  const int64_t *token_ids = step.token_ids, *parents = step.parents;
  for (const auto& segment : segments_) {
    newest_.assign(size_t(step.num_rows) * kLoopTokens, -1);
    for (int k = 0; segment->position > 0 && k < step.num_rows; ++k) {  // the first step takes BOS
      const int32_t* parent = segment->newest.data() + parents[k] * kLoopTokens;
      int32_t* row = std::copy(parent + 1, parent + kLoopTokens, newest_.data() + k * kLoopTokens);
      *row = int32_t(token_ids[k]);
    }
    segment->newest.swap(newest_);
    token_ids += step.num_rows;
    parents += step.num_rows;
  }
}

void Batch::search(SearchRun& run) {
  using Clock = std::chrono::steady_clock;
  require(run.num_rows >= 1 && run.num_rows <= kMaxRows, "the number of rows is not between 1 and 1,024");
  require(run.width >= 1 && run.width <= kMaxRows, "the widest beam is not between 1 and 1,024");
  require(run.max_steps >= 1 && run.max_steps <= 1024, "the number of steps is not between 1 and 1,024");
  require(run.loop_interval >= 1, "the interval of the search for loops is not positive");
  for (int i = 0; i < run.num_repeat_sizes; ++i)
    require(run.min_repeats[i] >= 2 && run.min_repeats[i] * (i + 1) <= kLoopTokens, "a loop has more than 32 tokens");
  const size_t num_segments = segments_.size(), stride = num_segments * run.width;
  for (size_t b = 0; b < num_segments; ++b) {
    require(run.beam_sizes[b] >= 1 && run.beam_sizes[b] <= run.width, "a beam size is not between 1 and the width");
    require(run.num_hypotheses[b] >= 1 && run.num_hypotheses[b] <= run.max_hypotheses,
            "a number of hypotheses is not between 1 and the largest one");
    require(run.lengths[b] < run.max_tokens[b], "a target has its maximum length");
    require(run.max_tokens[b] < run.num_penalties, "the length penalty of a maximum length is missing");
  }
  scores_to_beat_.assign(run.scores_to_beat, run.scores_to_beat + num_segments);
  best_scores_.assign(run.best_scores, run.best_scores + num_segments * run.max_hypotheses);
  num_finished_.assign(run.num_finished, run.num_finished + num_segments);
  run.num_steps = run.num_ended = run.may_end = 0;
  const double* log_probs = run.log_probs;
  const int64_t *token_ids = run.token_ids, *parents = run.parents;
  int num_rows = run.num_rows;
  auto began = Clock::now();
  double seconds = 0;
  for (bool must_stop = false; !must_stop;) {
    choose_rows(run, log_probs, num_rows);
    const size_t size = wanted_.size() * size_t(std::max(run.num_candidates, 0));
    step({
        .num_rows = num_rows,
        .token_ids = token_ids,
        .parents = parents,
        .wanted = wanted_.data(),
        .num_candidates = run.num_candidates,
        .num_threads = run.num_threads,
        .log_probs = log_probs_.fit(size),
        .candidate_ids = candidate_ids_.fit(size),
        .search = &run,
    });
    for (int b = 0; b < int(num_segments); ++b) must_stop |= rank(run, log_probs, num_rows, b);
    const size_t at = run.num_steps * stride;
    log_probs = run.next_log_probs + at;
    token_ids = run.next_token_ids + at;
    parents = run.next_parents + at;
    num_rows = run.width;
    const auto ended = Clock::now();
    const double step_seconds = std::chrono::duration<double>(ended - began).count();
    if (run.step_seconds) run.step_seconds[run.num_steps] = step_seconds;
    ++run.num_steps;
    seconds += step_seconds;
    began = ended;
    must_stop |= run.num_steps == run.max_steps || seconds >= run.max_seconds ||
                 (run.interrupt && __atomic_load_n(run.interrupt, __ATOMIC_RELAXED));
  }
  run.num_bytes = num_bytes();
}

// Sets the number of candidates of each row: none for rows that can no longer win.
void Batch::choose_rows(const SearchRun& run, const double* log_probs, int num_rows) {
  const size_t num_segments = segments_.size();
  wanted_.resize(num_segments * num_rows);
  for (size_t b = 0, at = 0; b < num_segments; ++b)
    for (int k = 0; k < num_rows; ++k, ++at) {
      const bool can_win = run.early_stopping[b] || !(log_probs[at] / run.bound_penalties[b] <= scores_to_beat_[b]);
      wanted_[at] = log_probs[at] > kNone && (k == 0 || can_win) ? run.num_candidates : 0;
    }
}

// Ranks the continuations of a segment; returns whether the run ends.
bool Batch::rank(SearchRun& run, const double* log_probs, int num_rows, int b) {
  const int num_candidates = run.num_candidates, beam_size = int(run.beam_sizes[b]);
  const int64_t length = run.lengths[b] + run.num_steps;
  const bool forbids_eos = length < run.min_tokens[b];
  const int64_t first_row = int64_t(b) * num_rows;
  const int32_t* wanted = wanted_.data() + first_row;
  const float* steps = log_probs_.get() + first_row * num_candidates;            // [K][C]
  const int64_t* token_ids = candidate_ids_.get() + first_row * num_candidates;  // [K][C]
  log_probs += first_row;
  const auto is_forbidden = [&](int64_t token) {
    return std::find(run.forbidden, run.forbidden + run.num_forbidden, token) != run.forbidden + run.num_forbidden ||
           (forbids_eos && token == run.eos_id);
  };
  // The next allowed candidate of each row; candidates of a row are sorted in descending order.
  struct Head {
    double total;
    int index;
  };
  Head heads[kMaxRows];
  const auto advance = [&](int k, int index) {
    for (; index < num_candidates; ++index) {
      const int64_t candidate = int64_t(k) * num_candidates + index;
      const double total = log_probs[k] + double(steps[candidate]);
      if (total > kNone && !is_forbidden(token_ids[candidate])) {
        heads[k] = {total, index};
        return;
      }
    }
    heads[k] = {kNone, num_candidates};
  };
  int num_heads = 0;  // rows after the last live one do not have a head
  for (int k = 0; k < num_rows; ++k) {
    heads[k] = {kNone, num_candidates};
    if (!wanted[k]) continue;
    advance(k, 0);
    num_heads = k + 1;
  }
  const int64_t at = (int64_t(run.num_steps) * num_segments() + b) * run.width;
  double* next_log_probs = run.next_log_probs + at;
  int64_t *next_token_ids = run.next_token_ids + at, *next_parents = run.next_parents + at;
  float* next_steps = run.next_steps + at;
  const int num_ended = run.num_ended;
  int count = 0;
  for (int ranked = 0; count < beam_size || ranked < beam_size; ++ranked) {
    int best = 0;
    for (int k = 1; k < num_heads; ++k)
      if (heads[k].total > heads[best].total) best = k;
    if (num_heads == 0 || heads[best].index == num_candidates) break;
    const int64_t candidate = int64_t(best) * num_candidates + heads[best].index;
    const double total = heads[best].total;
    if (token_ids[candidate] == run.eos_id) {
      if (ranked < beam_size) finish(run, b, best, total, steps[candidate]);
    } else if (count < beam_size) {
      next_log_probs[count] = total;
      next_parents[count] = best;
      next_token_ids[count] = token_ids[candidate];
      next_steps[count] = steps[candidate];
      ++count;
    }
    advance(best, heads[best].index + 1);
  }
  for (int i = count; i < run.width; ++i) {  // copies of the best row with log-probability -inf
    next_log_probs[i] = kNone;
    next_steps[i] = 0;
    next_token_ids[i] = count > 0 ? next_token_ids[0] : 0;
    next_parents[i] = count > 0 ? next_parents[0] : 0;
  }
  const double top = count > 0 ? next_log_probs[0] : kNone;
  const bool is_over = top / run.bound_penalties[b] <= scores_to_beat_[b] || length + 1 >= run.max_tokens[b] ||
                       (run.early_stopping[b] && num_finished_[b] >= run.beam_sizes[b]);
  if (is_over) run.may_end = 1;
  return is_over || (run.has_coverage[b] && run.num_ended > num_ended) || (count > 0 && may_loop(run, b));
}

// Records a hypothesis that ends with EOS, and keeps its score if it is among the best.
void Batch::finish(SearchRun& run, int b, int row, double log_prob, float eos_log_prob) {
  const int64_t place = run.num_ended++;
  run.finished[place * 3] = run.num_steps;
  run.finished[place * 3 + 1] = b;
  run.finished[place * 3 + 2] = row;
  run.finished_log_probs[place] = log_prob;
  run.finished_eos_log_probs[place] = eos_log_prob;
  ++num_finished_[b];
  if (run.has_coverage[b]) return;  // the run ends with this step
  double* scores = best_scores_.data() + int64_t(b) * run.max_hypotheses;
  const int64_t kept = run.num_hypotheses[b];
  double score = log_prob / run.penalties[int64_t(b) * run.num_penalties + run.lengths[b] + run.num_steps + 1];
  for (int64_t i = 0; i < kept; ++i)
    if (score > scores[i]) std::swap(score, scores[i]);
  if (run.beam_sizes[b] == 1) scores_to_beat_[b] = std::numeric_limits<double>::infinity();
  else if (scores[kept - 1] > kNone) scores_to_beat_[b] = scores[kept - 1];
}

// Returns whether the best hypothesis of a segment after the current step ends with repeats that can be a loop.
bool Batch::may_loop(const SearchRun& run, int b) const {
  const int64_t length = run.lengths[b] + run.num_steps + 1;
  if (!run.is_guarded[b] || length % run.loop_interval) return false;
  const int64_t at = (int64_t(run.num_steps) * num_segments() + b) * run.width;
  const int32_t* parent = segments_[b]->newest.data() + run.next_parents[at] * kLoopTokens;
  int32_t tokens[kLoopTokens];
  *std::copy(parent + 1, parent + kLoopTokens, tokens) = int32_t(run.next_token_ids[at]);
  const int32_t* end = tokens + kLoopTokens;
  for (int i = 0; i < run.num_repeat_sizes; ++i) {
    const int size = i + 1, span = size * int(run.min_repeats[i]);
    if (span <= length && std::equal(end - span, end - size, end - span + size)) return true;
  }
  return false;
}

}  // namespace dragoman
