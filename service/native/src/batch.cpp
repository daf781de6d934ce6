#include "batch.hpp"

#include <algorithm>
#include <limits>

#include "pass.hpp"

namespace dragoman {
namespace {

constexpr int kSlotBucket = 32;   // growth granularity of slots
constexpr int kMaxLanes = 64;      // parts of the projection

}  // namespace

void Batch::add(int source_length, const float* cross, int64_t cross_size, bool is_from_graph, const int32_t* shortlist,
                int shortlist_size) {
  const Model& model = *model_;
  require(source_length >= 1 && source_length <= 1 << 20, "the source length is not between 1 and 2^20");
  require(shortlist_size >= 0 && shortlist_size <= model.shape.vocabulary_size, "the shortlist is larger than the vocabulary");
  auto segment = std::make_unique<Segment>();
  segment->source_length = source_length;
  const int64_t d = model.d, size = model.head_size, room = rounded_up(source_length, kBlock);
  const int64_t keys_size = room * d, values_size = source_length * d;
  const int64_t total = model.shape.num_layers * (keys_size + values_size);
  require(cross_size == (is_from_graph ? 2 * model.shape.num_layers * values_size : total),
          "the encoder output does not have the size of the source");
  segment->cross = cross;
  if (is_from_graph) {
    segment->own_cross = allocated<float>(size_t(total));
    segment->cross = segment->own_cross.get();
    for (int layer = 0; layer < model.shape.num_layers; ++layer, cross += 2 * values_size) {
      float* keys = keys_of(segment->own_cross.get(), layer, keys_size, values_size);
      std::memset(keys + (room - kBlock) * d, 0, size_t(kBlock * d) * sizeof(float));
      for (int64_t head = 0; head < model.shape.num_heads; ++head)
        for (int64_t s = 0; s < source_length; ++s) {
          const float* key = cross + (head * source_length + s) * size;
          put_key(keys + head * size * kBlock, s, key, int(d), 0, int(size));
          std::memcpy(keys + keys_size + s * d + head * size, key + values_size, size_t(size) * sizeof(float));
        }
    }
  }
  for (int64_t at = 0; at < total; at += 8 * kBlock)
    segment->is_finite &= model.kernels.is_finite(segment->cross + at, int(std::min<int64_t>(8 * kBlock, total - at)));
  if (shortlist_size > 0) {
    for (int i = 0; i < shortlist_size; ++i)
      require(shortlist[i] >= 0 && shortlist[i] < model.shape.vocabulary_size && (i == 0 || shortlist[i - 1] < shortlist[i]),
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
  const int64_t positions = rounded_up(segment.source_length, kBlock) + segment.source_length + 2 * segment.num_slots;
  return positions * model_->d * model_->shape.num_layers * int64_t(sizeof(float)) + segment.shortlist.num_bytes();
}

void Batch::keep(const int64_t* indices, int count) {
  std::vector<bool> is_kept(segments_.size(), false);
  for (int i = 0; i < count; ++i) {
    require(indices[i] >= 0 && indices[i] < num_segments(), "a segment index to keep is not in the batch");
    require(!is_kept[size_t(indices[i])], "a segment index is kept twice");
    is_kept[size_t(indices[i])] = true;
  }
  std::vector<std::unique_ptr<Segment>> kept;
  kept.reserve(size_t(count));
  for (int i = 0; i < count; ++i) kept.push_back(std::move(segments_[size_t(indices[i])]));
  segments_.swap(kept);
  segments_bytes_ = 0;
  for (const auto& segment : segments_) segments_bytes_ += bytes_of(*segment);
}

void Batch::copy_cross(int index, float* cross) const {
  require(index >= 0 && index < num_segments(), "the segment index is not in the batch");
  const Model& model = *model_;
  const Segment& segment = *segments_[size_t(index)];
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
        std::memcpy(key + values_size, values + s * d + head * size, size_t(size) * sizeof(float));
      }
  }
}

void Batch::check(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted,
                  int num_candidates) const {
  const Shape& shape = model_->shape;
  require(num_rows >= 1 && num_rows <= kMaxRows, "the number of rows is not between 1 and 1,024");
  require(num_candidates >= 1 && num_candidates <= shape.vocabulary_size,
          "the number of candidates is not between 1 and the vocabulary size");
  for (size_t b = 0; b < segments_.size(); ++b) {
    const Segment& segment = *segments_[b];
    require(segment.position < shape.max_positions, "the step is beyond the last position");
    for (int k = 0; k < num_rows; ++k) {
      const size_t at = b * size_t(num_rows) + size_t(k);
      require(token_ids[at] >= 0 && token_ids[at] < shape.vocabulary_size, "a token id is outside the vocabulary");
      require(segment.position == 0 || (parents[at] >= 0 && parents[at] < segment.num_rows),
              "a parent is outside the rows of the previous step");
      require(!wanted || (wanted[at] >= 0 && wanted[at] <= num_candidates),
              "the number of candidates of a row exceeds that of the step");
    }
  }
}

void Batch::grow(Segment& segment, int needed) {
  const int room = int(rounded_up(std::max(needed, segment.num_slots + segment.num_slots / 2), kSlotBucket));
  const int64_t d = model_->d, before = segment.num_slots * d, after = room * d;
  Memory<float> pool = allocated<float>(size_t(model_->shape.num_layers * 2 * after));
  for (int layer = 0; layer < model_->shape.num_layers * 2; ++layer) {  // alternates keys and values
    float* target = pool.get() + layer * after;
    if (before) std::memcpy(target, segment.pool.get() + layer * before, size_t(before) * sizeof(float));
    // Hidden keys are multiplied as well; hidden values are not.
    if (layer % 2 == 0) std::memset(target + before, 0, size_t(after - before) * sizeof(float));
  }
  const size_t words = size_t(segment.num_slots + 63) / 64, more = size_t(room + 63) / 64;
  std::vector<uint64_t> visible(size_t(segment.num_rows) * more, 0);
  for (size_t k = 0; k < size_t(segment.num_rows); ++k)
    std::copy_n(segment.visible.begin() + ptrdiff_t(k * words), words, visible.begin() + ptrdiff_t(k * more));
  segment.pool = std::move(pool);
  segment.visible.swap(visible);
  segments_bytes_ -= bytes_of(segment);
  segment.num_slots = room;
  segments_bytes_ += bytes_of(segment);
}

// A slot that is not visible to any row is free. New tokens use the lowest free slots in row order.
void Batch::assign_slots(int num_rows, const int64_t* parents, const int32_t* wanted) {
  rows_.clear(), spans_.clear();
  for (size_t b = 0; b < segments_.size(); ++b) {
    Segment& segment = *segments_[b];
    const size_t first = rows_.size();
    for (int k = 0; k < num_rows; ++k) {
      const int64_t index = int64_t(b) * num_rows + k;
      if (!wanted || wanted[index]) rows_.push_back({int(b), index, 0});
    }
    const size_t count = rows_.size() - first;
    for (bool is_first_try = true;; is_first_try = false) {
      const size_t words = size_t(segment.num_slots + 63) / 64;
      inherited_.assign(size_t(num_rows) * words, 0), used_.assign(words, 0);
      for (size_t r = first; segment.position > 0 && r < first + count; ++r) {
        const size_t parent = size_t(parents[rows_[r].index]), row = size_t(rows_[r].index) % size_t(num_rows);
        for (size_t i = 0; i < words; ++i)
          used_[i] |= inherited_[row * words + i] = segment.visible[parent * words + i];
      }
      int num_used = 0;
      for (uint64_t word : used_) num_used += __builtin_popcountll(word);
      if (num_used + int(count) <= segment.num_slots) break;
      require(is_first_try, "not enough slots after growing");
      grow(segment, num_used + int(count));
    }
    const size_t words = size_t(segment.num_slots + 63) / 64;
    size_t word = 0;
    int last = 0;
    for (size_t r = first; r < first + count; ++r) {
      while (~used_[word] == 0) ++word;
      const int bit = __builtin_ctzll(~used_[word]);
      used_[word] |= uint64_t(1) << bit;
      inherited_[size_t(rows_[r].index) % size_t(num_rows) * words + word] |= uint64_t(1) << bit;
      rows_[r].slot = int(word) * 64 + bit;
    }
    for (size_t i = 0; i < words; ++i)
      if (used_[i]) last = int(i) * 64 + 64 - __builtin_clzll(used_[i]);
    segment.visible = inherited_;
    segment.num_rows = num_rows;
    spans_.push_back({int(first), int(count), last, 0, 0});
  }
}

void Batch::describe_slots() {
  size_t bias_size = 0, seen_size = 0;
  for (Span& span : spans_) {
    const size_t width = size_t(rounded_up(span.num_positions, kBlock));
    span.bias = bias_size, span.seen = seen_size;
    bias_size += width * size_t(span.count), seen_size += width;
  }
  constexpr float kHidden = -3e38f;
  float* bias = std::fill_n(bias_.fit(bias_size), bias_size, kHidden) - bias_size;
  uint8_t* seen = std::fill_n(seen_.fit(seen_size), seen_size, uint8_t(0)) - seen_size;
  for (size_t b = 0; b < spans_.size(); ++b) {
    const Span& span = spans_[b];
    const Segment& segment = *segments_[b];
    const size_t words = size_t(segment.num_slots + 63) / 64, width = size_t(rounded_up(span.num_positions, kBlock));
    for (int r = 0; r < span.count; ++r) {
      const size_t row = size_t(rows_[size_t(span.first + r)].index) % size_t(segment.num_rows);
      for (size_t i = 0; i < words; ++i)
        for (uint64_t bits = segment.visible[row * words + i]; bits; bits &= bits - 1) {
          const size_t slot = i * 64 + size_t(__builtin_ctzll(bits));
          bias[span.bias + size_t(r) * width + slot] = 0;
          seen[span.seen + slot] = 1;
        }
    }
  }
}

void Batch::step(int num_rows, const int64_t* token_ids, const int64_t* parents, const int32_t* wanted,
                 int num_candidates, int num_threads, float* log_probs, int64_t* candidate_ids,
                 const SearchRun* search) {
  Model& model = *model_;
  const Kernels& kernels = model.kernels;
  require(!is_half_stepped_, "an earlier step of the batch failed");
  check(num_rows, token_ids, parents, wanted, num_candidates);
  is_half_stepped_ = true;
  assign_slots(num_rows, parents, wanted);
  describe_slots();
  const int n = int(rows_.size()), d = model.d, num_heads = model.shape.num_heads, num_layers = model.shape.num_layers;
  const int num_segments = this->num_segments();
  const float none = -std::numeric_limits<float>::infinity(), unknown = std::numeric_limits<float>::quiet_NaN();
  Crew crew(model, num_threads);

  int64_t widest = kBlock;
  double self_positions = 0, cross_positions = 0;  // visible positions, summed over all rows
  for (size_t b = 0; b < spans_.size(); ++b) {
    const int64_t source_length = segments_[b]->source_length;
    widest = std::max({widest, rounded_up(spans_[b].num_positions, kBlock), rounded_up(source_length, kBlock)});
    self_positions += double(spans_[b].num_positions) * spans_[b].count;
    cross_positions += double(source_length) * spans_[b].count;
  }
  const Weights& projection = model.projection.view();
  const int num_chunks = (projection.panels() + kChunk - 1) / kChunk;
  const int64_t sums_stride = int64_t(n) * 32, scratch_size = 4 * widest;
  Pass pass(model, crew, scratch_, n, 3 * d, num_chunks * sums_stride + crew.num_tasks(num_segments, num_heads) * scratch_size);
  float *sums = pass.more, *scratch = sums + num_chunks * sums_stride;

  pass.for_rows([&](int r) {
    const Row& row = rows_[size_t(r)];
    const int64_t position = segments_[size_t(row.segment)]->position;
    pass.embed(r, kDecoder, token_ids[row.index], model.positions.get() + position * d);
    pass.enter(r, model.layers[0].norms[kSelfNorm], model.layers[0].products[kSelfIn].view());
  });
  for (int i = 0; i < num_layers; ++i) {
    const Layer& layer = model.layers[size_t(i)];
    const auto weights = [&](ProductKind kind) -> const Weights& { return layer.products[kind].view(); };
    pass.store_product(weights(kSelfIn));
    pass.for_heads(num_segments, self_positions, [&](int b, int first_head, int last_head, int task) {
      const Span& span = spans_[size_t(b)];
      const Segment& segment = *segments_[size_t(b)];
      const int64_t size = int64_t(segment.num_slots) * d;
      float *keys = keys_of(segment.pool.get(), i, size, size), *values = keys + size;
      const int begin = first_head * model.head_size, end = last_head * model.head_size;
      const float* first_row = pass.joined + span.first * pass.joined_stride;
      for (int r = 0; r < span.count; ++r) {
        const float* row = first_row + r * pass.joined_stride;
        const int64_t slot = rows_[size_t(span.first + r)].slot;
        put_key(keys, slot, row + d, d, begin, end);
        std::copy(row + 2 * d + begin, row + 2 * d + end, values + slot * d + begin);
      }
      kernels.attend({span.count, num_heads, model.head_size, first_head, last_head, first_row, pass.joined_stride, keys,
                      values, d, span.num_positions, bias_.get() + span.bias, seen_.get() + span.seen,
                      scratch + task * scratch_size, pass.mixed + span.first * pass.stride, pass.stride});
    });
    pass.add_mixed(weights(kSelfOut));
    pass.for_rows([&](int r) {
      pass.leave(r, layer.norms[kSelfNorm]);
      pass.enter(r, layer.norms[kCrossNorm], weights(kCrossQuery));
    });
    pass.store_product(weights(kCrossQuery));
    pass.for_heads(num_segments, cross_positions, [&](int b, int first_head, int last_head, int task) {
      const Span& span = spans_[size_t(b)];
      const Segment& segment = *segments_[size_t(b)];
      const int64_t keys_size = rounded_up(segment.source_length, kBlock) * d;
      const float* keys = keys_of(segment.cross, i, keys_size, int64_t(segment.source_length) * d);
      kernels.attend({span.count, num_heads, model.head_size, first_head, last_head,
                      pass.joined + span.first * pass.joined_stride, pass.joined_stride, keys, keys + keys_size, d,
                      segment.source_length, nullptr, nullptr, scratch + task * scratch_size,
                      pass.mixed + span.first * pass.stride, pass.stride});
    });
    pass.add_mixed(weights(kCrossOut));
    pass.for_rows([&](int r) {
      pass.leave(r, layer.norms[kCrossNorm]);
      pass.enter(r, layer.norms[kFeedForwardNorm], weights(kInner));
    });
    pass.add_feed_forward(weights(kInner), weights(kOuter));
    const bool is_last = i + 1 == num_layers;
    const Norm& next = is_last ? model.stack_norms[kDecoder][kFinalNorm] : model.layers[size_t(i) + 1].norms[kSelfNorm];
    const Weights& next_weights = is_last ? projection : model.layers[size_t(i) + 1].products[kSelfIn].view();
    pass.for_rows([&](int r) {
      pass.leave(r, layer.norms[kFeedForwardNorm]);
      pass.enter(r, next, next_weights);
    });
  }

  // Logits are not stored, only the best candidates and the sums of exponentials of each row. Each lane processes
  // chunks of the vocabulary in ascending order: ties go to the lower token, independent of the number of lanes.
  const int num_lanes = crew.is_worth(crew.product_ns(n, projection)) ? std::min({crew.num_threads(), num_chunks, kMaxLanes}) : 1;
  const size_t capacity = size_t(num_candidates);
  const size_t num_lists = size_t(num_lanes) * size_t(n);
  Best* best = best_.fit(num_lists);
  Candidate* found = found_.fit(num_lists * capacity);
  masks_.clear();
  for (int b = 0; search && search->num_placeholders > 0 && b < num_segments; ++b) {
    const std::vector<int32_t>& listed = segments_[size_t(b)]->shortlist_ids;  // empty without a shortlist
    const int count = search->num_placeholders;
    int64_t first = search->placeholders[0], last = search->placeholders[count - 1];
    if (!listed.empty()) {
      first = std::lower_bound(listed.begin(), listed.end(), first) - listed.begin();
      last = std::upper_bound(listed.begin(), listed.end(), last) - listed.begin() - 1;
    }
    masks_.push_back({search->placeholders, search->is_masked + int64_t(b) * count, count,
                      listed.empty() ? nullptr : listed.data(), int32_t(first), int32_t(last)});
  }
  for (size_t i = 0; i < num_lists; ++i) {
    const Row& row = rows_[i % size_t(n)];
    best[i] = {found + i * capacity, 0, wanted ? wanted[row.index] : num_candidates, none,
                masks_.empty() ? nullptr : &masks_[size_t(row.segment)]};
  }
  const auto project = [&](int first, int count, const Weights& w, int chunk, int lane) {
    const Rounded& rows = pass.rounded;
    kernels.project({{rows.bytes + first * rows.stride, rows.stride, rows.scales + first}, count, &w, chunk,
                     best + lane * n + first, sums + chunk * sums_stride + first * 32});
  };
  for (int b = 0; b < num_segments; ++b) {  // each shortlist is a small matrix of one segment
    const Span& span = spans_[size_t(b)];
    const PackedWeights& shortlist = segments_[size_t(b)]->shortlist;
    if (!shortlist.is_set()) continue;
    for (int chunk = 0; chunk * kChunk < shortlist.view().panels(); ++chunk)
      project(span.first, span.count, shortlist.view(), chunk, 0);
  }
  for (int b = 0; b < num_segments; ++b) {  // runs of segments without a shortlist
    if (segments_[size_t(b)]->shortlist.is_set()) continue;
    const int first = spans_[size_t(b)].first;
    int end = b;
    while (end + 1 < num_segments && !segments_[size_t(end) + 1]->shortlist.is_set()) ++end;
    const int count = spans_[size_t(end)].first + spans_[size_t(end)].count - first;
    crew.run(num_lanes, crew.product_ns(count, projection), [&](int lane) {
      for (int chunk = lane; chunk < num_chunks; chunk += num_lanes) project(first, count, projection, chunk, lane);
    });
    b = end;
  }

  if (wanted) {
    const size_t size = size_t(num_segments) * size_t(num_rows) * capacity;
    std::fill_n(log_probs, size, none), std::fill_n(candidate_ids, size, 0);
  }
  pass.for_rows([&](int r) {
    const Row& row = rows_[size_t(r)];
    const Segment& segment = *segments_[size_t(row.segment)];
    const bool has_shortlist = segment.shortlist.is_set();
    const int lanes = has_shortlist ? 1 : num_lanes;
    const int chunks = has_shortlist ? (segment.shortlist.view().panels() + kChunk - 1) / kChunk : num_chunks;
    float* values = log_probs + row.index * num_candidates;
    int64_t* tokens = candidate_ids + row.index * num_candidates;
    const bool is_finite = segment.is_finite && pass.is_finite(r);
    const float log_sum = kernels.log_sum(sums + r * 32, sums_stride, chunks);
    const Best* lists[kMaxLanes];
    int taken[kMaxLanes] = {};
    for (int lane = 0; lane < lanes; ++lane) {
      const Best& list = *(lists[lane] = best + lane * n + r);
      if (!list.is_ordered()) std::sort(list.found, list.found + list.count, is_better);
    }
    for (int c = 0; c < lists[0]->capacity; ++c) {
      int winner = -1;
      for (int lane = 0; lane < lanes; ++lane) {
        if (taken[lane] == lists[lane]->count) continue;
        if (winner < 0 || is_better(lists[lane]->found[taken[lane]], lists[winner]->found[taken[winner]])) winner = lane;
      }
      if (winner < 0) {  // end of the shortlist
        values[c] = is_finite ? none : unknown, tokens[c] = 0;
        continue;
      }
      const Candidate& winning = lists[winner]->found[taken[winner]++];
      values[c] = is_finite ? winning.value - log_sum : unknown;
      tokens[c] = has_shortlist ? segment.shortlist_ids[size_t(winning.column)] : winning.column;
    }
  });
  remember(num_rows, token_ids, parents);
  for (const auto& segment : segments_) ++segment->position;
  is_half_stepped_ = false;
}

}  // namespace dragoman
