// The names of DeepSeek-V4's tensors. Published files, files that transformers saves, and
// transformers' classes have three dialects:
//
//   published   layers.0.attn.wq_a.weight    layers.0.attn.kv_norm.weight   embed.weight
//   saved       model.layers.0.attn.wq_a.…   model.layers.0.attn.norm.…     model.embed_tokens.…
//   classes     model.layers.0.self_attn.q_a_proj.weight  …self_attn.kv_norm.weight  …
#pragma once

#include <string>
#include <string_view>

namespace moracle {

/// The name in transformers' classes. Scales of published files get the name `weight_scale_inv`.
std::string deepseek_v4_name(std::string_view stored);

}  // namespace moracle
