#include "serve/grammar/token_bytes.h"

#include <algorithm>

#include "base/try.h"

namespace moracle::serve {

Result<std::vector<std::string>> token_bytes(const Tokenizer& tokenizer, int64_t vocab_size,
                                             std::span<const int32_t> tag_ids) {
  // Decode each token after a letter: some tokenizers drop the space at the start of a text.
  MORACLE_TRY(const std::vector<int32_t> letter, tokenizer.encode("a"));
  MORACLE_TRY(const std::string before, tokenizer.decode(letter));
  const std::vector<int32_t> missing = tokenizer.ids_without_token(vocab_size);
  std::vector<std::string> texts(vocab_size);
  std::vector<int32_t> ids = letter;
  ids.push_back(0);
  for (int32_t id = 0; id < vocab_size; ++id) {
    const bool is_tag = std::find(tag_ids.begin(), tag_ids.end(), id) != tag_ids.end();
    if ((tokenizer.is_special(id) && !is_tag) ||
        std::binary_search(missing.begin(), missing.end(), id))
      continue;
    ids.back() = id;
    MORACLE_TRY(const std::string both, tokenizer.decode(ids));
    if (both.starts_with(before)) texts[id] = both.substr(before.size());
  }
  return texts;
}

}  // namespace moracle::serve
