// What a loaded model holds.
#pragma once

#include <optional>
#include <vector>

#include "models/plan.h"
#include "moracle/model.h"
#include "moracle/moe.h"

namespace moracle {

struct Layer {
  Buffer input_norm, post_norm, q_norm, k_norm;  ///< of q and k empty where there are none
  Linear qkv, o;
  std::optional<Linear> router;  ///< nothing: every token goes to expert 0 with weight 1
  FusedMoe mlp;
};

struct KvCache::State {
  int64_t length = 0;
  int64_t capacity = 0;
  std::vector<Buffer> keys, values;  // per layer [capacity, num_kv_heads, head_dim]
};

struct Model::State {
  DecoderSpec spec;
  int64_t max_num_tokens = 0;
  int64_t weight_bytes = 0;
  std::vector<Choice> choices;
  std::shared_ptr<Workspace> workspace;  // shared by all layers
  std::shared_ptr<const void> owner;     // the checkpoint's files, where the embedding lies in them

  TensorView embedding;
  Buffer embedding_buffer;  // where the device cannot read the file's memory
  Buffer frequencies;       // [head_dim / 2]
  Buffer final_norm;
  std::vector<Layer> layers;
  std::optional<Linear> output;

  // Activations of one step, [max_num_tokens, …].
  Buffer activations_buffer;
  Activations activations;
  Buffer topk_ids, topk_weights, one_expert_ids, one_expert_weights;
  int64_t num_rows = 0;  // of the last step

  Buffer logits_buffer;
  Matrix logits;  // [kMaxLogitRows, vocab_size] f32
  std::vector<float> host_logits;
};

}  // namespace moracle
