#include "model.hpp"

namespace dragoman {

Model::Model(const Shape& given, const Kernels& chosen) : shape(given), kernels(chosen) {
  constexpr int kMost = 1 << 24;  // keeps sizes far from overflow
  for (int size : {shape.d_model, shape.num_heads, shape.ffn_size, shape.vocabulary_size, shape.max_positions})
    require(size >= 1 && size <= kMost, "a size of the model is not between 1 and 2^24");
  require(shape.num_layers >= 1 && shape.num_layers <= 1024, "the number of layers is not between 1 and 1024");
  require(shape.d_model <= kMaxInputs && shape.ffn_size <= kMaxInputs, "d_model or ffn_size exceeds 2^16");
  require(shape.d_model % shape.num_heads == 0, "d_model is no multiple of the number of heads");
  d = shape.d_model, head_size = d / shape.num_heads;
  require(head_size % 8 == 0, "the head size is no multiple of 8");
  require(std::isfinite(shape.embedding_factor) && std::isfinite(shape.epsilon) && shape.epsilon > 0,
          "the factor of embeddings or the epsilon of norms is out of range");
  layers.resize(size_t(shape.num_layers));
}

void Model::set_product(int layer, int kind, const int8_t* w, const float* factors, const float* bias, float scale,
                        int zero_point) {
  if (layer == -1) {
    require(embedding != nullptr, "the embedding comes before the projection, which uses its table");
    return projection.pack(embedding.get(), 1, d, embedding_factors.get(), bias, d, shape.vocabulary_size, scale,
                           zero_point, kernels.center);
  }
  require(layer >= 0 && layer < shape.num_layers && kind >= 0 && kind < kNumProducts, "there is no such product");
  const int inputs = kind == kOuter ? shape.ffn_size : d;
  const int outputs = kind == kSelfIn ? 3 * d : kind == kInner ? shape.ffn_size : d;
  layers[size_t(layer)].products[kind].pack(w, outputs, 1, factors, bias, inputs, outputs, scale, zero_point,
                                              kernels.center);
}

void Model::put_norm(Norm& norm, const float* scale, const float* bias) {
  require_finite(scale, d, "a weight of a norm is not finite");
  require_finite(bias, d, "a bias of a norm is not finite");
  for (auto [target, source] : {std::pair(&norm.scale, scale), std::pair(&norm.bias, bias)}) {
    *target = allocated<float>(size_t(rounded_up(d, kPanel)));
    std::memset(target->get(), 0, size_t(rounded_up(d, kPanel)) * sizeof(float));
    std::memcpy(target->get(), source, size_t(d) * sizeof(float));
  }
}

void Model::set_norm(int layer, int kind, const float* scale, const float* bias) {
  if (layer == -1) return put_norm(final_norm, scale, bias);
  require(layer >= 0 && layer < shape.num_layers && kind >= 0 && kind < kNumNorms, "there is no such norm");
  put_norm(layers[size_t(layer)].norms[kind], scale, bias);
}

void Model::set_embedding(const int8_t* table, const float* factors, const float* position_table) {
  const size_t num_rows = size_t(shape.vocabulary_size), num_positions = size_t(shape.max_positions);
  require_finite(factors, shape.vocabulary_size, "a factor of the embedding is not finite");
  require_finite(position_table, int64_t(num_positions) * d, "a position encoding is not finite");
  embedding = allocated<int8_t>(num_rows * size_t(d));
  std::memcpy(embedding.get(), table, num_rows * size_t(d));
  embedding_factors = allocated<float>(num_rows);
  std::memcpy(embedding_factors.get(), factors, num_rows * sizeof(float));
  positions = allocated<float>(num_positions * size_t(d));
  std::memcpy(positions.get(), position_table, num_positions * size_t(d) * sizeof(float));
}

void Model::check_complete() const {
  require(embedding && projection.is_set(), "the embedding or the projection is missing");
  require(!shape.is_pre_norm || final_norm.scale, "the final norm is missing");
  for (const Layer& layer : layers) {
    for (const PackedWeights& product : layer.products) require(product.is_set(), "a product is missing");
    for (const Norm& norm : layer.norms) require(norm.scale != nullptr, "a norm is missing");
  }
}

}  // namespace dragoman
