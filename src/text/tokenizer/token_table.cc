#include "text/tokenizer/token_table.h"

#include "base/text.h"
#include "text/tokenizer/utf8.h"

namespace moracle {

Result<TokenTable> TokenTable::make(const Vocabulary& vocabulary, const AddedTokens& added,
                                    const JsonField& field) {
  TokenTable table;
  table.tokens_.reserve(vocabulary.size() + added.all().size());
  for (const auto& [token, id] : vocabulary) table.entry(id).text = token;
  for (const auto& [token, id] : vocabulary.shadowed()) table.entry(id).text = token;
  for (const AddedToken& token : added.all()) {
    if (table.find(token.id) && vocabulary.id(token.content) != token.id) {
      return field.bad(str("an id for ", shortened(token.content), " that no other token has"));
    }
    table.entry(token.id) = {token.text, token.special};
  }
  return table;
}

TokenText& TokenTable::entry(int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at >= indexes_.size()) indexes_.resize(at + 1);
  if (indexes_[at] == 0) {
    tokens_.emplace_back();
    indexes_[at] = static_cast<uint32_t>(tokens_.size());
  }
  return tokens_[indexes_[at] - 1];
}

const TokenText* TokenTable::find(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= indexes_.size()) return nullptr;
  const uint32_t index = indexes_[static_cast<size_t>(id)];
  return index == 0 ? nullptr : &tokens_[index - 1];
}

}  // namespace moracle
