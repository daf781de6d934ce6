#include <vector>

#include "pass.hpp"

namespace dragoman {
namespace {

struct Source {
  int first, length;  // rows of the source
  int64_t keys;       // offset of the keys for attention
};

// Writes the keys and values of all decoder layers from the last product.
void store_cross(const Model& model, const Pass& pass, const Source& source, float* cross) {
  const int d = model.d;
  const int64_t keys_size = rounded_up(source.length, kBlock) * d, values_size = int64_t(source.length) * d;
  for (int layer = 0; layer < model.shape.num_layers; ++layer) {
    float* keys = keys_of(cross, layer, keys_size, values_size);
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

}  // namespace

void encode(Model& model, int num_sources, const int32_t* lengths, const int64_t* token_ids, float* const* cross,
            int num_threads) {
  const int d = model.d, num_heads = model.shape.num_heads;
  require(!model.encoder_layers.empty(), "the model does not have an encoder");
  std::vector<Source> sources;
  std::vector<int> positions;  // of each row
  int64_t num_keys = 0, widest = kBlock;
  double num_seen = 0;  // visible positions, summed over all rows
  for (int b = 0; b < num_sources; ++b) {
    require(lengths[b] >= 1 && lengths[b] <= model.shape.max_source_positions,
            "a source length is not between 1 and the number of positions");
    const int64_t capacity = rounded_up(lengths[b], kBlock);
    sources.push_back({int(positions.size()), lengths[b], num_keys});
    for (int s = 0; s < lengths[b]; ++s) positions.push_back(s);
    num_keys += capacity * d;
    widest = std::max(widest, capacity);
    num_seen += double(lengths[b]) * lengths[b];
    require(positions.size() <= 1 << 20, "more than 2^20 tokens to encode at once");
  }
  const int n = int(positions.size());
  for (int r = 0; r < n; ++r)
    require(token_ids[r] >= 0 && token_ids[r] < model.num_tokens(kEncoder), "a token id is outside the vocabulary");

  ThreadGroup threads(model, num_threads);
  std::unique_ptr<Scratch> memory = model.take_scratch();
  const int num_columns = std::max(3, 2 * model.shape.num_layers) * d;
  const int64_t scratch_size = 4 * widest;
  Pass pass(model, threads, *memory, n, num_columns,
            num_keys + threads.num_tasks(num_sources, num_heads) * scratch_size);
  float *all_keys = pass.more, *scratch = all_keys + num_keys;
  std::fill_n(all_keys, num_keys, 0.0f);  // positions after the end of a source are multiplied, but hidden

  pass.for_rows([&](int r) {
    pass.embed(r, kEncoder, token_ids[r], model.source_positions.get() + int64_t(positions[r]) * d);
    pass.pre_norm_and_quantize(r, model.encoder_layers[0].norms[kSelfNorm],
                               model.encoder_layers[0].products[kSelfIn].view());
  });
  const auto attend_self = [&](int) {
    pass.for_heads(num_sources, num_seen, [&](const HeadTask& task) {
      const Source& source = sources[task.sequence];
      const float* rows = pass.joined + source.first * pass.joined_stride;
      float* keys = all_keys + source.keys;
      const int begin = task.first_head * model.head_size, end = task.last_head * model.head_size;
      for (int s = 0; s < source.length; ++s) put_key(keys, s, rows + s * pass.joined_stride + d, d, begin, end);
      const KeysValues attended = {
          .keys = keys,
          .values = rows + 2 * d,
          .value_stride = pass.joined_stride,
          .num_positions = source.length,
      };
      pass.attend(task, source.first, source.length, attended, scratch + task.index * scratch_size);
    });
  };
  pass.run_layers(kEncoder, model.memory.view(), attend_self, nullptr);

  pass.store_product(model.memory.view());
  threads.run_parts(num_sources, double(n) * num_columns * 0.5, [&](int begin, int end) {
    for (int b = begin; b < end; ++b) store_cross(model, pass, sources[b], cross[b]);
  });
  model.return_scratch(std::move(memory));
}

}  // namespace dragoman
