#include <vector>

#include "pass.hpp"

namespace dragoman {

void encode(Model& model, int num_sources, const int32_t* lengths, const int64_t* token_ids, float* const* cross,
            int num_threads) {
  const Kernels& kernels = model.kernels;
  const int d = model.d, num_heads = model.shape.num_heads, num_layers = int(model.encoder_layers.size());
  require(num_layers > 0, "the model does not have an encoder");
  struct Source {
    int first, length;  // rows of the source
    int64_t keys;       // offset of the keys for attention
  };
  std::vector<Source> sources;
  std::vector<int> positions;  // of each row
  int64_t num_keys = 0, widest = kBlock;
  double seen = 0;
  for (int b = 0; b < num_sources; ++b) {
    require(lengths[b] >= 1 && lengths[b] <= model.shape.max_source_positions,
            "a source length is not between 1 and the number of positions");
    const int64_t room = rounded_up(lengths[b], kBlock);
    sources.push_back({int(positions.size()), lengths[b], num_keys});
    for (int s = 0; s < lengths[b]; ++s) positions.push_back(s);
    num_keys += room * d, widest = std::max(widest, room), seen += double(lengths[b]) * lengths[b];
    require(positions.size() <= 1 << 20, "more than 2^20 tokens to encode at once");
  }
  const int n = int(positions.size());
  for (int r = 0; r < n; ++r)
    require(token_ids[r] >= 0 && token_ids[r] < model.num_tokens(kEncoder), "a token id is outside the vocabulary");

  Crew crew(model, num_threads);
  std::unique_ptr<Scratch> memory = model.take_scratch();
  const int num_columns = std::max(3, 2 * model.shape.num_layers) * d;
  const int64_t scratch_size = 4 * widest;
  Pass pass(model, crew, *memory, n, num_columns, num_keys + crew.num_tasks(num_sources, num_heads) * scratch_size);
  float *all_keys = pass.more, *scratch = all_keys + num_keys;
  std::fill_n(all_keys, num_keys, 0.0f);  // positions after the end of a source are multiplied, but hidden

  pass.for_rows([&](int r) {
    pass.embed(r, kEncoder, token_ids[r], model.source_positions.get() + int64_t(positions[size_t(r)]) * d);
    pass.enter(r, model.encoder_layers[0].norms[kSelfNorm], model.encoder_layers[0].products[kSelfIn].view());
  });
  for (int i = 0; i < num_layers; ++i) {
    const Layer& layer = model.encoder_layers[size_t(i)];
    const auto weights = [&](ProductKind kind) -> const Weights& { return layer.products[kind].view(); };
    pass.store_product(weights(kSelfIn));
    pass.for_heads(num_sources, seen, [&](int b, int first_head, int last_head, int task) {
      const Source& source = sources[size_t(b)];
      const float* rows = pass.joined + source.first * pass.joined_stride;
      float* keys = all_keys + source.keys;
      for (int s = 0; s < source.length; ++s)
        put_key(keys, s, rows + s * pass.joined_stride + d, d, first_head * model.head_size, last_head * model.head_size);
      kernels.attend({source.length, num_heads, model.head_size, first_head, last_head, rows, pass.joined_stride, keys,
                      rows + 2 * d, pass.joined_stride, source.length, nullptr, nullptr, scratch + task * scratch_size,
                      pass.mixed + source.first * pass.stride, pass.stride});
    });
    pass.add_mixed(weights(kSelfOut));
    pass.for_rows([&](int r) {
      pass.leave(r, layer.norms[kSelfNorm]);
      pass.enter(r, layer.norms[kFeedForwardNorm], weights(kInner));
    });
    pass.add_feed_forward(weights(kInner), weights(kOuter));
    const bool is_last = i + 1 == num_layers;
    const Norm& next = is_last ? model.stack_norms[kEncoder][kFinalNorm] : model.encoder_layers[size_t(i) + 1].norms[kSelfNorm];
    const Weights& next_weights = is_last ? model.memory.view() : model.encoder_layers[size_t(i) + 1].products[kSelfIn].view();
    pass.for_rows([&](int r) {
      pass.leave(r, layer.norms[kFeedForwardNorm]);
      pass.enter(r, next, next_weights);
    });
  }

  pass.store_product(model.memory.view());
  crew.run_parts(num_sources, double(n) * num_columns * 0.5, [&](int begin, int end) {
    for (int b = begin; b < end; ++b) {
      const Source& source = sources[size_t(b)];
      const int64_t keys_size = rounded_up(source.length, kBlock) * d, values_size = int64_t(source.length) * d;
      for (int layer = 0; layer < model.shape.num_layers; ++layer) {
        float* keys = keys_of(cross[b], layer, keys_size, values_size);
        std::fill(keys + keys_size - kBlock * d, keys + keys_size, 0.0f);
        for (int s = 0; s < source.length; ++s) {
          const int row = source.first + s;
          const float* key = pass.joined + row * pass.joined_stride + 2 * layer * d;
          put_key(keys, s, key, d, 0, d);
          std::copy_n(key + d, d, keys + keys_size + s * d);
          // Rounding replaces NaN and infinity by numbers. All scores of such a source must be NaN.
          if (layer == 0 && !pass.is_finite(row)) keys[0] = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
  });
  model.return_scratch(std::move(memory));
}

}  // namespace dragoman
