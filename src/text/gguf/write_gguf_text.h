// Writes a folder's tokenizer and chat template as metadata of a GGUF file: the inverse of
// gguf_text.h.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle {

struct WrittenGgufText {
  nlohmann::json metadata = nlohmann::json::object();
  std::vector<std::string> left_out;  ///< what the format cannot express, each as a phrase
};

/// `ends`: ids that end an answer, from config.json or generation_config.json. The tokenizer is
/// read back from the metadata: it must give the same text for every id and the same ids for every
/// token's text and for sample texts. A folder without a tokenizer gives one of model "none".
/// Errors (kUnsupported, with the file): a tokenizer.json whose model, normalizer, pre-tokenizer or
/// added tokens GGUF cannot express; no tokenizer.json beside another tokenizer; more tokens than
/// `vocab_size`; texts that would have other ids, with the text.
Result<WrittenGgufText> write_gguf_text(const std::string& folder, int64_t vocab_size,
                                        const std::vector<int32_t>& ends);

}  // namespace moracle
