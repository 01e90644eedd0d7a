#include "models/not_read.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

// The reason why a key is not read. A trailing * matches any text.
struct WhyNotRead {
  const char* why;
  std::vector<std::string_view> keys;
};
const std::vector<WhyNotRead>& reasons() {
  static const std::vector<WhyNotRead> kAll = {
      {"for training only",
       {"*dropout*", "*initializer*", "*aux_loss*", "output_router_logits", "seq_aux",
        "pretraining_tp", "ep_size", "gradient_checkpointing", "rescale_prenorm_residual",
        "*z_loss*", "observer*", "*damp*", "static_groups", "true_sequential"}},
      {"for other programs",
       {"model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "auto_map",
        "_name_or_path",
        "use_cache",
        "return_dict*",
        "tokenizer_class",
        "id2label",
        "label2id",
        "problem_type",
        "pruned_heads",
        "is_decoder",
        "is_encoder_decoder",
        "tf_legacy_loss",
        "torchscript",
        "use_bfloat16",
        "output_attentions",
        "output_hidden_states",
        "add_cross_attention",
        "cross_attention_hidden_size",
        "chunk_size_feed_forward",
        "tie_encoder_decoder",
        "finetuning_task",
        "architectures",
        "producer",
        "version",
        "quantization_status",
        "global_compression_ratio",
        "mamba_ssm_dtype",
        "_attn_implementation*"}},
      {"read when text is generated, or from generation_config.json",
       {"*eos_token_id",
        "*bos_token_id",
        "*pad_token_id",
        "decoder_start_token_id",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "num_beam*",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "length_penalty",
        "diversity_penalty",
        "*repetition_penalty",
        "*no_repeat_ngram_size",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "forced_*",
        "bad_words_ids",
        "*suppress_tokens",
        "prefix"}},
      {"for images, video and sound, which are not run",
       {"vision*", "image*", "video*", "audio*", "boi_*", "eoi_*", "boa_*", "eoa_*", "*mm_*",
        "projector*", "multi_modal*", "multimodal*", "img_*", "process_image*", "mrope_*",
        "media_*", "*_placeholder", "ignore_index"}},
      {"for multi-token prediction, which is not run", {"num_nextn_predict_layers", "*mtp*"}},
  };
  return kAll;
}

// `pattern` may begin and end with *, which stands for any text.
bool fits(std::string_view pattern, std::string_view key) {
  const bool open_start = pattern.starts_with('*'), open_end = pattern.ends_with('*');
  if (open_start) pattern.remove_prefix(1);
  if (open_end) pattern.remove_suffix(1);
  if (open_start && open_end) return key.find(pattern) != key.npos;
  if (open_start) return key.ends_with(pattern);
  return open_end ? key.starts_with(pattern) : key == pattern;
}

// The same for metadata of GGUF, whose keys begin with the part of the program that they concern.
std::string why_metadata(const std::string& key) {
  if (key.starts_with("tokenizer.")) return "read with the tokenizer";
  if (key.starts_with("general.sampling.")) return "read when text is generated";
  for (const char* start : {"general.", "split.", "quantize.", "imatrix."}) {
    if (key.starts_with(start)) return "about the file, for other programs";
  }
  return "not read for this architecture";
}

std::string why(const std::string& place) {
  const std::string_view key = std::string_view(place).substr(place.rfind('.') + 1);
  for (const WhyNotRead& reason : reasons()) {
    const auto is_key = [&](std::string_view pattern) { return fits(pattern, key); };
    if (std::any_of(reason.keys.begin(), reason.keys.end(), is_key)) return reason.why;
  }
  return "not read for this architecture";
}

std::vector<NotRead::Entry> unread_keys(const Checkpoint::State& state) {
  const Config& whole = state.wrapper ? *state.wrapper : state.config;
  std::map<std::string, NotRead::Entry> entries;
  const auto add = [&](const std::string& place, const std::string& reason) {
    entries[reason].why = reason;
    entries[reason].names.push_back(place);
  };
  // Those of GGUF were translated to keys of config.json, or not looked at.
  for (const std::string& place : whole.unread())
    add(place, state.gguf ? why_metadata(place) : why(place));
  if (state.gguf) {
    for (const std::string& key : state.gguf->unread()) add(key, why_metadata(key));
  }
  std::vector<NotRead::Entry> all;
  for (auto& [reason, entry] : entries) all.push_back(std::move(entry));
  return all;
}

// Tensors that no module has, by their names with * for each number.
NotRead::Entry not_described(const Checkpoint& checkpoint) {
  const Checkpoint own = checkpoint.unclaimed_copy();
  for (const int64_t layer : own.moe_layers()) (void)own.moe_layer(layer);  // claims its tensors
  NotRead::Entry entry{"the architecture is unknown: only the experts can be used"};
  for (const std::string& name : own.unclaimed()) {
    std::string pattern;
    for (const char c : name) {
      const bool digit = '0' <= c && c <= '9';
      const bool in_number = digit && (pattern.ends_with('.') || pattern.ends_with('*'));
      if (!in_number)
        pattern += c;
      else if (!pattern.ends_with('*'))
        pattern += '*';
    }
    if (std::find(entry.names.begin(), entry.names.end(), pattern) == entry.names.end())
      entry.names.push_back(pattern);
    entry.num_tensors += 1;
    entry.bytes += static_cast<int64_t>(checkpoint.state().tensors.find(name)->num_bytes());
  }
  return entry;
}

}  // namespace

NotRead not_read(const Checkpoint& checkpoint, const Description* description) {
  const Checkpoint::State& state = checkpoint.state();
  NotRead all{unread_keys(state), {}};
  if (description == nullptr) {
    all.tensors.push_back(not_described(checkpoint));
  } else {
    for (const IgnoredTensors& entry : description->ignored)
      all.tensors.push_back({entry.what, entry.prefixes, entry.num_tensors, entry.bytes});
  }
  NotRead::Entry buffers{"rotary frequencies, which config.json determines",
                         {"*rotary_emb.inv_freq"}};
  for (const auto& [name, entry] : state.tensors.all()) {
    if (!name.ends_with("rotary_emb.inv_freq")) continue;
    buffers.num_tensors += 1;
    buffers.bytes += static_cast<int64_t>(entry.view.num_bytes());
  }
  if (buffers.num_tensors > 0) all.tensors.push_back(std::move(buffers));
  std::erase_if(all.tensors, [](const NotRead::Entry& entry) { return entry.num_tensors == 0; });
  return all;
}

}  // namespace moracle
