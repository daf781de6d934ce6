#include "model.hpp"

namespace dragoman {

Model::Model(const Shape& given, const Kernels& chosen, double macs_per_ns)
    : shape(given), kernels(chosen), macs_per_ns(macs_per_ns) {
  constexpr int kMost = 1 << 24;  // prevents overflow of sizes
  for (int size : {shape.d_model, shape.num_heads, shape.ffn_size, shape.vocabulary_size, shape.max_positions})
    require(size >= 1 && size <= kMost, "a size of the model is not between 1 and 2^24");
  require(shape.num_layers >= 1 && shape.num_layers <= 1024, "the number of layers is not between 1 and 1024");
  require(shape.d_model <= kMaxInputs && shape.ffn_size <= kMaxInputs, "d_model or ffn_size exceeds 2^16");
  require(shape.d_model % shape.num_heads == 0, "d_model is not a multiple of the number of heads");
  d = shape.d_model;
  head_size = d / shape.num_heads;
  require(head_size % 8 == 0, "the head size is not a multiple of 8");
  require(std::isfinite(shape.embedding_factor) && std::isfinite(shape.epsilon) && shape.epsilon > 0,
          "the factor of embeddings or the epsilon of norms is out of range");
  require(shape.num_encoder_layers >= 0 && shape.num_encoder_layers <= 1024,
          "the number of layers of the encoder is not between 0 and 1024");
  require(shape.num_encoder_layers == 0 || (shape.max_source_positions >= 1 && shape.max_source_positions <= kMost),
          "the longest source is not between 1 and 2^24");
  require(shape.source_vocabulary_size >= 0 && shape.source_vocabulary_size <= kMost,
          "the source vocabulary exceeds 2^24 tokens");
  require(shape.activation >= 0 && shape.activation < kNumActivations, "the activation is unknown");
  require(int64_t(2) * shape.num_layers * d <= kMost, "keys and values of all layers exceed 2^24");
  layers.resize(shape.num_layers);
  encoder_layers.resize(shape.num_encoder_layers);
}

std::vector<Layer>& Model::layers_of(int stack, int layer) {
  require(stack == kDecoder || stack == kEncoder, "the stack is unknown");
  std::vector<Layer>& found = stack == kEncoder ? encoder_layers : layers;
  require(layer >= -1 && layer < int(found.size()) && !found.empty(), "the layer does not exist");
  return found;
}

void Model::set_product(int stack, int layer, int kind, const int8_t* w, const float* factors, const float* bias,
                        float scale, int zero_point, int levels) {
  std::vector<Layer>& own = layers_of(stack, layer);
  if (layer == -1 && stack == kEncoder) {
    const int outputs = 2 * shape.num_layers * d;
    return memory.pack(w, outputs, 1, factors, bias, d, outputs, scale, zero_point, levels, kernels.center);
  }
  if (layer == -1) {
    require(w || embeddings[kDecoder], "a tied projection requires that the embedding is set first");
    return projection.pack(w ? w : embeddings[kDecoder].get(), 1, d, w ? factors : embedding_factors[kDecoder].get(),
                           bias, d, shape.vocabulary_size, scale, zero_point, levels, kernels.center);
  }
  require(kind >= 0 && kind < kNumProducts, "the kind of product is unknown");
  const int inputs = kind == kOuter ? shape.ffn_size : d;
  const int inner = shape.activation == kSwiglu ? 2 * shape.ffn_size : shape.ffn_size;
  const int outputs = kind == kSelfIn ? (is_recurrent(stack) ? 2 : 3) * d : kind == kInner ? inner : d;
  own[layer].products[kind].pack(w, outputs, 1, factors, bias, inputs, outputs, scale, zero_point, levels,
                                 kernels.center);
}

void Model::put_norm(Norm& norm, const float* scale, const float* bias) {
  require_finite(scale, d, "a weight of a norm is not finite");
  if (bias) require_finite(bias, d, "a bias of a norm is not finite");
  for (auto [target, source] : {std::pair(&norm.scale, scale), std::pair(&norm.bias, bias)}) {
    *target = allocated<float>(rounded_up(d, kPanel));
    std::memset(target->get(), 0, rounded_up(d, kPanel) * sizeof(float));
    if (source) std::memcpy(target->get(), source, d * sizeof(float));
  }
}

void Model::set_norm(int stack, int layer, int kind, const float* scale, const float* bias) {
  std::vector<Layer>& own = layers_of(stack, layer);
  require(kind >= 0 && kind < (layer == -1 ? int(kNumStackNorms) : int(kNumNorms)), "the kind of norm is unknown");
  if (layer == -1) return put_norm(stack_norms[stack][kind], scale, bias);
  put_norm(own[layer].norms[kind], scale, bias);
}

void Model::set_embedding(int stack, const int8_t* table, const float* factors) {
  layers_of(stack, -1);
  require(table_of(stack) == stack, "the source shares the embedding table of the target");
  const size_t num_rows = size_t(num_tokens(stack));
  require_finite(factors, int64_t(num_rows), "a factor of the embedding is not finite");
  embeddings[stack] = allocated<int8_t>(num_rows * d);
  std::memcpy(embeddings[stack].get(), table, num_rows * d);
  embedding_factors[stack] = allocated<float>(num_rows);
  std::memcpy(embedding_factors[stack].get(), factors, num_rows * sizeof(float));
}

void Model::set_positions(int stack, const float* table) {
  layers_of(stack, -1);
  const size_t size = size_t(stack == kEncoder ? shape.max_source_positions : shape.max_positions) * size_t(d);
  require_finite(table, int64_t(size), "a position encoding is not finite");
  Memory<float>& own = stack == kEncoder ? source_positions : positions;
  own = allocated<float>(size);
  std::memcpy(own.get(), table, size * sizeof(float));
}

std::unique_ptr<Scratch> Model::take_scratch() {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  if (scratch_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> taken = std::move(scratch_.back());
  scratch_.pop_back();
  return taken;
}

void Model::return_scratch(std::unique_ptr<Scratch> scratch) {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  scratch_.push_back(std::move(scratch));
}

int64_t Model::scratch_bytes() const {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  int64_t total = 0;
  for (const auto& scratch : scratch_) total += scratch->num_bytes();
  return total;
}

void Model::check_stack_norms(int stack) const {
  require(!shape.is_pre_norm || stack_norms[stack][kFinalNorm].scale, "the final norm of a stack is missing");
  require(!shape.has_embedding_norm || stack_norms[stack][kEmbeddingNorm].scale, "the norm of embeddings is missing");
}

void Model::check_complete() const {
  require(embeddings[kDecoder] && positions && projection.is_set(),
          "the embedding, the positions or the projection is missing");
  check_stack_norms(kDecoder);
  for (const Layer& layer : layers) {
    for (int kind = 0; kind < kNumProducts; ++kind)
      require(layer.products[kind].is_set() || (shape.is_recurrent && kind == kSelfOut), "a product is missing");
    for (const Norm& norm : layer.norms) require(norm.scale != nullptr, "a norm is missing");
  }
  if (encoder_layers.empty()) return;
  require(source_positions && memory.is_set() && embeddings[table_of(kEncoder)],
          "the positions, the embedding or the last product of the encoder are missing");
  check_stack_norms(kEncoder);
  for (const Layer& layer : encoder_layers) {
    for (int kind : {kSelfIn, kSelfOut, kInner, kOuter})
      require(layer.products[kind].is_set(), "a product of the encoder is missing");
    for (int kind : {kSelfNorm, kFeedForwardNorm})
      require(layer.norms[kind].scale != nullptr, "a norm of the encoder is missing");
  }
}

}  // namespace dragoman
