// Layout of the structures that cross the C interface, which Python compares with its own declarations.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <string>

#include "batch.hpp"

namespace dragoman {

struct Field {
  const char* name;
  size_t offset, size;
};

// Appends a line with the size of a structure, then a line with name, offset and size for each field.
inline void append_layout(std::string& text, const char* structure, size_t size, std::initializer_list<Field> fields) {
  text += std::string(structure) + " " + std::to_string(size) + "\n";
  for (const Field& field : fields)
    text += std::string(field.name) + " " + std::to_string(field.offset) + " " + std::to_string(field.size) + "\n";
}

// clang-format off
inline std::string layout() {
  std::string text;
#define FIELD(name) {"Shape." #name, offsetof(Shape, name), sizeof(Shape::name)}
  append_layout(text, "Shape", sizeof(Shape), {
      FIELD(d_model), FIELD(num_heads), FIELD(ffn_size), FIELD(num_layers), FIELD(vocabulary_size),
      FIELD(max_positions), FIELD(is_pre_norm), FIELD(num_encoder_layers), FIELD(max_source_positions),
      FIELD(source_vocabulary_size), FIELD(activation), FIELD(is_rms_norm), FIELD(has_embedding_norm),
      FIELD(is_recurrent), FIELD(embedding_factor), FIELD(epsilon)
  });
#undef FIELD
#define FIELD(name) {"SearchRun." #name, offsetof(SearchRun, name), sizeof(SearchRun::name)}
  append_layout(text, "SearchRun", sizeof(SearchRun), {
      FIELD(log_probs), FIELD(token_ids), FIELD(parents), FIELD(beam_sizes), FIELD(lengths), FIELD(min_tokens),
      FIELD(max_tokens), FIELD(bound_penalties), FIELD(penalties), FIELD(scores_to_beat), FIELD(best_scores),
      FIELD(num_hypotheses), FIELD(num_finished), FIELD(early_stopping), FIELD(has_coverage), FIELD(is_guarded),
      FIELD(forbidden), FIELD(placeholders), FIELD(is_masked), FIELD(min_repeats), FIELD(interrupt),
      FIELD(next_log_probs), FIELD(next_token_ids), FIELD(next_parents), FIELD(next_steps), FIELD(finished),
      FIELD(finished_log_probs), FIELD(finished_eos_log_probs), FIELD(step_seconds), FIELD(max_seconds),
      FIELD(eos_id), FIELD(num_bytes), FIELD(num_rows), FIELD(width), FIELD(num_candidates), FIELD(num_threads),
      FIELD(num_forbidden), FIELD(num_placeholders), FIELD(max_hypotheses), FIELD(num_penalties),
      FIELD(num_repeat_sizes), FIELD(loop_interval), FIELD(max_steps), FIELD(num_steps), FIELD(num_ended),
      FIELD(may_end)
  });
#undef FIELD
  return text;
}
// clang-format on

}  // namespace dragoman
