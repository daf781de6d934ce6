#include "batch.hpp"

#include <algorithm>
#include <limits>

#include "pass.hpp"

namespace dragoman {
namespace {

constexpr int kSlotBucket = 32;  // growth granularity of slots
constexpr int kMaxLists = 64;    // lists of candidates of a row
constexpr float kNone = -std::numeric_limits<float>::infinity(), kUnknown = std::numeric_limits<float>::quiet_NaN();

}  // namespace

void Batch::add(int source_length, const float* cross, int64_t cross_size, bool is_from_graph, const int32_t* shortlist,
                int shortlist_size) {
  const Model& model = *model_;
  require(source_length >= 1 && source_length <= 1 << 20, "the source length is not between 1 and 2^20");
  require(shortlist_size >= 0 && shortlist_size <= model.shape.vocabulary_size,
          "the shortlist is larger than the vocabulary");
  auto segment = std::make_unique<Segment>();
  segment->source_length = source_length;
  const int64_t d = model.d, size = model.head_size, capacity = rounded_up(source_length, kBlock);
  const int64_t keys_size = capacity * d, values_size = source_length * d;
  const int64_t total = model.shape.num_layers * (keys_size + values_size);
  require(cross_size == (is_from_graph ? 2 * model.shape.num_layers * values_size : total),
          "the encoder output does not have the size of the source");
  segment->cross = cross;
  if (is_from_graph) {
    segment->own_cross = allocated<float>(total);
    segment->cross = segment->own_cross.get();
    for (int layer = 0; layer < model.shape.num_layers; ++layer, cross += 2 * values_size) {
      float* keys = keys_of(segment->own_cross.get(), layer, keys_size, values_size);
      std::memset(keys + (capacity - kBlock) * d, 0, kBlock * d * sizeof(float));
      for (int64_t head = 0; head < model.shape.num_heads; ++head)
        for (int64_t s = 0; s < source_length; ++s) {
          const float* key = cross + (head * source_length + s) * size;
          put_key(keys + head * size * kBlock, s, key, int(d), 0, int(size));
          std::memcpy(keys + keys_size + s * d + head * size, key + values_size, size * sizeof(float));
        }
    }
  }
  for (int64_t at = 0; at < total; at += 8 * kBlock)
    segment->is_finite &= model.kernels.is_finite(segment->cross + at, int(std::min<int64_t>(8 * kBlock, total - at)));
  if (shortlist_size > 0) {
    for (int i = 0; i < shortlist_size; ++i)
      require(shortlist[i] >= 0 && shortlist[i] < model.shape.vocabulary_size &&
                  (i == 0 || shortlist[i - 1] < shortlist[i]),
              "the shortlist is not ascending token ids of the vocabulary");
    segment->shortlist_ids.assign(shortlist, shortlist + shortlist_size);
    segment->shortlist.pick(model.projection.view(), shortlist, shortlist_size);
  }
  segments_.push_back(std::move(segment));
  segments_bytes_ += bytes_of(*segments_.back());
}

int64_t Batch::num_bytes() const {
  return segments_bytes_ + scratch_.num_bytes() + bias_.num_bytes() + seen_.num_bytes() + log_probs_.num_bytes() +
         candidate_ids_.num_bytes() + best_.num_bytes() + found_.num_bytes();
}

int64_t Batch::bytes_of(const Segment& segment) const {
  const int64_t positions = rounded_up(segment.source_length, kBlock) + segment.source_length;
  const int64_t layer_size = positions * model_->d + 2 * segment.num_slots * slot_size();
  return layer_size * model_->shape.num_layers * int64_t(sizeof(float)) + segment.shortlist.num_bytes();
}

void Batch::keep(const int64_t* indices, int count) {
  std::vector<bool> is_kept(segments_.size(), false);
  for (int i = 0; i < count; ++i) {
    require(indices[i] >= 0 && indices[i] < num_segments(), "a segment index to keep is not in the batch");
    require(!is_kept[indices[i]], "a segment index is kept twice");
    is_kept[indices[i]] = true;
  }
  std::vector<std::unique_ptr<Segment>> kept;
  kept.reserve(count);
  for (int i = 0; i < count; ++i) kept.push_back(std::move(segments_[indices[i]]));
  segments_.swap(kept);
  segments_bytes_ = 0;
  for (const auto& segment : segments_) segments_bytes_ += bytes_of(*segment);
}

void Batch::copy_cross(int index, float* cross) const {
  require(index >= 0 && index < num_segments(), "the segment index is not in the batch");
  const Model& model = *model_;
  const Segment& segment = *segments_[index];
  const int64_t d = model.d, size = model.head_size, length = segment.source_length;
  const int64_t keys_size = rounded_up(length, kBlock) * d, values_size = length * d;
  for (int layer = 0; layer < model.shape.num_layers; ++layer, cross += 2 * values_size) {
    const float* keys = keys_of(segment.cross, layer, keys_size, values_size);
    const float* values = keys + keys_size;
    for (int64_t head = 0; head < model.shape.num_heads; ++head)
      for (int64_t s = 0; s < length; ++s) {
        const float* at = keys + (s / kBlock * d + head * size) * kBlock + s % kBlock;
        float* key = cross + (head * length + s) * size;
        for (int64_t i = 0; i < size; ++i) key[i] = at[i * kBlock];
        std::memcpy(key + values_size, values + s * d + head * size, size * sizeof(float));
      }
  }
}

void Batch::check(const Step& step) const {
  const Shape& shape = model_->shape;
  require(step.num_rows >= 1 && step.num_rows <= kMaxRows, "the number of rows is not between 1 and 1,024");
  require(step.num_candidates >= 1 && step.num_candidates <= shape.vocabulary_size,
          "the number of candidates is not between 1 and the vocabulary size");
  for (size_t b = 0; b < segments_.size(); ++b) {
    const Segment& segment = *segments_[b];
    require(segment.position < shape.max_positions, "the step is beyond the last position");
    for (int k = 0; k < step.num_rows; ++k) {
      const size_t at = b * step.num_rows + k;
      const int64_t token = step.token_ids[at], parent = step.parents[at];
      require(token >= 0 && token < shape.vocabulary_size, "a token id is outside the vocabulary");
      require(segment.position == 0 || (parent >= 0 && parent < segment.num_rows),
              "a parent is outside the rows of the previous step");
      require(!step.wanted || (step.wanted[at] >= 0 && step.wanted[at] <= step.num_candidates),
              "the number of candidates of a row exceeds that of the step");
    }
  }
}

void Batch::grow(Segment& segment, int needed) {
  const int capacity = int(rounded_up(std::max(needed, segment.num_slots + segment.num_slots / 2), kSlotBucket));
  const int64_t before = segment.num_slots * slot_size(), after = capacity * slot_size();
  Memory<float> pool = allocated<float>(model_->shape.num_layers * 2 * after);
  for (int part = 0; part < model_->shape.num_layers * 2; ++part) {  // keys and values in turn, or cells
    float* target = pool.get() + part * after;
    if (before) std::memcpy(target, segment.pool.get() + part * before, before * sizeof(float));
    // Hidden keys are multiplied as well; hidden values are not.
    if (part % 2 == 0) std::memset(target + before, 0, (after - before) * sizeof(float));
  }
  const size_t words = segment.num_words(), more = num_words_of(capacity);
  std::vector<uint64_t> visible(segment.num_rows * more, 0);
  for (int k = 0; !model_->shape.is_recurrent && k < segment.num_rows; ++k)
    std::copy_n(segment.visible.data() + k * words, words, visible.data() + k * more);
  segment.pool = std::move(pool);
  segment.visible.swap(visible);
  segments_bytes_ -= bytes_of(segment);
  segment.num_slots = capacity;
  segments_bytes_ += bytes_of(segment);
}

// A slot that is not visible to any row is free. New tokens use the lowest free slots in row order.
void Batch::assign_slots(const Step& step) {
  rows_.clear();
  spans_.clear();
  for (int b = 0; b < num_segments(); ++b) {
    Segment& segment = *segments_[b];
    Span span = {};
    span.first = int(rows_.size());
    for (int k = 0; k < step.num_rows; ++k) {
      const int64_t index = int64_t(b) * step.num_rows + k;
      if (!step.wanted || step.wanted[index]) rows_.push_back({b, k, index, 0});
    }
    span.count = int(rows_.size()) - span.first;
    const int num_used = inherit_slots(step, segment, span);
    if (num_used + span.count > segment.num_slots) {
      grow(segment, num_used + span.count);
      inherit_slots(step, segment, span);
    }
    const size_t words = segment.num_words();
    size_t word = 0;
    for (int r = span.first; r < span.first + span.count; ++r) {
      while (~used_[word] == 0) ++word;
      const int bit = __builtin_ctzll(~used_[word]);
      used_[word] |= uint64_t(1) << bit;
      inherited_[rows_[r].k * words + word] |= uint64_t(1) << bit;
      rows_[r].slot = int(word) * 64 + bit;
    }
    for (size_t i = 0; i < words; ++i)
      if (used_[i]) span.num_positions = int(i) * 64 + 64 - __builtin_clzll(used_[i]);
    segment.visible = inherited_;
    segment.num_rows = step.num_rows;
    spans_.push_back(span);
  }
}

// Rows that are skipped get cells of zeros, because rows of the next step may continue them.
void Batch::assign_cells(const Step& step) {
  rows_.clear();
  spans_.clear();
  for (int b = 0; b < num_segments(); ++b) {
    Segment& segment = *segments_[b];
    if (step.num_rows > segment.num_slots) grow(segment, step.num_rows);
    Span span = {};
    span.first = int(rows_.size());
    for (int k = 0; k < step.num_rows; ++k) {
      const int64_t index = int64_t(b) * step.num_rows + k;
      if (!step.wanted || step.wanted[index]) {
        rows_.push_back({b, k, index, segment.position > 0 ? int(step.parents[index]) : 0});
        continue;
      }
      for (int layer = 0; layer < model_->shape.num_layers; ++layer)
        std::fill_n(cell_of(segment, true, layer, k), slot_size(), 0.0f);
    }
    span.count = int(rows_.size()) - span.first;
    segment.num_rows = step.num_rows;
    spans_.push_back(span);
  }
}

// Returns the cell of a row before or after the current step.
float* Batch::cell_of(const Segment& segment, bool is_next, int layer, int row) const {
  const int64_t part = ((segment.position & 1) ^ int(is_next)) * model_->shape.num_layers + layer;
  return segment.pool.get() + (part * segment.num_slots + row) * slot_size();
}

// Sets `inherited_`, the slots that each row of a segment sees through its parent, and `used_`, the slots of all rows;
// returns the number of used slots.
int Batch::inherit_slots(const Step& step, const Segment& segment, const Span& span) {
  const size_t words = segment.num_words();
  inherited_.assign(step.num_rows * words, 0);
  used_.assign(words, 0);
  for (int r = span.first; segment.position > 0 && r < span.first + span.count; ++r) {
    const uint64_t* parent = segment.visible.data() + step.parents[rows_[r].index] * words;
    uint64_t* inherited = inherited_.data() + rows_[r].k * words;
    for (size_t i = 0; i < words; ++i) {
      inherited[i] = parent[i];
      used_[i] |= parent[i];
    }
  }
  int num_used = 0;
  for (uint64_t word : used_) num_used += __builtin_popcountll(word);
  return num_used;
}

void Batch::describe_slots() {
  size_t bias_size = 0, seen_size = 0;
  for (Span& span : spans_) {
    const size_t width = size_t(rounded_up(span.num_positions, kBlock));
    span.bias = bias_size;
    span.seen = seen_size;
    bias_size += width * span.count;
    seen_size += width;
  }
  float* bias = std::fill_n(bias_.fit(bias_size), bias_size, kLowest) - bias_size;
  uint8_t* seen = std::fill_n(seen_.fit(seen_size), seen_size, uint8_t(0)) - seen_size;
  for (size_t b = 0; b < spans_.size(); ++b) {
    const Span& span = spans_[b];
    const Segment& segment = *segments_[b];
    const size_t words = segment.num_words(), width = size_t(rounded_up(span.num_positions, kBlock));
    for (int r = 0; r < span.count; ++r) {
      const uint64_t* visible = segment.visible.data() + rows_[span.first + r].k * words;
      for (size_t i = 0; i < words; ++i)
        for (uint64_t bits = visible[i]; bits; bits &= bits - 1) {
          const size_t slot = i * 64 + __builtin_ctzll(bits);
          bias[span.bias + r * width + slot] = 0;
          seen[span.seen + slot] = 1;
        }
    }
  }
}

void Batch::step(const Step& step) {
  Model& model = *model_;
  require(!is_half_stepped_, "an earlier step of the batch failed");
  check(step);
  is_half_stepped_ = true;
  if (model.shape.is_recurrent) {
    assign_cells(step);
  } else {
    assign_slots(step);
    describe_slots();
  }

  const int num_tokens = int(rows_.size()), num_heads = model.shape.num_heads;
  const Weights& projection = model.projection.view();
  ThreadGroup threads(model, step.num_threads);
  const int64_t sums_size = int64_t(projection.chunks()) * num_tokens * kRowSums;
  const int64_t scratch_size = attention_scratch();
  Pass pass(model, threads, scratch_, num_tokens, 3 * model.d,
            sums_size + threads.num_tasks(num_segments(), num_heads) * scratch_size);
  float* sums = pass.more;
  run_layers(pass, step.token_ids, sums + sums_size, scratch_size);

  const bool is_divided = threads.is_worth(threads.product_ns(num_tokens, projection));
  const int num_lists = is_divided ? std::min({threads.num_threads(), projection.chunks(), kMaxLists}) : 1;
  reset_best(step, num_lists);
  project(pass, num_lists, sums);
  write_candidates(step, pass, num_lists, sums);

  record_tokens(step);
  for (const auto& segment : segments_) ++segment->position;
  is_half_stepped_ = false;
}

// Returns the number of floats that `Attention::scratch` needs.
int64_t Batch::attention_scratch() const {
  int64_t widest = kBlock;
  for (size_t b = 0; b < spans_.size(); ++b)
    widest = std::max(
        {widest, rounded_up(spans_[b].num_positions, kBlock), rounded_up(segments_[b]->source_length, kBlock)});
  return 4 * widest;
}

void Batch::run_layers(Pass& pass, const int64_t* token_ids, float* scratch, int64_t scratch_size) {
  const Model& model = *model_;
  const int d = model.d;
  double self_positions = 0, cross_positions = 0;  // visible positions, summed over all rows
  for (size_t b = 0; b < spans_.size(); ++b) {
    self_positions += double(spans_[b].num_positions) * spans_[b].count;
    cross_positions += double(segments_[b]->source_length) * spans_[b].count;
  }
  pass.for_rows([&](int r) {
    const Row& row = rows_[r];
    const int64_t position = segments_[row.segment]->position;
    pass.embed(r, kDecoder, token_ids[row.index], model.positions.get() + position * d);
    pass.pre_norm_and_quantize(r, model.layers[0].norms[kSelfNorm], model.layers[0].products[kSelfIn].view());
  });
  const auto attend_self = [&](int layer) {
    if (model.shape.is_recurrent) {
      return pass.for_rows([&](int r) {
        const Row& row = rows_[r];
        const Segment& segment = *segments_[row.segment];
        const float *inner = pass.joined + r * pass.joined_stride, *former = nullptr;
        if (segment.position > 0) former = cell_of(segment, false, layer, row.slot);
        float* cell = cell_of(segment, true, layer, row.k);
        model.kernels.recur(inner, inner + d, former, d, cell, pass.states + r * pass.stride);
      });
    }
    pass.for_heads(num_segments(), self_positions, [&](const HeadTask& task) {
      const Span& span = spans_[task.sequence];
      const Segment& segment = *segments_[task.sequence];
      const int64_t size = int64_t(segment.num_slots) * d;
      float *keys = keys_of(segment.pool.get(), layer, size, size), *values = keys + size;
      const int begin = task.first_head * model.head_size, end = task.last_head * model.head_size;
      for (int r = span.first; r < span.first + span.count; ++r) {
        const float* row = pass.joined + r * pass.joined_stride;
        const int64_t slot = rows_[r].slot;
        put_key(keys, slot, row + d, d, begin, end);
        std::copy(row + 2 * d + begin, row + 2 * d + end, values + slot * d + begin);
      }
      const KeysValues slots = {
          .keys = keys,
          .values = values,
          .value_stride = d,
          .num_positions = span.num_positions,
          .bias = bias_.get() + span.bias,
          .is_seen = seen_.get() + span.seen,
      };
      pass.attend(task, span.first, span.count, slots, scratch + task.index * scratch_size);
    });
  };
  const auto attend_cross = [&](int layer) {
    pass.for_heads(num_segments(), cross_positions, [&](const HeadTask& task) {
      const Span& span = spans_[task.sequence];
      const Segment& segment = *segments_[task.sequence];
      const int64_t keys_size = rounded_up(segment.source_length, kBlock) * d;
      const float* keys = keys_of(segment.cross, layer, keys_size, int64_t(segment.source_length) * d);
      const KeysValues source = {
          .keys = keys,
          .values = keys + keys_size,
          .value_stride = d,
          .num_positions = segment.source_length,
      };
      pass.attend(task, span.first, span.count, source, scratch + task.index * scratch_size);
    });
  };
  pass.run_layers(kDecoder, model.projection.view(), attend_self, attend_cross);
}

// Prepares empty lists of the best candidates, `num_lists` for each row, and the masks of the segments.
void Batch::reset_best(const Step& step, int num_lists) {
  masks_.clear();
  const SearchRun* search = step.search;
  for (int b = 0; search && search->num_placeholders > 0 && b < num_segments(); ++b) {
    const std::vector<int32_t>& listed = segments_[b]->shortlist_ids;  // empty without a shortlist
    const int count = search->num_placeholders;
    int64_t first = search->placeholders[0], last = search->placeholders[count - 1];
    if (!listed.empty()) {
      first = std::lower_bound(listed.begin(), listed.end(), first) - listed.begin();
      last = std::upper_bound(listed.begin(), listed.end(), last) - listed.begin() - 1;
    }
    masks_.push_back({
        .token_ids = search->placeholders,
        .is_masked = search->is_masked + int64_t(b) * count,
        .count = count,
        .shortlist_ids = listed.empty() ? nullptr : listed.data(),
        .first_column = int32_t(first),
        .last_column = int32_t(last),
    });
  }
  const size_t size = num_lists * rows_.size(), capacity = size_t(step.num_candidates);
  Best* best = best_.fit(size);
  Candidate* found = found_.fit(size * capacity);
  for (size_t i = 0; i < size; ++i) {
    const Row& row = rows_[i % rows_.size()];
    best[i] = {
        .found = found + i * capacity,
        .count = 0,
        .capacity = step.wanted ? step.wanted[row.index] : step.num_candidates,
        .threshold = kNone,
        .mask = masks_.empty() ? nullptr : &masks_[row.segment],
    };
  }
}

// Finds the best candidates of each row and the sums of exponentials. Each list takes chunks of the vocabulary in
// ascending order: ties go to the lower token, independent of the number of lists.
void Batch::project(Pass& pass, int num_lists, float* sums) {
  const int64_t num_tokens = int64_t(rows_.size());
  const auto project_chunk = [&](int first, int count, const Weights& w, int chunk, int list) {
    const Rounded& rows = pass.rounded;
    model_->kernels.project({
        .a = {rows.bytes + first * rows.stride, rows.stride, rows.scales + first},
        .rows = count,
        .weights = &w,
        .chunk = chunk,
        .best = best_.get() + list * num_tokens + first,
        .sums = sums + (chunk * num_tokens + first) * kRowSums,
    });
  };
  for (int b = 0; b < num_segments(); ++b) {  // each shortlist is a small matrix of one segment
    const PackedWeights& shortlist = segments_[b]->shortlist;
    if (!shortlist.is_set()) continue;
    for (int chunk = 0; chunk < shortlist.view().chunks(); ++chunk)
      project_chunk(spans_[b].first, spans_[b].count, shortlist.view(), chunk, 0);
  }
  const Weights& projection = model_->projection.view();
  for (int b = 0; b < num_segments(); ++b) {  // runs of segments without a shortlist
    if (segments_[b]->shortlist.is_set()) continue;
    const int first = spans_[b].first;
    while (b + 1 < num_segments() && !segments_[b + 1]->shortlist.is_set()) ++b;
    const int count = spans_[b].first + spans_[b].count - first;
    pass.threads.run(num_lists, pass.threads.product_ns(count, projection), [&](int list) {
      for (int chunk = list; chunk < projection.chunks(); chunk += num_lists)
        project_chunk(first, count, projection, chunk, list);
    });
  }
}

// Merges the lists of each row, and writes its candidates with their log-probabilities.
void Batch::write_candidates(const Step& step, Pass& pass, int num_lists, const float* sums) {
  const int64_t num_tokens = int64_t(rows_.size());
  if (step.wanted) {  // rows without candidates are padded
    const size_t size = segments_.size() * size_t(step.num_rows) * size_t(step.num_candidates);
    std::fill_n(step.log_probs, size, kNone);
    std::fill_n(step.candidate_ids, size, 0);
  }
  pass.for_rows([&](int r) {
    const Row& row = rows_[r];
    const Segment& segment = *segments_[row.segment];
    const bool has_shortlist = segment.shortlist.is_set();
    const int num_lists_of_row = has_shortlist ? 1 : num_lists;
    const Weights& projection = has_shortlist ? segment.shortlist.view() : model_->projection.view();
    float* values = step.log_probs + row.index * step.num_candidates;
    int64_t* tokens = step.candidate_ids + row.index * step.num_candidates;
    const bool is_finite = segment.is_finite && pass.is_finite(r);
    const float log_sum = model_->kernels.log_sum(sums + r * kRowSums, num_tokens * kRowSums, projection.chunks());
    const Best* lists[kMaxLists];
    int taken[kMaxLists] = {};
    for (int i = 0; i < num_lists_of_row; ++i) {
      const Best& list = best_.get()[i * num_tokens + r];
      if (!list.is_ordered()) std::sort(list.found, list.found + list.count, is_better);
      lists[i] = &list;
    }
    for (int c = 0; c < lists[0]->capacity; ++c) {
      int winner = -1;
      for (int i = 0; i < num_lists_of_row; ++i) {
        if (taken[i] == lists[i]->count) continue;
        if (winner < 0 || is_better(lists[i]->found[taken[i]], lists[winner]->found[taken[winner]])) winner = i;
      }
      if (winner < 0) {  // end of the shortlist
        values[c] = is_finite ? kNone : kUnknown;
        tokens[c] = 0;
        continue;
      }
      const Candidate& winning = lists[winner]->found[taken[winner]++];
      values[c] = is_finite ? winning.value - log_sum : kUnknown;
      tokens[c] = has_shortlist ? segment.shortlist_ids[winning.column] : winning.column;
    }
  });
}

}  // namespace dragoman
