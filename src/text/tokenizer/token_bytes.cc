#include "text/tokenizer/token_bytes.h"

#include "base/text.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/utf8.h"

namespace moracle {

Result<TokenBytes> TokenBytes::make(const Vocabulary& vocabulary, const AddedTokens& added,
                                    const JsonField& field) {
  TokenBytes table;
  table.entries_.reserve(vocabulary.size() + added.all().size());
  for (const auto& [token, id] : vocabulary) table.entry(id).bytes = bytes_of_token(token);
  for (const AddedToken& token : added.all()) {
    if (table.find(token.id) && vocabulary.id(token.content) != token.id) {
      return field.bad(str("an id for ", shortened(token.content), " that no other token has"));
    }
    table.entry(token.id) = {token.content, token.special};
  }
  return table;
}

TokenBytes::Entry& TokenBytes::entry(int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at >= indexes_.size()) indexes_.resize(at + 1);
  if (indexes_[at] == 0) {
    entries_.emplace_back();
    indexes_[at] = static_cast<uint32_t>(entries_.size());
  }
  return entries_[indexes_[at] - 1];
}

const TokenBytes::Entry* TokenBytes::find(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= indexes_.size()) return nullptr;
  const uint32_t index = indexes_[static_cast<size_t>(id)];
  return index == 0 ? nullptr : &entries_[index - 1];
}

}  // namespace moracle
