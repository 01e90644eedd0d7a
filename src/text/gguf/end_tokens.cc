#include "text/gguf/end_tokens.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

namespace moracle {
namespace {

constexpr std::string_view kEnds[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
    // Behind code that fills a gap begins another file.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"};

bool is_end(std::string_view text) {
  return std::find(std::begin(kEnds), std::end(kEnds), text) != std::end(kEnds);
}

}  // namespace

std::vector<int32_t> end_tokens(const std::vector<std::string>& texts, std::vector<int32_t> named) {
  std::vector<int32_t> ids = std::move(named);
  for (size_t id = 0; id < texts.size(); ++id) {
    if (is_end(texts[id])) ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto find = [&](std::string_view text) {
    return std::find_if(ids.begin(), ids.end(),
                        [&](int32_t id) { return texts[static_cast<size_t>(id)] == text; });
  };
  const auto has = [&](std::string_view text) { return find(text) != ids.end(); };
  // GPT-OSS and Solar end each message of an answer with <|end|>.
  const bool calls = has("<|call|>") || has("<|calls|>");
  if (calls && (has("<|return|>") || has("<|flush|>")) && has("<|end|>"))
    ids.erase(find("<|end|>"));
  // Gemma 4 writes HTML with </s>.
  if (has("<|tool_response>") && has("</s>")) ids.erase(find("</s>"));
  return ids;
}

}  // namespace moracle
