// Tokenizer and chat templates of a GGUF file, from its metadata: a flat JSON object with the
// file's keys. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_files.h"
#include "text/tokenizer/parts.h"

namespace moracle {

/// Builds the tokenizer that "tokenizer.ggml.model" names: gpt2 (BPE of bytes), llama
/// (SentencePiece's BPE) or gemma4. Text is not normalized: the format has no key for it. `file`
/// names the metadata in errors. Errors: kUnsupported for other models and unknown pre-tokenizers,
/// by name; kBadFile, also for arrays of different lengths and ids without a token.
Result<TokenizerParts> read_gguf_tokenizer(const nlohmann::json& metadata, const std::string& file);

/// Phi-3's added tokens take the white space behind them. Only the model's name ("general.name")
/// tells.
bool is_gguf_phi3(std::string model_name);

/// Reads "tokenizer.chat_template" and the template with the name tool_use. Errors: no template;
/// wrong types.
Result<ChatFiles> read_gguf_chat(const nlohmann::json& metadata, const std::string& file);

}  // namespace moracle
